//! Variants of Fastformer.

use std::error::Error;

use super::mgk_training::judged;
use crate::reproduce::{Entry, Finding, Paper, Scale, Workbench};

pub const SHARING: Entry = Entry {
    name: "fastformer-sharing",
    paper: Paper::Fastformer,
    figures: "figure 4 (sharing of parameters)",
    claim: "Sharing the query and value projections costs at most half a point against none; sharing over heads is below none; \
            sharing over layers besides is at most half a point below the query-value sharing.",
    data: "generated",
    paper_setting: "The paper classifies reviews and news (width 256, 16 heads, 2 layers); here LRA ListOps of 500 to 2,000 \
                    tokens, 5,000 updates of 32, 3 seeds.",
    reduced_setting: "ListOps of 20 to 128 tokens, 2 layers of width 64, 2 heads, 1,600 updates of 32 expressions, 3 seeds, test \
                      accuracy on 2,000 expressions.",
    run: sharing,
};

fn sharing(bench: &Workbench, scale: Scale) -> Result<Finding, Box<dyn Error>> {
    let preset = scale.listops();
    let sharings = ["none", "query-value", "head-wise", "layer-wise"];
    let mechanisms = sharings.map(|sharing| format!("fastformer:fastformer.sharing={sharing}"));
    let recipe = format!("preset = {preset:?}\n\n[compare]\nmechanisms = {mechanisms:?}\nseeds = [1, 2, 3]\n");
    let compared = bench.train(SHARING.name, &recipe)?;
    let names = ["no sharing", "query-value", "head-wise", "layer-wise"];
    judged(&compared, &names, &[(1, 0, -0.005), (0, 2, 0.0), (3, 1, -0.005)])
}
