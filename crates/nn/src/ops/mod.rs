//! The bridge from kernels to tensors, and the fused operations that layers are built from.
//!
//! The only folder that touches Burn's tensor primitives. [`apply`] runs any
//! [`Operator`](regard_kernels::Operator) on Burn's CPU backend, Flex, and records its hand-written backward pass where
//! gradients are asked for. Each operation of the other files asks [`runs_kernels`] and composes tensor operations where
//! the answer is no.

mod bridge;
pub mod elementwise;

pub use bridge::{MOST_OPERANDS, Operand, apply, runs_kernels, try_apply};
