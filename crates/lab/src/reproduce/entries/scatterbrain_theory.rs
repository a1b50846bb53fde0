//! Scatterbrain's theorem 1: which approximations can suffice at which temperature, shown by oracles.

use std::collections::BTreeMap;

use regard_report::{Axis, Chart, Column, Data, Format, Sample, Scale as Ticks, Series, Table};
use regard_tasks::Failure;

use crate::{
    approx::{Dense, Process, keep_in_rows},
    reproduce::{Clause, Entry, Estimate, Finding, Looks, Paper, Scale, Setup, Workbench, confidence},
};

pub const REGIMES: Entry = Entry {
    name: "scatterbrain-regimes",
    paper: Paper::Scatterbrain,
    figures: "theorem 1",
    claim: "M = exp(beta Q Q^T) of clustered tokens, approximated as well as any matrix of a kind can: at high temperature a low-rank \
            matrix comes near and a sparse one does not; at low temperature a sparse one does and a low-rank one does not; in between \
            neither does, and the sum of both, with as many parameters, does.",
    data: "none",
    models: &[],
    paper_setting: "A theorem on n tokens in clusters of a bounded size, n to infinity: near is an error of any share of n at high \
                    and middle temperature, at low temperature of any share of exp(-beta (1 - eps) / 2), as printed; far is no less than such a share.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "128 clusters of 4 tokens of 256 channels, spread 0.02 (n = 512; 256 beside it); rank 4, or 8 entries a row, or blocks of 4 \
                      with rank 2, each 8 n parameters; 4 to 16 draws.",
            differences: DIFFERENCES,
            minutes: 0.5,
        },
        Setup {
            scale: Scale::Here,
            setting: "256 clusters of 4 tokens of 256 channels, spread 0.02 (n = 1,024; 256 beside it); rank 4, or 8 entries a row, or blocks of \
                      4 with rank 2, each 8 n parameters; 4 to 32 draws.",
            differences: DIFFERENCES,
            minutes: 3.0,
        },
    ],
    run: regimes,
};

const DIFFERENCES: &[&str] = &[
    "near is an error below a quarter of the norm of M, far one above half of it",
    "n / 4 clusters: the square root of n clusters of bounded size, as printed, are not n tokens",
    "far, alone, is judged with 8 n parameters and with n^1.5; the theorem has any o(n^2) entries, and any rank that leaves a share of n, though its \
     proof needs one below the number of clusters",
    "temperatures by the entropy of the rows of squared weights, which are shares of the squared norm: 99.5, 50 and 0.5 % of the way from \
     that of a cluster to that of all tokens",
];

/// Tokens of a cluster, and the rank that has as many parameters as twice as many entries a row.
const CLUSTER: usize = 4;
/// Errors below this are near, and above this far.
const NEAR: f64 = 0.25;
const FAR: f64 = 0.5;

/// The temperatures: where the entropy of a row of squared weights lies between that of its cluster and that of all.
const TEMPERATURES: [(&str, f64); 3] = [("hot", 0.995), ("between", 0.5), ("cold", 0.005)];
/// The draw by which temperatures are chosen; it is none of those measured.
const CHOOSING: u64 = u64::MAX;

/// The inverse temperature at which the entropy of the rows of squared weights, `exp(2 beta q.k)` over their sum, lies at
/// `place` on the way from that of a cluster (0) to that of all tokens (1).
///
/// Squared weights are shares of the squared Frobenius norm, so that this is where clusters count as much as all else in
/// the error, which the usual entropy is not.
pub(super) fn temperature(process: &Process, place: f64) -> f64 {
    let products = process.head(1.0, CHOOSING).logits();
    let [cluster, all] = [process.tokens / process.clusters, process.tokens].map(|count| (count as f64).ln());
    let wanted = cluster + place * (all - cluster);
    let (mut low, mut high) = (0.0, 64.0);
    for _ in 0..30 {
        let middle = 0.5 * (low + high);
        let entropy = products.map(|x| 2.0 * middle * x).softmax().mean_row_entropy();
        if entropy > wanted { low = middle } else { high = middle }
    }
    // To two digits, as it is printed.
    (50.0 * (low + high)).round() / 100.0
}

/// Errors relative to the norm of `M`, of the best matrix of each kind.
#[derive(Clone, Copy, Debug)]
struct Errors {
    low_rank: f64,
    sparse: f64,
    /// The same with `n^1.5` parameters.
    larger_rank: f64,
    less_sparse: f64,
    /// With a rank of one for each cluster.
    rank_of_clusters: f64,
    /// An upper bound: the clusters exact, and a rank found by iteration outside them.
    both: f64,
}

/// The error of one kind.
type Kind = fn(&Errors) -> f64;

/// Errors by number of tokens and temperature, one per draw.
type Drawn = BTreeMap<(usize, &'static str), Vec<Errors>>;

fn process(tokens: usize) -> Process {
    Process { tokens, width: 256, clusters: tokens / CLUSTER, spread: 0.02, seed: 0 }
}

fn errors(process: &Process, beta: f64, draw: u64) -> Result<Errors, Failure> {
    let products = process.head(1.0, draw).logits();
    let matrix = products.map(|x| (beta * x).exp());
    let norm = matrix.norm();
    // Tokens of a cluster are by far the nearest.
    let clusters = keep_in_rows(&products, CLUSTER).map(|x| f64::from(x != 0.0));
    let both = beside(&matrix, &clusters, CLUSTER / 2);
    let sparse = |entries: usize| matrix.zip(&keep_in_rows(&matrix, entries), |all, kept| all - kept).norm() / norm;
    let root = (process.tokens as f64).sqrt() as usize;
    let [low_rank, larger_rank, rank_of_clusters] =
        beyond_ranks(&matrix, [CLUSTER, root / 2, process.clusters])?.map(|error| error / norm);
    Ok(Errors {
        low_rank,
        sparse: sparse(2 * CLUSTER),
        larger_rank,
        less_sparse: sparse(root),
        rank_of_clusters,
        both: both / norm,
    })
}

/// The errors of the best matrices of these ranks.
pub(super) fn beyond_ranks<const N: usize>(matrix: &Dense, ranks: [usize; N]) -> Result<[f64; N], Failure> {
    let Some(values) = matrix.singular_values() else {
        return Err(Failure::new(regard_tasks::Class::Numeric, "singular values did not converge"));
    };
    Ok(ranks.map(|rank| values.iter().skip(rank).map(|value| value * value).sum::<f64>().sqrt()))
}

/// The error of a matrix that is exact where `support` is 1 and of a low rank elsewhere. Entries on the support are free, so
/// they are filled with those of the low-rank matrix, which is fitted again.
fn beside(matrix: &Dense, support: &Dense, rank: usize) -> f64 {
    let outside = support.data.iter().filter(|on| **on == 0.0).count() as f64;
    let sum: f64 = matrix.zip(support, |x, on| x * (1.0 - on)).data.iter().sum();
    let mut low_rank = matrix.map(|_| sum / outside);
    for _ in 0..3 {
        let filled = choose(support, &low_rank, matrix);
        low_rank = projected(&filled, rank);
    }
    choose(support, matrix, &low_rank).zip(matrix, |x, exact| x - exact).norm()
}

/// `on` where the support is 1, else `off`.
fn choose(support: &Dense, on: &Dense, off: &Dense) -> Dense {
    let mut chosen = off.clone();
    for (at, own) in chosen.data.iter_mut().enumerate() {
        if support.data[at] != 0.0 {
            *own = on.data[at];
        }
    }
    chosen
}

/// A symmetric matrix projected on an approximate basis of its first eigenvectors, by orthogonal iteration.
fn projected(matrix: &Dense, rank: usize) -> Dense {
    // Any start but one orthogonal to them: ones, then alternating signs of growing period.
    let mut basis =
        Dense::from_fn(
            matrix.rows,
            rank,
            |i, r| if (i >> r.saturating_sub(1)) % 2 == 0 || r == 0 { 1.0 } else { -1.0 },
        );
    for _ in 0..12 {
        basis = orthonormal(&matrix.product(&basis, false));
    }
    let transposed = Dense::from_fn(rank, matrix.columns, |r, j| basis.data[j * rank + r]);
    basis.product(&transposed.product(matrix, false), false)
}

/// Columns made orthonormal one after the other (Gram and Schmidt).
fn orthonormal(matrix: &Dense) -> Dense {
    let mut columns: Vec<Vec<f64>> = Vec::new();
    for c in 0..matrix.columns {
        let mut own: Vec<f64> = (0..matrix.rows).map(|i| matrix.data[i * matrix.columns + c]).collect();
        for other in &columns {
            let dot: f64 = own.iter().zip(other).map(|(x, y)| x * y).sum();
            own.iter_mut().zip(other).for_each(|(x, y)| *x -= dot * y);
        }
        let norm = own.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
        own.iter_mut().for_each(|x| *x /= norm);
        columns.push(own);
    }
    Dense::from_fn(matrix.rows, matrix.columns, |i, c| columns[c][i])
}

fn regimes(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let (few, many, most) = if scale == Scale::Quick { (256, 512, 16) } else { (256, 1024, 32) };
    let settings: Vec<(Process, [f64; 3])> = [few, many]
        .into_iter()
        .map(|tokens| (process(tokens), TEMPERATURES.map(|(_, place)| temperature(&process(tokens), place))))
        .collect();
    let mut drawn = Drawn::new();
    let draw = |drawn: &mut Drawn, draws: std::ops::Range<usize>| {
        for number in draws {
            for (process, betas) in &settings {
                for ((name, _), beta) in TEMPERATURES.into_iter().zip(betas) {
                    if bench.stopped() {
                        return Err(Failure::interrupted("stopped"));
                    }
                    let errors = errors(process, *beta, number as u64)?;
                    drawn.entry((process.tokens, name)).or_default().push(errors);
                }
            }
            bench.note(&format!("draw {}", number + 1));
        }
        Ok(())
    };
    let judge = |drawn: &Drawn, sure: f64| {
        let of = |name, kind: Kind| {
            let values: Vec<f64> = drawn[&(many, name)].iter().map(kind).collect();
            Estimate::mean(&values, sure, "draws")
        };
        let grown = |kind: Kind| {
            let at = |tokens| drawn[&(tokens, "between")].iter().map(kind).collect::<Vec<f64>>();
            Estimate::paired(&at(many), &at(few), sure, "draws")
        };
        let [low_rank, sparse, both]: [Kind; 3] = [|own| own.low_rank, |own| own.sparse, |own| own.both];
        let [rank, entries]: [Kind; 2] = [|own| own.larger_rank, |own| own.less_sparse];
        vec![
            Clause::paper("Hot, low-rank comes near (1 a).").below(of("hot", low_rank), NEAR),
            Clause::paper("Hot, sparse stays far (1 b).").above(of("hot", sparse), FAR),
            Clause::paper("Between, both come near (2 a).").below(of("between", both), NEAR),
            Clause::paper("Between, low-rank stays far (2 b).").above(of("between", low_rank), FAR),
            Clause::paper("Between, sparse stays far (2 c).").above(of("between", sparse), FAR),
            Clause::paper("Cold, low-rank stays far (3 a).").above(of("cold", low_rank), FAR),
            Clause::paper("Cold, sparse comes near (3 b).").below(of("cold", sparse), NEAR),
            Clause::paper("With n^1.5 parameters: hot, sparse stays far (1 b).").above(of("hot", entries), FAR),
            Clause::paper("With n^1.5 parameters: between, low-rank stays far (2 b).").above(of("between", rank), FAR),
            Clause::paper("With n^1.5 parameters: between, sparse stays far (2 c).").above(of("between", entries), FAR),
            Clause::paper("With n^1.5 parameters: cold, low-rank stays far (3 a).").above(of("cold", rank), FAR),
            Clause::ours(
                "Between, a rank of one for each cluster, a quarter of the tokens, stays far, as the theorem reads.",
            )
            .above(of("between", |own| own.rank_of_clusters), FAR),
            Clause::ours("Between, the error of low-rank alone does not fall with the tokens.")
                .above(grown(low_rank), -0.05),
            Clause::ours("Between, the error of sparse alone does not fall with the tokens.")
                .above(grown(sparse), -0.05),
        ]
    };
    let clauses = Looks { first: 4, most }.until_decided(confidence(11), &mut drawn, draw, judge)?;
    let mut columns = vec![Column::number("tokens", Format::Plain), Column::text("temperature")];
    columns.push(Column::number("beta", Format::Fixed(2)));
    let kinds: [(&str, Kind); 6] = [
        ("low-rank", |own| own.low_rank),
        ("sparse", |own| own.sparse),
        ("both", |own| own.both),
        ("low-rank, n^1.5", |own| own.larger_rank),
        ("sparse, n^1.5", |own| own.less_sparse),
        ("a rank a cluster", |own| own.rank_of_clusters),
    ];
    columns.extend(kinds.map(|(name, _)| Column::number(name, Format::Fixed(3))));
    let mut table = Table::new("Error relative to the norm of exp(beta q.k)", columns).note(
        "Mean over draws; the first three with 8 n parameters; both: clusters exact, rank 2 elsewhere, an upper bound of the best.",
    );
    let mut said = Vec::new();
    for (process, betas) in &settings {
        for ((name, _), beta) in TEMPERATURES.into_iter().zip(betas) {
            let own = &drawn[&(process.tokens, name)];
            let mean = |kind: Kind| Sample::of(&own.iter().map(kind).collect::<Vec<_>>()).mean;
            let means = kinds.map(|(_, kind)| mean(kind));
            let mut row = vec![process.tokens.into(), name.into(), (*beta).into()];
            row.extend(means.map(Into::into));
            table.push(row);
            if process.tokens == many {
                let [low_rank, sparse, both, ..] = means;
                said.push(format!("{name} (beta {beta}): {low_rank:.3}, {sparse:.3}, {both:.3}"));
            }
        }
    }
    Ok(Finding {
        clauses,
        statement: format!("Errors of low-rank, sparse and both at {many} tokens: {}.", said.join("; ")),
        charts: vec![("error-by-temperature".into(), curve(&settings[1].0, bench)?)],
        tables: vec![table],
    })
}

/// The three errors of one draw over temperatures.
fn curve(process: &Process, bench: &Workbench) -> Result<Chart, Failure> {
    let mut points = Vec::new();
    for beta in [0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0] {
        bench.note(&format!("beta {beta}"));
        points.push((beta, errors(process, beta, 0)?));
    }
    let line = |name: &str, style, kind: Kind| {
        Series::new(name, style, points.iter().map(|(beta, errors)| (*beta, kind(errors))))
    };
    let series = vec![
        line("low-rank", 0, |own| own.low_rank),
        line("sparse", 1, |own| own.sparse),
        line("both", 2, |own| own.both),
    ];
    let subtitle = format!("{} tokens in clusters of {CLUSTER}, one draw", process.tokens);
    let axes = (Axis::new("inverse temperature", ""), Axis::new("error relative to the norm", "").scale(Ticks::Log));
    Ok(Chart::new("Best approximations with equally many parameters", subtitle, Data::Lines(series))
        .axes(axes.0, axes.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entropy of the squared weights lies where it was asked for, to the two digits of the temperature.
    #[test]
    fn temperatures_have_the_entropy_asked_for() {
        let process = process(256);
        let products = process.head(1.0, CHOOSING).logits();
        let temperatures = TEMPERATURES.map(|(_, place)| (place, temperature(&process, place)));
        assert!(temperatures.is_sorted_by_key(|(_, beta)| *beta), "{temperatures:?}");
        for (place, beta) in temperatures {
            let entropy = products.map(|x| 2.0 * beta * x).softmax().mean_row_entropy();
            let seen = (entropy - 4f64.ln()) / 64f64.ln();
            assert!((seen - place).abs() < 0.01, "{beta}: {seen} for {place}");
        }
    }

    /// Blocks of 2 on a matrix of rank 1: exact with rank 1 outside the blocks.
    #[test]
    fn entries_on_the_support_are_free() {
        let of = |i: usize, j: usize| (1.0 + 0.1 * i as f64) * (1.0 + 0.1 * j as f64);
        let support = Dense::from_fn(12, 12, |i, j| f64::from(u8::from(i / 2 == j / 2)));
        let matrix = Dense::from_fn(12, 12, |i, j| if i / 2 == j / 2 { 40.0 } else { of(i, j) });
        assert!(beside(&matrix, &support, 1) < 0.02 * matrix.norm());
        assert!(beyond_ranks(&matrix, [1]).unwrap()[0] > 0.5 * matrix.norm());
    }
}
