//! `regard list`

use clap::ValueEnum;
use regard_kernels::Mechanism;
use regard_report::{Column, Table};
use regard_tasks::{data::TaskName, run::PRESETS};
use serde_json::json;

use crate::{args::Common, error::Outcome, output};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Listed {
    /// Attention mechanisms.
    Mechanisms,
    /// Tasks.
    Tasks,
    /// Named configurations.
    Presets,
}

/// Lists mechanisms, tasks and presets.
///
/// # Errors
/// Standard output that cannot be written.
pub fn run(what: Option<Listed>, common: &Common) -> Outcome {
    let tables: Vec<(&str, Table)> = [
        (Listed::Mechanisms, "mechanisms", mechanisms as fn() -> Table),
        (Listed::Tasks, "tasks", tasks),
        (Listed::Presets, "presets", presets),
    ]
    .into_iter()
    .filter(|(listed, ..)| what.is_none_or(|what| what == *listed))
    .map(|(_, name, table)| (name, table()))
    .collect();
    if common.json {
        let all: serde_json::Map<_, _> =
            tables.iter().map(|(name, table)| ((*name).to_owned(), table.to_json())).collect();
        return output::json(&json!(all));
    }
    output::text(tables.iter().map(|(_, table)| table.to_text()).collect::<Vec<_>>().join("\n"))
}

fn mechanisms() -> Table {
    let columns = ["name", "what it is", "time", "memory", "decoder", "cross", "window", "source"];
    let mut table = Table::new("Mechanisms", columns.map(Column::text).to_vec())
        .note("Time, memory of a training step and decode state grow with the length N as listed.")
        .note("smgk and smlk are mgk and mlk with keys.design=shifted.")
        .note("sparse and scatterbrain are told apart by support.kind: local (of radius), longformer, bigbird, block, smyrf, lsh.");
    let yes = |truth: bool| if truth { "yes" } else { "no" };
    for mechanism in Mechanism::ALL {
        let facts = mechanism.facts();
        let cells = [
            mechanism.name(),
            facts.summary,
            facts.time.name(),
            facts.memory.name(),
            facts.decode_state.name(),
            yes(facts.cross),
            yes(facts.window),
            facts.source,
        ];
        table.push(cells.map(Into::into).to_vec());
    }
    table
}

fn tasks() -> Table {
    let mut table = Table::new("Tasks", ["name", "what it is"].map(Column::text).to_vec());
    for task in TaskName::ALL {
        table.push([task.name(), task.summary()].map(Into::into).to_vec());
    }
    table
}

fn presets() -> Table {
    let mut table = Table::new("Presets", ["name", "what it is"].map(Column::text).to_vec());
    for (name, summary, _) in PRESETS {
        table.push([*name, *summary].map(Into::into).to_vec());
    }
    table
}
