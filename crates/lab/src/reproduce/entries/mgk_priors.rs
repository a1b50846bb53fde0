//! Priors that one-head mixtures have learned.

use regard_report::{Cell, Column, Format, Table};
use regard_tasks::{Failure, train::Split};

use super::{
    mgk_accuracy::{ABLATION, ablation_recipe},
    mgk_trained::{HERE, HERE_SETTING, QUICK, QUICK_SETTING, TASK},
};
use crate::{
    inspect::{Part, Plan, Recording, survey},
    reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench},
};

pub const ENTRY: Entry = Entry {
    name: "mgk-priors",
    paper: Paper::Mgk,
    figures: "table 8",
    claim: "None in words: the table has learned priors of two keys from 0.488 to 0.512, in two models of two layers.",
    data: "generated",
    models: &[],
    paper_setting: "MGK and sMGK with one head of 32 trained for retrieval, one model of each.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: QUICK_SETTING,
            differences: &[TASK, "another task than retrieval", QUICK],
            minutes: 1.5,
        },
        Setup {
            scale: Scale::Here,
            setting: HERE_SETTING,
            differences: &[TASK, "another task than retrieval", HERE],
            minutes: 30.0,
        },
    ],
    run,
};

/// Farthest from one half that a prior of the table lies, rounded up.
const NEAR: f64 = 0.02;

fn run(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    // The models of the ablation, of which two kinds have priors.
    let compared = bench.train(ABLATION.name, &ablation_recipe(scale))?;
    let plan = Plan { parts: vec![Part::Learned], layers: Vec::new(), heads: Vec::new(), matrices: 0 };
    let columns = vec![Column::text("model"), Column::text("layer"), Column::number("first prior", Format::Fixed(3))];
    let mut table =
        Table::new("Learned priors", columns).note("Mean and deviation over seeds; the second is the rest to 1.");
    let (mut clauses, mut said) = (Vec::new(), Vec::new());
    for (name, label) in [("MGK", "mgk"), ("sMGK", "smgk")] {
        let mut layers: Vec<(String, Vec<f64>)> = Vec::new();
        for run in compared.results.iter().filter(|run| run.label == label) {
            let (model, data) = bench.open(&compared, run)?;
            let survey = survey(Recording::all(&model, &data, Split::Test, 1)?, &plan, false, &|| ())?;
            for (at, attention) in survey.attentions.iter().enumerate() {
                if layers.len() <= at {
                    layers.push((attention.name.clone(), Vec::new()));
                }
                layers[at].1.extend(attention.learned.first().and_then(|head| head.priors.first()));
            }
        }
        for (layer, priors) in layers {
            table.push(vec![name.into(), layer.as_str().into(), Cell::estimate(&priors)]);
            let estimate = Estimate::mean(&priors, 0.95, "seeds");
            said.push(format!("{name}, {layer}: {:.3}", estimate.value));
            clauses.push(Clause::ours(format!("{name}, {layer}: the first prior.")).within(estimate, 0.5, NEAR));
        }
    }
    Ok(Finding {
        clauses,
        statement: format!("First of two priors, mean over seeds. {}.", said.join("; ")),
        tables: vec![table],
        charts: Vec::new(),
    })
}
