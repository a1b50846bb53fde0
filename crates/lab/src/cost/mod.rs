//! What a model costs before it is run: parameters, operations, bytes.
//!
//! [`formulas`] holds the papers' closed forms, to the letter; [`model`] counts any model of ours by part; [`mechanism`]
//! is the one place that knows what each mechanism adds; [`curves`] draws both over length, width and heads.

mod config;
pub mod curves;
pub mod formulas;
pub mod mechanism;
pub mod model;
mod support;

/// Parameters, operations, bytes. Wide enough for any product of the sizes that [`model::ModelSizes::check`] lets pass.
pub type Count = u128;

pub use model::{AttentionSizes, ModelCost, ModelSizes, Part, Run};
