//! What commands on a model folder share: the class of an error, and whether its model fits into memory.

use regard_pretrained::{Folder, Position, PretrainedError};
use regard_tasks::{Class, Classed, Failure};

use crate::cost::{Count, fits};

/// The class of an error of a folder, a plan or what a trained model is given. Neither crate knows the other one.
pub fn class(error: &PretrainedError) -> Class {
    match error {
        PretrainedError::Model(error) => error.class(),
        PretrainedError::Text(_) => Class::Usage,
        PretrainedError::Numbers(_) => Class::Numeric,
        _ => Class::Data,
    }
}

/// Checks that the model of a folder fits into memory before it is loaded: its parameters in f32, as they are read, with a table
/// or of rotations of positions for `context` tokens (absent: its own), and the states of a layer for `tokens` tokens. This is a
/// lower bound.
///
/// # Errors
/// More bytes than the machine has.
pub fn check_memory(folder: &Folder, context: Option<usize>, tokens: usize) -> Result<(), Failure> {
    let architecture = folder.architecture();
    let size = |shape: &[usize]| shape.iter().map(|size| *size as Count).fold(1, Count::saturating_mul);
    let sizes = folder.entries().iter().map(|entry| match (context, architecture.position) {
        (Some(rows), Position::Learned { .. }) if entry.name == "position_embedding" => size(&[rows, entry.shape[1]]),
        _ => size(&entry.shape),
    });
    let parameters = sizes.fold(0, Count::saturating_add);
    // What a layer reads, its queries, keys and values.
    let heads = architecture.heads + 2 * architecture.key_value_heads;
    let states = size(&[tokens, architecture.width + heads * architecture.head_width]);
    // Cosines and sines.
    let rotations = match architecture.position {
        Position::Rotary(rotary) => {
            let pairs = rotary.pairs(architecture.head_width).unwrap_or(0);
            size(&[2, context.unwrap_or(architecture.context), pairs])
        }
        _ => 0,
    };
    let rotations_too = if rotations > 0 { " with its table of rotations" } else { "" };
    let states_too = if tokens > 0 { format!(" and the states of {tokens} tokens") } else { String::new() };
    let what =
        format!("{}: {parameters} parameters in f32{rotations_too}{states_too} need at least", folder.path().display());
    let numbers = parameters.saturating_add(rotations).saturating_add(states);
    fits(&what, numbers.saturating_mul(size_of::<f32>() as Count), "take a smaller model, context or fewer tokens")
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
