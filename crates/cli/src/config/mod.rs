//! The configuration of a run, and where each value of it came from.
//!
//! Layers, the later ones winning: defaults, preset, file, environment (`REGARD_*`), `--set`, flags. A key that does not
//! exist is an error with the place where it stands and the nearest key that does.

mod layers;
mod preset;

pub use layers::Layers;
pub use preset::PRESETS;

use std::collections::{BTreeMap, BTreeSet};

use regard_nn::{attention::AttentionConfig, models::ModelConfig};
use regard_tasks::{data::TaskConfig, train::TrainConfig};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::{
    command::cost::{longest, sizes},
    error::{Failure, Outcome},
};

/// Everything that defines a run. In files the keys of the attention stand at the top (`mechanism`, `heads`,
/// `keys.components`), beside the tables `model`, `task`, `train` and `compare`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunConfig {
    /// Seed of parameters, batches, dropout and generated data.
    pub seed: u64,
    /// The attention.
    pub attention: AttentionConfig,
    /// `model.*`
    pub model: ModelConfig,
    /// `task.*`
    pub task: TaskConfig,
    /// `train.*`
    pub train: TrainConfig,
    /// `compare.*`
    pub compare: CompareConfig,
}

/// `compare.*`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompareConfig {
    /// What is compared: names of mechanisms, with overrides where wanted, as in `mgk:heads=2,keys.components=3`. `smgk`
    /// and `smlk` are `mgk` and `mlk` with `keys.design=shifted`.
    pub mechanisms: Vec<String>,
    /// Every mechanism is trained once with each.
    pub seeds: Vec<u64>,
}

impl Default for CompareConfig {
    fn default() -> Self {
        let mechanisms = ["softmax", "gaussian", "mgk", "smgk", "linear", "mlk", "fastformer"];
        Self { mechanisms: mechanisms.map(String::from).to_vec(), seeds: vec![1] }
    }
}

/// Most keys a position: far more than any mixture has, few enough that their priors and variances fit anywhere.
const MOST_COMPONENTS: usize = 1024;

/// Most rows of a projection, rounds of hashing and values of a hash: what they draw is held by every layer.
const MOST_DRAWN: usize = 1 << 16;

/// What counts and sizes are.
const WHOLE: &str = "a whole number from 0";

/// Tables of a configuration other than the attention's.
pub const SECTIONS: [&str; 4] = ["model", "task", "train", "compare"];

impl RunConfig {
    /// As a TOML table, with the attention's keys at the top.
    pub fn to_table(&self) -> Table {
        let table = |value: Result<Table, toml::ser::Error>| value.expect("plain structures are TOML");
        let mut all = Table::new();
        all.insert("seed".into(), Value::Integer(self.seed as i64));
        all.extend(table(Table::try_from(&self.attention)));
        all.insert("model".into(), Value::Table(table(Table::try_from(&self.model))));
        all.insert("task".into(), Value::Table(table(Table::try_from(&self.task))));
        all.insert("train".into(), Value::Table(table(Table::try_from(&self.train))));
        all.insert("compare".into(), Value::Table(table(Table::try_from(&self.compare))));
        all
    }

    /// As TOML text.
    pub fn to_toml(&self) -> String {
        toml::to_string(&self.to_table()).expect("plain structures are TOML")
    }

    /// Reads a whole table whose keys are known to exist.
    ///
    /// # Errors
    /// A value of the wrong kind, with its key.
    fn from_table(mut table: Table) -> Result<Self, (String, String)> {
        let mut sections = Table::new();
        for name in SECTIONS {
            if let Some(section) = table.remove(name) {
                sections.insert(name.into(), section);
            }
        }
        let seed = match table.remove("seed") {
            None => 0,
            Some(Value::Integer(seed)) if seed >= 0 => seed as u64,
            Some(other) => return Err(("seed".into(), format!("is {other}, expected a whole number from 0"))),
        };
        let attention: AttentionConfig = read("", Value::Table(table))?;
        let components = attention.keys.components;
        if components > MOST_COMPONENTS {
            return Err(("keys.components".into(), format!("is {components}, expected at most {MOST_COMPONENTS}")));
        }
        let (features, support) = (&attention.features, &attention.support);
        for (key, size, most) in [
            ("features.rows", features.rows, MOST_DRAWN),
            ("support.rounds", support.rounds, MOST_COMPONENTS),
            ("support.hash_values", support.hash_values.unwrap_or(0), MOST_DRAWN),
        ] {
            if size > most {
                return Err((key.into(), format!("is {size}, expected at most {most}")));
            }
        }
        Ok(Self {
            seed,
            attention,
            model: read_section(&mut sections, "model")?,
            task: read_section(&mut sections, "task")?,
            train: read_section(&mut sections, "train")?,
            compare: read_section(&mut sections, "compare")?,
        })
    }

    /// The configuration of one entry of `compare.mechanisms`, and its label.
    ///
    /// # Errors
    /// An unknown mechanism or key.
    pub fn candidate(&self, entry: &str) -> Outcome<(String, Self)> {
        let (name, overrides) = entry.split_once(':').unwrap_or((entry, ""));
        let mut layers = Layers::over(self.clone());
        let origin = "compare.mechanisms";
        layers.set_named("mechanism", name).map_err(|failure| Failure {
            message: failure.message.replacen("--mechanism is", "an entry of compare.mechanisms is", 1),
            ..failure
        })?;
        for assignment in overrides.split(',').filter(|text| !text.is_empty()) {
            layers.assign(assignment, origin)?;
        }
        let config = layers.resolve()?;
        if (config.seed, &config.task, &config.train) != (self.seed, &self.task, &self.train) {
            return Err(Failure::usage(format!(
                "{origin}: '{entry}' changes the seed, the task or the training, expected attention and model only: the \
                 data and the recipe are the same for all"
            )));
        }
        let attention = &config.attention;
        let mut label = attention.label();
        if !overrides.is_empty() {
            label = format!("{label} {overrides}");
        }
        if attention.budget.is_some() {
            let context = longest(&config);
            // A language model is causal whatever the key says.
            let options = sizes(&config, None, context).attention.options;
            let sizes = options.within_budget(context, context, config.model.head_width(attention))?.sizes();
            if !sizes.is_empty() {
                label = format!("{label} {}", sizes.replace(", ", " "));
            }
        }
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '=' { c } else { '-' };
        Ok((label.chars().map(plain).collect(), config))
    }

    /// The first key that makes another run of `self` than of `other`, with both values. What may change when a run is
    /// resumed is how long it goes on, its optimizer and how often it reports, not what is learned from what.
    pub fn other_run(&self, other: &Self) -> Option<(String, String, String)> {
        let fixed = |key: &str| match key.split_once('.') {
            Some(("train", key)) => ["batch", "accumulate", "start"].contains(&key),
            Some(("compare", _)) => false,
            // Saves memory, with the same result.
            _ => key != "model.checkpointing",
        };
        let (own, other) = (flat(&self.to_table()), flat(&other.to_table()));
        let keys: BTreeSet<&String> = own.keys().chain(other.keys()).collect();
        let text = |value: Option<&Value>| value.map_or("unset".into(), Value::to_string);
        let key = keys.into_iter().find(|key| fixed(key) && own.get(*key) != other.get(*key))?;
        Some((key.clone(), text(own.get(key)), text(other.get(key))))
    }

    /// Checks what can be known before data are read.
    ///
    /// # Errors
    /// The first number that cannot be.
    pub fn check(&self) -> Outcome {
        self.model.check(&self.attention)?;
        self.train.check()?;
        self.task.check()?;
        Ok(())
    }
}

/// The values of a table and of those in it, by dotted key.
fn flat(table: &Table) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                all.extend(flat(inner).into_iter().map(|(rest, value)| (format!("{key}.{rest}"), value)))
            }
            value => drop(all.insert(key.clone(), value.clone())),
        }
    }
    all
}

fn read_section<T: for<'a> Deserialize<'a> + Default>(sections: &mut Table, name: &str) -> Result<T, (String, String)> {
    match sections.remove(name) {
        None => Ok(T::default()),
        Some(value) => read(name, value),
    }
}

fn read<T: for<'a> Deserialize<'a>>(prefix: &str, value: Value) -> Result<T, (String, String)> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let key = match (prefix, path.as_str()) {
            ("", path) => path.to_owned(),
            (prefix, ".") => prefix.to_owned(),
            (prefix, path) => format!("{prefix}.{path}"),
        };
        let mut problem = error.inner().to_string();
        // Kinds of numbers by their meaning, not by their names in the program.
        for (kind, meaning) in
            [("usize", WHOLE), ("u64", WHOLE), ("u32", WHOLE), ("i64", "a whole number"), ("f64", "a number")]
        {
            problem = problem.replace(&format!("expected {kind}"), &format!("expected {meaning}"));
        }
        (key, problem.lines().next().unwrap_or_default().trim().to_owned())
    })
}

impl From<(String, String)> for Failure {
    fn from((key, problem): (String, String)) -> Self {
        Self::usage(format!("{key}: {problem}"))
    }
}
