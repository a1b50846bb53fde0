//! Efficient attention kernels on plain slices: forward, backward, cost, and a float64 twin of each.
//!
//! Sizes and slices in, slices out: no framework, no input or output. Every mechanism is an [`Operator`]; each formula
//! has a file of its own, and its float64 twin is under [`mod@reference`].
//!
//! The source has a folder for what a user chooses (`options`), what a call says (`call`), a formula each (`mechanisms`),
//! parts of several of them (`shared`), and what knows nothing of attention (`tools`).

mod call;
pub mod elementwise;
mod mechanisms;
mod options;
pub mod reference;
mod shared;
mod tools;

pub use call::{
    AttentionShape, Averaged, Decode, Error, Layout, Mask, Operator, Padding, Reference, Rows, Saved, View, Weights,
};
pub use inputs::{InputSizes, InputSpec, Role};
pub use mechanism::{AttentionOptions, Call, Mechanism};
pub use mechanisms::{Additive, Cosine, GaussianMixture, Linear, MixtureOfHeads, Scatterbrain, Softmax, routing};
pub use options::{draws, features, inputs, mechanism, sparse_share_for_entropy, support};
pub use shared::{Dropout, stored};
pub use stored::Storage;
pub use tools::{memory, parallel, random, simd};

// Parts within the crate go by their own names, wherever they stand.
use call::{operator, padding};
use mechanisms::scatterbrain;
use shared::{cache, deltas, tiled};
use tools::gemm;

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
