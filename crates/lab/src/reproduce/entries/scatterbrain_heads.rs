//! Scatterbrain's figures on the attention matrices of models trained here. The unit is a model, trained from its own seed:
//! matrices of one model are not independent of each other.

use regard_kernels::{AttentionOptions, features::FeatureKind, mechanism::Fraction};
use regard_metrics::Correlation;
use regard_report::{Axis, Chart, Column, Data, Format, Mark, Sample, Table};
use regard_tasks::{Class, Failure};

use super::{
    language::{self, CHARACTERS},
    scatterbrain_trained::{by_head, error},
};
use crate::{
    approx::{Captured, Head, Matrix, Method, Plan, capture, measure},
    compare::RunResult,
    reproduce::{Clause, Compared, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence},
};

const TRAINED: &str = "character models trained here for those of IMDb, WikiText-103 and BigGAN";
const GENERATORS: &str = "character models trained here for BigGAN and T2T-ViT";
const DURING: &str = "character models and classifiers trained here, at the end of training, for models of copying, WikiText-103, IMDb and CIFAR-10 \
                      during it";
const TOKENS: &str = "128 tokens for 1,024 and more";
const ROWS: &str = "features with orthogonal rows for independent ones";

pub const CORRELATION: Entry = Entry {
    name: "scatterbrain-correlation",
    paper: Paper::Scatterbrain,
    figures: "table 3, figure 7 (left)",
    claim: "Errors of the ideal sparse approximation (the largest entries of each row) and of the ideal low-rank one (the largest singular \
            values) with equally many parameters are negatively correlated over the attention matrices of a model, by Spearman's, Pearson's and \
            Kendall's coefficient.",
    data: "embedded (tinyshakespeare)",
    models: &[],
    paper_setting: "Every layer and head of models of IMDb (4 layers), WikiText-103 (16 layers) and BigGAN, at checkpoints of every epoch, \
                    medians over 100 samples; p < 0.05 over matrices.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: CHARACTERS[0],
            differences: &[TRAINED, TOKENS, "3 models at the end of training, medians over 4 sequences", MODELS],
            minutes: 7.0,
        },
        Setup {
            scale: Scale::Here,
            setting: CHARACTERS[1],
            differences: &[TRAINED, TOKENS, "5 models at the end of training, medians over 16 sequences", MODELS],
            minutes: 60.0,
        },
    ],
    run: correlation,
};

const MODELS: &str =
    "budget 1/4, with rotary positions; the error is over models, since the 16 matrices of one are not independent";

pub const ORACLE: Entry = Entry {
    name: "scatterbrain-oracle",
    paper: Paper::Scatterbrain,
    figures: "figure 5, first panel",
    claim: "With the split set by the entropy, Scatterbrain's error of attention matrices is on average within 20 % of that of robust PCA with as \
            many parameters, and lower than those of hashing and of random features, its two parts.",
    data: "embedded (tinyshakespeare)",
    models: &[],
    paper_setting: "100 attention matrices of a pretrained BigGAN (4,096 queries) and those of T2T-ViT; sizes of each method searched; up to 2.1 \
                    times lower errors; 100,000 times faster than robust PCA.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: CHARACTERS[0],
            differences: &[GENERATORS, TOKENS, ORACLES, ROWS, TIMES, "one sequence, budgets 1/8 and 1/4"],
            minutes: 10.0,
        },
        Setup {
            scale: Scale::Here,
            setting: CHARACTERS[1],
            differences: &[GENERATORS, TOKENS, ORACLES, ROWS, TIMES, "2 sequences, budgets 1/8, 1/4 and 1/2"],
            minutes: 70.0,
        },
    ],
    run: oracle,
};

const ORACLES: &str = "sizes searched are 1, 2 and 4 rounds of hashing, the best by model; a window and Scatterbrain on it are beside them as an \
                       observation";
const TIMES: &str = "times are not compared";

pub const TRAINING: Entry = Entry {
    name: "scatterbrain-training-errors",
    paper: Paper::Scatterbrain,
    figures: "figure 8",
    claim: "At one budget, with three quarters of it sparse, Scatterbrain has a smaller error than hashing and than random features on most \
            attention matrices of trained models; random features are worst on ListOps.",
    data: "embedded (tinyshakespeare), generated",
    models: &[],
    paper_setting: "Matrices during training for copying, WikiText-103, IMDb and CIFAR-10. Of language models the caption says that random \
                    features are worst, sections 5.2.1 and E.4 that hashing is; of ListOps sections 5.2.2 and E.4 say that random features are.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: CHARACTERS[0],
            differences: &[DURING, TOKENS, CLASSIFIERS[0], ROWS, "SMYRF for Reformer", "4 sequences, budget 1/8"],
            minutes: 9.0,
        },
        Setup {
            scale: Scale::Here,
            setting: CHARACTERS[1],
            differences: &[DURING, TOKENS, CLASSIFIERS[1], ROWS, "SMYRF for Reformer", "16 sequences, budget 1/8"],
            minutes: 65.0,
        },
    ],
    run: training,
};

const CLASSIFIERS: [&str; 2] = [
    "ListOps of 64 to 128 tokens (2 layers of 2 heads, 800 updates, 3 seeds) for the classifiers",
    "ListOps of 64 to 128 tokens (2 layers of 2 heads, 1,600 updates, 3 seeds) for the classifiers",
];

/// Matrices of a run's model on some sequences of its test split.
fn heads(bench: &Workbench, compared: &Compared, run: &RunResult, sequences: usize) -> Result<Vec<Head>, Failure> {
    let (model, data) = bench.open(compared, run)?;
    let heads = capture(&model, &data, &Captured { layers: Vec::new(), sequences })?;
    // An eighth of fewer tokens is too little for two parts.
    Ok(heads.into_iter().filter(|head| head.keys.rows >= LEAST).collect())
}

/// Fewest tokens of a sequence that is approximated.
const LEAST: usize = 64;

/// The character models with rotary positions.
fn rotary(compared: &Compared) -> &[RunResult] {
    compared.candidates().last().copied().unwrap_or_default()
}

fn measured(
    heads: &[Head],
    methods: &[Method],
    options: &AttentionOptions,
    by_entropy: bool,
) -> Result<Vec<Matrix>, Failure> {
    let plan = Plan { heads, methods, options, split_by_entropy: by_entropy, draws: 1, seed: 0 };
    Ok(measure(&plan, &|| ())?.matrices)
}

fn options(budget: &str, share: f64, rounds: usize) -> Result<AttentionOptions, Failure> {
    let mut options = AttentionOptions { budget: Some(budget.parse::<Fraction>()?), ..AttentionOptions::default() };
    options.scatterbrain.sparse_share = share;
    options.support.rounds = rounds;
    // The paper's features.
    options.features.kind = FeatureKind::Plain;
    Ok(options)
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    Sample::of(&values.into_iter().collect::<Vec<_>>()).mean
}

fn correlation(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let compared = language::characters(bench, scale)?;
    let sequences = if scale == Scale::Quick { 4 } else { 16 };
    let options = options("1/4", 0.5, 1)?;
    let mut coefficients: [Vec<f64>; 3] = Default::default();
    let mut marks = Vec::new();
    let number = |name: &str| Column::number(name, Format::Fixed(3));
    let columns = vec![Column::text("seed"), Column::number("matrices", Format::Plain)];
    let names = ["Spearman", "Pearson", "Kendall"];
    let mut table = Table::new(
        "Correlation of errors over the heads of a model",
        columns.into_iter().chain(names.map(number)).collect(),
    )
    .note("Errors of a head: medians over sequences.");
    for (style, run) in rotary(&compared).iter().enumerate() {
        bench.note(&format!("seed {}", run.seed));
        let heads = heads(bench, &compared, run, sequences)?;
        let methods = [Method::TopK, Method::Svd];
        let own = by_head(&measured(&heads, &methods, &options, false)?, sequences, &methods);
        let pairs: Vec<(f64, f64)> = own.iter().map(|head| (head.errors[0], head.errors[1])).collect();
        marks.extend(pairs.iter().map(|&(x, y)| Mark { name: String::new(), x, y, deviation: 0.0, style }));
        let Some(own) = Correlation::of(&pairs) else { continue };
        let own = [own.spearman, own.pearson, own.kendall];
        let mut row = vec![run.seed.to_string().into(), pairs.len().into()];
        row.extend(own.map(Into::into));
        table.push(row);
        coefficients.iter_mut().zip(own).for_each(|(all, own)| all.push(own));
    }
    let clauses = names.iter().zip(&coefficients).map(|(name, values)| {
        Clause::paper(format!("{name}'s coefficient is negative."))
            .below(Estimate::mean(values, confidence(3), "seeds"), 0.0)
    });
    let chart = Chart::new("Sparse and low-rank errors", "A point a head; colours: models", Data::Scatter(marks))
        .axes(Axis::new("error of the largest entries", ""), Axis::new("error of the largest singular values", ""));
    let said =
        names.iter().zip(&coefficients).map(|(name, values)| format!("{name} {:.3}", mean(values.iter().copied())));
    Ok(Finding {
        clauses: clauses.collect(),
        statement: format!("Mean over {} models: {}.", coefficients[0].len(), said.collect::<Vec<_>>().join(", ")),
        tables: vec![table],
        charts: vec![("errors".into(), chart)],
    })
}

/// The methods whose sizes are searched: those of the paper, then another support.
const METHODS: [(&str, Method); 5] = [
    ("hashing", Method::Smyrf),
    ("features", Method::Performer),
    ("Scatterbrain", Method::Scatterbrain),
    ("a window", Method::Local),
    ("Scatterbrain on a window", Method::ScatterbrainLocal),
];
/// Places in it.
const SCATTERBRAIN: usize = 2;
const WINDOW: usize = 3;
const ON_WINDOW: usize = 4;

/// Mean errors of a model's matrices: of robust PCA, and of each method at its best sizes.
struct Beside {
    oracle: f64,
    methods: [f64; 5],
}

impl Beside {
    /// Scatterbrain's error over that of robust PCA. Of means: where a matrix is nearly within reach of robust PCA, its own ratio
    /// says nothing.
    fn ratio(&self) -> f64 {
        self.methods[SCATTERBRAIN] / self.oracle
    }
}

fn beside(heads: &[Head], budget: &str) -> Result<Beside, Failure> {
    let ideal = measured(heads, &[Method::RobustPca], &options(budget, 0.5, 1)?, true)?;
    let mut tried: Vec<[Vec<f64>; 5]> = Vec::new();
    for rounds in [1, 2, 4] {
        // The least budgets have not an entry for each round.
        let matrices = match measured(heads, &METHODS.map(|(_, method)| method), &options(budget, 0.5, rounds)?, true) {
            Err(failure) if failure.class == Class::Budget && rounds > 1 => continue,
            other => other?,
        };
        tried.push(METHODS.map(|(_, method)| matrices.iter().map(|matrix| error(matrix, method)).collect()));
    }
    let best = |at: usize| {
        let own = tried.iter().map(|errors| &errors[at]);
        own.min_by(|one, other| mean(one.iter().copied()).total_cmp(&mean(other.iter().copied()))).expect("tried")
    };
    Ok(Beside {
        oracle: mean(ideal.iter().map(|matrix| error(matrix, Method::RobustPca))),
        methods: [0, 1, 2, 3, 4].map(|at| mean(best(at).iter().copied())),
    })
}

fn oracle(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let compared = language::characters(bench, scale)?;
    let (sequences, budgets): (usize, &[&str]) =
        if scale == Scale::Quick { (1, &["1/8", "1/4"]) } else { (2, &["1/8", "1/4", "1/2"]) };
    let sure = confidence(3 * budgets.len());
    let runs = rotary(&compared);
    let models = runs.iter().map(|run| heads(bench, &compared, run, sequences)).collect::<Result<Vec<_>, _>>()?;
    let mut columns = vec![Column::text("budget"), Column::number("robust PCA", Format::Fixed(4))];
    columns.extend(METHODS.map(|(name, _)| Column::number(name, Format::Fixed(4))));
    columns.push(Column::number("Scatterbrain over robust PCA", Format::Fixed(2)));
    let mut table = Table::new("Error of attention matrices", columns).note(format!(
        "Relative Frobenius error, means over the matrices of {} models; last: mean over models of the ratio of means.",
        runs.len()
    ));
    let (mut clauses, mut observations, mut said) = (Vec::new(), Vec::new(), Vec::new());
    for budget in budgets {
        let mut own = Vec::new();
        for (run, heads) in runs.iter().zip(&models) {
            bench.note(&format!("budget {budget}, seed {}", run.seed));
            own.push(beside(heads, budget)?);
        }
        let over = |value: &dyn Fn(&Beside) -> f64| own.iter().map(value).collect::<Vec<f64>>();
        let estimate = |value: &dyn Fn(&Beside) -> f64| Estimate::mean(&over(value), sure, "seeds");
        clauses.push(
            Clause::paper(format!(
                "At {budget}, Scatterbrain's error over that of robust PCA is at most 1.2: ratio of means."
            ))
            .below(estimate(&Beside::ratio), 1.2),
        );
        for (at, (name, _)) in METHODS.iter().enumerate().take(SCATTERBRAIN) {
            let text = format!("At {budget}, the error of {name} is larger than Scatterbrain's: ratio of means.");
            clauses.push(Clause::paper(text).above(estimate(&|own| own.methods[at] / own.methods[SCATTERBRAIN]), 1.0));
        }
        let text =
            format!("At {budget}, the error of a window is larger than that of Scatterbrain on it: ratio of means.");
        observations.push(Clause::ours(text).above(estimate(&|own| own.methods[WINDOW] / own.methods[ON_WINDOW]), 1.0));
        let means: Vec<f64> = (0..METHODS.len()).map(|at| mean(over(&|own| own.methods[at]))).collect();
        let [oracle, ratio] = [mean(over(&|own| own.oracle)), mean(over(&Beside::ratio))];
        let mut row = vec![(*budget).into(), oracle.into()];
        row.extend(means.iter().map(|mean| (*mean).into()));
        row.push(ratio.into());
        table.push(row);
        said.push(format!(
            "{budget}: robust PCA {oracle:.3}, hashing {:.3}, features {:.3}, Scatterbrain {:.3}, {ratio:.1} times robust PCA; a window {:.3}, \
             Scatterbrain on it {:.3}",
            means[0], means[1], means[SCATTERBRAIN], means[WINDOW], means[ON_WINDOW]
        ));
    }
    clauses.extend(observations);
    Ok(Finding {
        clauses,
        statement: format!("Budget {}. Robust PCA sees the whole matrix; the others do not.", said.join(". Budget ")),
        tables: vec![table],
        charts: Vec::new(),
    })
}

fn training(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let methods = [Method::Smyrf, Method::Performer, Method::Scatterbrain];
    let sequences = if scale == Scale::Quick { 4 } else { 16 };
    let (texts, expressions) = (language::characters(bench, scale)?, language::expressions(bench, scale)?);
    let options = options("1/8", 0.75, 1)?;
    let sure = confidence(3);
    let mut columns = vec![Column::text("models")];
    columns.extend(methods.map(|method| Column::number(method.name(), Format::Fixed(3))));
    columns.push(Column::number("Scatterbrain has the smallest", Format::Percent(1)));
    let mut table = Table::new("Error of attention matrices", columns)
        .note("Relative Frobenius error, means over matrices and models.");
    let (mut clauses, mut said, mut marks) = (Vec::new(), Vec::new(), Vec::new());
    let tasks = [("characters", &texts, rotary(&texts)), ("ListOps", &expressions, &expressions.results[..])];
    for (task, compared, runs) in tasks {
        let (mut smallest, mut worse, mut errors): (Vec<f64>, Vec<f64>, [Vec<f64>; 3]) = Default::default();
        // Expressions have few heads, and many are too short.
        let taken = if task == "ListOps" { 16 * sequences } else { sequences };
        for run in runs {
            bench.note(&format!("{task}, seed {}", run.seed));
            let matrices = measured(&heads(bench, compared, run, taken)?, &methods, &options, false)?;
            let all: Vec<[f64; 3]> =
                matrices.iter().map(|matrix| methods.map(|method| error(matrix, method))).collect();
            smallest.push(mean(all.iter().map(|[one, two, both]| f64::from(u8::from(both < one && both < two)))));
            let means = [0, 1, 2].map(|at| mean(all.iter().map(|own| own[at])));
            worse.push(means[1] / means[0]);
            errors.iter_mut().zip(means).for_each(|(all, mean)| all.push(mean));
            if task == "characters" && run.seed == runs[0].seed {
                marks.extend(matrices.iter().zip(&all).flat_map(|(matrix, own)| {
                    let mark = |(style, y): (usize, &f64)| Mark {
                        name: String::new(),
                        x: matrix.entropy,
                        y: *y,
                        deviation: 0.0,
                        style,
                    };
                    own.iter().enumerate().map(mark).collect::<Vec<_>>()
                }));
            }
        }
        let text = format!("{task}: Scatterbrain has the smallest error of most matrices: its share.");
        clauses.push(Clause::paper(text).above(Estimate::mean(&smallest, sure, "seeds"), 0.5));
        // Of language models the paper says both.
        let text = format!("{task}: the largest error is that of features: ratio to that of hashing.");
        let clause = Clause { of_paper: task == "ListOps", ..Clause::paper(text) };
        clauses.push(clause.above(Estimate::mean(&worse, sure, "seeds"), 1.0));
        let means = errors.each_ref().map(|own| mean(own.iter().copied()));
        let share = mean(smallest.iter().copied());
        let mut row = vec![task.into()];
        row.extend(means.map(Into::into));
        row.push(share.into());
        table.push(row);
        let [sparse, low_rank, both] = means;
        let percent = 100.0 * share;
        said.push(format!(
            "{task}: hashing {sparse:.3}, features {low_rank:.3}, Scatterbrain {both:.3}, smallest on {percent:.0} %"
        ));
    }
    let chart = Chart::new(
        "Errors by entropy in a trained character model",
        "A point a matrix; colours in order: hashing, features, Scatterbrain",
        Data::Scatter(marks),
    )
    .axes(Axis::new("mean entropy of rows", "nat"), Axis::new("relative error", ""));
    Ok(Finding {
        clauses,
        statement: format!("{}.", said.join("; ")),
        tables: vec![table],
        charts: vec![("error-by-entropy".into(), chart)],
    })
}
