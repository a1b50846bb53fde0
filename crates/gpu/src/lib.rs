//! Fused attention for GPUs.

#[cfg(feature = "cube")]
mod attention;
#[cfg(feature = "cube")]
mod kernel;
mod tile;

#[cfg(feature = "cube")]
pub use attention::{Call, Gradients, Operands, Sizes, backward, forward, serves, takes};
pub use tile::{Pass, Tile};
