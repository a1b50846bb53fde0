//! What an entry may use beside the library: models trained from a configuration, and a place for files.

use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use regard_tasks::{data::TaskData, train::Model};

use crate::compare::{RunResult, run_directory};

/// A comparison to train: configuration text over a preset, as in a file for `--config`.
pub type Recipe<'a> = &'a str;

/// What training a recipe gave.
#[derive(Debug)]
pub struct Compared {
    /// Where the models are.
    pub directory: PathBuf,
    /// Every run.
    pub results: Vec<RunResult>,
    /// Sequences of the test split.
    pub test_sequences: usize,
}

impl Compared {
    /// Runs of each candidate, one per seed, in the order of the recipe.
    pub fn candidates(&self) -> Vec<&[RunResult]> {
        self.results.chunk_by(|one, other| one.label == other.label).collect()
    }

    /// Test accuracies of each candidate, one per seed, in the order of the recipe.
    pub fn accuracies(&self) -> Vec<Vec<f64>> {
        let of = |runs: &[RunResult]| runs.iter().filter_map(|run| run.test_accuracy).collect();
        self.candidates().into_iter().map(of).collect()
    }
}

/// Trains the models of a recipe under a name.
pub type Train<'a> = &'a dyn Fn(&str, Recipe) -> Result<Compared, Box<dyn Error>>;
/// Reads a trained model back, and its data.
pub type Open<'a> = &'a dyn Fn(&Path) -> Result<(Model, TaskData), Box<dyn Error>>;

/// The tools of an entry. Reading configurations belongs to the program, which brings `train` and `open` along.
pub struct Workbench<'a> {
    /// Trains the models of a recipe under a name.
    pub train: Train<'a>,
    /// Reads a trained model back, and its data.
    pub open: Open<'a>,
    /// Says in a few words what is going on.
    pub note: &'a dyn Fn(&str),
    /// Raised when the program is to stop.
    pub stop: Arc<AtomicBool>,
}

impl Workbench<'_> {
    /// Trains a recipe under a name that belongs to it; entries that give the same name share the models, and what is
    /// trained is not trained again.
    ///
    /// # Errors
    /// An invalid configuration, training that fails, an interrupt.
    pub fn train(&self, name: &str, recipe: Recipe) -> Result<Compared, Box<dyn Error>> {
        (self.train)(name, recipe)
    }

    /// The trained model of a run, and its data.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn open(&self, compared: &Compared, run: &RunResult) -> Result<(Model, TaskData), Box<dyn Error>> {
        (self.open)(&run_directory(&compared.directory, &run.label, run.seed))
    }
}
