//! User options: the mechanism with its options, and the inputs that follow from them.

mod budget;
pub mod draws;
pub mod features;
pub mod inputs;
pub mod mechanism;
pub mod support;

pub use budget::sparse_share_for_entropy;
