//! Attention layers, transformer blocks and models on Burn.

pub mod attention;
pub mod blocks;
pub mod config;
pub mod device;
pub mod models;
pub mod ops;

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
