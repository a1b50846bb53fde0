//! Passes over one row of a tile; call them inside [`crate::simd::vectorize`].
//!
//! A score of negative infinity marks a pair outside the support. The feature product of a pair is `g_j 2^(r + s_j)`; a
//! factor so large that `g_j` must be vanishingly small is clamped.

use crate::simd::{LANES, MultiplyAdd, exp2, tree};

/// A product of scaled features below this has lost digits, which scores far beyond a hundred can cause.
pub const TINY: f32 = 7.888_609e-31;

/// Marks a pair off the support whose weight is computed from the log of its feature product, stored in place of the
/// score.
pub const PROMOTED: f32 = 2.0;

/// Largest exponent of the factor of a feature product.
const LARGEST: f32 = 100.0;

#[inline(always)]
fn factor(r: f32, s: f32) -> f32 {
    let exponent = r + s;
    exp2(if exponent > LARGEST { LARGEST } else { exponent })
}

/// Sets `x` to negative infinity where the label is in `met`.
#[inline(always)]
pub fn hide(x: &mut [f32], labels: &[f32], met: [f32; 2]) {
    for (x, &label) in x.iter_mut().zip(labels) {
        let hidden = label == met[0] || label == met[1];
        *x = if hidden { f32::NEG_INFINITY } else { *x };
    }
}

/// Replaces `x_j` by a weight of it and of the same element of `others`; returns the sum.
#[inline(always)]
fn replace<const N: usize>(x: &mut [f32], others: [&[f32]; N], weight: impl Fn(f32, [f32; N]) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = x.as_chunks_mut::<LANES>();
    let blocks = others.map(|other| other.as_chunks::<LANES>().0);
    for (at, x) in whole.iter_mut().enumerate() {
        // Sizes are known inside: a check in the loop would keep it from being vectors.
        let others = blocks.map(|blocks| &blocks[at]);
        for l in 0..LANES {
            x[l] = weight(x[l], others.map(|other| other[l]));
            lanes[l] += x[l];
        }
    }
    let done = whole.len() * LANES;
    for (l, x) in rest.iter_mut().enumerate() {
        *x = weight(*x, others.map(|other| other[done + l]));
        lanes[l] += *x;
    }
    tree(lanes)
}

/// `x_j = 2^(x_j f + u)`; returns the sum.
#[inline(always)]
pub fn exp(x: &mut [f32], f: f32, u: f32) -> f32 {
    replace(x, [], |x, []| exp2(x.multiply_add(f, u)))
}

/// `x_j = 2^(x_j f + u) - g_j 2^(r + s_j)`; returns the sum.
#[inline(always)]
pub fn exp_corrected(x: &mut [f32], g: &[f32], s: &[f32], f: f32, u: f32, r: f32) -> f32 {
    replace(x, [g, s], |x, [g, s]| {
        let low = g * factor(r, s);
        exp2(x.multiply_add(f, u)) - if x == f32::NEG_INFINITY { 0.0 } else { low }
    })
}

/// `x_j = 2^(x_j f + u)` where `on_j` is set, by the support or because the pair is promoted, else `g_j 2^(r + s_j)`;
/// returns the sum.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub fn exp_joint(x: &mut [f32], on: &[f32], g: &[f32], s: &[f32], f: f32, u: f32, r: f32) -> f32 {
    replace(x, [on, g, s], |x, [on, g, s]| {
        let (high, low) = (exp2(x.multiply_add(f, u)), g * factor(r, s));
        if on != 0.0 { high } else { low }
    })
}

/// Largest log weight of [`exp_joint`].
#[inline(always)]
pub fn joint_top(x: &[f32], on: &[f32], g: &[f32], s: &[f32], f: f32, r: f32) -> f32 {
    let mut top = f32::NEG_INFINITY;
    for (((&x, &on), &g), &s) in x.iter().zip(on).zip(g).zip(s) {
        let log = if on != 0.0 { x * f } else { r + s + g.log2() };
        top = if log > top { log } else { top };
    }
    top
}

/// `p_j = 2^(x_j f + u) scale`, `x_j = p_j t_j`.
#[inline(always)]
pub fn weigh(x: &mut [f32], p: &mut [f32], t: &[f32], f: f32, u: f32, scale: f32) {
    for ((x, p), t) in x.iter_mut().zip(p).zip(t) {
        *p = exp2(x.multiply_add(f, u)) * scale;
        *x = *p * t;
    }
}

/// Weights of [`exp_corrected`] times `scale` in `p`; in `x` the exact part times `t`, in `g` the signed factor of the
/// feature product times `t`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub fn weigh_corrected(
    x: &mut [f32],
    g: &mut [f32],
    p: &mut [f32],
    t: &[f32],
    s: &[f32],
    f: f32,
    (u, r): (f32, f32),
    scale: f32,
) {
    for ((((x, g), p), t), s) in x.iter_mut().zip(g).zip(p).zip(t).zip(s) {
        let low = if *x == f32::NEG_INFINITY { 0.0 } else { factor(r, *s) * scale };
        let high = exp2(x.multiply_add(f, u)) * scale;
        *p = high - *g * low;
        *x = high * t;
        *g = -low * t;
    }
}

/// The same for [`exp_joint`]. Promoted pairs enter neither `x`, which keeps their log, nor `g`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub fn weigh_joint(
    x: &mut [f32],
    on: &[f32],
    g: &mut [f32],
    p: &mut [f32],
    t: &[f32],
    s: &[f32],
    f: f32,
    (u, r): (f32, f32),
    scale: f32,
) {
    for (((((x, &on), g), p), t), s) in x.iter_mut().zip(on).zip(g).zip(p).zip(t).zip(s) {
        let high = if on != 0.0 { exp2(x.multiply_add(f, u)) * scale } else { 0.0 };
        let low = if on != 0.0 { 0.0 } else { factor(r, *s) * scale };
        *p = high + *g * low;
        *x = if on == PROMOTED { *x } else { high * t };
        *g = low * t;
    }
}

/// Whether a feature product that is significant relative to `2^top` has lost digits.
#[inline(always)]
pub fn lost(x: &[f32], g: &[f32], s: &[f32], r: f32) -> bool {
    // The product is at most 2^top, so it is negligible unless its factor is large.
    const COUNTS: f32 = 70.0;
    if crate::simd::max(s) + r <= COUNTS {
        return false;
    }
    let mut lost = false;
    for ((&x, &g), &s) in x.iter().zip(g).zip(s) {
        lost |= x != f32::NEG_INFINITY && g < TINY && r + s > COUNTS;
    }
    lost
}
