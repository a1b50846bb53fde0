//! What the routers of a model did in one pass.

use super::{Log, Place, Stack};

/// Collects a record of every router that a forward pass goes through.
#[derive(Debug, Default)]
pub struct RouterLog {
    choices: bool,
    records: Log<RouterRecord>,
}

/// What one router did with one batch.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterRecord {
    /// Stack of the layer.
    pub stack: Stack,
    /// Number of the layer in its stack, from 1.
    pub layer: usize,
    /// Which attention of the layer: [`Place::Weights`] for self-attention, [`Place::CrossWeights`] for that to a second
    /// sequence.
    pub place: Place,
    /// Balance loss, before its coefficient.
    pub balance: f64,
    /// z-loss, before its coefficient.
    pub z: f64,
    /// Squared coefficient of variation of the experts' importance.
    pub cv: f64,
    /// Mean entropy of a token's probabilities, in nats.
    pub entropy: f64,
    /// Share of the assignments of each expert; sums to 1.
    pub load: Vec<f64>,
    /// Experts of every token, padding included, `[B,N,k]`, where the log asks for them.
    pub chosen: Option<Vec<u32>>,
    /// Tokens that are not padding.
    pub tokens: usize,
}

impl RouterLog {
    /// An empty log of losses and loads.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty log that keeps every token's experts too.
    pub fn with_choices() -> Self {
        Self { choices: true, ..Self::default() }
    }

    /// Whether every token's experts are kept.
    pub(crate) fn keeps_choices(&self) -> bool {
        self.choices
    }

    /// Adds a record.
    pub(crate) fn push(&self, record: RouterRecord) {
        self.records.push(record);
    }

    /// All records so far, in the order in which the layers ran; the log is empty then.
    pub fn take(&self) -> Vec<RouterRecord> {
        self.records.take()
    }
}
