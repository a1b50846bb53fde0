//! Fastformer on the classification of news: beside other mechanisms, and its variants.

use regard_tasks::Failure;

use super::answered::{Answered, Beside};
use crate::reproduce::{Clause, Entry, Finding, Paper, Scale, Setup, Workbench};

const PAPER: &str = "Classification of reviews (Amazon, IMDB) and news, and recommendation of news (MIND): 2 layers, 16 heads, width 256, attention \
                     pooling, dropout 0.2, word vectors of GloVe, 5 runs.";
const DATA: &str = "AG News, by --data";
/// A task: its preset, its files, and what else it sets.
struct Task {
    preset: &'static str,
    train: &'static str,
    test: &'static str,
    more: &'static str,
}
const AG_NEWS: Task =
    Task { preset: "ag-news", train: "ag-news/train10k.tsv.gz", test: "ag-news/test.tsv.gz", more: "" };
const IMDB: Task =
    Task { preset: "imdb-10", train: "imdb/train.tsv.bz2", test: "imdb/test.tsv.bz2", more: "max_length = 128\n" };
const NEWS: &str = "10,001 news of AG News for the sets of the paper";
const VECTORS: &str = "vectors of words learned from the texts for those of GloVe";
const REVIEWS: &str = "reviews of IMDB alone, the first 128 words of each";
const VARIANTS: &str = "Linformer is left out";
const FEED_FORWARD: &str = "feed-forward 512, which the paper does not state";
/// Points within which an accuracy is nearly the best.
const NEARLY: f64 = 1.0;
const SETUPS: &[Setup] = &[
    Setup {
        scale: Scale::Quick,
        setting: "Topics of news by words, 2 layers of width 256, 16 heads, attention pooling, dropout 0.2, Adam 1e-3, 200 updates of 32, 3 seeds, \
                  tested on 7,600 news.",
        differences: &[
            NEWS,
            VECTORS,
            FEED_FORWARD,
            VARIANTS,
            "less than a pass over the news, batches of 32 for 64",
            "3 runs for 5",
        ],
        minutes: 7.0,
    },
    Setup {
        scale: Scale::Here,
        setting: "Topics of news by words, 2 layers of width 256, 16 heads, attention pooling, dropout 0.2, Adam 1e-3, 600 updates of 64, 5 seeds, \
                  tested on 7,600 news.",
        differences: &[NEWS, VECTORS, FEED_FORWARD, VARIANTS],
        minutes: 30.0,
    },
];
const SENTIMENT_SETUPS: &[Setup] = &[
    Setup {
        scale: Scale::Quick,
        setting: "Stars of reviews by words, 2 layers of width 256, 16 heads, attention pooling, dropout 0.2, Adam 1e-3, 200 updates of 32, 3 seeds, \
                  tested on 25,000 reviews.",
        differences: &[
            REVIEWS,
            VECTORS,
            FEED_FORWARD,
            VARIANTS,
            "a quarter of a pass over the reviews, batches of 32 for 64",
            "3 runs for 5",
        ],
        minutes: 30.0,
    },
    Setup {
        scale: Scale::Here,
        setting: "Stars of reviews by words, 2 layers of width 256, 16 heads, attention pooling, dropout 0.2, Adam 1e-3, 600 updates of 64, 5 seeds, \
                  tested on 25,000 reviews.",
        differences: &[REVIEWS, VECTORS, FEED_FORWARD, VARIANTS],
        minutes: 120.0,
    },
];

pub const TOPICS: Entry = Entry {
    name: "fastformer-topics",
    paper: Paper::Fastformer,
    figures: "tables, topics",
    claim: "On topics Fastformer is nearly the best of the variants of the Transformer: at most one point below any of them, which is our reading.",
    data: DATA,
    models: &[],
    paper_setting: PAPER,
    setups: SETUPS,
    run: |bench, scale| beside(bench, scale, TOPICS.name, &AG_NEWS),
};

pub const SENTIMENT: Entry = Entry {
    name: "fastformer-sentiment",
    paper: Paper::Fastformer,
    figures: "tables, sentiment",
    claim: "On sentiment Fastformer is nearly the best of the variants of the Transformer: at most one point below any of them, which is our reading.",
    data: "IMDB, by --data",
    models: &[],
    paper_setting: PAPER,
    setups: SENTIMENT_SETUPS,
    run: |bench, scale| beside(bench, scale, SENTIMENT.name, &IMDB),
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

fn beside(bench: &Workbench, scale: Scale, name: &str, task: &Task) -> Result<Finding, Failure> {
    let variants = [
        ("Fastformer", "fastformer"),
        ("softmax", "softmax"),
        ("linear", "linear"),
        ("Performer", "performer"),
        ("Longformer", "sparse:support.kind=longformer,support.radius=8,support.globals=1"),
        ("BigBird", "sparse:support.kind=bigbird,support.radius=8,support.globals=1,support.random=4"),
        ("MGK", "mgk"),
    ];
    // Mixtures of keys are younger than the paper, and the notes on it do not name Performer.
    let of_paper = |other: usize| !["MGK", "Performer"].contains(&variants[other].0);
    let pair = |other| Beside { of_paper: of_paper(other), ..Beside::no_less(0, other, NEARLY) };
    let pairs: Vec<Beside> = (1..variants.len()).map(pair).collect();
    Ok(trained(bench, scale, name, task, &variants)?.finding(&pairs, "Accuracy by mechanism"))
}

fn interaction(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let variants = [
        ("product", "fastformer:fastformer.interaction=product"),
        ("sum", "fastformer:fastformer.interaction=sum"),
        ("concatenation", "fastformer:fastformer.interaction=concatenation"),
    ];
    let pairs = [Beside::above(0, 1), Beside::above(0, 2)];
    Ok(trained(bench, scale, INTERACTION.name, &AG_NEWS, &variants)?.finding(&pairs, "Accuracy by interaction"))
}

fn sharing(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let variants = [
        ("no sharing", "fastformer:fastformer.sharing=none"),
        ("query-value", "fastformer:fastformer.sharing=query-value"),
        ("head-wise", "fastformer:fastformer.sharing=head-wise"),
        ("layer-wise", "fastformer:fastformer.sharing=layer-wise"),
    ];
    let pairs = [Beside::above(1, 0), Beside::above(1, 2), Beside::above(3, 1)];
    let answered = trained(bench, scale, SHARING.name, &AG_NEWS, &variants)?;
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
    task: &Task,
    variants: &[(&'static str, &str)],
) -> Result<Answered, Failure> {
    let [steps, batch] = if scale == Scale::Quick { [200, 32] } else { [600, 64] };
    let seeds: &[u64] = if scale == Scale::Quick { &[1, 2, 3] } else { &[1, 2, 3, 4, 5] };
    let Task { preset, train, test, more } = task;
    let (train, test) = (bench.data_file(train)?, bench.data_file(test)?);
    let (names, mechanisms): (Vec<&'static str>, Vec<&str>) = variants.iter().copied().unzip();
    let recipe = format!(
        "preset = {preset:?}\n\n[task.text]\ntrain = {train:?}\ntest = {test:?}\n{more}\n[train]\nsteps = {steps}\nbatch = {batch}\n\n\
         [compare]\nmechanisms = {mechanisms:?}\nseeds = {seeds:?}\n",
    );
    Answered::of(bench, &names, &[(name, recipe)])
}
