//! An operator per formula: forward, backward, decoding.

mod additive;
pub(crate) mod cosine;
mod gaussian_mixture;
mod linear;
mod mixture_of_heads;
pub mod routing;
pub(crate) mod scatterbrain;
mod softmax;

pub use additive::Additive;
pub use cosine::Cosine;
pub use gaussian_mixture::GaussianMixture;
pub use linear::Linear;
pub use mixture_of_heads::MixtureOfHeads;
pub use scatterbrain::Scatterbrain;
pub use softmax::Softmax;
