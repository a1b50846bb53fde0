//! Building blocks of transformers besides attention.

mod activations;
mod block;
mod context;
mod decoder;
mod dropout;
mod feed_forward;
mod init;
mod log;
mod norm;
mod positions;
mod recompute;
mod rotary;
mod router;
mod spread;

pub use activations::{Activation, ActivationLog, HeadTap, HeadTaps, Part};
pub use block::Block;
pub(crate) use block::residual_gain;
pub use context::{Context, Place, Stack};

pub use decoder::{BlockState, DecoderBlock, Memory};
pub(crate) use dropout::drop_out;
pub use feed_forward::FeedForward;
pub use init::Init;
pub use log::Log;
pub use norm::Norm;
pub use positions::{Positions, alibi_slopes, sinusoidal};
pub(crate) use recompute::{recomputed, recomputed_decoder};
pub use rotary::Rotary;
pub use router::{RouterLog, RouterRecord};
pub use spread::Spread;

pub use crate::config::{RotaryConfig, RotaryScaling};
