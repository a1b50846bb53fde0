//! A call of an operator: sizes, masks, inputs, outputs, errors.

mod error;
mod mask;
pub(crate) mod operator;
pub(crate) mod padding;
mod shape;
mod weights;

pub use error::Error;
pub use mask::{Mask, Padding};
pub use operator::{Decode, Operator, Reference, Saved, StoredView, View};
pub use shape::{AttentionShape, Layout, Rows};
pub use weights::{Averaged, Weights};
