//! Cost of a model before it runs: parameters, operations, bytes.
//!
//! [`formulas`] holds the papers' closed forms verbatim; [`model`] counts any of our models by part; [`mechanism`]
//! holds everything specific to a mechanism; [`curves`] draws both over length, width and heads.

pub mod curves;
pub mod formulas;
pub mod mechanism;
mod memory;
pub mod model;
mod readers;
mod sizes;
mod support;

/// Parameters, operations, bytes. Wide enough for any product of sizes accepted by [`ModelSizes::check`].
pub type Count = u128;

pub use memory::{TRAINING, check_inference, check_training, fits, total_memory};
pub use model::{ModelCost, Part};
pub use sizes::{AttentionSizes, CostError, DecoderSizes, Head, ModelSizes, Run};
