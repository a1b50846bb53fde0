//! Dropout on activations.

use burn::tensor::Tensor;

use super::{Context, Place};
use crate::ops;

/// Sets a share `rate` of `x` to 0 and scales the rest by `1 / (1 - rate)`, in training only.
pub(crate) fn drop_out(x: Tensor<3>, rate: f32, context: &Context, place: Place) -> Tensor<3> {
    if context.training && rate > 0.0 { ops::dropout(x, rate, context.key(place)) } else { x }
}
