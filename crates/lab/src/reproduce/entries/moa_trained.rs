//! Mixtures of attention heads in masked language models: perplexity by sizes and by the router's losses, and loads.

use regard_report::{Cell, Column, Format, Sample, Table};
use regard_tasks::Failure;

use super::language::{self, MASKED as SETTING};
use crate::{
    compare::RunResult,
    inspect::{Router, Wanted, routers, token_texts},
    reproduce::{Clause, Compared, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence},
};

const TEXT: &str = "a megabyte of plays for WikiText-103 or WMT 2014";
const SMALL: &str = "2 layers of width 64 for 8 of width 512 (6 and 6 in translators)";
const WINDOWS: &str =
    "4 plain heads of 16 for 8 of 64, 1,000 subwords for 50,000, windows of 64 tokens, losses for perplexities";
const MIXTURES: &str = "4 of 8 experts of 14 for as many parameters as plain heads; then 4 of 16 of 14, 4 of 16 of 28";

pub const MASKED: Entry = Entry {
    name: "moa-masked",
    paper: Paper::Moa,
    figures: "table 2",
    claim: "Masked language models with a mixture of attention heads have a lower perplexity than plain heads with as many parameters, and a still \
            lower one with more experts, or with wider heads, at as many active heads.",
    data: "embedded (tinyshakespeare)",
    models: &[],
    paper_setting: "WikiText-103, 50,000 subwords, 8 layers of width 512, 8 heads; test perplexity, better by 0.13 with as many parameters.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: SETTING[0],
            differences: &[TEXT, SMALL, WINDOWS, MIXTURES, "400 updates"],
            minutes: 8.0,
        },
        Setup {
            scale: Scale::Here,
            setting: SETTING[1],
            differences: &[TEXT, SMALL, WINDOWS, MIXTURES, "2,000 updates"],
            minutes: 45.0,
        },
    ],
    run: masked,
};

pub const SIZES: Entry = Entry {
    name: "moa-sizes",
    paper: Paper::Moa,
    figures: "table 3, perplexity",
    claim: "Perplexity falls with the width of heads, with the number of experts and with the number of active ones, the other two fixed.",
    data: "embedded (tinyshakespeare)",
    models: &[],
    paper_setting: "Translators of WMT 2014: widths 64, 128, 256 with 8 of 32 experts; 8, 16, 32 experts with 8 active of 256; 4, 8, 16 active with 32 of \
                    256; BLEU and validation perplexity.",
    setups: &[
        Setup { scale: Scale::Quick, setting: SETTING[0], differences: SIZES_DIFFER, minutes: 14.0 },
        Setup { scale: Scale::Here, setting: SETTING[1], differences: SIZES_DIFFER, minutes: 75.0 },
    ],
    run: sizes,
};

const SIZES_DIFFER: &[&str] = &[
    "masked language models for translators, test perplexity alone",
    TEXT,
    SMALL,
    "widths 8, 16, 32 with 4 of 16 experts; 4, 8, 16 experts with 4 active of 16; 2, 4, 8 active with 16 of 16",
    "400 or 2,000 updates",
];

pub const LOSSES: Entry = Entry {
    name: "moa-losses",
    paper: Paper::Moa,
    figures: "table 7",
    claim: "Both losses of the router together, 0.01 L_a + 0.001 L_z, give a better score than either alone.",
    data: "embedded (tinyshakespeare)",
    models: &[],
    paper_setting: "BLEU of translators of WMT 2014 with combinations of the two losses and several coefficients.",
    setups: &[
        Setup { scale: Scale::Quick, setting: SETTING[0], differences: LOSSES_DIFFER, minutes: 8.0 },
        Setup { scale: Scale::Here, setting: SETTING[1], differences: LOSSES_DIFFER, minutes: 45.0 },
    ],
    run: losses,
};

const LOSSES_DIFFER: &[&str] = &[
    "test loss of masked language models for BLEU of translators",
    TEXT,
    SMALL,
    "4 of 16 experts of width 16; one coefficient of each loss for several",
    "400 or 2,000 updates",
];

pub const LOADS: Entry = Entry {
    name: "moa-loads",
    paper: Paper::Moa,
    figures: "figures 3 and 4",
    claim: "Tokens spread rather evenly over experts: in one layer the most used has 1.6 times an even share, the least used 0.32 of it; other layers are \
            relatively balanced.",
    data: "embedded (tinyshakespeare)",
    models: &[],
    paper_setting: "The fourth encoder layer of a translator of WMT 2014 with 16 of 32 experts on the development set: shares of 1 to 5 %, most of them 2 \
                    to 4 %, where even is 3.1 %. Of other layers it has pictures.",
    setups: &[
        Setup { scale: Scale::Quick, setting: SETTING[0], differences: LOADS_DIFFER, minutes: 8.0 },
        Setup { scale: Scale::Here, setting: SETTING[1], differences: LOADS_DIFFER, minutes: 45.0 },
    ],
    run: loads,
};

const LOADS_DIFFER: &[&str] = &[
    "the last of two layers for the fourth",
    "shares of 4 of 16 experts for 16 of 32, as multiples of an even one: one of these can have at most 4 times an even share, one of those twice",
    TRANSLATORS,
    TEXT,
    SMALL,
    "the test split",
];

const SPECIALISED_DIFFER: &[&str] =
    &[TRANSLATORS, TEXT, SMALL, "the test split", "tokens that occur at least 10 times"];

const TRANSLATORS: &str = "masked language models for translators, those of moa-masked with 4 of 16 experts of 14";

pub const SPECIALISED: Entry = Entry {
    name: "moa-specialised",
    paper: Paper::Moa,
    figures: "table 4",
    claim: "Experts of the first layer prefer tokens of one kind; in other layers clear patterns are hard to find.",
    data: "embedded (tinyshakespeare)",
    models: &[],
    paper_setting: "The first encoder layer of a translator of WMT 2014 with 16 of 32 experts of 512: tokens of largest mutual information; without a number.",
    setups: &[
        Setup { scale: Scale::Quick, setting: SETTING[0], differences: SPECIALISED_DIFFER, minutes: 8.0 },
        Setup { scale: Scale::Here, setting: SETTING[1], differences: SPECIALISED_DIFFER, minutes: 45.0 },
    ],
    run: specialised,
};

fn mixture(active: usize, experts: usize, head_width: usize) -> String {
    format!("moa:moa.active={active},moa.experts={experts},moa.head_width={head_width}")
}

/// Test losses of the runs of one candidate.
fn losses_of(runs: &[RunResult]) -> Vec<f64> {
    runs.iter().map(|run| run.test_loss).collect()
}

fn perplexities_of(losses: &[f64]) -> Vec<f64> {
    losses.iter().map(|loss| loss.exp()).collect()
}

/// One row a model.
fn table(compared: &Compared, names: &[String]) -> Table {
    let columns = vec![
        Column::text("attention"),
        Column::number("test loss", Format::Fixed(3)).unit("nat"),
        Column::number("perplexity", Format::Fixed(1)),
        Column::number("parameters", Format::Count),
        Column::number("multiply-adds", Format::Count),
    ];
    let mut table = Table::new("Masked language models", columns)
        .note("Mean and deviation over seeds; multiply-adds of a window of 64 tokens.");
    for (name, runs) in names.iter().zip(compared.candidates()) {
        let losses = losses_of(runs);
        table.push(vec![
            name.as_str().into(),
            Cell::estimate(&losses),
            Cell::estimate(&perplexities_of(&losses)),
            runs[0].parameters.into(),
            runs[0].multiply_adds.into(),
        ]);
    }
    table
}

/// Losses of each model, one per seed.
fn all_losses(compared: &Compared) -> Vec<Vec<f64>> {
    compared.candidates().into_iter().map(losses_of).collect()
}

fn perplexities(names: &[String], losses: &[Vec<f64>]) -> String {
    let of = |(name, losses): (&String, &Vec<f64>)| format!("{name} {:.1}", Sample::of(&perplexities_of(losses)).mean);
    names.iter().zip(losses).map(of).collect::<Vec<_>>().join(", ")
}

/// Plain heads; a mixture with as many parameters; the same with more experts; that with wider heads.
fn train_masked(bench: &Workbench, scale: Scale) -> Result<Compared, Failure> {
    let mechanisms = ["softmax".to_owned(), mixture(4, 8, 14), mixture(4, 16, 14), mixture(4, 16, 28)];
    language::masked(bench, MASKED.name, scale, &mechanisms)
}

/// Place of the model whose loads are inspected.
const INSPECTED: usize = 2;

fn masked(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let compared = train_masked(bench, scale)?;
    let names = ["4 plain heads of 16", "4 of 8 experts of 14", "4 of 16 of 14", "4 of 16 of 28"].map(str::to_owned);
    let losses = all_losses(&compared);
    let better = |text: &str, worse: usize, better: usize| {
        let difference = Estimate::paired(&losses[worse], &losses[better], confidence(3), "seeds");
        Clause::paper(format!("{text}: difference of losses.")).above(difference, 0.0)
    };
    Ok(Finding {
        clauses: vec![
            better("With as many parameters, the mixture is better than plain heads", 0, 1),
            better("Twice the experts are better", 1, 2),
            better("Heads twice as wide are better", 2, 3),
        ],
        statement: format!("Perplexities: {}.", perplexities(&names, &losses)),
        tables: vec![table(&compared, &names)],
        charts: Vec::new(),
    })
}

fn sizes(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let models = [(4, 16, 8), (4, 16, 16), (4, 16, 32), (4, 4, 16), (4, 8, 16), (2, 16, 16), (8, 16, 16)];
    let mechanisms = models.map(|(active, experts, width)| mixture(active, experts, width));
    let names = models.map(|(active, experts, width)| format!("{active} of {experts} of {width}"));
    let compared = language::masked(bench, SIZES.name, scale, &mechanisms)?;
    let losses = all_losses(&compared);
    let sweeps =
        [("width of heads", [0, 1, 2]), ("number of experts", [3, 4, 1]), ("number of active experts", [5, 1, 6])];
    let mut clauses = Vec::new();
    for (what, [few, some, many]) in sweeps {
        let gain = |from: usize, to: usize| Estimate::paired(&losses[from], &losses[to], confidence(6), "seeds");
        for (step, from, to) in [("first", few, some), ("second", some, many)] {
            let text = format!("The loss falls with the {what}, {step} doubling.");
            clauses.push(Clause::paper(text).above(gain(from, to), 0.0));
        }
        let text = format!("The loss falls from the least to the largest {what}.");
        clauses.push(Clause::ours(text).above(gain(few, many), 0.0));
    }
    Ok(Finding {
        clauses,
        statement: format!("Perplexities: {}.", perplexities(&names, &losses)),
        tables: vec![table(&compared, &names)],
        charts: Vec::new(),
    })
}

fn losses(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let models = [("both", 0.01, 0.001), ("neither", 0.0, 0.0), ("balance alone", 0.01, 0.0), ("z alone", 0.0, 0.001)];
    let mechanisms =
        models.map(|(_, balance, z)| format!("{},moa.balance={balance:?},moa.z={z:?}", mixture(4, 16, 16)));
    let names = models.map(|(name, ..)| name.to_owned());
    let compared = language::masked(bench, LOSSES.name, scale, &mechanisms)?;
    let losses = all_losses(&compared);
    let clauses = (1..models.len()).map(|other| {
        let difference = Estimate::paired(&losses[other], &losses[0], confidence(2), "seeds");
        let text = format!("Both are better than {}: difference of losses.", names[other]);
        // Of no losses at all its text says nothing.
        Clause { of_paper: names[other] != "neither", ..Clause::paper(text) }.above(difference, 0.0)
    });
    Ok(Finding {
        clauses: clauses.collect(),
        statement: format!("Perplexities: {}.", perplexities(&names, &losses)),
        tables: vec![table(&compared, &names)],
        charts: Vec::new(),
    })
}

/// The routers of each seed's model with their tokens as text.
fn inspected(bench: &Workbench, scale: Scale) -> Result<(Vec<Vec<Router>>, Vec<String>), Failure> {
    let compared = train_masked(bench, scale)?;
    let (mut all, mut texts) = (Vec::new(), Vec::new());
    for run in compared.candidates().get(INSPECTED).copied().unwrap_or_default() {
        bench.note(&format!("seed {}", run.seed));
        let (model, data) = bench.open(&compared, run)?;
        let wanted = Wanted { split: regard_tasks::data::Split::Test, batches: 0, tokens: 8, least: 10 };
        all.push(routers(&model, &data, &wanted)?);
        texts = token_texts(&data);
    }
    Ok((all, texts))
}

fn loads(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let (models, _) = inspected(bench, scale)?;
    let layers = models.first().map_or(0, Vec::len);
    let over = |layer: usize, value: fn((f64, f64)) -> f64| {
        let values: Vec<f64> = models.iter().map(|own| value(own[layer].load.extremes())).collect();
        Estimate::mean(&values, confidence(2), "seeds")
    };
    let columns = vec![
        Column::text("layer"),
        Column::number("least load", Format::Ratio),
        Column::number("largest load", Format::Ratio),
    ];
    let mut table = Table::new("Loads of 16 experts, 4 of them active", columns)
        .note("Multiples of an even share, mean and deviation over seeds.");
    let (mut clauses, mut said) = (Vec::new(), Vec::new());
    for layer in 0..layers {
        let of = |value: fn((f64, f64)) -> f64| {
            Cell::estimate(&models.iter().map(|own| value(own[layer].load.extremes())).collect::<Vec<_>>())
        };
        let name = models[0][layer].name.as_str();
        table.push(vec![name.into(), of(|own| own.0), of(|own| own.1)]);
        let (least, most) = (over(layer, |own| own.0), over(layer, |own| own.1));
        said.push(format!(
            "{name}: the most used expert has {:.2} of an even share, the least used {:.2}",
            most.value, least.value
        ));
        // The last layer stands for the fourth; of others the paper has no numbers.
        let of_paper = layer + 1 == layers;
        let figure = if of_paper { "Figure 3" } else { "Figure 4" };
        let clause = |text: &str| Clause { of_paper, ..Clause::paper(format!("{figure}: {name}: {text}")) };
        clauses.push(clause("the most used expert has at most 1.6 of an even share.").below(most, 1.6));
        clauses.push(clause("the least used expert has at least 0.32 of an even share.").above(least, 0.32));
    }
    Ok(Finding {
        clauses,
        statement: format!("{}, on average over seeds.", said.join("; ")),
        tables: vec![table],
        charts: Vec::new(),
    })
}

fn specialised(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let (models, texts) = inspected(bench, scale)?;
    let layers = models.first().map_or(0, Vec::len);
    let by_layer: Vec<Vec<f64>> =
        (0..layers).map(|layer| models.iter().map(|own| own[layer].information).collect()).collect();
    let mut tables = Vec::new();
    for router in models.first().into_iter().flatten() {
        let columns = vec![Column::text("expert"), Column::text("preferred tokens (pointwise information in nat)")];
        let mut table = Table::new(format!("Preferred tokens, {}, seed 1", router.name), columns);
        for (expert, preferred) in router.preferences.iter().enumerate() {
            let word = |own: &crate::inspect::Preference| {
                let text = texts.get(own.token as usize).map_or("?", String::as_str);
                format!("{text} ({:.2})", own.information)
            };
            table.push(vec![
                expert.to_string().into(),
                preferred.iter().map(word).collect::<Vec<_>>().join(", ").into(),
            ]);
        }
        tables.push(table);
    }
    let mean = |values: &[f64]| Sample::of(values).mean;
    let said: Vec<String> =
        by_layer.iter().enumerate().map(|(at, own)| format!("layer {} {:.2}", at + 1, mean(own))).collect();
    let clauses = match &by_layer[..] {
        [first, .., last] => vec![
            Clause::ours("Tokens say more of experts in the first layer than in the last: mutual information, nat.")
                .above(Estimate::paired(first, last, confidence(1), "seeds"), 0.0),
        ],
        _ => Vec::new(),
    };
    Ok(Finding {
        clauses,
        statement: format!("Mutual information of token and expert, in nat: {}.", said.join(", ")),
        tables,
        charts: Vec::new(),
    })
}
