//! A study resolved: its axes and its cells with their configurations.

use std::{collections::BTreeMap, fmt};

use regard_tasks::{
    Failure,
    run::{Layers, RunConfig},
};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{Figure, Measure};
use crate::cost::check_training;

/// Where a cell is in the tables of a study.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Label of the task.
    pub task: String,
    /// Label of the setting, in studies that have some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// Label of the model.
    pub model: String,
}

impl Place {
    /// Task and setting.
    pub fn column(&self) -> String {
        match &self.setting {
            Some(setting) => format!("{}, {setting}", self.task),
            None => self.task.clone(),
        }
    }

    /// Whether both are on the same task in the same setting, so that they share their data.
    pub fn beside(&self, other: &Self) -> bool {
        self.task == other.task && self.setting == other.setting
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}, {}", self.column(), self.model)
    }
}

/// One task of a study.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskAxis {
    /// Its label.
    pub label: String,
    /// What is measured on it; absent: BLEU of a translator, ROUGE-1 of summaries, else accuracy where it is measured, else perplexity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure: Option<Measure>,
}

/// One model on one task in one setting: the cells that differ in their seed alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Where it is.
    #[serde(flatten)]
    pub place: Place,
    /// Its seeds, those of all its cells.
    pub seeds: Vec<u64>,
    /// The configuration as TOML, but for the seed.
    pub config: String,
}

/// A study: everything that defines its cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// Title of its page and tables.
    pub title: String,
    /// Tasks in the order of the columns.
    pub tasks: Vec<TaskAxis>,
    /// Settings of each task, in the order of the columns; may be empty.
    pub settings: Vec<String>,
    /// Models in the order of the rows.
    pub models: Vec<String>,
    /// The model that the others are tested against.
    pub baseline: String,
    /// Figures shown beside the measure of each task.
    pub columns: Vec<Figure>,
    /// All cells, by task, setting and model.
    pub groups: Vec<Group>,
}

/// One cell: one run.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    /// The cells that differ from it in their seed alone.
    pub group: &'a Group,
    /// Seed of parameters, batches and dropout.
    pub seed: u64,
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}, seed {}", self.group.place, self.seed)
    }
}

impl Study {
    /// All cells, in the order in which they are trained.
    pub fn cells(&self) -> impl Iterator<Item = Cell<'_>> {
        self.groups.iter().flat_map(|group| group.seeds.iter().map(move |&seed| Cell { group, seed }))
    }

    /// The cells at a place.
    pub fn group(&self, place: &Place) -> Option<&Group> {
        self.groups.iter().find(|group| group.place == *place)
    }

    /// Each task and setting of which there are cells, in the order of the columns, as the place of its first model.
    pub fn columns(&self) -> Vec<&Place> {
        let mut columns: Vec<&Place> = Vec::new();
        for task in &self.tasks {
            // Of merged studies one may have settings and another none.
            for setting in std::iter::once(None).chain(self.settings.iter().map(Some)) {
                let here = |place: &Place| place.task == task.label && place.setting.as_ref() == setting;
                columns.extend(self.groups.iter().map(|group| &group.place).find(|place| here(place)));
            }
        }
        columns
    }

    /// With another model to test against.
    ///
    /// # Errors
    /// A label that no model has.
    pub fn with_baseline(self, label: &str) -> Result<Self, Failure> {
        if !self.models.iter().any(|model| model == label) {
            return Err(Failure::usage(format!(
                "baseline is '{label}', expected the label of a model, one of {}",
                self.models.join(", ")
            )));
        }
        Ok(Self { baseline: label.into(), ..self })
    }
}

impl Group {
    /// The configuration, without the seed of a cell.
    ///
    /// # Errors
    /// A text that is no configuration.
    pub fn config(&self) -> Result<RunConfig, Failure> {
        let mut layers = Layers::new();
        layers.text(&self.config, &format!("configuration of {}", self.place))?;
        layers.resolve()
    }
}

impl Cell<'_> {
    /// The configuration of its run.
    ///
    /// # Errors
    /// As for [`Group::config`].
    pub fn config(&self) -> Result<RunConfig, Failure> {
        Ok(RunConfig { seed: self.seed, ..self.group.config()? })
    }
}

/// Checks what can be checked before the data are read.
///
/// # Errors
/// The first invalid number, missing file, or a model that cannot fit into memory.
pub fn check(config: &RunConfig) -> Result<(), Failure> {
    config.check()?;
    config.check_undivided()?;
    check_training(config, 1)
}

/// Keys by which two configurations differ, with the value of each; those of `compare` and the seed of the run do not count.
pub fn differences(one: &RunConfig, other: &RunConfig) -> Vec<(String, String, String)> {
    let (one, other) = (flat(one), flat(other));
    let text = |value: Option<&Value>| value.map_or("unset".into(), Value::to_string);
    let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let differs = keys.into_iter().filter(|key| one.get(*key) != other.get(*key));
    differs.map(|key| (key.clone(), text(one.get(key)), text(other.get(key)))).collect()
}

fn flat(config: &RunConfig) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    flatten(config.to_table(), "", &mut all);
    all.retain(|key, _| key != "seed" && !key.starts_with("compare."));
    all
}

/// The values of a table by dotted key; keys may themselves be dotted.
pub fn flatten(table: Table, prefix: &str, all: &mut BTreeMap<String, Value>) {
    for (key, value) in table {
        let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            Value::Table(inner) => flatten(inner, &key, all),
            value => drop(all.insert(key, value)),
        }
    }
}
