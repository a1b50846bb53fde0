//! Models trained with Scatterbrain, hashing and random features at an eighth of the entries.

use regard_report::{Cell, Column, Format, Sample, Table};
use regard_tasks::Failure;

use super::{
    answered::{Answered, Beside},
    mgk_trained::{TASK, recipe_of},
    scatterbrain_trained::FEATURES,
};
use crate::bench::Timing;
use crate::reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence};

/// Names and attentions of both entries; the first four are the paper's table 2, the window its table 7.
const VARIANTS: [(&str, &str); 5] = [
    ("full", "softmax"),
    ("Reformer", "sparse:support.kind=lsh"),
    ("Performer", "performer"),
    ("Scatterbrain", "scatterbrain:support.kind=lsh"),
    ("window", "sparse:support.kind=local"),
];
const FULL: usize = 0;
const REFORMER: usize = 1;
const PERFORMER: usize = 2;
const SCATTERBRAIN: usize = 3;
const WINDOW: usize = 4;

/// Perplexity of Scatterbrain over that of full attention in the paper's table.
const COMPARABLE: f64 = 2.58;

pub const COPYING: Entry = Entry {
    name: "scatterbrain-copying",
    paper: Paper::Scatterbrain,
    figures: "table 2 (copying), table 4 (copying) and table 7 (copying)",
    claim: "Trained to copy with an eighth of the entries, Scatterbrain has a lower perplexity than hashing and than random features alone, and one \
            comparable with that of full attention; a window alone does not copy.",
    data: "generated",
    models: &[],
    paper_setting: "0 w 0 w of 1,024 tokens, 2 layers, 4 heads: full 1, Reformer 6.8, Performer 49, Scatterbrain 2.58, a window worse.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "0 w 0 w of 256 tokens of 127 symbols, 2 layers of width 128, 4 heads, 400 updates of 8, 3 seeds.",
            differences: &["256 tokens for 1,024", UPDATES, COPIED, FEATURES],
            minutes: 12.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "0 w 0 w of 256 tokens of 127 symbols, 2 layers of width 128, 4 heads, 2,000 updates of 8, 3 seeds.",
            differences: &["256 tokens for 1,024", UPDATES, COPIED, FEATURES],
            minutes: 60.0,
        },
    ],
    run: copying,
};

const UPDATES: &str = "a number of updates in which full attention copies and the others may not have learned all that they can; 3 seeds for 5";
const COPIED: &str = "comparable is at most 2.58 times the perplexity, as in the paper; not to copy is a perplexity above 10, which is our reading";

pub const ARENA: Entry = Entry {
    name: "scatterbrain-arena",
    paper: Paper::Scatterbrain,
    figures: "table 2 (Long Range Arena) and table 4 (Long Range Arena)",
    claim: "Trained with an eighth of the entries, Scatterbrain is more accurate than hashing and than random features alone, and very close to full \
            attention.",
    data: "generated",
    models: &[],
    paper_setting: "ListOps, text, retrieval, image and pathfinder: full 59.62 in the mean, Reformer 53.90, Performer 57.05, Scatterbrain 59.38; on ListOps \
                    38.20, 36.85, 35.75 and 38.60.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "ListOps, 2 layers of width 64, 2 heads of 32, 400 updates of 32 expressions, 3 seeds; answers to 5,000 test expressions.",
            differences: &[TASK, ALONE, CLOSE, FEATURES, "400 updates; 3 seeds for 5"],
            minutes: 12.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "ListOps, 2 layers of width 64, 2 heads of 32, 1,600 updates of 32 expressions, 5 seeds; answers to 20,000 test expressions.",
            differences: &[TASK, ALONE, CLOSE, FEATURES, "1,600 updates"],
            minutes: 60.0,
        },
    ],
    run: arena,
};

const ALONE: &str = "ListOps alone for five tasks";
const CLOSE: &str = "very close: at most one point below, which is our reading";

/// Attentions of these variants.
fn mechanisms(variants: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    variants.iter().map(|variant| variant.1).collect()
}

fn copying(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let steps = if scale == Scale::Quick { 400 } else { 2000 };
    let recipe = format!(
        "preset = \"copy\"\n\n[task.copy]\nlength = 256\n\n[train]\nsteps = {steps}\nbatch = 8\nevaluate_every = {}\n\n[compare]\nmechanisms = \
         {:?}\nseeds = [1, 2, 3]\n",
        steps / 4,
        mechanisms(&VARIANTS),
    );
    let compared = bench.train(COPYING.name, &recipe)?;
    let losses: Vec<Vec<f64>> =
        compared.candidates().into_iter().map(|runs| runs.iter().map(|run| run.test_loss).collect()).collect();
    let sure = confidence(4);
    let worse = |other: usize| {
        let difference = Estimate::paired(&losses[other], &losses[SCATTERBRAIN], sure, "seeds");
        let text = format!("{} has a higher loss than Scatterbrain: difference in nats.", VARIANTS[other].0);
        Clause::paper(text).above(difference, 0.0)
    };
    let learned = Estimate::mean(&losses[FULL], 0.95, "seeds");
    let clauses = vec![
        worse(REFORMER),
        worse(PERFORMER),
        Clause::paper("Scatterbrain is comparable with full attention: difference of losses in nats.")
            .below(Estimate::paired(&losses[SCATTERBRAIN], &losses[FULL], sure, "seeds"), COMPARABLE.ln()),
        Clause::paper("A window does not copy: loss in nats.")
            .above(Estimate::mean(&losses[WINDOW], sure, "seeds"), 10f64.ln()),
        Clause { of_paper: false, ..worse(WINDOW) },
        Clause::ours("Full attention has learned to copy: loss in nats.").below(learned, 0.1),
    ];
    let columns = vec![
        Column::text("attention"),
        Column::number("test perplexity", Format::Significant(3)),
        Column::number("test accuracy", Format::Percent(1)),
        Column::number("time", Format::Significant(3)).unit("ms an update"),
    ];
    let mut table = Table::new("Copying at an eighth of the entries", columns)
        .note("Mean and deviation over seeds, median of times.");
    let mut said = Vec::new();
    for ((name, _), runs) in VARIANTS.iter().zip(compared.candidates()) {
        let of = |read: fn(&crate::compare::RunResult) -> Option<f64>| runs.iter().filter_map(read).collect::<Vec<_>>();
        let perplexities = of(|run| run.test_perplexity);
        said.push(format!("{name} {:.2}", Sample::of(&perplexities).mean));
        table.push(vec![
            (*name).into(),
            Cell::estimate(&perplexities),
            Cell::estimate(&of(|run| run.test_accuracy)),
            Timing::of(of(|run| Some(run.milliseconds_per_step))).map(|times| times.median).into(),
        ]);
    }
    let statement = format!("Perplexities: {}.", said.join(", "));
    Ok(Finding { clauses, statement, tables: vec![table], charts: Vec::new() })
}

fn arena(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let variants = &VARIANTS[..WINDOW];
    let sizes = if scale == Scale::Quick { [400, 5_000, 3] } else { [1_600, 20_000, 5] };
    let recipe = recipe_of(sizes, &mechanisms(variants), "heads = 2\nbudget = \"1/8\"\n");
    let names: Vec<&'static str> = variants.iter().map(|variant| variant.0).collect();
    let pairs = [
        Beside::above(SCATTERBRAIN, REFORMER),
        Beside::above(SCATTERBRAIN, PERFORMER),
        Beside::no_less(SCATTERBRAIN, FULL, 1.0),
    ];
    let answered = Answered::of(bench, &names, &[(ARENA.name, recipe)])?;
    Ok(answered.finding(&pairs, "Accuracy at an eighth of the entries"))
}
