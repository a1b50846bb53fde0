//! Which attention a trained model could have instead, in which heads, and what it would lose.
//!
//! [`measure`] runs the model on a sample and says, for every group of heads and every candidate, how far the heads' outputs
//! move and what that does to the loss by its gradient; [`price`] says what a candidate costs at the length that is asked for;
//! [`solve`] chooses one candidate per group with the least predicted loss within a budget. The result is a
//! [`Plan`].

mod candidates;
mod measure;
mod report;
mod solve;
mod study;
#[cfg(test)]
mod tests;
mod ways;

use regard_kernels::{AttentionOptions, Error};
use regard_pretrained::{Plan, PlanGroup, PretrainedError};
use regard_tasks::{Class, Classed};
use serde::{Deserialize, Serialize};

pub use candidates::{Candidate, Kind, candidates};
pub use measure::{Effect, Example, Group, Measured, Price, loss, measure, price};
pub use solve::{Choice, Limits, solve};
pub use study::{Budget, Chosen, Row, Study, Swap, sample, sample_images};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// Sizes or options that do not fit.
    #[error(transparent)]
    Model(#[from] Error),
    /// A folder that cannot be read.
    #[error(transparent)]
    Folder(#[from] PretrainedError),
    /// Texts with fewer tokens than it takes.
    #[error(
        "the texts have {seen} tokens, expected at least {expected}: {sequences} sequences of {length}; give more text, or lower --length or --sequences"
    )]
    Short {
        /// Tokens that there are.
        seen: usize,
        /// Tokens that it takes.
        expected: usize,
        /// Sequences asked for, those to measure on and those to judge by.
        sequences: usize,
        /// Tokens of each.
        length: usize,
    },
    /// Images that are not whole, or too few of them.
    #[error(
        "the pixels are {seen} numbers, expected at least {expected} whole images of {size}; give more images, or lower --sequences"
    )]
    FewImages {
        /// Numbers that there are.
        seen: usize,
        /// Numbers of an image.
        size: usize,
        /// Images that it takes, those to measure on and those to judge by.
        expected: usize,
    },
    /// A budget that nothing keeps to.
    #[error(
        "no choice of candidates keeps to the budget{}: the cheapest has {bytes:.4} of the memory and {seconds:.4} of the time of exact attention; give larger divisors, or a larger budget",
        .memory.as_ref().map_or_else(String::new, |memory| format!(" of {memory} of the memory"))
    )]
    Budget {
        /// Share of memory asked for, as it was typed.
        memory: Option<String>,
        /// Share of memory of the cheapest.
        bytes: f64,
        /// Share of time of the cheapest.
        seconds: f64,
    },
    /// A model whose attention is not plain softmax.
    #[error("the model's attention is not plain softmax, expected a model as it was trained, without a plan")]
    NotSoftmax,
    /// A model without a loss of its own.
    #[error("the model has no head over tokens, and so no loss of its own; expected a language model or a masked one")]
    NoLoss,
    /// Stopped by the user.
    #[error("interrupted")]
    Interrupted,
}

impl Classed for SwapError {
    fn class(&self) -> Class {
        match self {
            Self::Model(error) => error.class(),
            Self::Folder(error) => crate::folder::class(error),
            Self::Budget { .. } => Class::Budget,
            Self::NotSoftmax | Self::NoLoss => Class::Usage,
            Self::Short { .. } | Self::FewImages { .. } => Class::Data,
            Self::Interrupted => Class::Interrupted,
        }
    }
}

/// Which number stands for the loss that a candidate would cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Predictor {
    /// Relative error of the heads' outputs.
    Error,
    /// First-order change of the loss.
    First,
    /// Second-order change of the loss by its gradients.
    Fisher,
    /// Relative error times a number for each group: the one that brings it closest to the second-order change, over all
    /// candidates. What a group matters is known better than what each candidate does in it.
    #[default]
    Weighted,
}

impl Predictor {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Error, Self::First, Self::Fisher, Self::Weighted];

    /// Its name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::First => "first",
            Self::Fisher => "fisher",
            Self::Weighted => "weighted",
        }
    }

    /// The number for each candidate of a group.
    pub fn of(self, effects: &[Effect]) -> Vec<f64> {
        let each = |of: fn(&Effect) -> f64| effects.iter().map(of).collect();
        match self {
            Self::Error => each(|effect| effect.error),
            Self::First => each(|effect| effect.first),
            Self::Fisher => each(|effect| effect.fisher),
            Self::Weighted => {
                // Errors of 1 and more are of attention that lost the thread: they say nothing about smaller ones.
                let small = || effects.iter().filter(|effect| effect.error < 1.0);
                let products: f64 = small().map(|effect| effect.error * effect.fisher).sum();
                let squares: f64 = small().map(|effect| effect.error * effect.error).sum();
                let weight = products / squares.max(f64::MIN_POSITIVE);
                effects.iter().map(|effect| weight * effect.error).collect()
            }
        }
    }
}

/// What a choice costs, beside exact attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Total {
    /// Predicted change of the loss.
    pub loss: f64,
    /// Bytes, as a share of exact attention.
    pub bytes: f64,
    /// Time of attention, as a share of exact attention.
    pub seconds: f64,
}

/// Choices of every group in the order of `measured`, those of a group in the order of the candidates.
pub fn choices(measured: &[Measured], prices: &[Price], predictor: Predictor) -> Vec<Vec<Choice>> {
    let choice = |(loss, price): (f64, &Price)| Choice { loss, bytes: price.bytes, seconds: price.seconds };
    let group = |measured: &Measured| predictor.of(&measured.effects).into_iter().zip(prices).map(choice).collect();
    measured.iter().map(group).collect()
}

/// What `chosen` costs in all, as shares of the first candidate, which is exact.
pub fn total(choices: &[Vec<Choice>], chosen: &[usize]) -> Total {
    let sum = |of: fn(&Choice) -> f64| -> f64 { choices.iter().zip(chosen).map(|(group, at)| of(&group[*at])).sum() };
    let exact = |of: fn(&Choice) -> f64| -> f64 { choices.iter().map(|group| of(&group[0])).sum() };
    Total {
        loss: sum(|choice| choice.loss),
        bytes: sum(|choice| choice.bytes) / exact(|choice| choice.bytes),
        seconds: sum(|choice| choice.seconds) / exact(|choice| choice.seconds),
    }
}

/// The plan of a choice. Groups of a layer with the same candidate stand together; exact ones are left out.
pub fn plan(layers: usize, seed: u64, measured: &[Measured], candidates: &[Candidate], chosen: &[usize]) -> Plan {
    let mut groups: Vec<PlanGroup> = Vec::new();
    for (measured, &at) in measured.iter().zip(chosen).filter(|(_, at)| **at != 0) {
        let attention: Option<AttentionOptions> = candidates[at].attention.clone();
        let Group { layer, key_head } = measured.group;
        match groups.iter_mut().find(|group| group.layer == layer && group.attention == attention) {
            Some(group) => group.key_heads.push(key_head),
            None => groups.push(PlanGroup { layer, key_heads: vec![key_head], attention }),
        }
    }
    Plan { layers, seed, parameters: None, groups }
}
