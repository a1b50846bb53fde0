//! Scatterbrain's tables 1 and 6: attention replaced in a trained encoder without training.

use std::ops::ControlFlow;

use regard_kernels::{AttentionOptions, mechanism::Combination, sparse_share_for_entropy, support::SupportKind};
use regard_pretrained::{
    Plan as HeadsPlan, PlanGroup, Pretrained, Tokenizer,
    run::{EmbedOptions, Judgement, Ranked, SmartDocument, embed, judgements, rank, smart_documents},
};
use regard_report::{Column, Format, Sample, Table};
use regard_tasks::{Class, Failure};

use super::scatterbrain_trained::{
    DATA, DOCUMENTS, Encoder, FEATURES, HeadErrors, MODEL, ONE_MODEL, by_head, of_folder, options, read,
};
use crate::{
    approx::{Head, Method, Plan, measure},
    reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence},
};

const QUERIES: &str = "cranfield/cran.qry.gz";
const RELEVANCE: &str = "cranfield/cranqrel.gz";
const BUDGET: &str =
    "a budget of 1/8, for sizes that leave as little as 2 % of the memory of attention; memory is not compared";
const SCORE: &str = "nDCG@10 of retrieval for accuracy; a point is 0.01 of it";
const ALONE: &str = "one draw; intervals over heads and over queries, as if those of one model were independent";
const SIZES: &str = "best of 1, 2 and 4 rounds of hashing; BigBird, of table 6, is left out";

/// Sequences whose matrices are approximated.
const SEQUENCES: usize = 2;
/// Context for which a budget sets sizes: about the length of a document.
const LENGTH: usize = 256;

pub const REPLACED: Entry = Entry {
    name: "scatterbrain-replaced",
    paper: Paper::Scatterbrain,
    figures: "tables 1 and 6",
    claim: "Put into every head of a trained model without training, at one budget, each method at its best sizes and Scatterbrain's split by the \
            entropy of the layer, Scatterbrain has a smaller error of the attention matrix than hashing, than random features and than their plain \
            sum, and loses less of the model's score than each of them: at most one point of a hundred.",
    data: DATA,
    models: &[MODEL],
    paper_setting: "A pretrained T2T vision transformer on ImageNet: accuracy 81.7 % exact, 79.8 SMYRF, 80.1 Performer, 79.7 their sum, 80.7 \
                    Scatterbrain; errors of attention of 11.4, 7.5, 12.6 and 5.3 %.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "The first 350 documents with their queries, sizes of a budget of 1/8 at 256 tokens; errors over 72 heads on 2 sequences of 256 tokens.",
            differences: &[ONE_MODEL, SCORE, "350 documents", BUDGET, SIZES, FEATURES, ALONE],
            minutes: 6.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "All 1,400 documents and 225 queries, sizes of a budget of 1/8 at 256 tokens; errors over 72 heads on 2 sequences of 256 tokens.",
            differences: &[ONE_MODEL, SCORE, BUDGET, SIZES, FEATURES, ALONE],
            minutes: 17.0,
        },
    ],
    run: replaced,
};

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

/// Numbers of rounds of hashing that are tried.
const ROUNDS: [usize; 3] = [1, 2, 4];

/// A method at its best sizes, on the heads of the model.
struct Sized {
    /// The best number of rounds.
    rounds: usize,
    /// Errors, one per head.
    errors: Vec<f64>,
}

/// The best sizes of each method by its mean error.
fn sized(
    heads: &[Head],
    methods: &[Method],
    options: &AttentionOptions,
) -> Result<(Vec<Sized>, Vec<HeadErrors>), Failure> {
    let mut best: Vec<Option<Sized>> = methods.iter().map(|_| None).collect();
    let mut all = Vec::new();
    let mean = |errors: &[f64]| Sample::of(errors).mean;
    for rounds in ROUNDS {
        let mut options = options.clone();
        options.support.rounds = rounds;
        let plan = Plan { heads, methods, options: &options, split_by_entropy: true, draws: 1, seed: 0 };
        // The least shares have not an entry for each round.
        let measured = match measure(&plan, &|| ()).map_err(Failure::from) {
            Err(failure) if failure.class == Class::Budget && rounds > 1 => continue,
            other => other?,
        };
        all = by_head(&measured.matrices, SEQUENCES, methods);
        for (at, own) in best.iter_mut().enumerate() {
            let errors: Vec<f64> = all.iter().map(|head| head.errors[at]).collect();
            if own.as_ref().is_none_or(|own| mean(&errors) < mean(&own.errors)) {
                *own = Some(Sized { rounds, errors });
            }
        }
    }
    Ok((best.into_iter().flatten().collect(), all))
}

/// The share of the budget for the support in each layer, by the mean entropy of its heads.
fn shares(heads: &[HeadErrors], layers: usize) -> Vec<f64> {
    let of = |layer: usize| {
        let group = format!("layer {layer}");
        let entropies: Vec<f64> = heads.iter().filter(|head| head.group == group).map(|head| head.entropy).collect();
        sparse_share_for_entropy(Sample::of(&entropies).mean, LENGTH)
    };
    (1..=layers).map(of).collect()
}

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
    let (sized, heads) = sized(&encoder.heads(&documents, SEQUENCES, LENGTH)?, &methods, &options)?;
    let shares = shares(&heads, encoder.model.config.layers);

    let mut scores = Vec::new();
    for (at, (name, method)) in REPLACEMENTS.into_iter().enumerate() {
        bench.note(name);
        let model = match method {
            Some(method) => {
                let mut options = options.clone();
                options.support.rounds = sized[at].rounds;
                let plan = everywhere(&encoder.model, method, &options, &shares)?;
                encoder.model.clone().with_plan(&plan).map_err(of_folder)?
            }
            None => encoder.model.clone(),
        };
        scores.push(ranked(bench, &model, &encoder.tokenizer, &documents, &queries, &judged)?);
    }
    let exact = &scores[REPLACEMENTS.len() - 1];
    let of = |method| REPLACEMENTS.iter().position(|(_, own)| *own == Some(method)).expect("in the list");
    let ours = of(Method::Scatterbrain);
    let mut clauses = Vec::new();
    for other in [Method::Smyrf, Method::Performer, Method::Naive] {
        let name = REPLACEMENTS[of(other)].0;
        let errors = Estimate::paired(&sized[of(other)].errors, &sized[ours].errors, confidence(7), "heads");
        clauses.push(Clause::paper(format!("A smaller error than {name}: difference.")).above(errors, 0.0));
        let (own, theirs) = (&scores[ours].gains, &scores[of(other)].gains);
        let scores = Estimate::paired(own, theirs, confidence(7), "queries");
        clauses.push(Clause::paper(format!("A better score than {name}: difference.")).above(scores, 0.0));
    }
    let lost = Estimate::paired(&scores[ours].gains, &exact.gains, confidence(7), "queries");
    clauses
        .push(Clause::paper("A score at most one point below that of exact attention: difference.").above(lost, -0.01));
    let mut table = Table::new(
        "Attention replaced in every head",
        vec![
            Column::text("attention"),
            Column::number("rounds", Format::Plain),
            Column::number("nDCG@10", Format::Fixed(4)),
            Column::number("change", Format::Fixed(4)),
            Column::number("error of A", Format::Fixed(4)),
        ],
    )
    .note(format!(
        "{} documents, {} queries; change: mean over queries with its standard error, against exact attention; error: relative Frobenius, mean \
         over {} heads on sequences of {LENGTH} tokens.",
        exact.documents,
        exact.queries,
        heads.len()
    ));
    for (at, ((name, method), score)) in REPLACEMENTS.iter().zip(&scores).enumerate() {
        let lost: Vec<f64> = score.gains.iter().zip(&exact.gains).map(|(own, exact)| own - exact).collect();
        let lost = crate::approx::Mean::of(lost).filter(|_| method.is_some());
        let own = sized.get(at);
        let errors = own.map(|own| Sample::of(&own.errors).mean);
        table.push(vec![
            (*name).into(),
            own.map(|own| own.rounds).into(),
            score.ndcg_10.into(),
            lost.into(),
            errors.into(),
        ]);
    }
    let said = |method: Method| {
        let at = of(method);
        let error = Sample::of(&sized[at].errors).mean;
        format!("{} {:.4} (error {error:.3})", REPLACEMENTS[at].0, scores[at].ndcg_10)
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

/// A plan with one method in every head, at the sizes of a budget for [`LENGTH`] tokens and the split of each layer.
fn everywhere(
    model: &Pretrained,
    method: Method,
    options: &AttentionOptions,
    shares: &[f64],
) -> Result<HeadsPlan, Failure> {
    let group = |(layer, share): (usize, &f64)| {
        let mut base = options.clone();
        base.scatterbrain.sparse_share = *share;
        let options = method.options(&base).expect("methods with a kernel");
        let sized = options.within_budget(LENGTH, LENGTH, model.config.head_width(&model.attention))?;
        debug_assert!(sized.support.kind != SupportKind::Lsh && sized.scatterbrain.combination != Combination::Gated);
        Ok(PlanGroup {
            layer: layer + 1,
            key_heads: (0..model.attention.key_heads()).collect(),
            attention: Some(AttentionOptions { budget: None, ..sized }),
        })
    };
    let groups = shares.iter().enumerate().map(group).collect::<Result<_, Failure>>()?;
    Ok(HeadsPlan { layers: model.config.layers, seed: 0, groups, parameters: None })
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
