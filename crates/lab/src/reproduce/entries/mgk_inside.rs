//! Effects of mixtures of keys inside a trained model: rank of attention matrices, redundancy of heads, likelihood of
//! queries.

use crate::{
    compare::RunResult,
    inspect::{Part, Plan, Recording, Survey, survey},
    moments::Moments,
    reproduce::{Difference, Entry, Finding, Paper, Scale, Verdict, Workbench},
};
use regard_report::{Cell, Column, Format, Table};
use regard_tasks::{Failure, train::Split};

const REDUCED: &str = "ListOps of 20 to 128 tokens, 2 layers of width 64, 2 heads, 1,600 updates of 32 expressions; 50 expressions of the \
                       test split, every matrix of each.";
const PAPER: &str = "LRA ListOps of 500 to 2,000 tokens, 2 layers of width 64, 2 heads, 5,000 updates of 32; 50 expressions of the test \
                     split.";

pub const RANK: Entry = Entry {
    name: "mgk-rank",
    paper: Paper::Mgk,
    figures: "figures 6 and 9",
    claim: "Attention matrices of MGK have a higher numerical rank, as a share of the full rank, than those of softmax.",
    data: "generated",
    models: &[],
    paper_setting: PAPER,
    reduced_setting: REDUCED,
    minutes: [1.0, 190.0],
    run: rank,
};

pub const REDUNDANCY: Entry = Entry {
    name: "mgk-redundancy",
    paper: Paper::Mgk,
    figures: "figures 2 and 7, table 8",
    claim: "Heads of MGK are less redundant than those of softmax: the correlation of their attention weights is lower.",
    data: "generated",
    models: &[],
    paper_setting: PAPER,
    reduced_setting: REDUCED,
    minutes: [1.0, 190.0],
    run: redundancy,
};

pub const LIKELIHOOD: Entry = Entry {
    name: "mgk-likelihood",
    paper: Paper::Mgk,
    figures: "likelihoods of section 3 (0.180 and 0.182 against 0.187 and 0.292)",
    claim: "Queries of a trained MGK model are more likely under its mixture of keys than under a single \
            Gaussian per key, in every layer.",
    data: "generated",
    models: &[],
    paper_setting: PAPER,
    reduced_setting: REDUCED,
    minutes: [1.0, 190.0],
    run: likelihood,
};

const EXPRESSIONS: usize = 50;

/// Surveys of the trained softmax and MGK models, shared by all entries here.
fn surveys(bench: &Workbench, scale: Scale, part: Part) -> Result<[Survey; 2], Failure> {
    let recipe = format!("preset = {:?}\n\n[compare]\nmechanisms = [\"softmax\", \"mgk\"]\n", scale.listops());
    let compared = bench.train("mgk-inside", &recipe)?;
    let plan = Plan { parts: vec![part], layers: Vec::new(), heads: Vec::new(), matrices: 1000 };
    let of = |run: &RunResult| -> Result<Survey, Failure> {
        let (model, data) = bench.open(&compared, run)?;
        let recordings = Recording::all(&model, &data, Split::Test, EXPRESSIONS)?;
        Ok(survey(recordings, &plan, false, &|| ())?)
    };
    let candidates = compared.candidates();
    Ok([of(&candidates[0][0])?, of(&candidates[1][0])?])
}

/// First minus second, for independent values.
fn difference(first: &Moments, second: &Moments) -> Difference {
    let square = |moments: &Moments| moments.deviation().unwrap_or(f64::INFINITY).powi(2) / moments.count as f64;
    Difference { value: first.mean - second.mean, error: (square(first) + square(second)).sqrt() }
}

/// One row per layer and mechanism.
fn table(title: &str, value: &str, rows: &[(&str, &str, Moments)]) -> Table {
    let columns = vec![Column::text("mechanism"), Column::text("layer"), Column::number(value, Format::Fixed(3))];
    let mut table = Table::new(title, columns).note("Mean and deviation.");
    for (mechanism, layer, moments) in rows {
        table.push(vec![(*mechanism).into(), (*layer).into(), moments.into()]);
    }
    table
}

const NAMES: [&str; 2] = ["softmax", "MGK"];

fn rank(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let surveys = surveys(bench, scale, Part::Rank)?;
    let mut rows = Vec::new();
    for (name, survey) in NAMES.iter().zip(&surveys) {
        for attention in &survey.attentions {
            let shares = attention.ranks.iter().map(|rank| rank.rank as f64 / rank.full as f64);
            rows.push((*name, attention.name.as_str(), Moments::of_finite(shares)));
        }
    }
    let of = |wanted: &str| Moments::joined(rows.iter().filter(|row| row.0 == wanted).map(|row| &row.2));
    let [softmax, mgk] = NAMES.map(of);
    let difference = difference(&mgk, &softmax);
    Ok(Finding {
        verdict: difference.above(0.0),
        statement: format!(
            "Singular values above 1e-6 of the largest, as a share of all: MGK {:.3}, softmax {:.3} over {} matrices each; difference {:+.3} \
             \u{b1} {:.3} (standard error).",
            mgk.mean, softmax.mean, mgk.count, difference.value, difference.error
        ),
        tables: vec![table("Numerical rank of attention matrices", "share of full rank", &rows)],
        charts: Vec::new(),
    })
}

fn redundancy(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let surveys = surveys(bench, scale, Part::Redundancy)?;
    let mut rows = Vec::new();
    for (name, survey) in NAMES.iter().zip(&surveys) {
        for attention in &survey.attentions {
            let pairs = attention.redundancy.iter().map(|pair| &pair.correlation);
            rows.push((*name, attention.name.as_str(), Moments::joined(pairs)));
        }
    }
    let of = |wanted: &str| Moments::joined(rows.iter().filter(|row| row.0 == wanted).map(|row| &row.2));
    let [softmax, mgk] = NAMES.map(of);
    let difference = difference(&softmax, &mgk);
    Ok(Finding {
        verdict: difference.above(0.0),
        statement: format!(
            "Mean correlation of the weights of two heads: MGK {:.3}, softmax {:.3}; difference {:+.3} \u{b1} {:.3} (standard error over \
             expressions and layers, one seed).",
            mgk.mean, softmax.mean, difference.value, difference.error
        ),
        tables: vec![table("Correlation of heads' attention weights", "correlation", &rows)],
        charts: Vec::new(),
    })
}

fn likelihood(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let [_, mgk] = surveys(bench, scale, Part::Likelihood)?;
    let columns = vec![
        Column::text("layer"),
        Column::number("head", Format::Plain),
        Column::number("mixture", Format::Fixed(4)),
        Column::number("one Gaussian a key", Format::Fixed(4)),
        Column::number("one Gaussian", Format::Fixed(4)),
    ];
    let mut table = Table::new("Negative log-likelihood of queries, nats a channel", columns)
        .note("Mean and deviation over queries.");
    let (mut verdicts, mut said) = (Vec::new(), Vec::new());
    for attention in &mgk.attentions {
        for (head, one) in attention.heads.iter().zip(&attention.likelihood) {
            let row = [&one.mixture, &one.per_key, &one.single].map(Cell::from);
            table.push([attention.name.as_str().into(), (*head).into()].into_iter().chain(row).collect());
        }
        let joined =
            |part: fn(&crate::inspect::Likelihood) -> &Moments| Moments::joined(attention.likelihood.iter().map(part));
        let (mixture, per_key) = (joined(|one| &one.mixture), joined(|one| &one.per_key));
        verdicts.push(difference(&per_key, &mixture).above(0.0));
        said.push(format!("{}: {:.4} against {:.4}", attention.name, mixture.mean, per_key.mean));
    }
    Ok(Finding {
        verdict: Verdict::all(verdicts),
        statement: format!("Under the mixture against one Gaussian a key, nats a channel: {}.", said.join("; ")),
        tables: vec![table],
        charts: Vec::new(),
    })
}
