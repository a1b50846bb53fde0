//! Whole models: token numbers in, logits out.

mod batch;
mod body;
mod classifier;
mod config;
mod language_model;
mod parameters;

pub use batch::TokenBatch;
pub use body::{Body, Sizes};
pub use classifier::Classifier;
pub use config::{Activation, ModelConfig, NormPlace, Pooling};
pub use language_model::{LanguageModel, LanguageState};
pub use parameters::{
    NamedParameter, ParameterError, ParameterMap, ParameterPath, is_buffer, load_parameters, named_parameters,
    parameter_count,
};
