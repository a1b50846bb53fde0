#![doc = include_str!("../README.md")]

#[cfg(feature = "cube")]
mod attention;
#[cfg(feature = "cube")]
mod device;
#[cfg(feature = "cube")]
mod features;
#[cfg(feature = "cube")]
mod kernel;
#[cfg(feature = "cube")]
mod setting;
mod tile;
#[cfg(feature = "cube")]
mod traffic;
#[cfg(feature = "cube")]
mod tune;

#[cfg(feature = "cube")]
pub use attention::{Gradients, Operands, backward, forward, serves, takes};
#[cfg(feature = "cube")]
pub use features::{FeatureOperands, FeatureOutputs, FeatureSizes, feature_backward, feature_forward};
#[cfg(feature = "cube")]
pub use kernel::UNSEEN;
#[cfg(feature = "cube")]
pub use setting::{Call, Setting, Sizes};
pub use tile::{Pass, Tile};
#[cfg(feature = "cube")]
pub use traffic::{Passes, Traffic};
