//! Scatterbrain's figures on matrices of its generative process.

use regard_kernels::{AttentionOptions, mechanism::Fraction};
use regard_report::{Axis, Chart, Column, Data, Format, Mark, Scale as Ticks, Series, Table};
use regard_tasks::Failure;

use crate::{
    approx::{Head, Mean, Measured, Method, Plan, Process, Row, measure},
    reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Verdict, Workbench, confidence},
};

const SYNTHETIC: &str = "matrices of the generative process of the paper's analysis for those of trained models";
const MATRICES: &[Setup] = &[
    Setup {
        scale: Scale::Quick,
        setting: "256 tokens of 64 channels in 8 clusters of spread 0.02, budget 1/4, 8 draws at each temperature.",
        differences: &[SYNTHETIC, "256 tokens for 1,024"],
        minutes: 0.2,
    },
    Setup {
        scale: Scale::Here,
        setting: "256 tokens of 64 channels in 8 clusters of spread 0.02, budget 1/4, 16 draws at each temperature.",
        differences: &[SYNTHETIC, "256 tokens for 1,024"],
        minutes: 0.4,
    },
];

pub const REGIMES: Entry = Entry {
    name: "scatterbrain-regimes",
    paper: Paper::Scatterbrain,
    figures: "figure 4 and theorem 1",
    claim: "For exp(beta q.k) of the clustered process, random features have a smaller error than hashing at \
            high temperature, hashing has a smaller error than random features at low temperature, and their \
            combination has a smaller error than both in between.",
    data: "none",
    models: &[],
    paper_setting: "The error of each entry of exp(q.k) by its size, and matrices of trained models by entropy.",
    setups: MATRICES,
    run: regimes,
};

pub const CORRELATION: Entry = Entry {
    name: "scatterbrain-correlation",
    paper: Paper::Scatterbrain,
    figures: "figure 5 and table 3",
    claim: "Errors of sparse and of low-rank approximation are negatively correlated across matrices: their rank \
            correlation is negative, for oracles and for hashing against random features.",
    data: "none",
    models: &[],
    paper_setting: "Attention matrices of models trained on IMDb, WikiText-103 and ImageNet, padded to 1,024 tokens; oracles at one budget.",
    setups: MATRICES,
    run: correlation,
};

pub const ORACLE: Entry = Entry {
    name: "scatterbrain-oracle",
    paper: Paper::Scatterbrain,
    figures: "figure 1",
    claim: "Scatterbrain's error on the attention matrix is within 20 % of that of robust PCA at the same \
            budget.",
    data: "none",
    models: &[],
    paper_setting: "100 attention matrices of a pretrained BigGAN, approximated by Scatterbrain and by robust PCA.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "128 tokens of 64 channels in 8 clusters of spread 0.02, budget 1/4, 2 draws at each temperature.",
            differences: &[SYNTHETIC, "128 tokens"],
            minutes: 0.1,
        },
        Setup {
            scale: Scale::Here,
            setting: "128 tokens of 64 channels in 8 clusters of spread 0.02, budget 1/4, 4 draws at each temperature.",
            differences: &[SYNTHETIC, "128 tokens"],
            minutes: 0.3,
        },
    ],
    run: oracle,
};

/// Inverse temperatures, from hot to cold.
const BETAS: [f64; 3] = [0.25, 2.0, 12.0];

fn measured(methods: &[Method], betas: &[f64], tokens: usize, draws: u64) -> Result<Measured, Failure> {
    let process = Process { tokens, width: 64, clusters: 8, spread: 0.02, seed: 0 };
    let heads: Vec<Head> =
        betas.iter().flat_map(|beta| (0..draws).map(|draw| process.head(*beta, draw)).collect::<Vec<_>>()).collect();
    let mut options = AttentionOptions { budget: Some("1/4".parse::<Fraction>()?), ..AttentionOptions::default() };
    options.support.rounds = 1;
    options.scatterbrain.sparse_share = 0.5;
    let plan = Plan { heads: &heads, methods, options: &options, split_by_entropy: false, draws: 1, seed: 0 };
    Ok(measure(&plan, &|| ())?)
}

fn draws(scale: Scale) -> u64 {
    match scale {
        Scale::Quick => 8,
        Scale::Here | Scale::Paper => 16,
    }
}

/// Error of a method at a temperature.
fn error(measured: &Measured, beta: f64, method: Method, part: fn(&Row) -> &Option<Mean>) -> Mean {
    let group = format!("beta = {beta}");
    let row = measured.rows.iter().find(|row| row.group == group && row.method == method);
    row.and_then(|row| *part(row)).unwrap_or(Mean { mean: f64::NAN, standard_error: None, count: 0 })
}

/// First minus second.
fn difference(first: Mean, second: Mean, confidence: f64) -> Estimate {
    let square = |mean: Mean| mean.standard_error.unwrap_or(f64::INFINITY).powi(2);
    let (error, draws) = ((square(first) + square(second)).sqrt(), first.count.min(second.count));
    Estimate::of_error(first.mean - second.mean, Some(error), draws.saturating_sub(1), confidence, "draws")
}

fn table(measured: &Measured, what: &str, part: fn(&Row) -> &Option<Mean>) -> Table {
    let columns = vec![
        Column::text("matrices"),
        Column::number("entropy", Format::Fixed(3)).unit("nat"),
        Column::text("method"),
        Column::text("sizes"),
        Column::number("error", Format::Fixed(4)),
    ];
    let mut table =
        Table::new(what, columns).note("Relative Frobenius error, mean over draws with its standard error.");
    for row in &measured.rows {
        table.push(vec![
            row.group.as_str().into(),
            row.entropy.into(),
            row.method.name().into(),
            row.sizes.as_str().into(),
            (*part(row)).into(),
        ]);
    }
    table
}

fn chart(measured: &Measured, methods: &[Method], title: &str, part: fn(&Row) -> &Option<Mean>) -> Chart {
    let line = |(style, method): (usize, &Method)| {
        let rows = measured.rows.iter().filter(|row| row.method == *method);
        Series::new(method.name(), style, rows.filter_map(|row| Some((row.entropy, part(row).as_ref()?.mean))))
    };
    let series = methods.iter().enumerate().map(line).collect();
    let subtitle = "Mean over draws at each temperature, from cold to hot";
    Chart::new(title, subtitle, Data::Lines(series))
        .axes(Axis::new("mean entropy of rows", "nat"), Axis::new("relative error", "").scale(Ticks::Log))
}

fn regimes(_: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let methods = [Method::Smyrf, Method::Performer, Method::Scatterbrain];
    let measured = measured(&methods, &BETAS, 256, draws(scale))?;
    let part: fn(&Row) -> &Option<Mean> = |row| &row.unnormalised;
    let at = |beta, method| error(&measured, beta, method, part);
    let [hot, between, cold] = BETAS;
    let less = |text: &str, beta, better, worse| {
        Clause::paper(text).above(difference(at(beta, worse), at(beta, better), confidence(4)), 0.0)
    };
    let clauses = vec![
        less("When hot, features have a smaller error than hashing.", hot, Method::Performer, Method::Smyrf),
        less("When cold, hashing has a smaller error than features.", cold, Method::Smyrf, Method::Performer),
        less("In between, both have a smaller error than hashing.", between, Method::Scatterbrain, Method::Smyrf),
        less("In between, both have a smaller error than features.", between, Method::Scatterbrain, Method::Performer),
    ];
    let said = BETAS.map(|beta| {
        let [sparse, low_rank, both] = methods.map(|method| at(beta, method));
        let of = |mean: Mean| format!("{:.3} \u{b1} {:.3}", mean.mean, mean.standard_error.unwrap_or(f64::NAN));
        format!("beta {beta}: hashing {}, features {}, both {}", of(sparse), of(low_rank), of(both))
    });
    Ok(Finding {
        clauses,
        statement: format!("{}.", said.join("; ")),
        tables: vec![table(&measured, "Error of exp(beta q.k)", part)],
        charts: vec![(
            "error-by-entropy".into(),
            chart(&measured, &methods, "Error of exp(beta q.k) by entropy", part),
        )],
    })
}

fn correlation(_: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let methods = [Method::TopK, Method::Svd, Method::Smyrf, Method::Performer];
    let measured = measured(&methods, &[0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0], 256, draws(scale))?;
    let number = |name: &str| Column::number(name, Format::Fixed(3));
    let mut table = Table::new(
        "Correlation of errors over matrices",
        vec![
            Column::text("sparse"),
            Column::text("low-rank"),
            number("Spearman"),
            number("Pearson"),
            number("Kendall"),
        ],
    );
    let mut clauses = Vec::new();
    let mut said = Vec::new();
    let mut marks = Vec::new();
    for (style, related) in measured.related.iter().enumerate() {
        let Some(correlation) = &related.correlation else { continue };
        let names = (related.sparse.name(), related.low_rank.name());
        let estimate = Estimate::rank_correlation(correlation.spearman, related.matrices, confidence(2), "matrices");
        clauses.push(
            Clause::paper(format!("Errors of {} and {} oppose each other.", names.0, names.1)).below(estimate, 0.0),
        );
        said.push(format!(
            "{} and {}: {:.3} over {} matrices",
            names.0, names.1, correlation.spearman, related.matrices
        ));
        table.push(vec![
            names.0.into(),
            names.1.into(),
            correlation.spearman.into(),
            correlation.pearson.into(),
            correlation.kendall.into(),
        ]);
        marks.extend(related.pairs.iter().map(|&(x, y)| Mark { name: String::new(), x, y, deviation: 0.0, style }));
    }
    let chart =
        Chart::new("Sparse and low-rank errors", "A point a matrix; colours: pairs of methods", Data::Scatter(marks))
            .axes(Axis::new("error of the sparse method", ""), Axis::new("error of the low-rank method", ""));
    Ok(Finding {
        clauses,
        statement: format!("Spearman: {}.", said.join("; ")),
        tables: vec![table],
        charts: vec![("errors".into(), chart)],
    })
}

fn oracle(_: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let methods = [Method::RobustPca, Method::ScatterbrainLocal, Method::Scatterbrain];
    let draws = if scale == Scale::Quick { 2 } else { 4 };
    let measured = measured(&methods, &BETAS, 128, draws)?;
    let part: fn(&Row) -> &Option<Mean> = |row| &row.matrix;
    let mut said = Vec::new();
    let verdicts: Vec<Verdict> = BETAS
        .into_iter()
        .map(|beta| {
            let [ideal, ..] = methods.map(|method| error(&measured, beta, method, part));
            let ours = methods[1..].iter().map(|method| error(&measured, beta, *method, part));
            let best = ours.min_by(|one, other| one.mean.total_cmp(&other.mean)).expect("two methods");
            said.push(format!("beta {beta}: {:.4} against {:.5}", best.mean, ideal.mean));
            let scaled = |mean: Mean| Mean { mean: 1.2 * mean.mean, ..mean };
            Clause::paper("").above(difference(scaled(ideal), best, confidence(1)), 0.0).verdict
        })
        .collect();
    // The claim is about a set of matrices: one temperature at which it holds suffices.
    let verdict = match () {
        () if verdicts.contains(&Verdict::Holds) => Verdict::Holds,
        () if verdicts.contains(&Verdict::NotDecided) => Verdict::NotDecided,
        () => Verdict::DoesNotHold,
    };
    Ok(Finding {
        clauses: vec![Clause::paper("Scatterbrain's error is within 20 % of that of robust PCA.").judged(verdict)],
        statement: format!(
            "The better Scatterbrain against robust principal components: {}. The oracle sees the whole matrix, which is nearly of \
             the rank that it may keep.",
            said.join("; ")
        ),
        tables: vec![table(&measured, "Error of the attention matrix", part)],
        charts: vec![(
            "error-by-entropy".into(),
            chart(&measured, &methods, "Error of the attention matrix by entropy", part),
        )],
    })
}
