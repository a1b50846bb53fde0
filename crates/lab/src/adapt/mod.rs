//! What other attention costs a trained model, won back by training.
//!
//! First each layer's attention learns to give what exact attention gives for the same inputs; then the whole model learns its own
//! loss, by low-rank updates of its projections or in full. The result is a model folder as the trained one was, or, where the
//! attention has parameters that no such folder has, a plan with a file of parameters beside it.

mod data;
mod learned;
mod matching;
mod report;
mod session;
mod study;
#[cfg(test)]
mod tests;
mod tuning;

use regard_kernels::Error;
use regard_pretrained::PretrainedError;
use regard_tasks::{Class, Classed, train::TrainError};
use serde::{Deserialize, Serialize};

pub use learned::Training;
pub use study::{Adaptation, Row, Study, mixture_plan};

/// How a model is adapted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaptConfig {
    /// Tokens of a sequence.
    pub length: usize,
    /// Sequences of a step.
    pub batch: usize,
    /// Sequences to judge by, which nothing learns from.
    pub held_out: usize,
    /// Steps in which layers learn what exact attention gives.
    pub match_steps: usize,
    /// Steps in which the model learns its loss.
    pub steps: usize,
    /// Highest learning rate of the first ones.
    pub match_rate: f64,
    /// Highest learning rate of the others.
    pub rate: f64,
    /// Steps of each stage in which the rate rises.
    pub warmup: usize,
    /// Longest norm of gradients, of each layer while layers are matched; 0: no limit.
    pub clip: f64,
    /// What learns.
    pub training: Training,
    /// Share of the loss that is the divergence from what exact attention says.
    pub distill: f64,
    /// The exact model gets the steps of the second stage too, and is judged beside.
    pub control: bool,
    /// Seed for all random draws.
    pub seed: u64,
    /// Steps between checkpoints; 0: only at the end of a stage and on an interrupt.
    pub checkpoint_every: usize,
}

impl AdaptConfig {
    fn check(&self) -> Result<(), Error> {
        let sizes = [("length", self.length, 4), ("batch", self.batch, 1), ("held-out", self.held_out, 1)];
        for (name, seen, least) in sizes {
            if seen < least {
                return Err(Error::option(name, seen, format!("at least {least}")));
            }
        }
        for (name, rate) in [("match-rate", self.match_rate), ("rate", self.rate)] {
            if !(rate > 0.0 && rate.is_finite()) {
                return Err(Error::option(name, rate, "a positive number"));
            }
        }
        if !(self.clip >= 0.0 && self.clip.is_finite()) {
            return Err(Error::option("clip", self.clip, "a positive number, or 0 for no limit"));
        }
        if !(0.0..=1.0).contains(&self.distill) {
            return Err(Error::option("distill", self.distill, "from 0 to 1"));
        }
        match self.training {
            Training::Lora { rank: 0, .. } => Err(Error::option("rank", 0, "at least 1")),
            Training::Lora { alpha, .. } if !(alpha > 0.0 && alpha.is_finite()) => {
                Err(Error::option("alpha", alpha, "a positive number"))
            }
            _ => Ok(()),
        }
    }
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdaptError {
    /// Sizes or options that do not fit.
    #[error(transparent)]
    Model(#[from] Error),
    /// A folder that cannot be read or written.
    #[error(transparent)]
    Folder(#[from] PretrainedError),
    /// A directory that is not empty or in use, a damaged checkpoint, a full disk.
    #[error(transparent)]
    Run(#[from] TrainError),
    /// Texts with fewer tokens than it takes.
    #[error(
        "the texts have {seen} tokens, expected at least {expected}: {held} sequences of {length} to judge by and one to learn from; give more text, or lower --length or --held-out"
    )]
    Short {
        /// Tokens that there are.
        seen: usize,
        /// Tokens that it takes.
        expected: usize,
        /// Sequences to judge by.
        held: usize,
        /// Tokens of each.
        length: usize,
    },
    /// A model of something else.
    #[error("the model reads images, expected one that reads texts")]
    NoText,
    /// A masked model whose tokenizer hides nothing.
    #[error("the tokenizer has no token that hides others, expected one, such as [MASK] of BERT")]
    NoMask,
    /// A comparison that says nothing.
    #[error(
        "the model has no head over tokens and learns the states of exact attention, which a control has already; leave out --control"
    )]
    NoControl,
    /// A directory that holds something.
    #[error("{path} is not empty; continue its adaptation with --resume, or choose another --out")]
    NotEmpty {
        /// The directory.
        path: String,
    },
    /// A run that goes on with other options.
    #[error(
        "{key} is {seen}, but the adaptation in {path} has {expected}; resume with the same value, or choose another --out"
    )]
    Changed {
        /// The option.
        key: String,
        /// Its value now.
        seen: String,
        /// Its value before.
        expected: String,
        /// The directory.
        path: String,
    },
    /// A loss or gradient that is no finite number.
    #[error(
        "the loss of step {step} is {loss} and its gradient's norm {norm}, expected finite numbers; lower the learning rate"
    )]
    Numbers {
        /// The step.
        step: usize,
        /// Its loss.
        loss: f64,
        /// The norm of its gradient.
        norm: f64,
    },
    /// Stopped by the user, with a checkpoint.
    #[error("stopped; continue with --resume")]
    Interrupted,
}

impl Classed for AdaptError {
    fn class(&self) -> Class {
        match self {
            Self::Model(error) => error.class(),
            Self::Folder(error) => crate::folder::class(error),
            Self::Run(error) => error.class(),
            Self::Short { .. } | Self::NoMask => Class::Data,
            Self::NoText | Self::NoControl | Self::NotEmpty { .. } | Self::Changed { .. } => Class::Usage,
            Self::Numbers { .. } => Class::Numeric,
            Self::Interrupted => Class::Interrupted,
        }
    }
}
