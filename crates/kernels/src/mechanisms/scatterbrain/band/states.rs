//! Sums of features and values over ranges of keys, with one scale per feature.
//!
//! A state holds, for every feature `a`, the logarithm `c_a` of its scale to base 2, `z_a = sum_j 2^(l_ja - c_a)` and
//! `S_a = sum_j 2^(l_ja - c_a) v_j`, where `l` are log features. Sums are never subtracted.

use crate::{
    gemm::{Matrix, Write, product_fetching},
    simd,
};

/// Sizes of a state.
#[derive(Clone, Copy, Debug)]
pub(in crate::mechanisms::scatterbrain) struct StateShape {
    /// Features `m`.
    pub features: usize,
    /// Value width `Dv`.
    pub values: usize,
}

impl StateShape {
    /// Floats of the sums: `z [m]`, then `S [m,Dv]`.
    pub fn sums(&self) -> usize {
        self.features * (self.values + 1)
    }

    /// Floats of scales and sums: `c [m]`, then the sums.
    pub fn len(&self) -> usize {
        self.features + self.sums()
    }

    /// Clears a state.
    pub fn clear(&self, state: &mut [f32]) {
        let (scales, sums) = state.split_at_mut(self.features);
        scales.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
    }

    /// Sums of keys by their features `phi [n,m]`, at the scales of the sums, and their values. Prefetches `ahead`
    /// meanwhile.
    pub fn sum(&self, sums: &mut [f32], phi: &[f32], values: Matrix, write: Write, ahead: &[f32]) {
        let m = self.features;
        let (z, s) = sums.split_at_mut(m);
        if write == Write::Over {
            z.fill(0.0);
        }
        simd::vectorize(
            #[inline(always)]
            || each_column(phi, z, |z, phi| z + phi),
        );
        let columns = Matrix::rows(phi, m).transposed();
        product_fetching((m, self.values, phi.len() / m), 1.0, columns, values, write, s, self.values, ahead);
    }

    /// Adds keys by their log features `[n,m]`, which become features, and their values to a full state; `risen [m]` is
    /// scratch, and `valid` marks padding.
    pub fn absorb(
        &self,
        state: &mut [f32],
        logs: &mut [f32],
        values: Matrix,
        risen: &mut [f32],
        valid: Option<&[u8]>,
        ahead: &[f32],
    ) {
        let (scales, sums) = state.split_at_mut(self.features);
        risen.copy_from_slice(scales);
        raise_to(risen, logs, valid);
        self.raise(scales, risen, sums);
        exponentiate(logs, scales, valid);
        self.sum(sums, logs, values, Write::Add, ahead);
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

/// Raises the scale of each feature to at least its logarithms `[n,m]` over the real keys.
///
/// Scales are integers, so that adding them to logarithms in the hundreds does not round again.
fn raise_to(scales: &mut [f32], logs: &[f32], valid: Option<&[u8]>) {
    simd::vectorize(
        #[inline(always)]
        || {
            let m = scales.len();
            let raise = |top: f32, l: f32| if l > top { l } else { top };
            match valid {
                None => each_column(logs, scales, raise),
                Some(valid) => {
                    for (row, _) in logs.chunks_exact(m).zip(valid).filter(|(_, real)| **real != 0) {
                        each_column(row, scales, raise);
                    }
                }
            }
            // Unchanged ones are integers already.
            scales.iter_mut().for_each(|scale| *scale = scale.ceil());
        },
    );
}

/// Converts log features `[n,m]` to features at these scales, 0 for padded keys.
pub(super) fn exponentiate(logs: &mut [f32], scales: &[f32], valid: Option<&[u8]>) {
    let m = scales.len();
    simd::vectorize(
        #[inline(always)]
        || {
            for row in logs.chunks_exact_mut(m) {
                simd::each_pair(row, scales, |l, scale| simd::exp2(l - scale));
            }
            if let Some(valid) = valid {
                for (row, _) in logs.chunks_exact_mut(m).zip(valid).filter(|(_, real)| **real == 0) {
                    row.fill(0.0);
                }
            }
        },
    );
}

/// Folds the rows of a matrix into `folded`, a vector of columns at a time, row by row.
#[inline(always)]
fn each_column(rows: &[f32], folded: &mut [f32], fold: impl Fn(f32, f32) -> f32) {
    let m = folded.len();
    let (blocks, rest) = folded.as_chunks_mut::<{ simd::LANES }>();
    let whole = blocks.len() * simd::LANES;
    for (n, block) in blocks.iter_mut().enumerate() {
        let mut lanes = *block;
        for row in rows.chunks_exact(m) {
            let row: &[f32; simd::LANES] = row[n * simd::LANES..].first_chunk().expect("a whole vector");
            for (lane, &x) in lanes.iter_mut().zip(row) {
                *lane = fold(*lane, x);
            }
        }
        *block = lanes;
    }
    for row in rows.chunks_exact(m) {
        for (folded, &x) in rest.iter_mut().zip(&row[whole..]) {
            *folded = fold(*folded, x);
        }
    }
}
