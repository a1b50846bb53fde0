//! One file per command, and code that several of them share.

pub mod adapt;
pub mod approx;
pub mod attend;
pub mod bench;
mod classify;
pub mod compare;
pub mod completions;
pub mod config;
mod continuation;
pub mod cost;
pub mod data;
pub mod doctor;
pub mod embed;
pub mod eval;
mod folder;
pub mod generate;
pub mod inspect;
pub mod list;
pub mod man;
pub mod perplexity;
pub mod predict;
mod prepare;
pub mod probe;
mod quality;
pub mod reproduce;
pub mod score;
mod search;
pub mod summarize;
pub mod swap;
pub mod train;
pub mod translate;
pub mod view;

use std::path::{Path, PathBuf};

use regard_lab::{compare::study::quoted, load, record::Shown};
use regard_report::Table;
use regard_tasks::{
    run::{Layers, Run, RunConfig, Which},
    train::{Environment, Existing},
};

use crate::{
    args::{Common, Directory, Source},
    console::Console,
    error::{Failure, Outcome},
    output,
    values::variable,
};

/// The preset if neither preset nor file is given.
const DEFAULT_PRESET: &str = "quick";

/// The configuration layers given by these options.
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
    above(layers, source)
}

/// The layers above presets and files.
fn above(mut layers: Layers, source: &Source) -> Outcome<Layers> {
    layers.environment(std::env::vars_os())?;
    for assignment in &source.set {
        layers.assign(assignment, "--set")?;
    }
    for (key, flag, value) in [("mechanism", "--mechanism", &source.mechanism), ("task.name", "--task", &source.task)] {
        if let Some(value) = value {
            layers.set_named(key, value, flag)?;
        }
    }
    if let Some(seed) = source.seed {
        layers.set("seed", &seed.to_string(), "--seed")?;
    }
    Ok(layers)
}

/// The configuration given by these options.
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

/// The cache directory for generated data: as given, else the user's cache directory; `None` for `none`.
fn cache_directory(given: Option<&Path>) -> Option<PathBuf> {
    match given {
        Some(path) if path == Path::new("none") => None,
        Some(path) => Some(path.into()),
        None => {
            let variable = |name| variable(name).map(PathBuf::from);
            let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
            Some(base.join("regard"))
        }
    }
}

/// Machine, version and date, for run directories and reports.
fn environment() -> Environment {
    Environment::capture(option_env!("REGARD_COMMIT"))
}

/// The command as it was typed, without the path of the program.
fn command_line() -> String {
    shell_command(typed_words())
}

/// The words after the program.
fn typed_words() -> impl Iterator<Item = String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())
}

/// The program with these words, as a shell reads them.
fn shell_command(words: impl IntoIterator<Item = String>) -> String {
    let words = words.into_iter().map(|word| quoted(&word));
    ["regard".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// Loads a run directory and its data.
fn trained(run: &Path, which: Which, cache: Option<&Path>, common: &Common) -> Outcome<Run> {
    load::run(run, which, cache_directory(cache).as_deref(), &Console::new(common))
}

/// Makes the directory for results, before they are measured for hours.
fn make_out(out: Option<&Path>) -> Outcome {
    out.map_or(Ok(()), |out| std::fs::create_dir_all(out).map_err(|error| Failure::writing(out, &error)))
}

/// Writes results if requested, prints them as tables or JSON, and says where the report is.
fn show(common: &Common, out: Option<&Path>, results: &dyn Shown) -> Outcome {
    // Printed even where they cannot be written: they may have taken hours.
    let files = out.map(|out| results.write(out)).transpose().map_err(|error| Failure::written(&error));
    if common.json {
        output::json(&results.to_json())?;
        return files.map(drop);
    }
    output::text(results.tables().iter().map(Table::to_text).collect::<Vec<_>>().join("\n"))?;
    match files? {
        Some(files) => output::line(format_args!("\nreport: {}", files.report.page.display())),
        None => Ok(()),
    }
}
