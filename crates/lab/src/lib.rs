//! Measurements of attention: cost, time, approximation error, comparisons, probes, and the reports that show them.

pub mod adapt;
pub mod approx;
pub mod attend;
pub mod bench;
pub mod compare;
pub mod cost;
pub mod folder;
pub mod inspect;
pub mod load;
pub mod moments;
pub mod probe;
pub mod record;
pub mod reproduce;
pub mod run_report;
pub mod statistics;
pub mod swap;
mod tensors;

/// The README example is a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
