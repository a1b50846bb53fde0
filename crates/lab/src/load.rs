//! Data and runs, read with a look at the memory of the machine first, and with progress.

use std::path::Path;

use regard_tasks::{
    Failure,
    data::{TaskData, TaskName},
    run::{Run, RunConfig, Stored, Which},
};

use crate::cost::check_inference;

/// Observer of data that are generated or read.
pub trait Loading {
    /// Parts of the data that are there, of how many.
    fn part(&self, task: TaskName, done: u64, total: u64);
    /// All are there, with these remarks.
    fn done(&self, notes: &[String]);
}

/// The data of a configuration. Generated ones are kept in `cache`, where there is one.
///
/// # Errors
/// Invalid options; data that are missing or corrupt.
pub fn data(config: &RunConfig, cache: Option<&Path>, watch: &dyn Loading) -> Result<TaskData, Failure> {
    let task = config.task.name;
    let data = config.task.load(config.seed, cache, &|done, total| watch.part(task, done, total))?;
    watch.done(data.notes());
    Ok(data)
}

/// A run directory, its model known to fit into this machine.
///
/// # Errors
/// A directory without a run, more memory needed than there is.
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
