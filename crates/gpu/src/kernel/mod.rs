//! The kernels: softmax over keys of several components, with what a backward pass needs and two kernels for that.
//!
//! All sizes of the loops inside are known when a kernel is compiled, but for the number of tokens. Sums are float32 in a fixed
//! order.

pub(crate) mod features;
pub(crate) mod key_gradients;
pub(crate) mod outputs;
mod parts;
pub(crate) mod query_gradients;
pub(crate) mod ranges;

use crate::Tile;

/// A score far below that of any visible key; finite, for shaders have no infinities.
const HIDDEN: f32 = -1e30;
/// The log-sum-exp of a query that sees no key.
pub const UNSEEN: f32 = 1e30;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    pub tile: Tile,
    pub width: usize,
    pub value_width: usize,
    pub components: usize,
    /// Scores are distances.
    pub distances: bool,
    pub causal: bool,
    pub window: bool,
    pub padded: bool,
    pub slopes: bool,
    /// There is a log prior.
    pub prior: bool,
    /// It depends on the position.
    pub positions: bool,
}
