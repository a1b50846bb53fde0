//! Supports whose keys are gathered: hashed clusters, global tokens, blocks.

use super::{RowScales, Scatterbrain};
use crate::View;

pub(super) fn forward(_operator: &Scatterbrain, _inputs: &[View<f32>], _out: &mut [f32]) -> RowScales {
    unimplemented!()
}

/// Gradients of the differentiable inputs, in their order.
pub(super) fn backward(
    _operator: &Scatterbrain,
    _inputs: &[View<f32>],
    _out: &[f32],
    _scales: &RowScales,
    _grad_out: &[f32],
) -> Vec<Vec<f32>> {
    unimplemented!()
}
