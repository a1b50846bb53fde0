//! One table per part.

use regard_report::{Cell, Column, Format, Table};

use super::super::{
    redundancy::{OutputSimilarity, Redundancy},
    survey::Attention,
};
use crate::moments::Moments;

fn fixed(name: &str) -> Column {
    Column::number(name, Format::Fixed(3))
}

fn percent(name: &str) -> Column {
    Column::number(name, Format::Percent(1))
}

fn mean(moments: &Moments) -> Cell {
    moments.value().map_or(Cell::Empty, Cell::Number)
}

/// Prepends the columns that identify a head.
fn of_heads(columns: impl IntoIterator<Item = Column>) -> Vec<Column> {
    let mut all = vec![Column::text("attention"), Column::number("head", Format::Plain)];
    all.extend(columns);
    all
}

/// Entropy per head.
pub fn entropy(attentions: &[Attention]) -> Table {
    let columns = of_heads([fixed("entropy").unit("nat"), percent("of ln(visible keys)")]);
    let mut table = Table::new("Entropy of attention", columns);
    for attention in attentions {
        for (head, entropy) in attention.heads.iter().zip(&attention.entropy) {
            let (nats, normalised) = (Cell::from(&entropy.nats), Cell::from(&entropy.normalised));
            table.push(vec![attention.name.as_str().into(), (*head).into(), nats, normalised]);
        }
    }
    table.note("Mean over queries and sequences with the deviation; 0 % looks at one key, 100 % at all alike.")
}

/// Ranks per attention.
pub fn rank(attentions: &[Attention]) -> Table {
    let columns = vec![
        Column::text("attention"),
        Column::number("matrices", Format::Plain),
        Column::number("tokens", Format::Fixed(0)),
        percent("rank"),
        percent("effective rank"),
        percent("directions of 90 %"),
    ];
    let mut table = Table::new("Numerical rank of attention matrices, of the full rank", columns);
    for attention in attentions.iter().filter(|attention| !attention.ranks.is_empty()) {
        let over = |of: &dyn Fn(&super::super::rank::MatrixRank) -> f64| {
            Cell::from(&Moments::of_finite(attention.ranks.iter().map(|rank| of(rank) / rank.full as f64)))
        };
        table.push(vec![
            attention.name.as_str().into(),
            attention.ranks.len().into(),
            mean(&Moments::of_finite(attention.ranks.iter().map(|rank| rank.full as f64))),
            over(&|rank| rank.rank as f64),
            over(&|rank| rank.effective),
            over(&|rank| rank.directions as f64),
        ]);
    }
    table.note(
        "Rank: singular values above 1e-6 of the largest. Effective rank: exp of the entropy of singular values divided by \
         their sum. Directions of 90 %: singular values that hold 90 % of the squared ones. Mean over matrices with the \
         deviation.",
    )
}

/// Redundancy per attention, over all pairs of heads.
pub fn redundancy(attentions: &[Attention]) -> Table {
    let columns = vec![
        Column::text("attention"),
        Column::number("pairs", Format::Plain),
        fixed("weights apart"),
        fixed("weights correlate"),
        fixed("outputs apart"),
        fixed("relative"),
        fixed("outputs correlate"),
        fixed("alignment"),
    ];
    let mut table = Table::new("Redundancy of heads", columns);
    for attention in attentions.iter().filter(|attention| !attention.redundancy.is_empty()) {
        let over = |of: &dyn Fn(&Redundancy) -> Moments| {
            let all: Vec<Moments> = attention.redundancy.iter().map(of).collect();
            Cell::from(&Moments::joined(&all))
        };
        let outputs = |of: fn(&OutputSimilarity) -> Moments| over(&move |pair| of(&pair.outputs));
        table.push(vec![
            attention.name.as_str().into(),
            attention.redundancy.len().into(),
            over(&|pair| pair.distance),
            over(&|pair| pair.correlation),
            outputs(|outputs| outputs.distance),
            outputs(|outputs| outputs.relative),
            outputs(|outputs| outputs.correlation),
            outputs(|outputs| outputs.alignment),
        ]);
    }
    table.note(
        "Mean over pairs of heads and sequences with the deviation. Weights apart: root mean square over queries of the \
         distance of two rows, at most 1.414. Relative: outputs apart by their norm, 1.414 for orthogonal ones. Alignment: \
         linear CKA, 1 for outputs alike up to a rotation.",
    )
}

/// Likelihood per head.
pub fn likelihood(attentions: &[Attention]) -> Table {
    let columns = of_heads([fixed("mixture"), fixed("one Gaussian a key"), fixed("one Gaussian")]);
    let mut table = Table::new("Negative log-likelihood of queries under keys (nat a channel)", columns);
    for attention in attentions {
        for (head, likelihood) in attention.heads.iter().zip(&attention.likelihood) {
            if likelihood.mixture.count == 0 {
                continue;
            }
            let logs = [&likelihood.mixture, &likelihood.per_key, &likelihood.single].map(Cell::from);
            table.push([attention.name.as_str().into(), (*head).into()].into_iter().chain(logs).collect());
        }
    }
    table.note("Mean over queries and sequences with the deviation. Without a mixture the first two are the same.")
}

/// Parameters and norms per head; empty columns are left out.
pub fn learned(attentions: &[Attention]) -> Table {
    let columns = of_heads([
        Column::text("priors"),
        Column::text("variances"),
        Column::text("|shift|"),
        fixed("|k - k'|"),
        percent("gate"),
        fixed("|q|"),
        fixed("|k|"),
        fixed("|v|"),
        fixed("|out|"),
    ]);
    let list = |values: &[f64]| {
        let text: Vec<String> = values.iter().map(|value| format!("{value:.3}")).collect();
        if text.is_empty() { Cell::Empty } else { text.join(", ").into() }
    };
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for attention in attentions {
        for (head, own) in attention.heads.iter().zip(&attention.learned) {
            rows.push(vec![
                attention.name.as_str().into(),
                (*head).into(),
                list(&own.priors),
                list(&own.variances),
                list(&own.shifts),
                mean(&own.apart),
                own.gate.map_or(Cell::Empty, Cell::Number),
                mean(&own.queries),
                mean(&own.keys),
                mean(&own.values),
                mean(&own.outputs),
            ]);
        }
    }
    let kept: Vec<usize> = (0..columns.len()).filter(|at| rows.iter().any(|row| row[*at] != Cell::Empty)).collect();
    let columns = kept.iter().map(|at| columns[*at].clone()).collect();
    let mut table = Table::new("What heads have learned", columns);
    for row in rows {
        table.push(kept.iter().map(|at| row[*at].clone()).collect());
    }
    table.note(
        "Priors, variances and shifts a component. |k - k'|: distance of two components of a key. |q|, |k|, |v|, |out|: mean \
         length of queries, keys, values and outputs of the head.",
    )
}
