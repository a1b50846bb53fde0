//! Efficient attention kernels on plain slices: forward, backward, cost, and a float64 twin of each.
//!
//! Sizes and slices in, slices out: no framework, no I/O. Every mechanism is an [`Operator`]; each formula has its own
//! file, and its float64 twin is under [`mod@reference`].
//!
//! The source has folders for user options (`options`), calls (`call`), formulas (`mechanisms`), code shared by several
//! of them (`shared`), and code independent of attention (`tools`).

mod call;
pub mod elementwise;
mod mechanisms;
mod options;
pub mod reference;
mod shared;
mod tools;

pub use call::{
    AttentionShape, Averaged, Decode, Error, Layout, Mask, Operator, Padding, Reference, Rows, Saved, StoredView, View,
    Weights,
};
pub use inputs::{InputSizes, InputSpec, Role};
pub use mechanism::{AttentionOptions, Call, Mechanism};
pub use mechanisms::{Additive, Cosine, GaussianMixture, Linear, MixtureOfHeads, Scatterbrain, Softmax, routing};
pub use options::{draws, features, inputs, mechanism, sparse_share_for_entropy, support};
pub use shared::{Dropout, ScaledSums, stored};
pub use stored::Storage;
pub use tools::{memory, parallel, random, simd};

// Modules are known by their own names within the crate, wherever they are.
use call::{operator, padding};
use mechanisms::scatterbrain;
use shared::{cache, centred, deltas, scaled, tiled};
use tools::gemm;

/// The README example is a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
