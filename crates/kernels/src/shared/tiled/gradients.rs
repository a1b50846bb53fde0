//! Final gradient terms after all tiles, which depend only on row or column sums.

use std::f32::consts::LN_2;

use super::Scores;
use crate::simd;

impl Scores<'_> {
    /// `ds_r`: the spread over all batch rows, heads and segments, in natural units, divided by `s_r`.
    pub(super) fn variance_gradient(&self, spread: &[f32]) -> Vec<f32> {
        let components = self.components();
        let total = |r: usize| spread.iter().skip(r).step_by(components).sum::<f32>();
        (0..components).map(|r| total(r) * LN_2 * self.gains[r]).collect()
    }

    /// Column sums reduced to the prior's shape: over the batch, and over positions if the prior is tied.
    pub(super) fn prior_gradient(&self, columns: &[f32], len: usize) -> Vec<f32> {
        let positions = self.shape.keys;
        let rows = self.shape.heads * self.components();
        let tied = len == rows;
        let mut gradient = vec![0.0; len];
        for batch in columns.chunks_exact(rows * positions) {
            if tied {
                for (total, row) in gradient.iter_mut().zip(batch.chunks_exact(positions)) {
                    *total += simd::sum(positions, |j| row[j]);
                }
            } else {
                simd::add_scaled(&mut gradient, 1.0, batch);
            }
        }
        if tied {
            // A factor common to all components of a head cancels in the output, so their gradients sum to exactly 0:
            // the remainder is rounding error of much larger terms.
            for head in gradient.chunks_exact_mut(self.components()) {
                let mean = head.iter().sum::<f32>() / head.len() as f32;
                head.iter_mut().for_each(|gradient| *gradient -= mean);
            }
        }
        gradient
    }

    /// Parts of the tasks summed to `[Hk,M,D]`.
    pub(super) fn shift_gradient(&self, parts: &[f32], segments: usize) -> Vec<f32> {
        let len = self.components() * self.shape.head_width;
        let mut gradient = vec![0.0; self.shape.key_heads * len];
        for (task, part) in parts.chunks_exact(len).enumerate() {
            let hk = task / segments % self.shape.key_heads;
            simd::add_scaled(&mut gradient[hk * len..(hk + 1) * len], 1.0, part);
        }
        gradient
    }
}
