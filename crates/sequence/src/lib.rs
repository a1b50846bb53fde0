//! Attention over one sequence whose tokens are spread over many ranks.
//!
//! [`SequenceParallel`] computes what one process would, output and gradients, with each rank holding its tokens alone:
//!
//! | mechanism | scheme | what travels |
//! |---|---|---|
//! | softmax, gaussian, mgk, cosine, moa | ring; halo with a window | keys and values; those near a border |
//! | linear, mlk, fastformer | scan | states of constant size |
//! | performer | scan | sums over features |
//! | sparse and scatterbrain, local | halo, and scan with features | near keys and values, sums over features |
//! | sparse and scatterbrain, longformer | the same, and a broadcast | global tokens besides |
//!
//! Supports that reach any token of the sequence (hashes, random blocks, layouts of blocks) are refused.

mod band;
mod check;
mod cost;
mod error;
mod exact;
mod experts;
mod globals;
mod halo;
mod network;
mod operator;
mod parallel;
mod part;
mod pieces;
mod ring;
mod rows;
mod scan;
mod split;
mod step;
mod whole;
mod wire;

pub use cost::Traffic;
pub use error::SequenceError;
pub use network::Network;
pub use operator::{Failed, OnRank, SumOverRanks};
pub use parallel::{SequenceParallel, SequenceState};
pub use split::Split;
pub use step::Step;
pub use whole::Whole;

/// The README example is a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
