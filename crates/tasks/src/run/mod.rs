//! A run as a value: its configuration, where each value of that came from, its directory, and the model in it.
//!
//! [`Layers`] merge a configuration, the later ones winning: defaults, preset, file, environment (`REGARD_*`), assignments. A
//! key that does not exist is an error with the place where it stands and the nearest key that does. [`Run::train`] trains what
//! a configuration describes into a directory; [`Run::open`] reads a directory back.
//!
//! An encoder-decoder has three attentions. The keys at the top are of all of them; `[decoder]` and `[cross]` hold what
//! differs in the decoder's self-attention and in its attention to the encoder.

mod config;
mod layers;
mod open;
mod preset;

pub use config::{CompareConfig, RunConfig, SECTIONS};
pub use layers::{Layers, keys, nearest};
pub use open::{Run, Stored, Which};
pub use preset::PRESETS;
