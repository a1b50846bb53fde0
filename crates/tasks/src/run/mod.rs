//! Runs: configuration with the origin of each value, directory, and model.
//!
//! [`Layers`] merge a configuration, later ones overriding earlier ones: defaults, preset, file, environment
//! (`REGARD_*`), assignments. An unknown key is an error with its location and the nearest known key. [`Run::train`]
//! trains a configuration into a directory; [`Run::open`] loads a directory.
//!
//! An encoder-decoder has three attentions. The top-level keys apply to all of them; `[decoder]` and `[cross]` hold
//! what differs in the decoder's self-attention and cross-attention.

mod config;
mod layers;
mod nearest;
mod open;
mod predict;
mod preset;
mod schema;

pub use config::{CompareConfig, ParallelConfig, RunConfig, SECTIONS};
pub use layers::{Layers, read_settings};
pub use nearest::nearest;
pub use open::{Run, Stored, Which};
pub use predict::{Figures, Predictions, Predictor};
pub use preset::PRESETS;
pub use schema::keys;
