//! The configuration of a run, as a structure and as TOML.

use std::collections::{BTreeMap, BTreeSet};

use regard_nn::{
    attention::{AttentionConfig, Attentions},
    models::ModelConfig,
};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::Layers;
use crate::{
    Failure,
    data::TaskConfig,
    train::{TrainConfig, check_head},
};

/// Everything that defines a run. In files the attention keys are at the top level (`mechanism`, `heads`,
/// `keys.components`), next to the tables `model`, `task`, `train`, `parallel` and `compare`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunConfig {
    /// Seed for parameters, batches, dropout and generated data.
    pub seed: u64,
    /// The attention; in an encoder-decoder the encoder's.
    pub attention: AttentionConfig,
    /// Self-attention of the decoder in an encoder-decoder: `attention` with overrides from `decoder.*`.
    pub decoder: AttentionConfig,
    /// Cross-attention of that decoder: `attention` with overrides from `cross.*`.
    pub cross: AttentionConfig,
    /// `model.*`
    pub model: ModelConfig,
    /// `task.*`
    pub task: TaskConfig,
    /// `train.*`
    pub train: TrainConfig,
    /// `parallel.*`
    pub parallel: ParallelConfig,
    /// `compare.*`
    pub compare: CompareConfig,
}

/// `parallel.*`: what the ranks of a job share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelConfig {
    /// Ranks over which the tokens of each sequence are spread.
    pub sequence: usize,
}

impl Default for ParallelConfig {
    fn default() -> Self {
        Self { sequence: 1 }
    }
}

/// `compare.*`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompareConfig {
    /// Entries to compare: names of mechanisms, optionally with overrides, as in `mgk:heads=2,keys.components=3`.
    /// `smgk` and `smlk` are `mgk` and `mlk` with `keys.design=shifted`.
    pub mechanisms: Vec<String>,
    /// Seeds; every entry is trained once per seed.
    pub seeds: Vec<u64>,
}

impl Default for CompareConfig {
    fn default() -> Self {
        let mechanisms = ["softmax", "gaussian", "mgk", "smgk", "linear", "mlk", "fastformer"];
        Self { mechanisms: mechanisms.map(String::from).to_vec(), seeds: vec![1] }
    }
}

/// Maximum keys per position: far more than any mixture has, few enough that their priors and variances fit into
/// memory.
const MOST_COMPONENTS: usize = 1024;

/// Maximum projection rows, hashing rounds and hash values, since every layer stores these random tensors.
const MOST_DRAWN: usize = 1 << 16;

/// Expected type of counts and sizes.
const WHOLE: &str = "a whole number from 0";

/// Tables of a configuration other than the attention's.
pub const SECTIONS: [&str; 7] = ["decoder", "cross", "model", "task", "train", "parallel", "compare"];

impl RunConfig {
    /// As a TOML table, with the attention keys at the top level.
    pub fn to_table(&self) -> Table {
        let table = |value: Result<Table, toml::ser::Error>| value.expect("plain structures are TOML");
        let mut all = Table::new();
        all.insert("seed".into(), Value::Integer(self.seed as i64));
        let attention = table(Table::try_from(&self.attention));
        for (name, own) in [("decoder", &self.decoder), ("cross", &self.cross)] {
            let own = difference(table(Table::try_from(own)), &attention);
            if !own.is_empty() {
                all.insert(name.into(), Value::Table(own));
            }
        }
        all.extend(attention);
        all.insert("model".into(), Value::Table(table(Table::try_from(&self.model))));
        all.insert("task".into(), Value::Table(table(Table::try_from(&self.task))));
        all.insert("train".into(), Value::Table(table(Table::try_from(&self.train))));
        all.insert("parallel".into(), Value::Table(table(Table::try_from(&self.parallel))));
        all.insert("compare".into(), Value::Table(table(Table::try_from(&self.compare))));
        all
    }

    /// As TOML text.
    pub fn to_toml(&self) -> String {
        toml::to_string(&self.to_table()).expect("plain structures are TOML")
    }

    /// Reads a complete table whose keys are known to be valid.
    ///
    /// # Errors
    /// A value of the wrong type, with its key.
    pub(super) fn from_table(mut table: Table) -> Result<Self, (String, String)> {
        let mut sections = Table::new();
        for name in SECTIONS {
            if let Some(section) = table.remove(name) {
                sections.insert(name.into(), section);
            }
        }
        let seed = match table.remove("seed") {
            None => 0,
            Some(Value::Integer(seed)) if seed >= 0 => seed as u64,
            Some(other) => {
                return Err(("seed".into(), format!("is {other}, expected a whole number from 0 to {}", i64::MAX)));
            }
        };
        let attention = read_attention("", table.clone())?;
        let mut other = |name| match sections.remove(name) {
            None => Ok(attention.clone()),
            Some(Value::Table(own)) => read_attention(name, overlaid(table.clone(), own)),
            Some(other) => Err((String::from(name), format!("is {other}, expected the table [{name}]"))),
        };
        let (decoder, cross) = (other("decoder")?, other("cross")?);
        Ok(Self {
            seed,
            attention,
            decoder,
            cross,
            model: read_section(&mut sections, "model")?,
            task: read_section(&mut sections, "task")?,
            train: read_section(&mut sections, "train")?,
            parallel: read_section(&mut sections, "parallel")?,
            compare: read_section(&mut sections, "compare")?,
        })
    }

    /// The configuration of one entry of `compare.mechanisms`, and its label.
    ///
    /// # Errors
    /// An unknown mechanism or key.
    pub fn candidate(&self, entry: &str) -> Result<(String, Self), Failure> {
        self.varied(entry, "compare.mechanisms", "an entry of compare.mechanisms")
    }

    /// The same for an entry from elsewhere: `origin` is its location, `one` its name in errors.
    ///
    /// # Errors
    /// As for [`RunConfig::candidate`].
    pub fn varied(&self, entry: &str, origin: &str, one: &str) -> Result<(String, Self), Failure> {
        let (name, overrides) = entry.split_once(':').unwrap_or((entry, ""));
        let mut layers = Layers::over(self.clone());
        layers.set_named("mechanism", name, one)?;
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
            let shape = config.task.options().shape();
            let (options, context) = (shape.objective.attention(attention), shape.max_length);
            let sizes = options.within_budget(context, context, config.model.head_width(attention))?.sizes();
            if !sizes.is_empty() {
                label = format!("{label} {}", sizes.replace(", ", " "));
            }
        }
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '=' { c } else { '-' };
        Ok((label.chars().map(plain).collect(), config))
    }

    /// The first key by which `self` and `other` are different runs, with both values. A resumed run may change its
    /// length, its optimizer and how often it reports, but not its model or data.
    pub fn other_run(&self, other: &Self) -> Option<(String, String, String)> {
        let fixed = |key: &str| match key.split_once('.') {
            Some(("train", key)) => ["batch", "accumulate", "parts", "start"].contains(&key),
            // Of the ranks of a job, which may be others.
            Some(("compare" | "parallel", _)) => false,
            // Saves memory, with the same result.
            _ => key != "model.checkpointing",
        };
        let (own, other) = (flat(&self.to_table()), flat(&other.to_table()));
        let keys: BTreeSet<&String> = own.keys().chain(other.keys()).collect();
        let text = |value: Option<&Value>| value.map_or("unset".into(), Value::to_string);
        let key = keys.into_iter().find(|key| fixed(key) && own.get(*key) != other.get(*key))?;
        Some((key.clone(), text(own.get(key)), text(other.get(key))))
    }

    fn has_decoder(&self) -> bool {
        self.task.options().shape().objective.has_decoder()
    }

    /// The attentions of the model, by place.
    pub fn attentions(&self) -> Attentions {
        Attentions { encoder: self.attention.clone(), decoder: self.decoder.clone(), cross: self.cross.clone() }
    }

    /// Name of the attention for tables and run directories; for an encoder-decoder those of all places if they differ.
    pub fn label(&self) -> String {
        let mut label = self.attention.label();
        if self.has_decoder() {
            for (place, options) in [("decoder", &self.decoder), ("cross", &self.cross)] {
                if options.label() != self.attention.label() {
                    label = format!("{label}-{place}-{}", options.label());
                }
            }
        }
        label
    }

    /// Checks that the attention suits its places and the model.
    ///
    /// # Errors
    /// The first invalid size or option.
    pub fn check_model(&self) -> Result<(), Failure> {
        check_head(&self.model, self.task.options().shape().objective)?;
        if self.has_decoder() {
            return Ok(self.model.check_places(&self.attentions())?);
        }
        Ok(self.model.check(&self.attention)?)
    }

    /// Checks everything that does not depend on the data.
    ///
    /// # Errors
    /// The first invalid number.
    pub fn check(&self) -> Result<(), Failure> {
        self.check_model()?;
        self.train.check()?;
        self.task.check()?;
        self.check_parallel()?;
        let shape = self.task.options().shape();
        if shape.objective.has_decoder() {
            self.train.search(shape.longest_written()).check()?;
        }
        Ok(())
    }

    /// Checks that each run is one rank's, as in a comparison.
    ///
    /// # Errors
    /// Sequences spread over ranks.
    pub fn check_undivided(&self) -> Result<(), Failure> {
        match self.parallel.sequence {
            1 => Ok(()),
            ranks => Err(Failure::usage(format!(
                "parallel.sequence is {ranks}; expected 1: ranks share the runs here, each of which is one rank's; \
                 'regard train' spreads a sequence"
            ))),
        }
    }

    /// Checks that so many ranks can share a run.
    ///
    /// # Errors
    /// A number of ranks that does not consist of groups for each sequence.
    pub fn check_ranks(&self, ranks: usize) -> Result<(), Failure> {
        let each = self.parallel.sequence;
        if ranks.is_multiple_of(each) {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "parallel.sequence is {each}; expected a divisor of {ranks}, the ranks of the job: start it as mpirun -n {each}, or a \
             multiple of that"
        )))
    }

    fn check_parallel(&self) -> Result<(), Failure> {
        let ranks = self.parallel.sequence;
        let dropout = self.model.attention_dropout;
        if ranks == 0 {
            return Err(Failure::usage("parallel.sequence is 0; expected at least 1, the ranks that share a sequence"));
        }
        if ranks > 1 && dropout > 0.0 {
            return Err(Failure::usage(format!(
                "model.attention_dropout is {dropout}; expected 0 with parallel.sequence = {ranks}: it is drawn for each pair of \
                 tokens by their places in one process"
            )));
        }
        Ok(())
    }
}

/// All values of a table and its subtables, by dotted key.
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

/// The values of `own` that differ from `base`, key by key in tables.
fn difference(own: Table, base: &Table) -> Table {
    let mut left = Table::new();
    for (key, value) in own {
        match (value, base.get(&key)) {
            (Value::Table(own), Some(Value::Table(base))) => {
                let own = difference(own, base);
                if !own.is_empty() {
                    left.insert(key, Value::Table(own));
                }
            }
            (value, base) if base != Some(&value) => drop(left.insert(key, value)),
            _ => {}
        }
    }
    left
}

/// `base` overridden by the values of `own`, key by key in tables.
fn overlaid(mut base: Table, own: Table) -> Table {
    for (key, value) in own {
        match (base.remove(&key), value) {
            (Some(Value::Table(below)), Value::Table(own)) => base.insert(key, Value::Table(overlaid(below, own))),
            (_, value) => base.insert(key, value),
        };
    }
    base
}

/// Attention options, with checked sizes of random tensors.
fn read_attention(prefix: &str, table: Table) -> Result<AttentionConfig, (String, String)> {
    let attention: AttentionConfig = read(prefix, Value::Table(table))?;
    let (features, support) = (&attention.features, &attention.support);
    for (key, size, most) in [
        ("keys.components", attention.keys.components, MOST_COMPONENTS),
        ("features.rows", features.rows, MOST_DRAWN),
        ("support.rounds", support.rounds, MOST_COMPONENTS),
        ("support.hash_values", support.hash_values.unwrap_or(0), MOST_DRAWN),
    ] {
        if size > most {
            let key = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
            return Err((key, format!("is {size}, expected at most {most}")));
        }
    }
    Ok(attention)
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
        // Describe number types by meaning, not by their Rust names.
        for (kind, meaning) in
            [("usize", WHOLE), ("u64", WHOLE), ("u32", WHOLE), ("i64", "a whole number"), ("f64", "a number")]
        {
            problem = problem.replace(&format!("expected {kind}"), &format!("expected {meaning}"));
        }
        (key, problem.lines().next().unwrap_or_default().trim().to_owned())
    })
}
