//! Scatterbrain's figure 5, second panel, on matrices of its generative process: estimators by entropy.

use std::ops::Range;

use regard_kernels::{AttentionOptions, mechanism::Fraction};
use regard_report::{Axis, Chart, Column, Data, Format, Sample, Scale as Ticks, Series, Table};
use regard_tasks::Failure;

use super::{scatterbrain_theory::temperature, scatterbrain_trained::FEATURES};
use crate::{
    approx::{Head, Matrix, MatrixErrors, Mean, Method, Plan, Process, measure},
    reproduce::{Clause, Entry, Estimate, Finding, Looks, Paper, Scale, Setup, Workbench, confidence},
};

pub const ESTIMATORS: Entry = Entry {
    name: "scatterbrain-estimators",
    paper: Paper::Scatterbrain,
    figures: "figure 5, second panel",
    claim: "Random features have a smaller error than hashing on matrices of high entropy and a larger one on those of low entropy; in between \
            Scatterbrain has a smaller error than both.",
    data: "none",
    models: &[],
    paper_setting: "Attention matrices of BigGAN, of 4,096 queries, approximated by SMYRF, Performer and Scatterbrain, by entropy.",
    setups: &[Setup {
        scale: Scale::Quick,
        setting: "256 tokens of 64 channels in 8 clusters of spread 0.02, budget 1/4, one round; 15 to 150 draws at each of 3 temperatures.",
        differences: DIFFERENCES,
        minutes: 3.0,
    }],
    run: estimators,
};

const DIFFERENCES: &[&str] = &[
    "matrices of the generative process of section 3.2 for those of BigGAN",
    "256 tokens for 4,096",
    "in between for all matrices of BigGAN; the ends, at which the paper's figure has few, are observations",
    FEATURES,
    "the best of three splits at each temperature, 1/4, 1/2 and 3/4 of it sparse, chosen on 8 other draws",
    "temperatures by the entropy of the rows of squared weights, which are shares of the squared norm: 90, 50 and 10 % of the way from that \
     of a cluster to that of all tokens",
];

const METHODS: [Method; 3] = [Method::Smyrf, Method::Performer, Method::Scatterbrain];
const TEMPERATURES: [(&str, f64); 3] = [("hot", 0.9), ("between", 0.5), ("cold", 0.1)];
const PROCESS: Process = Process { tokens: 256, width: 64, clusters: 8, spread: 0.02, seed: 0 };

/// Measured matrices, by temperature.
type Drawn = [Vec<Matrix>; 3];

/// Splits that are tried, and the draws on which one is chosen.
const SPLITS: [f64; 3] = [0.25, 0.5, 0.75];
const CHOOSING: Range<u64> = 1_000_000..1_000_008;

/// Errors of one kind, one per draw of the method.
type Part = fn(&MatrixErrors) -> &Vec<f64>;

/// Errors of a method, one per draw: of the weights, or of `exp(beta q.k)`.
fn errors(matrices: &[Matrix], method: Method, part: Part) -> Vec<f64> {
    let of = |matrix: &Matrix| {
        let errors = matrix.errors.iter().find(|errors| errors.method == method);
        errors.map_or(f64::NAN, |errors| Sample::of(part(errors)).mean)
    };
    matrices.iter().map(of).collect()
}

fn weights(errors: &MatrixErrors) -> &Vec<f64> {
    &errors.matrix
}

fn unnormalised(errors: &MatrixErrors) -> &Vec<f64> {
    &errors.unnormalised
}

fn options(share: f64) -> Result<AttentionOptions, Failure> {
    let mut options = AttentionOptions { budget: Some("1/4".parse::<Fraction>()?), ..AttentionOptions::default() };
    options.support.rounds = 1;
    options.scatterbrain.sparse_share = share;
    Ok(options)
}

fn measured(beta: f64, draws: Range<u64>, share: f64, methods: &[Method]) -> Result<Vec<Matrix>, Failure> {
    let seed = draws.start;
    let heads: Vec<Head> = draws.map(|number| PROCESS.head(beta, number)).collect();
    let options = options(share)?;
    let plan = Plan { heads: &heads, methods, options: &options, split_by_entropy: false, draws: 1, seed };
    Ok(measure(&plan, &|| ())?.matrices)
}

/// The split with the smallest mean error of the weights.
fn split(beta: f64) -> Result<f64, Failure> {
    let mut tried = Vec::new();
    for share in SPLITS {
        let matrices = measured(beta, CHOOSING, share, &[Method::Scatterbrain])?;
        tried.push((share, Sample::of(&errors(&matrices, Method::Scatterbrain, weights)).mean));
    }
    let best = tried.iter().min_by(|(_, one), (_, other)| one.total_cmp(other));
    Ok(best.map_or(0.5, |(share, _)| *share))
}

fn estimators(bench: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let betas = TEMPERATURES.map(|(_, place)| temperature(&PROCESS, place));
    let mut splits = [0.5; 3];
    for (own, beta) in splits.iter_mut().zip(betas) {
        *own = split(beta)?;
    }
    let mut drawn = Drawn::default();
    let draw = |drawn: &mut Drawn, draws: Range<usize>| -> Result<(), Failure> {
        for ((own, beta), share) in drawn.iter_mut().zip(betas).zip(splits) {
            bench.note(&format!("beta {beta}, draws {} to {}", draws.start + 1, draws.end));
            own.extend(measured(beta, draws.start as u64..draws.end as u64, share, &METHODS)?);
            if bench.stopped() {
                return Err(Failure::interrupted("stopped"));
            }
        }
        Ok(())
    };
    let judge = |drawn: &Drawn, sure: f64| {
        let [hot, between, cold] = drawn;
        let worse = |matrices: &[Matrix], worse, better| {
            Estimate::paired(&errors(matrices, worse, weights), &errors(matrices, better, weights), sure, "draws")
        };
        let [sparse, low_rank, both] = METHODS;
        let plain = |worse| {
            let [worse, better] = [worse, both].map(|method| errors(between, method, unnormalised));
            Estimate::paired(&worse, &better, sure, "draws")
        };
        vec![
            Clause::paper("At high entropy, hashing has the larger error than features.")
                .above(worse(hot, sparse, low_rank), 0.0),
            Clause::paper("At low entropy, features have the larger error than hashing.")
                .above(worse(cold, low_rank, sparse), 0.0),
            Clause::paper("In between, hashing has a larger error than both.").above(worse(between, sparse, both), 0.0),
            Clause::paper("In between, features have a larger error than both.")
                .above(worse(between, low_rank, both), 0.0),
            Clause::ours("At high entropy, features have a larger error than both.")
                .above(worse(hot, low_rank, both), 0.0),
            Clause::ours("At low entropy, hashing has a larger error than both.").above(worse(cold, sparse, both), 0.0),
            Clause::ours("In between, hashing has a larger error of exp(beta q.k) than both.")
                .above(plain(sparse), 0.0),
            Clause::ours("In between, features have a larger error of exp(beta q.k) than both.")
                .above(plain(low_rank), 0.0),
        ]
    };
    let clauses = Looks { first: 15, most: 150 }.until_decided(confidence(4), &mut drawn, draw, judge)?;
    Ok(finding(clauses, &drawn, betas, splits))
}

fn finding(clauses: Vec<Clause>, drawn: &Drawn, betas: [f64; 3], splits: [f64; 3]) -> Finding {
    let mut columns = vec![Column::text("entropy"), Column::number("beta", Format::Fixed(2))];
    columns.push(Column::number("mean entropy of rows", Format::Fixed(3)).unit("nat"));
    columns.push(Column::number("sparse share", Format::Fixed(2)));
    columns.push(Column::text("of"));
    columns.extend(METHODS.map(|method| Column::number(method.name(), Format::Fixed(3))));
    let mut table = Table::new("Errors", columns)
        .note(format!("Relative Frobenius error, mean over {} draws with its standard error.", drawn[0].len()));
    let mut said = Vec::new();
    let mut points: [Vec<(f64, f64)>; 3] = Default::default();
    let settings = TEMPERATURES.into_iter().zip(betas).zip(splits).zip(drawn);
    for ((((name, _), beta), share), matrices) in settings {
        let entropy = Sample::of(&matrices.iter().map(|matrix| matrix.entropy).collect::<Vec<_>>()).mean;
        let parts: [(&str, Part); 2] = [("weights", weights), ("exp(beta q.k)", unnormalised)];
        for (what, part) in parts {
            let mut row = vec![name.into(), beta.into(), entropy.into(), share.into(), what.into()];
            let means = METHODS.map(|method| Mean::of(errors(matrices, method, part)));
            row.extend(means.map(Into::into));
            table.push(row);
        }
        let means = METHODS.map(|method| Sample::of(&errors(matrices, method, weights)).mean);
        points.iter_mut().zip(means).for_each(|(own, mean)| own.push((entropy, mean)));
        let [sparse, low_rank, both] = means;
        said.push(format!("{name} (beta {beta}): {sparse:.3}, {low_rank:.3}, {both:.3}"));
    }
    let series = METHODS.iter().zip(points).enumerate();
    let series = series.map(|(style, (method, points))| Series::new(method.name(), style, points)).collect();
    let chart =
        Chart::new("Error of the weights by entropy", "Mean over draws at each temperature", Data::Lines(series))
            .axes(Axis::new("mean entropy of rows", "nat"), Axis::new("relative error", "").scale(Ticks::Log));
    Finding {
        clauses,
        statement: format!("Errors of the weights by hashing, features and both: {}.", said.join("; ")),
        tables: vec![table],
        charts: vec![("error-by-entropy".into(), chart)],
    }
}
