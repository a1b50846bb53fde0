//! Data sets, metrics and the training loop.

pub mod data;
pub mod metrics;
pub mod train;

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
