//! Dropout on attention weights, regenerated in the backward pass instead of stored.

use crate::random;

/// Dropout on normalised attention weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability that a weight becomes 0, in `[0, 1)`; the others are scaled by `1 / (1 - rate)`.
    pub rate: f32,
    /// Random key: the same key gives the same mask.
    pub key: u64,
}

impl Dropout {
    /// Factor of the weight of key `j` in row `row = (b H + h) N + i`: 0 or `1 / (1 - rate)`.
    #[inline(always)]
    pub fn factor(&self, row: u64, j: usize) -> f32 {
        let kept = random::keep(random::substream(self.key, row), j as u32, random::threshold(self.rate));
        if kept { 1.0 / (1.0 - self.rate) } else { 0.0 }
    }

    /// Multiplies the weights of keys `first ..` in row `row` by their factors.
    #[inline(always)]
    pub(crate) fn apply(&self, row: u64, first: usize, weights: &mut [f32]) {
        let (key, threshold) = (random::substream(self.key, row), random::threshold(self.rate));
        let scale = 1.0 / (1.0 - self.rate);
        for (w, j) in weights.iter_mut().zip(first as u32..) {
            *w *= if random::keep(key, j, threshold) { scale } else { 0.0 };
        }
    }
}
