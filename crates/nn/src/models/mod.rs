//! Whole models: token numbers in, logits out.

mod adaptive_softmax;
mod batch;
mod beam;
mod body;
mod classifier;
mod decoder;
mod embeddings;
mod encoder;
mod features;
mod head;
mod head_loss;
mod image;
mod language_model;
mod masked;
mod parameters;
mod pooling;
mod recommender;
mod translator;

pub use batch::{TokenBatch, special};
pub use beam::{BeamOptions, beam_search};
pub use body::Body;
pub use classifier::Classifier;
pub use features::{FeatureModel, Pooler, TextHead};
pub use head_loss::HELD_LOGITS;
pub use image::{ImageHead, ImageModel, Patches};
pub use language_model::{LanguageModel, LanguageState};
pub use masked::MaskedModel;
pub use parameters::{
    NamedParameter, ParameterError, ParameterMap, ParameterPath, compact_weights, is_buffer, load_parameters,
    named_parameters, parameter_count,
};
pub use recommender::{Readers, Recommender};
pub use translator::{TranslationState, Translator};

pub use crate::config::{Activation, AdaptiveSoftmaxConfig, ModelConfig, NormKind, NormPlace, Pooling, Sizes};
