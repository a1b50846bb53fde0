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

#[cfg(test)]
mod tests {
    use regard_kernels::Error;

    use super::*;
    use crate::{adapt::AdaptError, swap::SwapError};

    #[test]
    fn an_error_of_a_folder_has_one_class_whatever_meets_it() {
        let errors: [(fn() -> PretrainedError, Class); 4] = [
            (|| PretrainedError::Text("x".into()), Class::Usage),
            (|| PretrainedError::Numbers("x".into()), Class::Numeric),
            (|| Error::option("context", 0, "1").into(), Class::Usage),
            (|| PretrainedError::Content { path: "x".into(), problem: "y".into() }, Class::Data),
        ];
        for (error, expected) in errors {
            assert_eq!(class(&error()), expected);
            assert_eq!(SwapError::from(error()).class(), expected);
            assert_eq!(AdaptError::from(error()).class(), expected);
        }
    }
}
