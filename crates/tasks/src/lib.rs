//! Data sets and the training loop.

pub mod data;
mod digest;
mod failure;
pub mod run;
pub mod train;

pub use failure::{Class, Classed, Failure};

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
