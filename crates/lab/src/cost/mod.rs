//! What a model costs before it is run: parameters, operations, bytes.
//!
//! [`formulas`] holds the papers' closed forms, to the letter; [`model`] counts any model of ours by part; [`mechanism`]
//! is the one place that knows what each mechanism adds; [`curves`] draws both over length, width and heads.

pub mod curves;
pub mod formulas;
pub mod mechanism;
mod memory;
pub mod model;
mod sizes;
mod support;

/// Parameters, operations, bytes. Wide enough for any product of the sizes that [`ModelSizes::check`] lets pass.
pub type Count = u128;

pub use memory::{check_inference, check_training, fits, total_memory};
pub use model::{ModelCost, Part};
pub use sizes::{AttentionSizes, CostError, DecoderSizes, Head, ModelSizes, Run};
