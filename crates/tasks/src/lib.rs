//! Data sets, metrics and the training loop.

pub mod data;
pub mod metrics;
pub mod train;
