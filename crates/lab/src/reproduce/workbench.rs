//! Environment of an entry: models trained from a recipe, cached and shared by name, and progress.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use regard_cluster::Alone;
use regard_files::write_whole;
use regard_tasks::{
    Failure,
    data::{Split, TaskData},
    run::{Layers, RunConfig, Which},
    train::{CONFIG, DirectoryLock, Environment, Model, TrainError},
};

use super::Scale;
use crate::{
    compare::{self, Candidate, Job, RunResult, Watch, run_directory},
    load,
};

/// A comparison to train: configuration text over a preset, as in a file for `--config`.
pub type Recipe<'a> = &'a str;

/// Result of training a recipe.
#[derive(Debug)]
pub struct Compared {
    /// Directory of the models.
    pub directory: PathBuf,
    /// Every run.
    pub results: Vec<RunResult>,
    /// Number of test sequences.
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

/// Observer of entries.
pub trait Observer: Watch {
    /// Shows a short progress note.
    fn note(&self, text: &str);
}

/// The tools of an entry.
pub struct Workbench<'a> {
    /// Scale of the entries.
    pub scale: Scale,
    /// Directory of all outcomes.
    pub out: &'a Path,
    /// Directory for generated data.
    pub cache: Option<&'a Path>,
    /// Folder of the folders of trained models, as Hugging Face keeps them.
    pub models: Option<&'a Path>,
    /// Folder of data sets, a folder each.
    pub data: Option<&'a Path>,
    /// Whether existing models are retrained, once each.
    pub overwrite: bool,
    /// Whether other ranks of a job run other entries at the same time.
    pub shared: bool,
    /// Machine, version and date.
    pub environment: Environment,
    /// The observer.
    pub observer: &'a dyn Observer,
    /// Set when the program should stop.
    pub stop: Arc<AtomicBool>,
    /// Names of the models trained so far: entries share them, even when all are retrained.
    pub trained: RefCell<BTreeSet<String>>,
}

impl Workbench<'_> {
    /// Shows a short progress note.
    pub fn note(&self, text: &str) {
        self.observer.note(text);
    }

    /// Whether the program is to stop.
    pub fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Folder of a trained model.
    ///
    /// # Errors
    /// None of that name.
    pub fn model(&self, name: &str) -> Result<PathBuf, Failure> {
        given(self.models, "--models", name)
    }

    /// A file of a data set, by its path below all of them.
    ///
    /// # Errors
    /// None of that name.
    pub fn data_file(&self, name: &str) -> Result<PathBuf, Failure> {
        given(self.data, "--data", name)
    }

    /// The models of a directory. Entries on several ranks share some: those of one wait until another has trained them.
    fn lock(&self, directory: &Path) -> Result<DirectoryLock, Failure> {
        loop {
            match DirectoryLock::take(directory) {
                Err(TrainError::InUse { .. }) if self.shared && !self.stopped() => {
                    thread::sleep(Duration::from_secs(1))
                }
                taken => return Ok(taken?),
            }
        }
    }

    /// Trains a recipe under a unique name; entries that use the same name share the models, which are not trained
    /// again.
    ///
    /// # Errors
    /// An invalid configuration, training that fails, an interrupt.
    pub fn train(&self, name: &str, recipe: Recipe) -> Result<Compared, Failure> {
        let mut layers = Layers::new();
        layers.text(recipe, name)?;
        let config = layers.resolve()?;
        let candidates = Candidate::all(&config)?;
        let directory = self.out.join("runs").join(self.scale.named(name));
        let path = directory.join(CONFIG);
        fs::create_dir_all(&directory).map_err(|error| Failure::writing(&directory, &error))?;
        let _lock = self.lock(&directory)?;
        let fresh = self.trained.borrow_mut().insert(self.scale.named(name));
        if fresh && self.overwrite && path.is_file() {
            compare::remove(&directory)?;
        }
        // Compared by value: an older configuration may lack newer keys.
        if !path.is_file() {
            write_whole(&path, config.to_toml().as_bytes()).map_err(|error| Failure::written(&error))?;
        } else if RunConfig::read(&path).map_or(true, |before| before != config) {
            return Err(Failure::usage(format!(
                "{} holds models of another setting; train them anew with --overwrite",
                directory.display()
            )));
        }
        let job = Job { out: &directory, cache: self.cache, environment: &self.environment, cluster: Arc::new(Alone) };
        let (data, results) = compare::train(&config, &candidates, &job, self.observer, &self.stop)?;
        let test_sequences = data.split(Split::Test, 1)?.len();
        Ok(Compared { directory, results, test_sequences })
    }

    /// The trained model of a run, and its data.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn open(&self, compared: &Compared, run: &RunResult) -> Result<(Model, TaskData), Failure> {
        let path = run_directory(&compared.directory, &run.label, run.seed);
        let run = load::run(&path, Which::Best, self.cache, self.observer)?;
        Ok((run.model, run.data))
    }
}

fn given(folder: Option<&Path>, option: &str, name: &str) -> Result<PathBuf, Failure> {
    let Some(folder) = folder else {
        return Err(Failure::data(format!("it reads '{name}', expected {option} DIR with the folder that it is in")));
    };
    let path = folder.join(name);
    match path.exists() {
        true => Ok(path),
        false => Err(Failure::data(format!("{} is not there, expected what it reads; set {option}", path.display()))),
    }
}
