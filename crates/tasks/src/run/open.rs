//! Reads run directories back, and continues training them.

use std::path::{Path, PathBuf};

use burn::{module::Module, tensor::Device};

use super::{Layers, RunConfig};
use crate::{
    Failure,
    data::TaskData,
    train::{
        CHECKPOINTS, CONFIG, Checkpoint, Checkpoints, Environment, Existing, HostTensors, Model, Outcome, RunDirectory,
        Trainer,
    },
};

/// A checkpoint of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// The best on the validation split, or the mean of the last ones where `train.average` asked for it.
    #[default]
    Best,
    /// The newest.
    Last,
}

/// A run directory whose configuration is read, and nothing else yet.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The directory.
    pub path: PathBuf,
    /// What the run was trained with.
    pub config: RunConfig,
}

/// A trained model with all that it takes to measure it and to train on.
#[derive(Debug)]
pub struct Run {
    /// Its directory.
    pub path: PathBuf,
    /// What it was trained with.
    pub config: RunConfig,
    /// What it was trained on.
    pub data: TaskData,
    /// The model, on a device without autodiff.
    pub model: Model,
    /// Updates done.
    pub step: usize,
}

impl RunConfig {
    /// The configuration in a file, over the defaults.
    ///
    /// # Errors
    /// A file that cannot be read or is none.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let mut layers = Layers::new();
        layers.file(path)?;
        layers.resolve()
    }

    /// The model that trains on `data`.
    ///
    /// # Errors
    /// Sizes or options that do not fit each other.
    pub fn trainable(&self, data: &TaskData) -> Result<Model, Failure> {
        Ok(Model::build(&self.model, self.attentions(), data, self.seed, &self.training_device())?)
    }

    /// The device that trains.
    pub fn training_device(&self) -> Device {
        let device = Device::flex().autodiff();
        if self.model.checkpointing { device.gradient_checkpointing() } else { device }
    }
}

impl Stored {
    /// Reads the configuration of a run directory.
    ///
    /// # Errors
    /// A directory without a run, a configuration that is none.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = path.join(CONFIG);
        if !file.is_file() {
            return Err(Failure::data(format!(
                "{} holds no run (no {CONFIG}); give the directory that 'regard train --out' wrote",
                path.display()
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
            let path = self.path.display();
            return Err(Failure::data(format!("{path} holds no checkpoint yet; train on with --resume")));
        };
        let checkpoint = Checkpoint::load(&path)?;
        Ok((path, checkpoint))
    }

    /// The run with its model and the data that `load` reads.
    ///
    /// # Errors
    /// As [`Stored::checkpoint`]; data that are missing; a checkpoint of another model.
    pub fn load(
        self,
        which: Which,
        load: impl FnOnce(&RunConfig) -> Result<TaskData, Failure>,
    ) -> Result<Run, Failure> {
        let Self { path, config } = &self;
        let (checkpoint, Checkpoint { model: tensors, state, .. }) = self.checkpoint(which)?;
        let data = load(config)?;
        let model = Model::build(&config.model, config.attentions(), &data, config.seed, &Device::flex())?;
        let model = filled(model, tensors, &checkpoint)?;
        Ok(Run { path: path.clone(), config: config.clone(), data, model, step: state.step })
    }
}

/// A model of a run's configuration with the parameters of its checkpoint.
fn filled(model: Model, tensors: HostTensors, checkpoint: &Path) -> Result<Model, Failure> {
    let other = |problem| Failure::data(format!("{}: {problem}; was {CONFIG} edited?", checkpoint.display()));
    model.with_host(tensors).map_err(other)
}

impl Run {
    /// Reads a run directory back: configuration, model and data.
    ///
    /// # Errors
    /// A directory without a run, a damaged checkpoint, data that are missing.
    pub fn open(path: impl AsRef<Path>, which: Which) -> Result<Self, Failure> {
        Stored::open(path.as_ref())?.load(which, load)
    }

    /// Trains what `config` describes in a directory of its own, which is new or empty.
    ///
    /// # Errors
    /// An invalid configuration, data that are missing, a directory that holds something, a number that is not finite.
    pub fn train(path: impl AsRef<Path>, config: RunConfig) -> Result<Self, Failure> {
        config.check()?;
        let data = load(&config)?;
        train(path.as_ref(), config, data, Existing::Refuse)
    }

    /// Trains for `steps` more updates after the last checkpoint, as a run that was configured to be that long would have.
    ///
    /// # Errors
    /// As [`Run::train`]; a directory that another process writes to.
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
