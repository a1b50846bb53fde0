//! Variants of Fastformer.

use regard_tasks::Failure;

use super::mgk_training::judged;
use crate::reproduce::{Entry, Finding, Paper, Scale, Setup, Workbench};

const PAPER: &str = "Classification of reviews and of news, and recommendation of news: 2 layers, 16 heads, width 256, word vectors \
                     of GloVe, 5 runs.";
const QUICK: Setup = Setup {
    scale: Scale::Quick,
    setting: "ListOps of 20 to 128 tokens, 2 layers of width 64, 2 heads, 1,600 updates of 32 expressions, 3 seeds, test accuracy on \
              2,000 expressions.",
    differences: &[
        "ListOps for text",
        "width 64 for 256",
        "2 heads for 16",
        "no word vectors",
        "1,600 updates",
        "3 runs for 5",
    ],
    minutes: 5.0,
};

pub const INTERACTION: Entry = Entry {
    name: "fastformer-interaction",
    paper: Paper::Fastformer,
    figures: "figure 3 (interaction of global and local vectors)",
    claim: "Multiplying global vectors element by element with keys and values gives a higher accuracy than \
            adding them or concatenating them.",
    data: "generated",
    models: &[],
    paper_setting: PAPER,
    setups: &[QUICK],
    run: interaction,
};

pub const SHARING: Entry = Entry {
    name: "fastformer-sharing",
    paper: Paper::Fastformer,
    figures: "figure 4 (sharing of parameters)",
    claim: "Sharing the query and value projections lowers accuracy by at most half a point compared with no \
            sharing; sharing across heads lowers it; also sharing across layers lowers it by at most half a \
            point compared with sharing queries and values alone.",
    data: "generated",
    models: &[],
    paper_setting: PAPER,
    setups: &[QUICK],
    run: sharing,
};

fn interaction(bench: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let names = ["product", "sum", "concatenation"];
    let compared = bench.train(INTERACTION.name, &recipe(names.map(|name| format!("interaction={name}"))))?;
    judged(&compared, &names, &[(0, 1, 0.0), (0, 2, 0.0)])
}

fn sharing(bench: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let sharings = ["none", "query-value", "head-wise", "layer-wise"];
    let compared = bench.train(SHARING.name, &recipe(sharings.map(|sharing| format!("sharing={sharing}"))))?;
    let names = ["no sharing", "query-value", "head-wise", "layer-wise"];
    judged(&compared, &names, &[(1, 0, -0.005), (0, 2, 0.0), (3, 1, -0.005)])
}

/// Fastformer with each of these options, the same task and seeds for all.
fn recipe<const N: usize>(options: [String; N]) -> String {
    let mechanisms = options.map(|option| format!("fastformer:fastformer.{option}"));
    format!("preset = \"quick\"\n\n[compare]\nmechanisms = {mechanisms:?}\nseeds = [1, 2, 3]\n")
}
