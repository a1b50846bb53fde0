//! `regard compare`

use std::{fs, path::PathBuf};

use regard_lab::compare::{self, Candidate, Comparison};
use regard_tasks::train::DirectoryLock;

use super::{cache_directory, command_line, environment, resolve, show};
use crate::{
    args::{Common, Directory, Source},
    console::Console,
    error::{Failure, Outcome},
    signal,
};

/// Trains the same model with each mechanism and reports.
///
/// # Errors
/// Errors of the configuration, the data and the runs.
pub fn run(source: &Source, directory: &Directory, common: &Common) -> Outcome {
    let config = resolve(source)?;
    let candidates = Candidate::all(&config)?;
    config.task.check()?;
    config.train.check()?;
    let out = directory.out.clone().unwrap_or_else(|| PathBuf::from("runs/compare"));
    fs::create_dir_all(&out).map_err(|error| Failure::writing(&out, &error))?;
    let _lock = DirectoryLock::take(&out)?;
    compare::open(&out, directory.existing(), &config)?;
    let environment = environment();
    let cache = cache_directory(directory.cache.as_deref());
    let (watch, stop) = (Console::new(common), signal::stop_flag());
    let (data, results) = compare::train(&config, &candidates, &out, cache.as_deref(), &environment, &watch, &stop)?;
    let comparison = Comparison {
        labels: candidates.into_iter().map(|candidate| candidate.label).collect(),
        results,
        task: config.task.name.name().into(),
        setting: data.setting(),
        majority: data.majority(),
        command: command_line(),
        config: config.to_toml(),
        environment,
    };
    show(common, Some(&out), &comparison)
}
