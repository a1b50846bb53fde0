//! What the parts of a model computed in one pass.

use std::sync::Mutex;

use burn::tensor::Tensor;

/// Collects intermediates of every block that a forward pass goes through.
#[derive(Debug, Default)]
pub struct ActivationLog {
    records: Mutex<Vec<Activation>>,
}

/// One intermediate of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Activation {
    /// Number of the layer, from 1.
    pub layer: usize,
    /// Which one.
    pub part: Part,
    /// Its axes: batch, tokens, and what a token has.
    pub shape: Vec<usize>,
    /// Its elements, row by row.
    pub values: Vec<f32>,
}

/// Places of a block whose values a log can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The block's input `[B,N,d]`.
    Input,
    /// Outputs of the heads before the output projection, `[B,N,H,D]`; Fastformer has none.
    Heads,
    /// What attention adds to the residual stream, `[B,N,d]`.
    Attention,
    /// What the feed-forward part reads, `[B,N,d]`.
    FeedForward,
    /// The block's output `[B,N,d]`.
    Output,
    /// States `[B,N,d]` after the norm behind the last block.
    States,
}

impl ActivationLog {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a record.
    pub(crate) fn push<const D: usize>(&self, layer: usize, part: Part, values: Tensor<D>) {
        let shape = values.dims().to_vec();
        let values = values.into_data_as::<f32>().try_into_vec().expect("f32, as asked");
        self.lock().push(Activation { layer, part, shape, values });
    }

    /// All records so far, in the order in which they were made; the log is empty then.
    pub fn take(&self) -> Vec<Activation> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Activation>> {
        // A panic elsewhere leaves the records whole.
        self.records.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
