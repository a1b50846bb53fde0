//! Loading of run directories, and further training.

use std::path::{Path, PathBuf};

use burn::{module::Module, tensor::Device};

use super::{Layers, RunConfig};
use crate::{
    Failure,
    data::TaskData,
    train::{
        CHECKPOINTS, CONFIG, Checkpoint, Checkpoints, Environment, Existing, HostTensors, Model, Outcome, RunDirectory,
        Trainer, check_vocabulary, run_within,
    },
};

/// A checkpoint of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// The best on the validation split, or the average of the last ones if `train.average` is set.
    #[default]
    Best,
    /// The newest.
    Last,
}

/// A run directory of which only the configuration has been read.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The directory.
    pub path: PathBuf,
    /// The configuration of the run.
    pub config: RunConfig,
}

/// A trained model with everything needed to evaluate it and to continue training.
#[derive(Debug)]
pub struct Run {
    /// Its directory.
    pub path: PathBuf,
    /// Its configuration.
    pub config: RunConfig,
    /// Its data.
    pub data: TaskData,
    /// The model, on a device without autodiff.
    pub model: Model,
    /// Number of updates done.
    pub step: usize,
}

impl RunConfig {
    /// The configuration in a file, on top of the defaults.
    ///
    /// # Errors
    /// A file that cannot be read or is not a configuration.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let mut layers = Layers::new();
        layers.file(path)?;
        layers.resolve()
    }

    /// The model to train on `data`.
    ///
    /// # Errors
    /// Sizes or options that do not fit each other.
    pub fn trainable(&self, data: &TaskData) -> Result<Model, Failure> {
        Ok(Model::build(&self.model, self.attentions(), data, self.seed, &self.training_device())?)
    }

    /// The device for training.
    pub fn training_device(&self) -> Device {
        let device = regard_nn::device::chosen().autodiff();
        if self.model.checkpointing { device.gradient_checkpointing() } else { device }
    }
}

impl Stored {
    /// Reads the configuration of a run directory.
    ///
    /// # Errors
    /// A directory without a run, an invalid configuration.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = path.join(CONFIG);
        if !file.is_file() {
            let what = if path.is_dir() { "" } else { "is no directory and " };
            let path = path.display();
            return Err(Failure::data(format!(
                "{path} {what}holds no run (no {CONFIG}); give the directory that 'regard train --out' wrote"
            )));
        }
        Ok(Self { path: path.into(), config: RunConfig::read(&file)? })
    }

    /// A checkpoint and its parameters.
    ///
    /// # Errors
    /// A run without a checkpoint, or with a damaged one.
    pub fn checkpoint(&self, which: Which) -> Result<(PathBuf, Checkpoint), Failure> {
        let checkpoints = Checkpoints::new(self.path.join(CHECKPOINTS), self.config.train.keep);
        let best = (which == Which::Best).then(|| checkpoints.best()).flatten();
        let Some(path) = best.or_else(|| checkpoints.last()) else {
            let (path, run) = (self.path.display(), run_within(&self.path));
            return Err(Failure::data(match run {
                Some(run) => format!("{path} holds several runs; give one of them, as {}", run.display()),
                None => format!("{path} holds no checkpoint yet; train on with --resume"),
            }));
        };
        let checkpoint = Checkpoint::load(&path)?;
        Ok((path, checkpoint))
    }

    /// The run with its model and the data that `load` reads.
    ///
    /// # Errors
    /// As for [`Stored::checkpoint`]; missing data; a checkpoint of another model.
    pub fn load(
        self,
        which: Which,
        load: impl FnOnce(&RunConfig) -> Result<TaskData, Failure>,
    ) -> Result<Run, Failure> {
        let Self { path, config } = &self;
        let (checkpoint, Checkpoint { model: tensors, state, .. }) = self.checkpoint(which)?;
        let data = load(config)?;
        check_vocabulary(path, &data)?;
        let model = Model::build(&config.model, config.attentions(), &data, config.seed, &regard_nn::device::chosen())?;
        let model = filled(model, tensors, &checkpoint)?;
        Ok(Run { path: path.clone(), config: config.clone(), data, model, step: state.step })
    }
}

/// A model of a run's configuration with the parameters of its checkpoint.
pub(super) fn filled(model: Model, tensors: HostTensors, checkpoint: &Path) -> Result<Model, Failure> {
    let other = |problem| Failure::data(format!("{}: {problem}; was {CONFIG} edited?", checkpoint.display()));
    model.with_host(tensors).map_err(other)
}

impl Run {
    /// Loads a run directory: configuration, model and data.
    ///
    /// # Errors
    /// A directory without a run, a damaged checkpoint, missing data.
    pub fn open(path: impl AsRef<Path>, which: Which) -> Result<Self, Failure> {
        Stored::open(path.as_ref())?.load(which, load)
    }

    /// Trains `config` in a new or empty directory.
    ///
    /// # Errors
    /// An invalid configuration, missing data, a non-empty directory, a non-finite number.
    pub fn train(path: impl AsRef<Path>, config: RunConfig) -> Result<Self, Failure> {
        config.check()?;
        let data = load(&config)?;
        train(path.as_ref(), config, data, Existing::Refuse)
    }

    /// Continues training for `steps` updates after the last checkpoint: the same as a run configured for that length.
    ///
    /// # Errors
    /// As for [`Run::train`]; a directory in use by another process.
    pub fn train_on(self, steps: usize) -> Result<Self, Failure> {
        let Self { path, mut config, data, .. } = self;
        let (_, last) = Stored { path: path.clone(), config: config.clone() }.checkpoint(Which::Last)?;
        config.train.steps = last.state.step + steps;
        train(&path, config, data, Existing::Resume)
    }
}

fn load(config: &RunConfig) -> Result<TaskData, Failure> {
    Ok(config.task.load(config.seed, None, &|_done, _total| {})?)
}

fn train(path: &Path, config: RunConfig, data: TaskData, existing: Existing) -> Result<Run, Failure> {
    let environment = Environment::capture(None);
    let directory = RunDirectory::open(path, existing, config.train.keep, &config.to_toml(), &environment)?;
    let model = config.trainable(&data)?;
    let mut trainer = Trainer::new(model, &data, &config.train, config.seed)?.with_directory(directory)?;
    let (Outcome::Finished { step } | Outcome::Stopped { step } | Outcome::Interrupted { step }) = trainer.run()?;
    let model = trainer.model().valid();
    drop(trainer);
    Ok(Run { path: path.into(), config, data, model, step })
}
