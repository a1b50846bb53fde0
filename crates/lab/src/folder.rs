//! Which class an error of a model folder is of.

use regard_pretrained::PretrainedError;
use regard_tasks::{Class, Classed};

/// The class of an error of a folder, a plan or what a trained model is given. Neither crate knows the other one.
pub fn class(error: &PretrainedError) -> Class {
    match error {
        PretrainedError::Model(error) => error.class(),
        PretrainedError::Text(_) => Class::Usage,
        PretrainedError::Numbers(_) => Class::Numeric,
        _ => Class::Data,
    }
}
