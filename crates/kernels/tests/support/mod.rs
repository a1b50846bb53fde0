//! What the test suites share: every mechanism in every variant, inputs for it, and one way to run it.

// Each suite is a crate of its own and uses a part of this.
#![allow(dead_code, unused_imports)]

pub mod array;
pub mod golden;
pub mod setting;
pub mod subject;
pub mod variant;

pub use array::Array;
pub use subject::{Outcome, Subject};
pub use variant::{Sizes, Variant};

use std::sync::{Arc, Once};

use regard_kernels::{
    AttentionOptions, Call, Mask, Padding, Scatterbrain,
    mechanism::Combination,
    simd::{Vectors, limit},
};

/// Keeps kernels to the vectors that the environment variable `REGARD_VECTORS` names.
pub fn keep_to_vectors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Ok(name) = std::env::var("REGARD_VECTORS") {
            limit(Vectors::named(&name).expect("vectors of this processor"));
        }
    });
}

/// Padding of `batch` rows: complete, with holes, a prefix, a suffix, empty, and again from the start.
pub fn padding(batch: usize, length: usize) -> Arc<Padding> {
    let real = |b: usize, j: usize| match b % 5 {
        0 => true,
        1 => j % 3 != 1,
        2 => j < length.div_ceil(2),
        3 => j >= length / 3,
        _ => false,
    };
    let bytes = (0..batch).flat_map(|b| (0..length).map(move |j| u8::from(real(b, j)))).collect();
    Arc::new(Padding::new(batch, length, bytes).expect("one byte a token"))
}

/// Whether token `j` of batch row `b` is real under `mask`.
pub fn real(mask: &Mask, b: usize, j: usize) -> bool {
    mask.valid_row(b).is_none_or(|row| row[j] != 0)
}

/// Whether query `i` of batch row `b` sees any of `keys` keys under `mask`.
pub fn sees_any(mask: &Mask, b: usize, i: usize, queries: usize, keys: usize) -> bool {
    mask.visible(i, queries, keys).any(|j| real(mask, b, j))
}

/// A sparse or low-rank operator by its own type, for what its twin alone can tell.
pub fn scatterbrain(options: &AttentionOptions, call: Call) -> Scatterbrain {
    Scatterbrain {
        layout: call.layout,
        mask: call.mask,
        scale: call.scale,
        support: options.uses_support().then(|| options.support.clone()),
        features: options.uses_features().then_some(options.features.kind),
        naive: options.scatterbrain.combination == Combination::Naive,
    }
}
