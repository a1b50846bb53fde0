//! Causal attention whose weights are sums of products of positive features: `w_ij = sum_f exp(q_if + k_jf)` for `j <= i`, of
//! logarithms `q` and `k`.
//!
//! Tokens go in segments, each to a block of threads, and in these chunk by chunk. Pairs within a chunk are exact; what lies before
//! it is a state of sums `sum_j exp(k_jf - s_f) [v_j, 1]` with a scale `s_f` for each feature, the largest that was seen, so that no
//! exponential is too large. A block begins with the sums of all segments before its own; in the pass for the keys, which goes
//! backwards, with those of all behind.

pub(crate) mod key_gradients;
pub(crate) mod outputs;
mod parts;
pub(crate) mod query_gradients;
pub(crate) mod sums;

use super::UNSEEN;

/// Threads of a block.
pub(crate) const THREADS: usize = 64;
/// The log of a feature of no token: nothing is left of its exponential even over [`LOWEST`], and a sum of two is finite.
const HIDDEN: f32 = -2e37;
/// A scale below that of any feature.
const LOWEST: f32 = -1e30;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    /// Tokens of a chunk.
    pub chunk: usize,
    /// Features of a token.
    pub features: usize,
    /// Channels of a value.
    pub width: usize,
}

impl Form {
    /// Floats of the state: for each feature those of a value and one for the sum of weights.
    pub fn state(&self) -> usize {
        self.features * (self.width + 1)
    }

    /// Floats in shared memory of the kernel that has most: two tensors of features and two of values of a chunk, its pairs, state,
    /// scales and numbers of tokens.
    pub fn floats(&self) -> usize {
        self.chunk * (2 * (self.features + 1) + 2 * (self.width + 1) + 2 * self.chunk + 8)
            + self.state()
            + 2 * self.features
    }
}
