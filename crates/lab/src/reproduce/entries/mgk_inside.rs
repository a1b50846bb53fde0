//! Effects of mixtures of keys inside a trained model: rank of attention matrices, redundancy of heads, likelihood of
//! queries.

use crate::{
    compare::RunResult,
    inspect::{Part, Plan, Recording, Survey, survey},
    moments::Moments,
    reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench},
};
use regard_report::{Cell, Column, Format, Table};
use regard_tasks::{Failure, train::Split};

const PAPER: &str =
    "Models of 2 layers trained for retrieval, and of 16 layers on WikiText-103; 1,000 matrices of each layer.";
const SETUPS: &[Setup] = &[Setup {
    scale: Scale::Quick,
    setting: "ListOps of 20 to 128 tokens, 2 layers of width 64, 2 heads, 1,600 updates of 32 expressions; 50 expressions of the test \
              split, every matrix of each.",
    differences: &["short ListOps for retrieval and language", "2 heads for 4 and 8", "one model of each kind"],
    minutes: 1.0,
}];

pub const RANK: Entry = Entry {
    name: "mgk-rank",
    paper: Paper::Mgk,
    figures: "figures 6 and 9",
    claim: "Attention matrices of MGK have a higher numerical rank, as a share of the full rank, than those of softmax.",
    data: "generated",
    models: &[],
    paper_setting: PAPER,
    setups: SETUPS,
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
    setups: SETUPS,
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
    setups: SETUPS,
    run: likelihood,
};

const EXPRESSIONS: usize = 50;

/// Surveys of the trained softmax and MGK models, shared by all entries here.
fn surveys(bench: &Workbench, part: Part) -> Result<[Survey; 2], Failure> {
    let recipe = "preset = \"quick\"\n\n[compare]\nmechanisms = [\"softmax\", \"mgk\"]\n";
    let compared = bench.train("mgk-inside", recipe)?;
    let plan = Plan { parts: vec![part], layers: Vec::new(), heads: Vec::new(), matrices: 1000 };
    let of = |run: &RunResult| -> Result<Survey, Failure> {
        let (model, data) = bench.open(&compared, run)?;
        let recordings = Recording::all(&model, &data, Split::Test, EXPRESSIONS)?;
        Ok(survey(recordings, &plan, false, &|| ())?)
    };
    let candidates = compared.candidates();
    Ok([of(&candidates[0][0])?, of(&candidates[1][0])?])
}

/// First minus second: one model of each kind, however many matrices.
fn difference(first: f64, second: f64) -> Estimate {
    Estimate::paired(&[first], &[second], 0.95, "seeds")
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

fn rank(bench: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let surveys = surveys(bench, Part::Rank)?;
    let mut rows = Vec::new();
    for (name, survey) in NAMES.iter().zip(&surveys) {
        for attention in &survey.attentions {
            let shares = attention.ranks.iter().map(|rank| rank.rank as f64 / rank.full as f64);
            rows.push((*name, attention.name.as_str(), Moments::of_finite(shares)));
        }
    }
    let of = |wanted: &str| Moments::joined(rows.iter().filter(|row| row.0 == wanted).map(|row| &row.2));
    let [softmax, mgk] = NAMES.map(of);
    let difference = difference(mgk.mean, softmax.mean);
    Ok(Finding {
        clauses: vec![Clause::paper("The rank is a larger share of the full rank.").above(difference, 0.0)],
        statement: format!(
            "Singular values above 1e-6 of the largest, as a share of all: MGK {:.3}, softmax {:.3} over {} matrices each.",
            mgk.mean, softmax.mean, mgk.count
        ),
        tables: vec![table("Numerical rank of attention matrices", "share of full rank", &rows)],
        charts: Vec::new(),
    })
}

fn redundancy(bench: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let surveys = surveys(bench, Part::Redundancy)?;
    let mut rows = Vec::new();
    for (name, survey) in NAMES.iter().zip(&surveys) {
        for attention in &survey.attentions {
            let pairs = attention.redundancy.iter().map(|pair| &pair.correlation);
            rows.push((*name, attention.name.as_str(), Moments::joined(pairs)));
        }
    }
    let of = |wanted: &str| Moments::joined(rows.iter().filter(|row| row.0 == wanted).map(|row| &row.2));
    let [softmax, mgk] = NAMES.map(of);
    let difference = difference(mgk.mean, softmax.mean);
    Ok(Finding {
        clauses: vec![Clause::paper("The correlation of the weights of two heads is lower.").below(difference, 0.0)],
        statement: format!(
            "Mean correlation of the weights of two heads: MGK {:.3}, softmax {:.3}.",
            mgk.mean, softmax.mean
        ),
        tables: vec![table("Correlation of heads' attention weights", "correlation", &rows)],
        charts: Vec::new(),
    })
}

fn likelihood(bench: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let [_, mgk] = surveys(bench, Part::Likelihood)?;
    let columns = vec![
        Column::text("layer"),
        Column::number("head", Format::Plain),
        Column::number("mixture", Format::Fixed(4)),
        Column::number("one Gaussian a key", Format::Fixed(4)),
        Column::number("one Gaussian", Format::Fixed(4)),
    ];
    let mut table = Table::new("Negative log-likelihood of queries, nats a channel", columns)
        .note("Mean and deviation over queries.");
    let (mut clauses, mut said) = (Vec::new(), Vec::new());
    for attention in &mgk.attentions {
        for (head, one) in attention.heads.iter().zip(&attention.likelihood) {
            let row = [&one.mixture, &one.per_key, &one.single].map(Cell::from);
            table.push([attention.name.as_str().into(), (*head).into()].into_iter().chain(row).collect());
        }
        let joined =
            |part: fn(&crate::inspect::Likelihood) -> &Moments| Moments::joined(attention.likelihood.iter().map(part));
        let (mixture, per_key) = (joined(|one| &one.mixture), joined(|one| &one.per_key));
        let clause = Clause::paper(format!("Queries of {} are more likely under the mixture.", attention.name));
        clauses.push(clause.above(difference(per_key.mean, mixture.mean), 0.0));
        said.push(format!("{}: {:.4} against {:.4}", attention.name, mixture.mean, per_key.mean));
    }
    Ok(Finding {
        clauses,
        statement: format!("Under the mixture against one Gaussian a key, nats a channel: {}.", said.join("; ")),
        tables: vec![table],
        charts: Vec::new(),
    })
}
