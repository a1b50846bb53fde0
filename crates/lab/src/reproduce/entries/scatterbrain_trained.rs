//! Scatterbrain's figures on the attention matrices of a trained encoder.

use burn::tensor::Device;
use regard_kernels::{AttentionOptions, mechanism::Fraction};
use regard_nn::models::TokenBatch;
use regard_pretrained::{
    Folder, LoadOptions, Pretrained, PretrainedError, Tokenizer,
    run::{SmartDocument, read_text, smart_documents},
};
use regard_report::{Axis, Chart, Column, Data, Format, Mark, Sample, Scale as Ticks, Series, Table};
use regard_tasks::Failure;

use crate::{
    approx::{EntryErrors, Head, Matrix, Measured, Method, Plan, capture_folder, measure},
    folder::{check_memory, class},
    reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence},
    swap::Example,
};

pub(super) const MODEL: &str = "minilm";
pub(super) const DATA: &str = "all-MiniLM-L6-v2 and the Cranfield collection, by --models and --data";
pub(super) const ONE_MODEL: &str = "one sentence encoder (all-MiniLM-L6-v2) for the paper's models";
const HEADS: &str =
    "medians of each head over its sequences; intervals over heads, as if the heads of one model were independent";
const SPLIT: &str = "robust PCA with half of the budget for each part, in at most 300 rounds, for the best mix";
/// What other entries on these matrices differ in besides.
pub(super) const FEATURES: &str = "hyperbolic features with orthogonal rows for plain ones with independent rows";
pub(super) const DOCUMENTS: &str = "cranfield/cran.all.1400.gz";

pub const ORACLES: Entry = Entry {
    name: "scatterbrain-trained",
    paper: Paper::Scatterbrain,
    figures: "figures 1 (left) and 7 (right)",
    claim: "On attention matrices of a trained model, with equally many parameters: the error of the largest entries rises with the entropy of the \
            rows, and that of the largest singular values falls with it; the former is the smaller at low entropy, the latter at high \
            entropy; robust PCA has a smaller error than both over the whole range, by most in the middle.",
    data: DATA,
    models: &[MODEL],
    paper_setting: "Matrices of a 4-layer model of IMDb, and of models of WikiText-103 and ImageNet; 1,024 tokens; errors fall by up to 95 %.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "All 72 heads on 2 sequences of 128 tokens, budget 1/8.",
            differences: &[ONE_MODEL, "128 tokens for 1,024", HEADS, SPLIT],
            minutes: 2.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "All 72 heads on 2 sequences of 256 tokens, budget 1/8.",
            differences: &[ONE_MODEL, "256 tokens for 1,024", HEADS, SPLIT],
            minutes: 20.0,
        },
    ],
    run: oracles,
};

pub const ENTRIES: Entry = Entry {
    name: "scatterbrain-entries-trained",
    paper: Paper::Scatterbrain,
    figures: "beyond the paper: figure 4 on a trained model",
    claim: "On attention matrices of a trained model, where vectors are far longer than those of figure 4: among the small entries of exp(tau q.k), the \
            lower half of its range, Scatterbrain has a smaller mean squared error than hashing, and among the large ones a smaller one than \
            random features.",
    data: DATA,
    models: &[MODEL],
    paper_setting: "Vectors on the unit sphere alone, as theorem 2 assumes; see scatterbrain-entries.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "All 72 heads on 2 sequences of 128 tokens, budget 1/8, 2 draws.",
            differences: &[ONE_MODEL, "128 tokens, 2 draws", FEATURES],
            minutes: 0.3,
        },
        Setup {
            scale: Scale::Here,
            setting: "All 72 heads on 2 sequences of 256 tokens, budget 1/8, 4 draws.",
            differences: &[ONE_MODEL, "256 tokens, 4 draws", FEATURES],
            minutes: 3.0,
        },
    ],
    run: entries,
};

/// Sequences whose matrices are captured.
const SEQUENCES: usize = 2;

/// The sentence encoder.
pub(super) struct Encoder {
    pub model: Pretrained,
    pub tokenizer: Tokenizer,
}

impl Encoder {
    pub fn open(bench: &Workbench) -> Result<Self, Failure> {
        let path = bench.model(MODEL)?;
        let folder = Folder::open(&path).map_err(of_folder)?;
        check_memory(&folder, None, folder.architecture().context)?;
        let read = || {
            let model = folder.model(LoadOptions::default(), &Device::flex())?;
            Ok(Self { model, tokenizer: folder.tokenizer()? })
        };
        read().map_err(of_folder)
    }

    /// Its heads on sequences of documents, one after the other.
    pub fn heads(&self, documents: &[SmartDocument], sequences: usize, length: usize) -> Result<Vec<Head>, Failure> {
        let text: Vec<&str> = documents.iter().map(|document| &document.text[..]).collect();
        let ids = self.tokenizer.encode(&text.join(" "), false, None).map_err(of_folder)?.ids;
        let rows = ids.chunks_exact(length).take(sequences);
        let rows = rows.map(|row| TokenBatch::full(row.iter().map(|id| *id as i32).collect::<Vec<_>>(), 1));
        let examples = rows.map(|row| row.map(Example::Text)).collect::<Result<Vec<_>, _>>()?;
        if examples.len() < sequences {
            return Err(Failure::data(format!(
                "{DOCUMENTS} is shorter than {sequences} x {length} tokens; fetch it again"
            )));
        }
        Ok(capture_folder(&self.model, &examples, &[])?)
    }
}

pub(super) fn of_folder(error: PretrainedError) -> Failure {
    Failure::new(class(&error), error)
}

pub(super) fn read<T>(
    bench: &Workbench,
    name: &str,
    parse: fn(&str) -> Result<Vec<T>, String>,
) -> Result<Vec<T>, Failure> {
    let path = bench.data_file(name)?;
    let text = read_text(&path).map_err(of_folder)?;
    parse(&text).map_err(|problem| Failure::data(format!("{}: {problem}", path.display())))
}

pub(super) fn options() -> Result<AttentionOptions, Failure> {
    let mut options = AttentionOptions { budget: Some("1/8".parse::<Fraction>()?), ..AttentionOptions::default() };
    options.support.rounds = 1;
    options.scatterbrain.sparse_share = 0.5;
    Ok(options)
}

fn approximated(bench: &Workbench, scale: Scale, methods: &[Method], draws: usize) -> Result<Measured, Failure> {
    let length = if scale == Scale::Quick { 128 } else { 256 };
    let heads = Encoder::open(bench)?.heads(&read(bench, DOCUMENTS, smart_documents)?, SEQUENCES, length)?;
    let options = options()?;
    let plan = Plan { heads: &heads, methods, options: &options, split_by_entropy: false, draws, seed: 0 };
    Ok(measure(&plan, &|| ())?)
}

/// The mean error of a method on a matrix.
pub(super) fn error(matrix: &Matrix, method: Method) -> f64 {
    let errors = matrix.errors.iter().find(|errors| errors.method == method);
    errors.map_or(f64::NAN, |errors| Sample::of(&errors.matrix).mean)
}

/// A head with the medians of its errors over sequences.
#[derive(Clone, Debug)]
pub(super) struct HeadErrors {
    /// Its layer.
    pub group: String,
    /// Entropy of its rows.
    pub entropy: f64,
    /// Error of each method, in the order asked for.
    pub errors: Vec<f64>,
}

/// Medians over the sequences of each head. Within a layer the matrices of one sequence follow each other.
pub(super) fn by_head(matrices: &[Matrix], sequences: usize, methods: &[Method]) -> Vec<HeadErrors> {
    let median = |values: Vec<f64>| Estimate::median(&values, 0.95, "").value;
    let of_layer = |own: &[Matrix]| {
        let heads = own.len() / sequences;
        let over = |head: usize, value: &dyn Fn(&Matrix) -> f64| {
            median((0..sequences).map(|sequence| value(&own[sequence * heads + head])).collect())
        };
        let head = |head| HeadErrors {
            group: own[0].group.clone(),
            entropy: over(head, &|matrix| matrix.entropy),
            errors: methods.iter().map(|method| over(head, &|matrix| error(matrix, *method))).collect(),
        };
        (0..heads).map(head).collect::<Vec<_>>()
    };
    matrices.chunk_by(|one, other| one.group == other.group).flat_map(of_layer).collect()
}

fn oracles(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let methods = [Method::TopK, Method::Svd, Method::RobustPca];
    let measured = approximated(bench, scale, &methods, 1)?;
    let mut heads = by_head(&measured.matrices, SEQUENCES, &methods);
    heads.sort_by(|one, other| one.entropy.total_cmp(&other.entropy));
    let sure = confidence(8);
    let rises = |at: usize, sign: f64| {
        let entropies: Vec<f64> = heads.iter().map(|head| head.entropy).collect();
        let errors: Vec<f64> = heads.iter().map(|head| head.errors[at]).collect();
        let rank = regard_metrics::spearman(&entropies, &errors);
        (rank, Estimate::rank_correlation(sign * rank, heads.len(), sure, "heads"))
    };
    let [sparse, low_rank] = [rises(0, 1.0), rises(1, -1.0)];
    let over = |part: &[HeadErrors], value: &dyn Fn(&HeadErrors) -> f64| {
        Estimate::mean(&part.iter().map(value).collect::<Vec<f64>>(), sure, "heads")
    };
    let thirds: Vec<&[HeadErrors]> = heads.chunks(heads.len().div_ceil(3)).collect();
    let [low, middle, high] = thirds[..] else {
        return Err(Failure::data("fewer than three heads, expected some at each entropy"));
    };
    // How much robust PCA takes off the better of the two. Without a bound below, where that one is next to nothing: medians.
    let gain = |head: &HeadErrors| 1.0 - head.errors[2] / head.errors[0].min(head.errors[1]);
    let taken_off = |gains: &mut dyn Iterator<Item = f64>| Estimate::median(&gains.collect::<Vec<_>>(), sure, "heads");
    let mut clauses = vec![
        Clause::paper("The error of the largest entries rises with the entropy: rank correlation.")
            .above(sparse.1, 0.0),
        Clause::paper("The error of the largest singular values falls with the entropy: rank correlation, negated.")
            .above(low_rank.1, 0.0),
        Clause::paper("At low entropy the largest entries have the smaller error.")
            .above(over(low, &|head| head.errors[1] - head.errors[0]), 0.0),
        Clause::paper("At high entropy the largest singular values have the smaller error.")
            .above(over(high, &|head| head.errors[0] - head.errors[1]), 0.0),
    ];
    for (name, third) in ["low", "middle", "high"].into_iter().zip([low, middle, high]) {
        let text =
            format!("At {name} entropy robust PCA has a smaller error than the better of both: share taken off.");
        clauses.push(Clause::paper(text).above(taken_off(&mut third.iter().map(gain)), 0.0));
    }
    let (inside, outside) = (taken_off(&mut middle.iter().map(gain)), taken_off(&mut low.iter().chain(high).map(gain)));
    let error = |own: &Estimate| own.interval.map_or(f64::NAN, |[low, high]| (high - low) / 2.0);
    let half = error(&inside).hypot(error(&outside));
    let more = inside.value - outside.value;
    let interval = Some([more - half, more + half]);
    let more = Estimate::of_interval(more, interval, heads.len(), sure, "heads");
    clauses.push(Clause::paper("It takes off most in the middle: share there less that elsewhere.").above(more, 0.0));
    let most = heads.iter().map(gain).fold(f64::NEG_INFINITY, f64::max);
    clauses.push(
        Clause::ours("On some head it takes off 95 % or more, the most that the paper saw.")
            .exactly(most >= 0.95)
            .note(format!("most: {:.0} %", 100.0 * most)),
    );
    let mut columns = vec![Column::text("heads"), Column::number("entropy", Format::Fixed(3)).unit("nat")];
    columns.extend(methods.map(|method| Column::number(method.name(), Format::Fixed(4))));
    columns.push(Column::number("taken off", Format::Percent(1)));
    let mut table = Table::new("Error of the attention matrix", columns)
        .note("Relative Frobenius error, mean over the heads of each third by entropy; taken off: of the better of the first two, median.");
    for (name, third) in ["low", "middle", "high"].into_iter().zip([low, middle, high]) {
        let mean = |of: &dyn Fn(&HeadErrors) -> f64| over(third, of).value;
        let mut row = vec![format!("{name} entropy").into(), mean(&|head| head.entropy).into()];
        row.extend((0..methods.len()).map(|at| mean(&|head| head.errors[at]).into()));
        row.push(taken_off(&mut third.iter().map(gain)).value.into());
        table.push(row);
    }
    let marks = (0..methods.len()).flat_map(|style| {
        heads.iter().map(move |head| Mark {
            name: String::new(),
            x: head.entropy,
            y: head.errors[style],
            deviation: 0.0,
            style,
        })
    });
    let names = methods.map(|method| method.name()).join(", ");
    let chart = Chart::new(
        "Oracles on trained matrices",
        format!("One point per head and method; colours in order: {names}"),
        Data::Scatter(marks.collect()),
    )
    .axes(Axis::new("mean entropy of rows", "nat"), Axis::new("relative error", ""));
    Ok(Finding {
        clauses,
        statement: format!(
            "Rank correlation of entropy with the error of the largest entries {:.3}, of the largest singular values {:.3}, over {} heads; robust \
             PCA takes {:.0} % off the better of both in the middle, {:.0} % at most.",
            sparse.0,
            low_rank.0,
            heads.len(),
            100.0 * inside.value,
            100.0 * most,
        ),
        tables: vec![table],
        charts: vec![("error-by-entropy".into(), chart)],
    })
}

fn entries(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let methods = [Method::Smyrf, Method::Performer, Method::Scatterbrain];
    let measured = approximated(bench, scale, &methods, if scale == Scale::Quick { 2 } else { 4 })?;
    let points = |errors: &EntryErrors, method| {
        let curve = errors.curves.iter().find(|curve| curve.method == method);
        curve.map_or(Vec::new(), |curve| curve.points.clone())
    };
    // Mean logarithms of the errors of one half of the bins, layer by layer.
    let half = |errors: &EntryErrors, method, upper: bool| {
        let all = points(errors, method);
        let (low, high) = (all.first().map_or(0.0, |first| first.0), all.last().map_or(0.0, |last| last.0));
        let chosen = all.iter().filter(|(x, _)| (*x > (low + high) / 2.0) == upper);
        Sample::of(&chosen.map(|(_, y)| y.max(f64::MIN_POSITIVE).ln()).collect::<Vec<_>>()).mean
    };
    let gain = |other: Method, upper: bool| {
        let of = |errors| half(errors, other, upper) - half(errors, Method::Scatterbrain, upper);
        Estimate::mean(&measured.entries.iter().map(of).collect::<Vec<_>>(), confidence(2), "layers")
    };
    let (small, large) = (gain(Method::Smyrf, false), gain(Method::Performer, true));
    let mut columns = vec![Column::text("layer"), Column::text("entries")];
    columns.extend(methods.map(|method| Column::number(method.name(), Format::Significant(3))));
    let mut table = Table::new("Mean squared error of entries of exp(tau q.k)", columns)
        .note("Geometric mean over the bins of each half of the range of tau q.k.");
    for errors in &measured.entries {
        for (name, upper) in [("small", false), ("large", true)] {
            let mut row = vec![errors.group.as_str().into(), name.into()];
            row.extend(methods.map(|method| half(errors, method, upper).exp().into()));
            table.push(row);
        }
    }
    let charts = measured.entries.iter().map(|errors| {
        let series = methods.iter().enumerate();
        let series = series.map(|(style, method)| Series::new(method.name(), style, points(errors, *method)));
        let title = format!("Errors of entries, {}", errors.group);
        let chart = Chart::new(title, "By the size of the logit", Data::Lines(series.collect()))
            .axes(Axis::new("tau q.k", ""), Axis::new("mean squared error of exp(tau q.k)", "").scale(Ticks::Log));
        (errors.group.replace(' ', "-"), chart)
    });
    let factors = [&small, &large].map(|gain| gain.value.exp());
    Ok(Finding {
        clauses: vec![
            Clause::ours("Among small entries, hashing has the larger error: logarithm of the ratio.")
                .above(small, 0.0),
            Clause::ours("Among large entries, random features have the larger error: logarithm of the ratio.")
                .above(large, 0.0),
        ],
        statement: format!(
            "Small entries: hashing's squared error is {:.3} times Scatterbrain's; large entries: random features' is {:.3} times \
             Scatterbrain's.",
            factors[0], factors[1]
        ),
        tables: vec![table],
        charts: charts.collect(),
    })
}
