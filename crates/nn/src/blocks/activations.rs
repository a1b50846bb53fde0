//! What the parts of a model computed in one pass.

use burn::tensor::Tensor;

use super::Log;

/// Collects intermediates of every block that a forward pass goes through.
pub type ActivationLog = Log<Activation>;

/// One intermediate of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Activation {
    /// Number of the layer, from 1.
    pub layer: usize,
    /// Which one.
    pub part: Part,
    /// Its axes: batch, tokens, and those of each token.
    pub shape: Vec<usize>,
    /// Its elements, row by row.
    pub values: Vec<f32>,
}

/// Collects the taps of a forward pass.
pub type HeadTaps = Log<HeadTap>;

/// Zeros that were added to the outputs of heads: their gradient is that of the outputs.
#[derive(Clone, Debug)]
pub struct HeadTap {
    /// Number of the layer, from 1.
    pub layer: usize,
    /// `[B,N,H,D]`
    pub leaf: Tensor<4>,
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

impl Activation {
    /// A record of `values`, copied to the host.
    pub(crate) fn new<const D: usize>(layer: usize, part: Part, values: Tensor<D>) -> Self {
        let shape = values.dims().to_vec();
        let values = values.into_data_as::<f32>().try_into_vec().expect("f32, as asked");
        Self { layer, part, shape, values }
    }
}
