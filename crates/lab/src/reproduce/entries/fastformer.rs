//! Variants of Fastformer on the classification of news.

use regard_tasks::Failure;

use super::variants::judged;
use crate::reproduce::{Clause, Compared, Entry, Finding, Paper, Scale, Setup, Workbench};

const PAPER: &str = "Classification of reviews (Amazon, IMDB) and news, and recommendation of news (MIND): 2 layers, 16 heads, width 256, attention \
                     pooling, dropout 0.2, word vectors of GloVe, 5 runs.";
const DATA: &str = "AG News, by --data";
const TRAIN: &str = "ag-news/train10k.tsv.gz";
const TEST: &str = "ag-news/test.tsv.gz";
const NEWS: &str = "10,001 news of AG News for the sets of the paper";
const VECTORS: &str = "vectors of words learned from the news for those of GloVe";
const FEED_FORWARD: &str = "feed-forward 512, which the paper does not state";
const SETUPS: &[Setup] = &[
    Setup {
        scale: Scale::Quick,
        setting: "Topics of news by words, 2 layers of width 256, 16 heads, attention pooling, dropout 0.2, Adam 1e-3, 200 updates of 32, 3 seeds, \
                  tested on 7,600 news.",
        differences: &[NEWS, VECTORS, FEED_FORWARD, "less than a pass over the news", "3 runs for 5"],
        minutes: 7.0,
    },
    Setup {
        scale: Scale::Here,
        setting: "Topics of news by words, 2 layers of width 256, 16 heads, attention pooling, dropout 0.2, Adam 1e-3, 600 updates of 64, 5 seeds, \
                  tested on 7,600 news.",
        differences: &[NEWS, VECTORS, FEED_FORWARD],
        minutes: 30.0,
    },
];

pub const INTERACTION: Entry = Entry {
    name: "fastformer-interaction",
    paper: Paper::Fastformer,
    figures: "figure 3 (interaction of global and local vectors)",
    claim: "Multiplying global vectors element by element with keys and values gives a higher accuracy than adding them, which models linear \
            relations alone, or concatenating them, which models none.",
    data: DATA,
    models: &[],
    paper_setting: PAPER,
    setups: SETUPS,
    run: interaction,
};

pub const SHARING: Entry = Entry {
    name: "fastformer-sharing",
    paper: Paper::Fastformer,
    figures: "figure 4 (sharing of parameters)",
    claim: "Sharing the query and value projections is slightly better than no sharing; sharing across heads as well is worse than that; sharing \
            across layers as well is better than that, with fewer parameters.",
    data: DATA,
    models: &[],
    paper_setting: PAPER,
    setups: SETUPS,
    run: sharing,
};

fn interaction(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let names = ["product", "sum", "concatenation"];
    let compared = train(bench, INTERACTION.name, scale, &names.map(|name| format!("interaction={name}")))?;
    judged(
        bench,
        &compared,
        &names,
        &[(0, 1, "The product is better than the sum"), (0, 2, "The product is better than concatenation")],
    )
}

fn sharing(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let sharings = ["none", "query-value", "head-wise", "layer-wise"];
    let compared = train(bench, SHARING.name, scale, &sharings.map(|sharing| format!("sharing={sharing}")))?;
    let names = ["no sharing", "query-value", "head-wise", "layer-wise"];
    let claims = [
        (1, 0, "Query-value sharing is slightly better than none"),
        (1, 2, "Head-wise sharing is worse than query-value alone"),
        (3, 1, "Layer-wise sharing is better than query-value alone"),
    ];
    let mut finding = judged(bench, &compared, &names, &claims)?;
    let parameters = |at: usize| compared.candidates()[at][0].parameters;
    let fewer =
        Clause::paper("Layer-wise sharing has fewer parameters than none.").exactly(parameters(3) < parameters(0));
    finding.clauses.push(fewer.note(format!("{} and {}", parameters(3), parameters(0))));
    Ok(finding)
}

/// Fastformer with each of these options, the same data and seeds for all.
fn train(bench: &Workbench, name: &str, scale: Scale, options: &[String]) -> Result<Compared, Failure> {
    let [steps, batch] = if scale == Scale::Quick { [200, 32] } else { [600, 64] };
    let seeds: &[u64] = if scale == Scale::Quick { &[1, 2, 3] } else { &[1, 2, 3, 4, 5] };
    let (train, test) = (bench.data_file(TRAIN)?, bench.data_file(TEST)?);
    let mechanisms: Vec<String> = options.iter().map(|option| format!("fastformer:fastformer.{option}")).collect();
    let recipe = format!(
        "preset = \"ag-news\"\n\n[task.text]\ntrain = {train:?}\ntest = {test:?}\n\n[train]\nsteps = {steps}\nbatch = {batch}\n\n[compare]\n\
         mechanisms = {mechanisms:?}\nseeds = {seeds:?}\n",
    );
    bench.train(name, &recipe)
}
