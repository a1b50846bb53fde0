//! Fastformer on the classification of news: beside other mechanisms, and its variants.

use regard_tasks::Failure;

use super::answered::{Answered, Beside};
use crate::reproduce::{Clause, Entry, Finding, Paper, Scale, Setup, Workbench};

const PAPER: &str = "Classification of reviews (Amazon, IMDB) and news, and recommendation of news (MIND): 2 layers, 16 heads, width 256, attention \
                     pooling, dropout 0.2, word vectors of GloVe, 5 runs.";
const DATA: &str = "AG News, by --data";
const TRAIN: &str = "ag-news/train10k.tsv.gz";
const TEST: &str = "ag-news/test.tsv.gz";
const NEWS: &str = "10,001 news of AG News for the sets of the paper";
const VECTORS: &str = "vectors of words learned from the news for those of GloVe";
const FEED_FORWARD: &str = "feed-forward 512, which the paper does not state";
/// Points within which an accuracy is nearly the best.
const NEARLY: f64 = 1.0;
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

pub const TOPICS: Entry = Entry {
    name: "fastformer-topics",
    paper: Paper::Fastformer,
    figures: "tables, sentiment and topics",
    claim: "On sentiment and topics Fastformer is nearly the best of the variants of the Transformer: at most one point below any of them, which is our \
            reading.",
    data: DATA,
    models: &[],
    paper_setting: PAPER,
    setups: SETUPS,
    run: topics,
};

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

fn topics(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let variants = [
        ("Fastformer", "fastformer"),
        ("softmax", "softmax"),
        ("linear", "linear"),
        ("Performer", "performer"),
        ("Longformer", "sparse:support.kind=longformer,support.radius=8,support.globals=1"),
        ("MGK", "mgk"),
    ];
    // Mixtures of keys are younger than the paper.
    let of_paper = |other: usize| variants[other].0 != "MGK";
    let pair = |other| Beside { of_paper: of_paper(other), ..Beside::no_less(0, other, NEARLY) };
    let pairs: Vec<Beside> = (1..variants.len()).map(pair).collect();
    Ok(trained(bench, scale, TOPICS.name, &variants)?.finding(&pairs, "Accuracy by mechanism"))
}

fn interaction(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let variants = [
        ("product", "fastformer:fastformer.interaction=product"),
        ("sum", "fastformer:fastformer.interaction=sum"),
        ("concatenation", "fastformer:fastformer.interaction=concatenation"),
    ];
    let pairs = [Beside::above(0, 1), Beside::above(0, 2)];
    Ok(trained(bench, scale, INTERACTION.name, &variants)?.finding(&pairs, "Accuracy by interaction"))
}

fn sharing(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let variants = [
        ("no sharing", "fastformer:fastformer.sharing=none"),
        ("query-value", "fastformer:fastformer.sharing=query-value"),
        ("head-wise", "fastformer:fastformer.sharing=head-wise"),
        ("layer-wise", "fastformer:fastformer.sharing=layer-wise"),
    ];
    let pairs = [Beside::above(1, 0), Beside::above(1, 2), Beside::above(3, 1)];
    let answered = trained(bench, scale, SHARING.name, &variants)?;
    let mut finding = answered.finding(&pairs, "Accuracy by sharing");
    let [none, layer_wise] = [0, 3].map(|variant| answered.parameters(variant));
    let fewer = Clause::paper("Layer-wise sharing has fewer parameters than none.").exactly(layer_wise < none);
    finding.clauses.push(fewer.note(format!("{layer_wise} and {none}")));
    Ok(finding)
}

/// Models with each of these attentions, the same data and seeds for all.
fn trained(
    bench: &Workbench,
    scale: Scale,
    name: &str,
    variants: &[(&'static str, &str)],
) -> Result<Answered, Failure> {
    let [steps, batch] = if scale == Scale::Quick { [200, 32] } else { [600, 64] };
    let seeds: &[u64] = if scale == Scale::Quick { &[1, 2, 3] } else { &[1, 2, 3, 4, 5] };
    let (train, test) = (bench.data_file(TRAIN)?, bench.data_file(TEST)?);
    let (names, mechanisms): (Vec<&'static str>, Vec<&str>) = variants.iter().copied().unzip();
    let recipe = format!(
        "preset = \"ag-news\"\n\n[task.text]\ntrain = {train:?}\ntest = {test:?}\n\n[train]\nsteps = {steps}\nbatch = {batch}\n\n[compare]\n\
         mechanisms = {mechanisms:?}\nseeds = {seeds:?}\n",
    );
    Answered::of(bench, &names, &[(name, recipe)])
}
