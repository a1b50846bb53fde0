//! Loading of data and runs, with a memory check first, and with progress.

use std::path::Path;

use regard_tasks::{
    Failure,
    data::{TaskData, TaskName},
    run::{Run, RunConfig, Stored, Which},
};

use crate::cost::check_inference;

/// Observer of data generation and loading.
pub trait Loading {
    /// Parts loaded, out of a total.
    fn part(&self, task: TaskName, done: u64, total: u64);
    /// Loading is done, with these remarks.
    fn done(&self, notes: &[String]);
}

/// The data of a configuration. Generated data are kept in `cache`, if given.
///
/// # Errors
/// Invalid options; data that are missing or corrupt.
pub fn data(config: &RunConfig, cache: Option<&Path>, watch: &dyn Loading) -> Result<TaskData, Failure> {
    let task = config.task.name;
    let data = config.task.load(config.seed, cache, &|done, total| watch.part(task, done, total))?;
    watch.done(data.notes());
    Ok(data)
}

/// A run directory whose model is known to fit into memory.
///
/// # Errors
/// A directory without a run, not enough memory.
pub fn stored(path: &Path) -> Result<Stored, Failure> {
    let stored = Stored::open(path)?;
    check_inference(&stored.config)?;
    Ok(stored)
}

/// A run with its model and its data.
///
/// # Errors
/// As [`stored`] and [`data`]; a checkpoint that is missing or damaged.
pub fn run(path: &Path, which: Which, cache: Option<&Path>, watch: &dyn Loading) -> Result<Run, Failure> {
    stored(path)?.load(which, |config| data(config, cache, watch))
}
