//! Scatterbrain's figures and tables on a trained encoder: its attention matrices, and what becomes of its scores.

use std::ops::ControlFlow;

use burn::tensor::Device;
use regard_kernels::{
    AttentionOptions,
    mechanism::{Combination, Fraction},
    support::SupportKind,
};
use regard_nn::models::TokenBatch;
use regard_pretrained::{
    Folder, LoadOptions, Plan as HeadsPlan, PlanGroup, Pretrained, PretrainedError, Tokenizer,
    run::{EmbedOptions, Judgement, Ranked, SmartDocument, embed, judgements, rank, read_text, smart_documents},
};
use regard_report::{Axis, Chart, Column, Data, Format, Mark, Sample, Scale as Ticks, Series, Table};
use regard_tasks::Failure;

use crate::{
    approx::{EntryErrors, Head, Matrix, Measured, Method, Plan, capture_folder, measure},
    folder::class,
    reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence},
    swap::Example,
};

const MODEL: &str = "minilm";
const DATA: &str = "all-MiniLM-L6-v2 and the Cranfield collection, by --models and --data";
const ONE_MODEL: &str = "one sentence encoder (all-MiniLM-L6-v2) for the paper's models";
const DOCUMENTS: &str = "cranfield/cran.all.1400.gz";
const QUERIES: &str = "cranfield/cran.qry.gz";
const RELEVANCE: &str = "cranfield/cranqrel.gz";

pub const ORACLES: Entry = Entry {
    name: "scatterbrain-trained",
    paper: Paper::Scatterbrain,
    figures: "figures 1 (left) and 7",
    claim: "On attention matrices of a trained model, at one budget: the error of the largest entries rises with the \
            entropy of the rows, that of the largest singular values falls with it, and robust PCA has a smaller error \
            than both in every third of the matrices by entropy.",
    data: DATA,
    models: &[MODEL],
    paper_setting: "Matrices of a 4-layer model of IMDb, and of models of WikiText-103 and ImageNet; 1,024 tokens.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "All 72 heads on 2 sequences of 128 tokens, budget 1/8.",
            differences: &[ONE_MODEL, "128 tokens for 1,024"],
            minutes: 2.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "All 72 heads on 2 sequences of 256 tokens, budget 1/8.",
            differences: &[ONE_MODEL, "256 tokens for 1,024"],
            minutes: 20.0,
        },
    ],
    run: oracles,
};

pub const ENTRIES: Entry = Entry {
    name: "scatterbrain-entries",
    paper: Paper::Scatterbrain,
    figures: "figure 4",
    claim: "On attention matrices of a trained model, at one budget: among the small entries of exp(tau q.k), the lower half of \
            its range, Scatterbrain has a smaller mean squared error than hashing, and among the large ones a smaller one \
            than random features.",
    data: DATA,
    models: &[MODEL],
    paper_setting: "The error of each entry of exp(q.k) by its size, from theorem 2.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "All 72 heads on 2 sequences of 128 tokens, budget 1/8, 2 draws.",
            differences: &[ONE_MODEL, "128 tokens, 2 draws"],
            minutes: 0.3,
        },
        Setup {
            scale: Scale::Here,
            setting: "All 72 heads on 2 sequences of 256 tokens, budget 1/8, 4 draws.",
            differences: &[ONE_MODEL, "256 tokens, 4 draws"],
            minutes: 3.0,
        },
    ],
    run: entries,
};

pub const REPLACED: Entry = Entry {
    name: "scatterbrain-replaced",
    paper: Paper::Scatterbrain,
    figures: "tables 1 and 6",
    claim: "Put into every head of a trained model without training, at one budget, Scatterbrain has a smaller error of the \
            attention matrix than hashing, than random features and than their plain sum, and loses less of the model's \
            score than each of them.",
    data: DATA,
    models: &[MODEL],
    paper_setting: "A pretrained T2T vision transformer on ImageNet: accuracy, and error of the attention of each layer.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "The first 350 documents with their queries, sizes of a budget of 1/8 at 256 tokens; errors over 72 heads on 2 sequences of 256 tokens.",
            differences: &[ONE_MODEL, "nDCG@10 of retrieval for accuracy", "350 documents"],
            minutes: 4.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "All 1,400 documents and 225 queries, sizes of a budget of 1/8 at 256 tokens; errors over 72 heads on 2 sequences of 256 tokens.",
            differences: &[ONE_MODEL, "nDCG@10 of retrieval for accuracy"],
            minutes: 15.0,
        },
    ],
    run: replaced,
};

/// Context for which a budget sets sizes: about the length of a document.
const LENGTH: usize = 256;

struct Encoder {
    model: Pretrained,
    tokenizer: Tokenizer,
}

impl Encoder {
    fn open(bench: &Workbench) -> Result<Self, Failure> {
        let path = bench.model(MODEL)?;
        let read = || {
            let folder = Folder::open(&path)?;
            let model = folder.model(LoadOptions::default(), &Device::flex())?;
            Ok(Self { model, tokenizer: folder.tokenizer()? })
        };
        read().map_err(of_folder)
    }

    /// Its heads on sequences of documents, one after the other.
    fn heads(&self, documents: &[SmartDocument], sequences: usize, length: usize) -> Result<Vec<Head>, Failure> {
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

fn of_folder(error: PretrainedError) -> Failure {
    Failure::new(class(&error), error)
}

fn read<T>(bench: &Workbench, name: &str, parse: fn(&str) -> Result<Vec<T>, String>) -> Result<Vec<T>, Failure> {
    let path = bench.data_file(name)?;
    let text = read_text(&path).map_err(of_folder)?;
    parse(&text).map_err(|problem| Failure::data(format!("{}: {problem}", path.display())))
}

fn options() -> Result<AttentionOptions, Failure> {
    let mut options = AttentionOptions { budget: Some("1/8".parse::<Fraction>()?), ..AttentionOptions::default() };
    options.support.rounds = 1;
    options.scatterbrain.sparse_share = 0.5;
    Ok(options)
}

fn approximated(bench: &Workbench, scale: Scale, methods: &[Method], draws: usize) -> Result<Measured, Failure> {
    let (sequences, length) = match scale {
        Scale::Quick => (2, 128),
        Scale::Here | Scale::Paper => (2, 256),
    };
    let heads = Encoder::open(bench)?.heads(&read(bench, DOCUMENTS, smart_documents)?, sequences, length)?;
    let options = options()?;
    let plan = Plan { heads: &heads, methods, options: &options, split_by_entropy: false, draws, seed: 0 };
    Ok(measure(&plan, &|| ())?)
}

/// The mean error of a method on a matrix.
fn error(matrix: &Matrix, method: Method) -> f64 {
    let errors = matrix.errors.iter().find(|errors| errors.method == method);
    errors.map_or(f64::NAN, |errors| Sample::of(&errors.matrix).mean)
}

fn oracles(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let methods = [Method::TopK, Method::Svd, Method::RobustPca];
    let measured = approximated(bench, scale, &methods, 1)?;
    let mut matrices: Vec<&Matrix> = measured.matrices.iter().collect();
    matrices.sort_by(|one, other| one.entropy.total_cmp(&other.entropy));
    let sure = confidence(8);
    let rises = |method: Method, sign: f64| {
        let entropies: Vec<f64> = matrices.iter().map(|matrix| matrix.entropy).collect();
        let errors: Vec<f64> = matrices.iter().map(|matrix| error(matrix, method)).collect();
        let rank = regard_metrics::spearman(&entropies, &errors);
        (rank, Estimate::rank_correlation(sign * rank, matrices.len(), sure, "matrices"))
    };
    let [sparse, low_rank] = [rises(Method::TopK, 1.0), rises(Method::Svd, -1.0)];
    let mut clauses = vec![
        Clause::paper("The error of the largest entries rises with the entropy.").above(sparse.1, 0.0),
        Clause::paper("The error of the largest singular values falls with the entropy.").above(low_rank.1, 0.0),
    ];
    let mut columns = vec![Column::text("matrices"), Column::number("entropy", Format::Fixed(3)).unit("nat")];
    columns.extend(methods.map(|method| Column::number(method.name(), Format::Fixed(4))));
    let mut table = Table::new("Error of the attention matrix", columns)
        .note("Relative Frobenius error, mean over the matrices of each third by entropy.");
    for (name, third) in ["low", "middle", "high"].into_iter().zip(matrices.chunks(matrices.len().div_ceil(3))) {
        let mean = |of: &dyn Fn(&Matrix) -> f64| Sample::of(&third.iter().map(|m| of(m)).collect::<Vec<_>>()).mean;
        for other in [Method::TopK, Method::Svd] {
            let gains: Vec<f64> =
                third.iter().map(|matrix| error(matrix, other) - error(matrix, Method::RobustPca)).collect();
            let text = format!("At {name} entropy, robust PCA has a smaller error than {}.", other.name());
            clauses.push(Clause::paper(text).above(Estimate::mean(&gains, sure, "matrices"), 0.0));
        }
        let mut row = vec![format!("{name} entropy").into(), mean(&|matrix| matrix.entropy).into()];
        row.extend(methods.map(|method| mean(&|matrix| error(matrix, method)).into()));
        table.push(row);
    }
    let marks = methods.iter().enumerate().flat_map(|(style, method)| {
        matrices.iter().map(move |matrix| Mark {
            name: String::new(),
            x: matrix.entropy,
            y: error(matrix, *method),
            deviation: 0.0,
            style,
        })
    });
    let names = methods.map(|method| method.name()).join(", ");
    let chart = Chart::new(
        "Oracles on trained matrices",
        format!("One point per matrix and method; colours in order: {names}"),
        Data::Scatter(marks.collect()),
    )
    .axes(Axis::new("mean entropy of rows", "nat"), Axis::new("relative error", ""));
    Ok(Finding {
        clauses,
        statement: format!(
            "Rank correlation of entropy with the error of the largest entries {:.3}, of the largest singular values {:.3}, over \
             {} matrices.",
            sparse.0,
            low_rank.0,
            matrices.len()
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
            Clause::paper("Among small entries, hashing has the larger error: logarithm of the ratio.")
                .above(small, 0.0),
            Clause::paper("Among large entries, random features have the larger error: logarithm of the ratio.")
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

/// What stands in for exact attention, by its name in the table and as a method on matrices.
const REPLACEMENTS: [(&str, Option<Method>); 7] = [
    ("SMYRF", Some(Method::Smyrf)),
    ("Performer", Some(Method::Performer)),
    ("SMYRF + Performer", Some(Method::Naive)),
    ("Scatterbrain, SMYRF", Some(Method::Scatterbrain)),
    ("local", Some(Method::Local)),
    ("Scatterbrain, local", Some(Method::ScatterbrainLocal)),
    ("exact", None),
];

fn replaced(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let encoder = Encoder::open(bench)?;
    let mut documents = read(bench, DOCUMENTS, smart_documents)?;
    let queries = read(bench, QUERIES, smart_documents)?;
    let mut judged: Vec<Judgement> = read(bench, RELEVANCE, judgements)?;
    if scale == Scale::Quick {
        documents.truncate(350);
        judged.retain(|judgement| documents.iter().any(|document| document.id == judgement.document));
    }
    let methods: Vec<Method> = REPLACEMENTS.iter().filter_map(|(_, method)| *method).collect();
    let options = options()?;
    let heads = encoder.heads(&documents, 2, LENGTH)?;
    let plan = Plan { heads: &heads, methods: &methods, options: &options, split_by_entropy: false, draws: 1, seed: 0 };
    let matrices = measure(&plan, &|| ())?.matrices;

    let mut scores = Vec::new();
    for (name, method) in REPLACEMENTS {
        bench.note(name);
        let model = match method {
            Some(method) => {
                let plan = everywhere(&encoder.model, method, &options)?;
                encoder.model.clone().with_plan(&plan).map_err(of_folder)?
            }
            None => encoder.model.clone(),
        };
        scores.push(ranked(bench, &model, &encoder.tokenizer, &documents, &queries, &judged)?);
    }
    let exact = &scores[REPLACEMENTS.len() - 1];
    let of = |method| REPLACEMENTS.iter().position(|(_, own)| *own == Some(method)).expect("in the list");
    let mut clauses = Vec::new();
    for other in [Method::Smyrf, Method::Performer, Method::Naive] {
        let name = REPLACEMENTS[of(other)].0;
        let errors = matrices.iter().map(|matrix| error(matrix, other) - error(matrix, Method::Scatterbrain));
        let errors = Estimate::mean(&errors.collect::<Vec<_>>(), confidence(6), "matrices");
        clauses.push(Clause::paper(format!("A smaller error than {name}.")).above(errors, 0.0));
        let (ours, theirs) = (&scores[of(Method::Scatterbrain)].gains, &scores[of(other)].gains);
        let scores = Estimate::paired(ours, theirs, confidence(6), "queries");
        clauses.push(Clause::paper(format!("A better score than {name}.")).above(scores, 0.0));
    }
    let mut table = Table::new(
        "Attention replaced in every head",
        vec![
            Column::text("attention"),
            Column::number("nDCG@10", Format::Fixed(4)),
            Column::number("change", Format::Fixed(4)),
            Column::number("error of A", Format::Fixed(4)),
        ],
    )
    .note(format!(
        "{} documents, {} queries; change: mean over queries with its standard error, against exact attention; error: relative \
         Frobenius, mean over {} matrices of {LENGTH} tokens.",
        exact.documents,
        exact.queries,
        matrices.len()
    ));
    for ((name, method), score) in REPLACEMENTS.iter().zip(&scores) {
        let lost: Vec<f64> = score.gains.iter().zip(&exact.gains).map(|(own, exact)| own - exact).collect();
        let lost = crate::approx::Mean::of(lost).filter(|_| method.is_some());
        let errors = method.map(|method| matrices.iter().map(|matrix| error(matrix, method)).collect::<Vec<_>>());
        let errors = errors.map(|errors| Sample::of(&errors).mean);
        table.push(vec![(*name).into(), score.ndcg_10.into(), lost.into(), errors.into()]);
    }
    let said = |method: Method| {
        let at = of(method);
        let errors: Vec<f64> = matrices.iter().map(|matrix| error(matrix, method)).collect();
        format!("{} {:.4} (error {:.3})", REPLACEMENTS[at].0, scores[at].ndcg_10, Sample::of(&errors).mean)
    };
    Ok(Finding {
        clauses,
        statement: format!(
            "nDCG@10: exact {:.4}; {}.",
            exact.ndcg_10,
            [Method::Scatterbrain, Method::Smyrf, Method::Performer, Method::Naive].map(said).join("; ")
        ),
        tables: vec![table],
        charts: Vec::new(),
    })
}

/// A plan with one method in every head, at the sizes of a budget for [`LENGTH`] tokens.
fn everywhere(model: &Pretrained, method: Method, options: &AttentionOptions) -> Result<HeadsPlan, Failure> {
    let sized = method.options(options).expect("methods with a kernel").within_budget(
        LENGTH,
        LENGTH,
        model.config.head_width(&model.attention),
    )?;
    debug_assert!(sized.support.kind != SupportKind::Lsh && sized.scatterbrain.combination != Combination::Gated);
    let layers = model.config.layers;
    let group = |layer| PlanGroup {
        layer,
        key_heads: (0..model.attention.key_heads()).collect(),
        attention: Some(AttentionOptions { budget: None, ..sized.clone() }),
    };
    Ok(HeadsPlan { layers, seed: 0, groups: (1..=layers).map(group).collect(), parameters: None })
}

fn ranked(
    bench: &Workbench,
    model: &Pretrained,
    tokenizer: &Tokenizer,
    documents: &[SmartDocument],
    queries: &[SmartDocument],
    judged: &[Judgement],
) -> Result<Ranked, Failure> {
    let texts: Vec<&str> = documents.iter().chain(queries).map(|document| &document.text[..]).collect();
    let go_on = |_| if bench.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let mut vectors = embed(model, tokenizer, &texts, EmbedOptions::default(), go_on).map_err(of_folder)?;
    if !vectors.complete {
        return Err(Failure::interrupted("stopped"));
    }
    let of_queries = vectors.split_off(documents.len());
    rank(documents, &vectors, &of_queries, queries.len(), judged).map_err(Failure::data)
}
