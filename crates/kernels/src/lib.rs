//! Efficient attention kernels on plain slices: forward, backward, cost, and a float64 twin of each.
//!
//! Sizes and slices in, slices out: no framework, no input or output. Every mechanism is an [`Operator`]; each formula
//! has a file of its own, and its float64 twin is under [`mod@reference`].

mod additive;
mod budget;
mod cache;
mod deltas;
pub mod draws;
mod dropout;
pub mod elementwise;
mod error;
pub mod features;
mod gaussian_mixture;
mod gemm;
pub mod inputs;
mod linear;
mod mask;
pub mod mechanism;
pub mod memory;
mod mixture_of_heads;
mod operator;
mod padding;
pub mod parallel;
pub mod random;
pub mod reference;
pub mod routing;
mod scatterbrain;
mod shape;
pub mod simd;
mod softmax;
pub mod stored;
pub mod support;
mod tiled;
mod weights;

pub use additive::Additive;
pub use budget::sparse_share_for_entropy;
pub use dropout::Dropout;
pub use error::Error;
pub use gaussian_mixture::GaussianMixture;
pub use inputs::{InputSizes, InputSpec, Role};
pub use linear::Linear;
pub use mask::{Mask, Padding};
pub use mechanism::{AttentionOptions, Call, Mechanism};
pub use mixture_of_heads::MixtureOfHeads;
pub use operator::{Decode, Operator, Reference, Saved, View};
pub use scatterbrain::Scatterbrain;
pub use shape::{AttentionShape, Layout, Rows};
pub use softmax::Softmax;
pub use stored::Storage;
pub use weights::{Averaged, Weights};

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
