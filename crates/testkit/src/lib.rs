//! Test data and error measures shared by the tests of every crate; not published.
//!
//! [`golden`] reads the repository's reference data, [`measure`] is the one way to say how far two tensors are apart,
//! [`random`] draws inputs that float32 and float64 hold alike, [`difference`] derives numerically.

pub mod difference;
pub mod golden;
pub mod measure;
pub mod random;

pub use difference::derivative;
pub use golden::{Case, Tensor, Tensors, cases};
pub use measure::{Report, error, float32_bound, narrow, wide};
pub use random::Random;

/// The example of the repository's README is a test, here because no published package may reach out of its own folder.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
