//! The bridge from kernels to tensors, and the fused operations that layers are built from.
//!
//! The only folder that touches Burn's tensor primitives. [`apply`] runs any
//! [`Operator`](regard_kernels::Operator) on Burn's CPU backend, Flex, and records its hand-written backward pass where
//! gradients are asked for. Each operation of the other files asks [`runs_kernels`] and composes tensor operations where
//! the answer is no.

mod additive;
mod attention;
mod bridge;
mod composed;
mod cosine;
pub mod elementwise;
mod features;
mod format;
#[cfg(feature = "cube")]
mod fused;
mod gaussian_mixture;
mod host;
mod inputs;
mod joint;
mod linear;
mod plan;
mod routing;
mod scatterbrain;
mod softmax;
mod support;

pub(crate) use attention::spread_attention;
pub use attention::{attention, runs_fused};
pub use bridge::{MOST_OPERANDS, Operand, apply, runs_kernels, try_apply};
pub(crate) use bridge::{Pullback, entered, runs_unrecorded, takes_results};
pub use composed::{force_composed, set_block_bytes};
pub use elementwise::{
    Curve, activation, cross_entropy, dropout, embedding, gated, layer_norm, linear, rms_norm, rotate,
};
pub use gaussian_mixture::{prior_after, shifted_keys};
pub use host::{with_elements, with_elements_mut};
pub use inputs::Inputs;
pub use joint::{Concatenation, RealTokens, additive_joint};
pub use routing::{expert_outputs, expert_queries, gates, noisy_logits, route, router_loss};
pub use scatterbrain::unit_keys;

pub(crate) use format::{single, stored_as, stored_like};
pub(crate) use host::Host;

#[cfg(test)]
pub(crate) use composed::force_blocks;
#[cfg(all(test, feature = "cube"))]
pub(crate) use fused::fused_passes;
