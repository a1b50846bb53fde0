//! Translators with mixtures of keys and with mixtures of heads: BLEU beside plain heads.

use regard_report::{Cell, Column, Format, Sample, Table};
use regard_tasks::Failure;

use crate::reproduce::{Clause, Compared, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence};

const DATA: &str = "Multi30k, by --data";
const FOLDER: &str = "multi30k-en-de";
const PAIRS: &str = "29,000 descriptions of pictures of Multi30k for the pairs of the paper";
const SIZES: &str =
    "2 and 2 layers of width 64 or 128 and 600 or 2,000 updates for 6 and 6 layers of width 512 trained to their end";
const SEEDS: &str = "3 seeds as units for one model of each";

/// Sizes of a scale, the same for every model.
struct Sizes {
    width: usize,
    steps: usize,
}

/// Plain heads of a model; those of mixtures follow from them.
const HEADS: usize = 4;

fn sizes(scale: Scale) -> Sizes {
    match scale {
        Scale::Quick => Sizes { width: 64, steps: 600 },
        Scale::Here | Scale::Paper => Sizes { width: 128, steps: 2000 },
    }
}

const QUICK: &str = "2 layers each in encoder and decoder, width 64, 4 plain heads of 16, 600 updates of 64 pairs, label smoothing 0.1, beam 4, 3 seeds.";
const HERE: &str = "2 layers each in encoder and decoder, width 128, 4 plain heads of 32, 2,000 updates of 64 pairs, label smoothing 0.1, beam 4, 3 \
                    seeds.";

pub const KEYS: Entry = Entry {
    name: "mgk-translation",
    paper: Paper::Mgk,
    figures: "table 4",
    claim: "Translators with half the heads, of two keys each, have a BLEU comparable with that of plain heads (MGK) or a better one (sMGK).",
    data: DATA,
    models: &[],
    paper_setting: "IWSLT 2014 from German to English, 4 plain heads: 34.42 against 34.34 (MGK) and 34.69 (sMGK) with 2 heads; WMT 2014 with 16 and 8.",
    setups: &[
        Setup { scale: Scale::Quick, setting: QUICK, differences: KEYS_DIFFER, minutes: 15.0 },
        Setup { scale: Scale::Here, setting: HERE, differences: KEYS_DIFFER, minutes: 60.0 },
    ],
    run: keys,
};

const KEYS_DIFFER: &[&str] = &[PAIRS, SIZES, SEEDS, "comparable: at most half a point below, which is our reading"];

pub const HEADS_MIXED: Entry = Entry {
    name: "moa-translation",
    paper: Paper::Moa,
    figures: "table 1, BLEU",
    claim: "Translators with a mixture of attention heads have a higher BLEU than those with plain heads: by at least 0.6 in the base form, which chooses \
            all of its experts, twice as wide as plain heads; with a choice of wider experts, in the large form; and with more experts than are \
            chosen a higher one than with as many (section 5.3).",
    data: DATA,
    models: &[],
    paper_setting: "WMT 2014, English to German: 27.3 with 8 plain heads of 64, 28.4 with all of 8 experts of 128, 29.4 with 16 of 32 experts of 256.",
    setups: &[
        Setup { scale: Scale::Quick, setting: QUICK, differences: HEADS_DIFFER, minutes: 20.0 },
        Setup { scale: Scale::Here, setting: HERE, differences: HEADS_DIFFER, minutes: 80.0 },
    ],
    run: heads,
};

const HEADS_DIFFER: &[&str] = &[
    PAIRS,
    SIZES,
    SEEDS,
    "4 experts, twice as wide as plain heads, for 8; 4 of 16, twice as wide, for 16 of 32, four times as wide, beside the same plain heads",
    "rate 2e-3 for 7e-4, dropout 0.2, 6,000 subwords for 32,000",
    "the mean of 5 checkpoints for that of 10 epochs; BLEU of sacrebleu for multi-bleu with compounds split",
];

fn keys(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let width = sizes(scale).width;
    let halved = |name: &str| format!("{name}:heads={},model.head_width={}", HEADS / 2, width / HEADS);
    let mechanisms = ["softmax".to_owned(), halved("mgk"), halved("smgk")];
    let compared = train(bench, KEYS.name, scale, ["de", "en"], &mechanisms)?;
    let names = ["softmax, 4 heads", "MGK, 2 heads", "sMGK, 2 heads"];
    let scores = scores(&compared);
    let comparable = |own: usize| {
        let difference = Estimate::paired(&scores[own], &scores[0], confidence(2), "seeds");
        Clause::paper(format!("{} is at most half a point of BLEU below {}.", names[own], names[0]))
            .above(difference, -0.5)
    };
    let better = Estimate::paired(&scores[2], &scores[0], confidence(2), "seeds");
    let clauses =
        vec![comparable(1), Clause::paper(format!("{} is better than {}.", names[2], names[0])).above(better, 0.0)];
    Ok(Finding {
        clauses,
        statement: said(&names, &scores),
        tables: vec![table(&compared, &names)],
        charts: Vec::new(),
    })
}

fn heads(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let wide = 2 * sizes(scale).width / HEADS;
    let mixture = |experts: usize| format!("moa:moa.active={HEADS},moa.experts={experts},moa.head_width={wide}");
    let free = |experts: usize| format!("{},moa.balance=0.0,moa.z=0.0", mixture(experts));
    let mechanisms = ["softmax".to_owned(), mixture(4), free(4), mixture(16), free(16)];
    let compared = train(bench, HEADS_MIXED.name, scale, ["en", "de"], &mechanisms)?;
    let names =
        ["4 plain heads", "all of 4 experts", "all of 4, without losses", "4 of 16 experts", "4 of 16, without losses"];
    let scores = scores(&compared);
    let better = |one: usize, other: usize| {
        (
            format!("{} less {}, points of BLEU", names[one], names[other]),
            Estimate::paired(&scores[one], &scores[other], confidence(3), "seeds"),
        )
    };
    let above = |clause: fn(String) -> Clause, (text, estimate): (String, Estimate), says: &str, border: f64| {
        clause(format!("{says}: {text}.")).above(estimate, border)
    };
    let clauses = vec![
        above(Clause::paper, better(1, 0), "The base form is better than plain heads by at least 0.6", 0.6),
        above(Clause::paper, better(3, 0), "A choice of 4 of 16 experts is better than plain heads", 0.0),
        above(Clause::paper, better(3, 1), "A choice of 4 of 16 experts is better than all of 4", 0.0),
        above(Clause::ours, better(3, 4), "With a choice, the losses of the router help", 0.0),
    ];
    Ok(Finding {
        clauses,
        statement: said(&names, &scores),
        tables: vec![table(&compared, &names)],
        charts: Vec::new(),
    })
}

/// Translators with each of these attentions in all three places.
fn train(
    bench: &Workbench,
    name: &str,
    scale: Scale,
    [source, target]: [&str; 2],
    mechanisms: &[String],
) -> Result<Compared, Failure> {
    let directory = bench.data_file(FOLDER)?;
    let Sizes { width, steps } = sizes(scale);
    let recipe = format!(
        "preset = \"translation\"\nheads = {HEADS}\n\n[model]\nwidth = {width}\nlayers = 2\nfeed_forward = {}\n\n[task.translation]\ndirectory = \
         {directory:?}\nsource = {source:?}\ntarget = {target:?}\n\n[train]\nsteps = {steps}\nevaluate_every = {}\n\n[compare]\nmechanisms = \
         {mechanisms:?}\nseeds = [1, 2, 3]\n",
        4 * width,
        steps / 4,
    );
    bench.train(name, &recipe)
}

/// BLEU of each model, one per seed.
fn scores(compared: &Compared) -> Vec<Vec<f64>> {
    compared.candidates().into_iter().map(|runs| runs.iter().filter_map(|run| run.test_bleu).collect()).collect()
}

fn said(names: &[&str], scores: &[Vec<f64>]) -> String {
    let of = |(name, scores): (&&str, &Vec<f64>)| format!("{name} {:.2}", Sample::of(scores).mean);
    format!("BLEU: {}.", names.iter().zip(scores).map(of).collect::<Vec<_>>().join("; "))
}

/// One row a model.
fn table(compared: &Compared, names: &[&str]) -> Table {
    let columns = vec![
        Column::text("attention"),
        Column::number("test BLEU", Format::Fixed(2)),
        Column::number("test perplexity", Format::Fixed(2)),
        Column::number("parameters", Format::Count),
        Column::number("multiply-adds", Format::Count),
    ];
    let mut table = Table::new("Translators", columns)
        .note("Mean and deviation over seeds; the mean of the last checkpoints, beam 4.");
    for ((name, runs), scores) in names.iter().zip(compared.candidates()).zip(scores(compared)) {
        let perplexities: Vec<f64> = runs.iter().filter_map(|run| run.test_perplexity).collect();
        table.push(vec![
            (*name).into(),
            Cell::estimate(&scores),
            Cell::estimate(&perplexities),
            runs[0].parameters.into(),
            runs[0].multiply_adds.into(),
        ]);
    }
    table
}
