//! What a user configures of a model: its attention, the transformer around it, rotary positions, the places of an
//! encoder-decoder.

mod attention;
mod model;
mod places;
mod precision;
mod rotary;

pub(crate) use attention::check;
pub use attention::{AttentionConfig, reads_second_sequence, shared_by_layers};
pub use model::{Activation, AdaptiveSoftmaxConfig, ModelConfig, NormKind, NormPlace, Pooling, Sizes};
pub use places::Attentions;
pub(crate) use places::{DECODER, ENCODER, at as at_place};
pub use precision::Precision;
pub use rotary::{RotaryConfig, RotaryScaling};
