//! A model on some tokens of every sequence.

use std::{fmt::Debug, sync::Arc};

use regard_kernels::{AttentionOptions, Call, Operator};

/// The ranks that the tokens of every sequence are spread over. Each runs the model on its own tokens, all of them the same
/// passes in the same order; here is what needs those of others.
///
/// The loss of such a pass is this rank's share: the gradients of its parameters are to be added up over the ranks.
pub trait Spread: Debug + Send + Sync {
    /// Positions of this rank's tokens, ascending.
    fn positions(&self) -> &[usize];

    /// Real tokens of each row of the batch, on all ranks together.
    fn real_tokens(&self) -> &[usize];

    /// Attention of all tokens, with inputs and output of this rank's. The padding of `call` is that of these.
    fn attention(&self, options: &AttentionOptions, call: Call) -> Arc<dyn Operator>;

    /// The sum of its input, `x`, over all ranks.
    fn sum(&self) -> Arc<dyn Operator>;

    /// The largest of each value over all ranks.
    fn largest(&self, values: Vec<f32>) -> Vec<f32>;
}
