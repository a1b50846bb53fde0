//! The same model trained with each of several attention mechanisms on the same data, side by side.
//!
//! Each candidate and seed is a run of its own in a directory of its own; a finished run leaves `result.json`, so that a
//! comparison that was interrupted continues where it stopped.

mod report;
mod run;

pub use report::Comparison;
pub use run::{CompareError, Plan, Watch, run, run_directory};

use regard_nn::{attention::Attentions, models::ModelConfig};
use serde::{Deserialize, Serialize};

/// One model to compare.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Name in tables, charts and directories.
    pub label: String,
    /// Its attention, by place; a model with one stack of blocks has the encoder's.
    pub attentions: Attentions,
    /// The transformer around it.
    pub model: ModelConfig,
    /// Its whole configuration as TOML, kept in its run directories.
    pub config: String,
}

/// What one run of one candidate gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The candidate's name.
    pub label: String,
    /// Seed of parameters, batches and dropout.
    pub seed: u64,
    /// Updates done.
    pub steps: usize,
    /// Share of test sequences whose label was predicted, or of the tokens of a copy; absent for language models.
    pub test_accuracy: Option<f64>,
    /// Mean loss on the test split in nats.
    pub test_loss: f64,
    /// `exp` of the test loss; absent for classification.
    pub test_perplexity: Option<f64>,
    /// Learned numbers.
    pub parameters: usize,
    /// Multiply-adds of the forward pass over one sequence of the longest length.
    pub multiply_adds: Option<f64>,
    /// Median time of an update in milliseconds.
    pub milliseconds_per_step: f64,
    /// Peak of allocated bytes in training above those in use before the model was built.
    pub peak_bytes: Option<u64>,
    /// Test sequences classified in a second.
    pub sequences_per_second: f64,
    /// Time of all updates in seconds.
    pub train_seconds: f64,
    /// Step and validation metric of each evaluation: the accuracy of classifiers, the loss of others.
    pub curve: Vec<(usize, f64)>,
    /// Step and training loss, averaged over the updates since the point before.
    pub training_loss: Vec<(usize, f64)>,
}
