//! `state.json`: where a run stands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Version of the layout of a checkpoint.
pub(super) const FORMAT: u32 = 1;

/// Where a run stands beside its tensors. The learning rate, the items of the next batch and the dropout keys are
/// functions of step and seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    /// Updates done.
    pub step: usize,
    /// Seed of the run.
    pub seed: u64,
    /// Sequences a batch, and batches an update: with `step`, the position in the data.
    pub batch: usize,
    /// See `batch`.
    pub accumulate: usize,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// Evaluations since the best.
    pub evaluations_since_best: usize,
    /// Time spent in training steps.
    pub seconds: f64,
}

/// The best evaluation on the validation split.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Updates done then.
    pub step: usize,
    /// The metric that chooses: see [`Evaluation::score`](crate::train::Evaluation::score).
    pub score: f64,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileDigest {
    pub bytes: u64,
    pub sha256: String,
}

impl FileDigest {
    pub fn of(content: &[u8]) -> Self {
        let hex = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { bytes: content.len() as u64, sha256: hex }
    }
}

/// The whole of `state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StateFile {
    pub format: u32,
    pub run: RunState,
    pub files: BTreeMap<String, FileDigest>,
}
