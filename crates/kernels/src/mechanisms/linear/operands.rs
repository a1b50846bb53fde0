//! The tensors of one call and what kernels derive from them: features, values, scaled gradients.

use std::ops::Range;

use crate::{
    AttentionShape, Mask, Rows, View,
    gemm::{Matrix, Write, product},
    simd::{self, MultiplyAdd},
};

/// Features are clamped to at least `e^-70`, far above the smallest float and far below what counts beside a feature of
/// ordinary size. The largest feature of a query is at least 1 ([`Operands::query_features`]), so that a denominator is 0 only
/// where no key is visible, and its inverse leaves room for what it multiplies.
const FLOOR: f32 = -70.0;

/// `phi(x) = elu(x) + 1`: `e^x` below 0, `x + 1` above. Its derivative is `min(phi(x), 1)`. NaN stays NaN.
///
/// `e^x` is `2^n e^r` with `|r| <= ln 2 / 2` and the polynomial of Moshier's Cephes library (`expf`), accurate to 1e-7;
/// the short range `FLOOR <= x <= 0` needs no overflow handling.
#[inline(always)]
pub(super) fn phi(x: f32) -> f32 {
    // ln 2 in two parts: the first has few enough bits for n times it to be exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let below = if x < FLOOR { FLOOR } else { x };
    let below = if below > 0.0 { 0.0 } else { below };
    let shifted = below.multiply_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.multiply_add(-LN2_LOW, n.multiply_add(-LN2_HIGH, below));
    let mut p = 1.987_569_1e-4f32;
    p = p.multiply_add(r, 1.398_2e-3);
    p = p.multiply_add(r, 8.333_452e-3);
    p = p.multiply_add(r, 4.166_579_6e-2);
    p = p.multiply_add(r, 1.666_666_5e-1);
    p = p.multiply_add(r, 0.5);
    p = p.multiply_add(r * r, r + 1.0);
    let power = p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if x > 0.0 { x + 1.0 } else { power }
}

/// Derivative of [`phi`], from its value. NaN stays NaN.
#[inline(always)]
pub(super) fn slope(feature: f32) -> f32 {
    if feature > 1.0 { 1.0 } else { feature }
}

/// `1 / x`, and 0 for a denominator without a key.
#[inline(always)]
pub(super) fn inverse(denominator: f32) -> f32 {
    if denominator == 0.0 { 0.0 } else { 1.0 / denominator }
}

/// Weights `exp(log_prior)` of each query head, normalised to sum to 1: a common factor cancels in the output.
pub(super) fn normalised(log_prior: &[f32], components: usize) -> Vec<f32> {
    let mut prior = log_prior.to_vec();
    for head in prior.chunks_exact_mut(components) {
        let max = head.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        head.iter_mut().for_each(|l| *l = (*l - max).exp());
        let sum: f32 = head.iter().sum();
        head.iter_mut().for_each(|w| *w /= sum);
    }
    prior
}

/// Inputs of one call.
///
/// Sums are kept one per key head, shared by the query heads that read it; for a mixture, where each query head mixes a
/// key head's components differently, one per query head. So sum `s` of a batch row belongs to key head `s / splits`
/// and serves the `shares` query heads from `s * shares` on, and `splits` or `shares` is 1.
pub(super) struct Operands<'a> {
    pub shape: AttentionShape,
    pub mask: &'a Mask,
    pub components: usize,
    /// Sums per key head.
    pub splits: usize,
    /// Query heads per sum.
    pub shares: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    shift: Option<&'a [f32]>,
    /// `[H, M]`; empty with one component.
    prior: Vec<f32>,
}

/// Output of the forward pass and its gradient.
#[derive(Clone, Copy)]
pub(super) struct Output<'a> {
    pub out: &'a [f32],
    pub denominators: &'a [f32],
    pub grad: &'a [f32],
}

impl<'a> Operands<'a> {
    pub fn new(shape: AttentionShape, components: usize, mask: &'a Mask, inputs: &[View<'a, f32>]) -> Self {
        let mixed = components > 1;
        let splits = if mixed { shape.group() } else { 1 };
        Self {
            shape,
            mask,
            components,
            splits,
            shares: shape.group() / splits,
            q: inputs[0].data,
            k: inputs[1].data,
            v: inputs[2].data,
            shift: inputs.get(4).map(|shift| shift.data),
            prior: if mixed { normalised(inputs[3].data, components) } else { Vec::new() },
        }
    }

    /// Sums per batch row.
    pub fn sums(&self) -> usize {
        self.shape.key_heads * self.splits
    }

    /// Floats of one sum: `Z [D,Dv]`, then `z [D]`.
    pub fn sum_len(&self) -> usize {
        self.shape.head_width * (self.shape.value_width + 1)
    }

    /// Query heads that sum `s` serves.
    pub fn query_heads(&self, s: usize) -> Range<usize> {
        s * self.shares..(s + 1) * self.shares
    }

    /// Whether keys are shifted copies of one.
    pub fn shifted(&self) -> bool {
        self.shift.is_some()
    }

    /// Floats of [`Operands::key_features`]'s components for `rows` keys.
    pub fn components_len(&self, rows: usize) -> usize {
        if self.components > 1 { self.components * rows * self.shape.head_width } else { 0 }
    }

    /// Rows of `k` that hold component `r` of the keys of sum `s`.
    pub fn key_rows(&self, b: usize, s: usize, r: usize) -> Rows {
        self.shape.key_rows(b, s / self.splits, if self.shifted() { 0 } else { r })
    }

    /// Component `r` of the prior that sum `s` mixes with.
    pub fn prior(&self, s: usize, r: usize) -> f32 {
        if self.components > 1 { self.prior[s * self.components + r] } else { 1.0 }
    }

    fn shift(&self, s: usize, r: usize) -> Option<&'a [f32]> {
        let width = self.shape.head_width;
        self.shift.map(|shift| &shift[(s / self.splits * self.components + r) * width..][..width])
    }

    /// `phi(q_i)` of query head `h`, one dense row per query. A common factor of a row cancels in its output: where all of a
    /// row would be small, it is `phi(q_i)` over its largest, so that none of it is lost.
    pub fn query_features(&self, b: usize, h: usize, queries: Range<usize>, features: &mut [f32]) {
        let (rows, width) = (self.shape.query_rows(b, h), self.shape.head_width);
        simd::vectorize(
            #[inline(always)]
            || {
                for (row, i) in features.chunks_exact_mut(width).zip(queries) {
                    simd::prefetch(self.q, &rows, i);
                    let query = rows.row(self.q, i);
                    let top = simd::max(query).clamp(f32::MIN, 0.0);
                    for (f, &x) in row.iter_mut().zip(query) {
                        *f = phi(x - top);
                    }
                }
            },
        );
    }

    /// `f_j` of sum `s`, one dense row per key, 0 for a padded key. For a mixture `components` receives `phi(k_jr)` as
    /// `[M, keys, D]`, unless it is empty.
    pub fn key_features(&self, b: usize, s: usize, keys: Range<usize>, components: &mut [f32], mixed: &mut [f32]) {
        let (width, count, real) = (self.shape.head_width, keys.len(), self.mask.valid_row(b));
        let mixed = &mut mixed[..count * width];
        let padded = |t: usize| real.is_some_and(|row| row[keys.start + t] == 0);
        simd::vectorize(
            #[inline(always)]
            || {
                for r in 0..self.components {
                    let (rows, shift, prior) = (self.key_rows(b, s, r), self.shift(s, r), self.prior(s, r));
                    for (t, mix) in mixed.chunks_exact_mut(width).enumerate() {
                        if padded(t) {
                            mix.fill(0.0);
                            if let Some(part) = components.get_mut((r * count + t) * width..(r * count + t + 1) * width)
                            {
                                part.fill(0.0);
                            }
                            continue;
                        }
                        simd::prefetch(self.k, &rows, keys.start + t);
                        let key = rows.row(self.k, keys.start + t);
                        if let Some(part) = components.get_mut((r * count + t) * width..(r * count + t + 1) * width) {
                            features(part, key, shift);
                            mix_in(mix, part, prior, r == 0);
                        } else {
                            mix_features(mix, key, shift, prior, r == 0);
                        }
                    }
                }
            },
        );
    }

    /// Rows of `v`, dense, in place or copied to `buffer`; 0 for a padded key, whatever its content.
    ///
    /// Rows with a large stride are copied too: with a power-of-two stride they map to so few cache sets that products
    /// which read them more than once would evict them.
    pub fn values<'t>(&'t self, b: usize, s: usize, keys: Range<usize>, buffer: &'t mut [f32]) -> Matrix<'t> {
        let rows = self.shape.value_rows(b, s / self.splits);
        let real = self.mask.valid_row(b);
        if real.is_none() && rows.stride == rows.width {
            return Matrix::rows(&self.v[rows.start(keys.start)..], rows.width);
        }
        for (row, j) in buffer.chunks_exact_mut(rows.width).zip(keys) {
            if real.is_some_and(|real| real[j] == 0) {
                row.fill(0.0);
            } else {
                simd::prefetch(self.v, &rows, j);
                row.copy_from_slice(rows.row(self.v, j));
            }
        }
        Matrix::rows(buffer, rows.width)
    }

    /// Gradients of numerator and denominator: rows `dO_i / den_i`, and `-dO_i.out_i / den_i`.
    pub fn scaled_gradient(
        &self,
        output: Output,
        (b, h): (usize, usize),
        queries: Range<usize>,
        grad_numerators: &mut [f32],
        grad_denominators: &mut [f32],
    ) {
        let rows = self.shape.out_rows(b, h);
        let denominators = &output.denominators[(b * self.shape.heads + h) * self.shape.queries..];
        simd::vectorize(
            #[inline(always)]
            || {
                let scaled = grad_numerators.chunks_exact_mut(self.shape.value_width).zip(grad_denominators);
                for ((scaled, grad_denominator), i) in scaled.zip(queries) {
                    simd::prefetch(output.grad, &rows, i);
                    simd::prefetch(output.out, &rows, i);
                    let (grad, scale) = (rows.row(output.grad, i), inverse(denominators[i]));
                    for (y, &x) in scaled.iter_mut().zip(grad) {
                        *y = x * scale;
                    }
                    *grad_denominator = -simd::dot(grad, rows.row(output.out, i)) * scale;
                }
            },
        );
    }

    /// Adds rows to a sum: `Z += left^T right` and `z += left^T coefficients`, every coefficient 1 if there are none.
    pub fn accumulate(&self, sum: &mut [f32], left: &[f32], right: Matrix, coefficients: Option<&[f32]>) {
        let (width, value_width) = (self.shape.head_width, self.shape.value_width);
        let (numerators, z) = sum.split_at_mut(width * value_width);
        product(
            (width, value_width, left.len() / width),
            1.0,
            Matrix::rows(left, width).transposed(),
            right,
            Write::Add,
            numerators,
            value_width,
        );
        add_rows(z, left, coefficients);
    }
}

/// `z += sum_i coefficient_i row_i`, every coefficient 1 if there are none.
pub(super) fn add_rows(z: &mut [f32], rows: &[f32], coefficients: Option<&[f32]>) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (i, row) in rows.chunks_exact(z.len()).enumerate() {
                simd::add_scaled(z, coefficients.map_or(1.0, |c| c[i]), row);
            }
        },
    );
}

/// Copies `row` into each row of `rows`.
pub(super) fn fill_rows(rows: &mut [f32], row: &[f32]) {
    rows.chunks_exact_mut(row.len()).for_each(|r| r.copy_from_slice(row));
}

/// `features = phi(key + shift)`.
#[inline(always)]
fn features(features: &mut [f32], key: &[f32], shift: Option<&[f32]>) {
    match shift {
        Some(shift) => {
            for ((f, &x), &y) in features.iter_mut().zip(key).zip(shift) {
                *f = phi(x + y);
            }
        }
        None => {
            for (f, &x) in features.iter_mut().zip(key) {
                *f = phi(x);
            }
        }
    }
}

/// `mix (=|+=) prior * part`.
#[inline(always)]
fn mix_in(mix: &mut [f32], part: &[f32], prior: f32, first: bool) {
    if first {
        for (m, &f) in mix.iter_mut().zip(part) {
            *m = prior * f;
        }
    } else {
        simd::add_scaled(mix, prior, part);
    }
}

/// `mix (=|+=) prior * phi(key + shift)`.
#[inline(always)]
fn mix_features(mix: &mut [f32], key: &[f32], shift: Option<&[f32]>, prior: f32, first: bool) {
    match (first, shift) {
        (true, _) => {
            features(mix, key, shift);
            mix.iter_mut().for_each(|m| *m *= prior);
        }
        (false, Some(shift)) => {
            for ((m, &x), &y) in mix.iter_mut().zip(key).zip(shift) {
                *m += prior * phi(x + y);
            }
        }
        (false, None) => {
            for (m, &x) in mix.iter_mut().zip(key) {
                *m += prior * phi(x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_accurate_and_never_0() {
        let mut worst = 0.0f64;
        for i in -70_000..40_000 {
            let x = i as f32 * 1e-3;
            let want = if x < 0.0 { f64::from(x).exp() } else { f64::from(x) + 1.0 };
            worst = worst.max((f64::from(phi(x)) - want).abs() / want);
        }
        assert!(worst < 1.5e-7, "worst relative error {worst:e}");
        assert_eq!(phi(0.0), 1.0);
        assert_eq!(phi(f32::NEG_INFINITY), phi(FLOOR));
        assert!(phi(FLOOR) > 1e3 * f32::MIN_POSITIVE && 1.0 / phi(FLOOR) < 1e-7 * f32::MAX);
        assert!(phi(f32::NAN).is_nan() && slope(f32::NAN).is_nan());
        assert_eq!((slope(phi(3.0)), slope(phi(-1.0))), (1.0, phi(-1.0)));
    }
}
