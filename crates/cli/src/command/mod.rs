//! One file per command, and what several of them share.

pub mod approx;
pub mod attend;
pub mod bench;
mod budget;
pub mod compare;
pub mod completions;
pub mod config;
pub mod cost;
pub mod doctor;
pub mod eval;
pub mod generate;
pub mod inspect;
pub mod list;
pub mod probe;
pub mod reproduce;
pub mod train;
pub mod translate;

use std::{
    cell::OnceCell,
    io,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use regard_lab::report::{Files, Table};
use regard_tasks::{
    data::{TaskConfig, TaskData},
    train::{Checkpoint, Checkpoints, Environment, Existing, HostTensors, Model},
};

pub use budget::check_training;

use crate::{
    args::{Common, Directory, Source, Which},
    config::{Layers, RunConfig},
    console,
    error::{Failure, Outcome},
    output,
};

/// The preset of a command that is given neither preset nor file.
const DEFAULT_PRESET: &str = "quick";

/// The layers that these options name.
fn layers(source: &Source) -> Outcome<Layers> {
    let mut layers = Layers::new();
    match (&source.preset, &source.config) {
        (Some(preset), _) => layers.preset(preset)?,
        (None, None) => layers.preset(DEFAULT_PRESET)?,
        (None, Some(_)) => {}
    }
    if let Some(file) = &source.config {
        layers.file(file)?;
    }
    layers.environment(std::env::vars_os())?;
    for assignment in &source.set {
        layers.assign(assignment, "--set")?;
    }
    for (key, value) in [("mechanism", &source.mechanism), ("task.name", &source.task)] {
        if let Some(value) = value {
            layers.set_named(key, value)?;
        }
    }
    if let Some(seed) = source.seed {
        layers.set("seed", &seed.to_string(), "--seed")?;
    }
    Ok(layers)
}

/// The configuration that these options name.
fn resolve(source: &Source) -> Outcome<RunConfig> {
    layers(source)?.resolve()
}

impl Directory {
    fn existing(&self) -> Existing {
        match (self.resume, self.overwrite) {
            (true, _) => Existing::Resume,
            (_, true) => Existing::Overwrite,
            _ => Existing::Refuse,
        }
    }
}

/// The directory for generated data: as given, else the user's cache directory; `None` for `none`.
fn cache_directory(given: Option<&Path>) -> Option<PathBuf> {
    match given {
        Some(path) if path == Path::new("none") => None,
        Some(path) => Some(path.into()),
        None => {
            let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
            let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
            Some(base.join("regard"))
        }
    }
}

/// Generates or reads the data of a task, with a bar.
fn load(task: &TaskConfig, seed: u64, cache: Option<&Path>, common: &Common) -> Outcome<TaskData> {
    let bar = OnceCell::new();
    let progress = |done: u64, total: u64| {
        let bar = bar.get_or_init(|| {
            let bar = console::bar(total, common.quiet);
            bar.set_prefix(format!("{} data", task.name));
            bar
        });
        bar.set_length(total);
        bar.set_position(done);
    };
    let data = task.load(seed, cache_directory(cache).as_deref(), &progress)?;
    if let Some(bar) = bar.get() {
        bar.finish_and_clear();
    }
    if !common.quiet {
        data.notes().iter().for_each(|note| console::line(format_args!("note: {note}")));
    }
    Ok(data)
}

/// The device that trains.
fn training_device(config: &RunConfig) -> Device {
    let device = Device::flex().autodiff();
    if config.model.checkpointing { device.gradient_checkpointing() } else { device }
}

/// Where and when, for run directories and reports.
fn environment() -> Environment {
    Environment::capture(option_env!("REGARD_COMMIT"))
}

/// The command as it was typed, without the path of the program.
fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| {
        let word = word.to_string_lossy().into_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+".contains(c);
        if !word.is_empty() && word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
    });
    ["regard".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// What a run directory keeps.
struct Kept {
    config: RunConfig,
    tensors: HostTensors,
    checkpoint: PathBuf,
    step: usize,
}

/// Reads a run directory back, without its data.
fn kept(run: &Path, which: Which) -> Outcome<Kept> {
    let path = run.join("config.toml");
    if !path.is_file() {
        return Err(Failure::data(format!(
            "{} holds no run (no config.toml); give the directory that 'regard train --out' wrote",
            run.display()
        )));
    }
    let mut layers = Layers::new();
    layers.file(&path)?;
    let config = layers.resolve()?;
    budget::check_inference(&config)?;
    let checkpoints = Checkpoints::new(run.join("checkpoints"), config.train.keep);
    let checkpoint = match which {
        Which::Best => checkpoints.best().or_else(|| checkpoints.last()),
        Which::Last => checkpoints.last(),
    };
    let Some(checkpoint) = checkpoint else {
        return Err(Failure::data(format!("{} holds no checkpoint yet; train on with --resume", run.display())));
    };
    let Checkpoint { model: tensors, state, .. } = Checkpoint::load(&checkpoint)?;
    Ok(Kept { config, tensors, checkpoint, step: state.step })
}

/// A trained model and what it was trained on.
struct Trained {
    config: RunConfig,
    data: TaskData,
    model: Model,
    step: usize,
}

/// Reads a run directory back, and its data.
fn trained(run: &Path, which: Which, cache: Option<&Path>, common: &Common) -> Outcome<Trained> {
    let Kept { config, tensors, checkpoint, step } = kept(run, which)?;
    let data = load(&config.task, config.seed, cache, common)?;
    let model = Model::build(&config.model, config.attentions(), &data, config.seed, &Device::flex())?;
    let model = model
        .with_host(tensors)
        .map_err(|problem| Failure::data(format!("{}: {problem}; was config.toml edited?", checkpoint.display())))?;
    Ok(Trained { config, data, model, step })
}

/// Writes what was measured where asked for, prints it as tables or JSON, and says where the report is.
fn show(
    common: &Common,
    out: Option<&Path>,
    write: impl FnOnce(&Path) -> io::Result<Files>,
    tables: impl FnOnce() -> Vec<Table>,
    json: impl FnOnce() -> serde_json::Value,
) -> Outcome {
    let files = out.map(write).transpose().map_err(|error| Failure::written(&error))?;
    if common.json {
        return output::json(&json());
    }
    output::text(tables().iter().map(Table::to_text).collect::<Vec<_>>().join("\n"))?;
    match files {
        Some(files) => output::line(format_args!("\nreport: {}", files.report.page.display())),
        None => Ok(()),
    }
}
