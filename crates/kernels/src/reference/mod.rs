//! Plain float64 twins of every mechanism: written for readability, not speed.

pub mod additive;
pub mod cosine;
pub mod gaussian_mixture;
pub mod linear;
pub mod mixture_of_heads;
pub mod routing;
mod row;
pub mod scatterbrain;
pub mod softmax;
