//! Sums of positive weights, each relative to a scale of its own.

use crate::simd;

/// Before the values of a row: its scale and the sum of weights.
pub(crate) const HEAD: usize = 2;

/// Sums of weights and of weighted vectors, or their gradients: what a part of a sequence tells the others.
///
/// A row is `[top, z, S]`, `width + 2` floats: `z` and `S` are relative to `2^top`, for gradients to `2^-top`. A sum over
/// nothing has `top` at negative infinity, its gradient at infinity.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledSums {
    data: Vec<f32>,
    /// Floats of a row.
    len: usize,
}

impl ScaledSums {
    /// From what [`ScaledSums::as_slice`] gave, for vectors of this width.
    ///
    /// # Panics
    /// If `data` is not a whole number of rows.
    pub fn new(data: Vec<f32>, width: usize) -> Self {
        let len = width + HEAD;
        assert!(data.len().is_multiple_of(len), "a row has {len} floats");
        Self { data, len }
    }

    /// All rows.
    pub fn as_slice(&self) -> &[f32] {
        &self.data
    }

    /// All rows.
    pub fn into_vec(self) -> Vec<f32> {
        self.data
    }

    /// Floats of a row.
    pub fn row_len(&self) -> usize {
        self.len
    }

    /// Adds the sums over others.
    pub fn add(&mut self, other: &Self) {
        self.join(other, |own, other| own > other, |from, to| from - to);
    }

    /// For gradients: adds those from others.
    pub fn add_gradients(&mut self, other: &Self) {
        self.join(other, |own, other| own < other, |from, to| to - from);
    }

    fn join(&mut self, other: &Self, keeps: impl Fn(f32, f32) -> bool, distance: impl Fn(f32, f32) -> f32) {
        for (own, other) in self.data.chunks_exact_mut(self.len).zip(other.data.chunks_exact(self.len)) {
            let top = if keeps(own[0], other[0]) { own[0] } else { other[0] };
            // Where neither has any the difference of the scales is not a number.
            let factor = |from: f32| if from.is_finite() { simd::exp2(distance(from, top)) } else { 0.0 };
            let (kept, added) = (factor(own[0]), factor(other[0]));
            own[0] = top;
            for (own, other) in own[1..].iter_mut().zip(&other[1..]) {
                *own = kept * *own + added * *other;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_meet_at_the_larger_scale_and_gradients_at_the_smaller() {
        let nothing = ScaledSums::new(vec![f32::NEG_INFINITY, 0.0, 0.0], 1);
        let (small, large) = (ScaledSums::new(vec![1.0, 1.0, 4.0], 1), ScaledSums::new(vec![3.0, 1.5, -2.0], 1));
        let mut sums = nothing.clone();
        sums.add(&nothing);
        assert_eq!(sums, nothing);
        sums.add(&small);
        sums.add(&large);
        sums.add(&nothing);
        assert_eq!(sums.as_slice(), [3.0, 1.75, -1.0]);
        let mut gradients = ScaledSums::new(vec![f32::INFINITY, 0.0, 0.0], 1);
        gradients.add_gradients(&large);
        gradients.add_gradients(&small);
        assert_eq!(gradients.as_slice(), [1.0, 1.375, 3.5]);
    }
}
