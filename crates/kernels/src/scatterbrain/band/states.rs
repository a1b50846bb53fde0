//! Sums of features and values over ranges of keys, each feature with a scale of its own.
//!
//! A state holds, for every feature `a`, the logarithm `c_a` of its scale to base 2, `z_a = sum_j 2^(l_ja - c_a)` and
//! `S_a = sum_j 2^(l_ja - c_a) v_j`, where `l` are log features. No sum is ever taken back by subtraction.

use crate::{
    gemm::{Matrix, Write, product},
    simd,
};

/// Sizes of a state.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateShape {
    /// Features `m`.
    pub features: usize,
    /// Value width `Dv`.
    pub values: usize,
}

impl StateShape {
    /// Floats of the sums alone: `z [m]`, then `S [m,Dv]`.
    pub fn sums(&self) -> usize {
        self.features * (self.values + 1)
    }

    /// Floats of scales and sums: `c [m]`, then the sums.
    pub fn len(&self) -> usize {
        self.features + self.sums()
    }

    /// A state of no keys.
    pub fn clear(&self, state: &mut [f32]) {
        let (scales, sums) = state.split_at_mut(self.features);
        scales.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
    }

    /// Sums of `n` keys by their features `phi [m,n]`, at the scales of the sums, and their values.
    pub fn sum(&self, sums: &mut [f32], phi: Matrix, values: Matrix, n: usize, write: Write) {
        let (z, s) = sums.split_at_mut(self.features);
        debug_assert_eq!(phi.column, 1);
        simd::vectorize(
            #[inline(always)]
            || {
                for (a, z) in z.iter_mut().enumerate() {
                    let total = simd::total(&phi.data[a * phi.row..][..n]);
                    *z = if write == Write::Over { total } else { *z + total };
                }
            },
        );
        product((self.features, self.values, n), 1.0, phi, values, write, s, self.values);
    }

    /// Adds `n` keys by their log features `[m,n]` in rows of `stride`, which become features, and their values to a whole
    /// state; `risen [m]` is lent, and `valid` tells padding.
    pub fn absorb(
        &self,
        state: &mut [f32],
        (logs, stride, n): (&mut [f32], usize, usize),
        values: Matrix,
        risen: &mut [f32],
        valid: Option<&[u8]>,
    ) {
        let (scales, sums) = state.split_at_mut(self.features);
        risen.copy_from_slice(scales);
        raise_to(risen, (logs, stride, n), valid);
        self.raise(scales, risen, sums);
        exponentiate((logs, stride, n), scales, valid);
        self.sum(sums, Matrix::rows(logs, stride), values, n, Write::Add);
    }

    /// Adds `from` to `to`.
    pub fn merge(&self, to: &mut [f32], from: &[f32]) {
        let (scales, sums) = from.split_at(self.features);
        let (to_scales, to_sums) = to.split_at_mut(self.features);
        self.raise(to_scales, scales, to_sums);
        self.merge_at(to_scales, to_sums, scales, sums);
    }

    /// Raises the scales of `sums` to at least `least`.
    pub fn raise(&self, scales: &mut [f32], least: &[f32], sums: &mut [f32]) {
        let (z, s) = sums.split_at_mut(self.features);
        for (a, (scale, &least)) in scales.iter_mut().zip(least).enumerate() {
            if least > *scale {
                let factor = (*scale - least).exp2();
                z[a] *= factor;
                s[a * self.values..(a + 1) * self.values].iter_mut().for_each(|x| *x *= factor);
                *scale = least;
            }
        }
    }

    /// Adds `from`, of scales `from_scales`, to sums of scales `scales`.
    pub fn merge_at(&self, scales: &[f32], sums: &mut [f32], from_scales: &[f32], from: &[f32]) {
        let (z, s) = sums.split_at_mut(self.features);
        let (from_z, from_s) = from.split_at(self.features);
        simd::vectorize(
            #[inline(always)]
            || {
                for a in 0..self.features {
                    if from_scales[a] == f32::NEG_INFINITY {
                        continue;
                    }
                    let factor = if from_scales[a] == scales[a] { 1.0 } else { simd::exp2(from_scales[a] - scales[a]) };
                    z[a] += factor * from_z[a];
                    let row = a * self.values..(a + 1) * self.values;
                    simd::add_scaled(&mut s[row.clone()], factor, &from_s[row]);
                }
            },
        );
    }
}

/// Raises the scale of each feature to at least its logarithms over the real keys, for `logs [m,n]` in rows of a stride.
///
/// Scales are whole, so that they can be added to logarithms of hundreds without rounding them once more.
fn raise_to(scales: &mut [f32], (logs, stride, n): (&[f32], usize, usize), valid: Option<&[u8]>) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (a, scale) in scales.iter_mut().enumerate() {
                let row = &logs[a * stride..][..n];
                let top = match valid {
                    None => simd::max(row),
                    Some(valid) => row
                        .iter()
                        .zip(valid)
                        .fold(f32::NEG_INFINITY, |top, (&l, &real)| if real != 0 && l > top { l } else { top }),
                };
                let top = top.ceil();
                *scale = if top > *scale { top } else { *scale };
            }
        },
    );
}

/// Turns log features `[m,n]` into features at these scales, those of padded keys into 0.
pub(super) fn exponentiate((logs, stride, n): (&mut [f32], usize, usize), scales: &[f32], valid: Option<&[u8]>) {
    // Whole vectors, where the rows hold them.
    let whole = n.next_multiple_of(simd::LANES).min(stride);
    simd::vectorize(
        #[inline(always)]
        || {
            for (a, &scale) in scales.iter().enumerate() {
                let row = &mut logs[a * stride..][..whole];
                for l in row.iter_mut() {
                    *l = simd::exp2(*l - scale);
                }
                if let Some(valid) = valid {
                    for (l, &real) in row.iter_mut().zip(&valid[..n]) {
                        *l = if real == 0 { 0.0 } else { *l };
                    }
                }
            }
        },
    );
}
