//! A band of exact weights around the diagonal and features outside it, in one walk along the sequence.

use super::{Grads, Problem, RowScales};

impl Problem<'_> {
    /// Fills `out`: exact weights within `radius` of the diagonal (nowhere when `None`), features elsewhere.
    pub fn forward_band(&self, _radius: Option<usize>, _out: &mut [f32]) -> RowScales {
        unimplemented!()
    }

    /// Gradients through every visible pair, for rows of these denominators (theirs need not be sums of these weights: a
    /// row with inverse 0 contributes nothing).
    pub fn backward_band(&self, _radius: Option<usize>, _out: &[f32], _scales: &RowScales, _grad_out: &[f32]) -> Grads {
        unimplemented!()
    }
}
