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

    /// Adds the keys with features `phi [n,m]`, at the scales of the sums, and these values.
    pub fn add(&self, sums: &mut [f32], phi: &[f32], values: Matrix, n: usize) {
        let (z, s) = sums.split_at_mut(self.features);
        simd::vectorize(
            #[inline(always)]
            || {
                for row in phi[..n * self.features].chunks_exact(self.features) {
                    for (z, &f) in z.iter_mut().zip(row) {
                        *z += f;
                    }
                }
            },
        );
        let phi = Matrix::rows(phi, self.features).transposed();
        product((self.features, self.values, n), 1.0, phi, values, Write::Add, s, self.values);
    }

    /// Adds `n` keys by their log features `[n,m]`, which become features, and their values to a whole state; `risen [m]` is
    /// lent.
    pub fn absorb(
        &self,
        state: &mut [f32],
        logs: &mut [f32],
        values: Matrix,
        risen: &mut [f32],
        real: impl Fn(usize) -> bool + Copy,
    ) {
        let (scales, sums) = state.split_at_mut(self.features);
        risen.copy_from_slice(scales);
        raise_to(risen, logs, real);
        self.raise(scales, risen, sums);
        exponentiate(logs, scales, real);
        self.add(sums, logs, values, logs.len() / self.features);
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

/// Largest log feature of each column over the real rows: `scales_a = max(scales_a, logs_ja)`.
pub(super) fn raise_to(scales: &mut [f32], logs: &[f32], real: impl Fn(usize) -> bool) {
    let m = scales.len();
    simd::vectorize(
        #[inline(always)]
        || {
            for (j, row) in logs.chunks_exact(m).enumerate() {
                if real(j) {
                    for (scale, &l) in scales.iter_mut().zip(row) {
                        *scale = if l > *scale { l } else { *scale };
                    }
                }
            }
        },
    );
}

/// Turns log features into features at these scales, those of padded rows into 0.
pub(super) fn exponentiate(logs: &mut [f32], scales: &[f32], real: impl Fn(usize) -> bool) {
    let m = scales.len();
    simd::vectorize(
        #[inline(always)]
        || {
            for (j, row) in logs.chunks_exact_mut(m).enumerate() {
                if real(j) {
                    for (l, &scale) in row.iter_mut().zip(scales) {
                        *l = simd::exp2(*l - scale);
                    }
                } else {
                    row.fill(0.0);
                }
            }
        },
    );
}
