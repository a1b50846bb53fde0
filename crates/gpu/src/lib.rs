//! Fused attention for GPUs.

#[cfg(feature = "cube")]
mod attention;
#[cfg(feature = "cube")]
mod device;
#[cfg(feature = "cube")]
mod features;
#[cfg(feature = "cube")]
mod kernel;
mod tile;
#[cfg(feature = "cube")]
mod traffic;

#[cfg(feature = "cube")]
pub use attention::{Call, Gradients, Operands, Setting, Sizes, backward, forward, serves, takes};
#[cfg(feature = "cube")]
pub use features::{FeatureOperands, FeatureOutputs, FeatureSizes, feature_backward, feature_forward};
#[cfg(feature = "cube")]
pub use kernel::UNSEEN;
pub use tile::{Pass, Tile};
#[cfg(feature = "cube")]
pub use traffic::{Passes, Traffic};
