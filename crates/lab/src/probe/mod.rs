//! How a decoder without positional embeddings infers positions (arXiv 2305.13571): the output variance of causal
//! attention decreases with the number of averaged tokens.
//!
//! Untrained decoders are compared with the lemmas; trained ones are measured by layer; and a classifier shows how much
//! of the position can be read from a token's hidden state.

mod channels;
mod charts;
mod classifier;
mod curves;
mod decoder;
mod estimate;
mod lemma;
mod measure;
mod model_report;
mod report;
mod tables;
mod tally;
#[cfg(test)]
mod tests;
mod trained;
mod twin;
mod weights;

use std::sync::atomic::{AtomicBool, Ordering};

use regard_tasks::{Class, Classed, data::DataError};

pub use channels::{ChannelCheck, channels};
pub(crate) use charts::{cumulative_chart, cumulative_lines};
pub use classifier::{Accuracy, Classifier, Features};
pub use curves::{Curve, Replicates, Statistic};
pub use decoder::{Decoder, Layer};
pub use estimate::{Estimate, student};
pub use lemma::{Constant, Lemmas, slope, spaced_positions};
pub use measure::{Measured, Plan, Setting, measure, steps};
pub use model_report::ModelProbe;
pub use report::Probe;
pub use tables::{channel_table, lemma_table};
pub use tally::{Axes, Quantity, Shares, Tally};
pub use trained::{MeasuredModel, ModelPlan, measure_model};
pub use twin::twin;
pub use weights::Distribution;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Options that do not fit each other or the sizes.
    #[error(transparent)]
    Options(#[from] regard_kernels::Error),
    /// Data that cannot be cut into batches.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A model that cannot be probed.
    #[error("{0}")]
    Model(String),
    /// A decoder that overflows single precision.
    #[error(
        "a decoder of deviation {deviation} gives numbers that are not finite, expected finite ones; lower --deviation"
    )]
    Numeric {
        /// The standard deviation of its weights.
        deviation: f64,
    },
    /// A classifier whose loss diverged.
    #[error("the loss of the classifier of positions is not finite, expected a number; lower --rate")]
    Classifier,
    /// The stop flag was raised.
    #[error("interrupted")]
    Interrupted,
}

impl Classed for ProbeError {
    fn class(&self) -> Class {
        match self {
            Self::Options(error) => error.class(),
            Self::Data(error) => error.class(),
            Self::Model(_) => Class::Usage,
            Self::Numeric { .. } | Self::Classifier => Class::Numeric,
            Self::Interrupted => Class::Interrupted,
        }
    }
}

fn check(stop: &AtomicBool) -> Result<(), ProbeError> {
    if stop.load(Ordering::Relaxed) { Err(ProbeError::Interrupted) } else { Ok(()) }
}
