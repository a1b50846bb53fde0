//! Passes over tiles `[keys][lanes]`; call them inside [`crate::simd::vectorize`].
//!
//! Tiles of several components are `size` floats apart in one buffer; per-query values are `[lanes]`, or `[M][lanes]`.

use crate::simd::{LANES, exp2};

type Vector = [f32; LANES];

/// Vectors of a row.
#[inline(always)]
fn vectors(x: &[f32]) -> &[Vector] {
    x.as_chunks().0
}

/// The same, mutable.
#[inline(always)]
fn vectors_mut(x: &mut [f32]) -> &mut [Vector] {
    x.as_chunks_mut().0
}

#[inline(always)]
fn larger(a: &Vector, b: &Vector) -> Vector {
    std::array::from_fn(|l| if a[l] > b[l] { a[l] } else { b[l] })
}

/// `best = max(best, max_j x_j)`.
#[inline(always)]
pub(super) fn peaks(x: &[f32], lanes: usize, best: &mut [f32]) {
    let best = vectors_mut(&mut best[..lanes]);
    let mut fours = x.chunks_exact(4 * lanes);
    for rows in &mut fours {
        let (a, rows) = rows.split_at(lanes);
        let (b, rows) = rows.split_at(lanes);
        let (c, d) = rows.split_at(lanes);
        let (a, b, c, d) = (vectors(a), vectors(b), vectors(c), vectors(d));
        for (v, best) in best.iter_mut().enumerate() {
            *best = larger(&larger(&larger(&a[v], &b[v]), &larger(&c[v], &d[v])), best);
        }
    }
    for row in fours.remainder().chunks_exact(lanes) {
        for (best, x) in best.iter_mut().zip(vectors(row)) {
            *best = larger(x, best);
        }
    }
}

/// `x_0 = sum_r 2^(x_r - reference_r)` over the `components` tiles of `x`; adds its sums to `total`.
#[inline(always)]
pub(super) fn powers(
    x: &mut [f32],
    (size, len, lanes): (usize, usize, usize),
    components: usize,
    references: &[f32],
    total: &mut [f32],
) {
    let total = vectors_mut(&mut total[..lanes]);
    let (first, others) = x.split_at_mut(size);
    let first = &mut first[..len];
    let of = |r: usize| vectors(&references[r * lanes..][..lanes]);
    if components == 1 {
        for row in first.chunks_exact_mut(lanes) {
            for ((p, reference), total) in vectors_mut(row).iter_mut().zip(of(0)).zip(&mut *total) {
                for l in 0..LANES {
                    p[l] = exp2(p[l] - reference[l]);
                    total[l] += p[l];
                }
            }
        }
        return;
    }
    for row in first.chunks_exact_mut(lanes) {
        for (p, reference) in vectors_mut(row).iter_mut().zip(of(0)) {
            for l in 0..LANES {
                p[l] = exp2(p[l] - reference[l]);
            }
        }
    }
    for r in 1..components {
        let last = r + 1 == components;
        let x = &others[(r - 1) * size..][..len];
        for (row, x) in first.chunks_exact_mut(lanes).zip(x.chunks_exact(lanes)) {
            let queries = of(r).iter().zip(&mut *total);
            for ((p, x), (reference, total)) in vectors_mut(row).iter_mut().zip(vectors(x)).zip(queries) {
                for l in 0..LANES {
                    p[l] += exp2(x[l] - reference[l]);
                    total[l] += if last { p[l] } else { 0.0 };
                }
            }
        }
    }
}

/// `x_0 = max_r (x_r - reference_r)`.
#[inline(always)]
pub(super) fn keep_best(
    x: &mut [f32],
    (size, len, lanes): (usize, usize, usize),
    components: usize,
    references: &[f32],
) {
    for start in (0..len).step_by(lanes) {
        for at in (start..start + lanes).step_by(LANES) {
            let mut best = [f32::NEG_INFINITY; LANES];
            for r in 0..components {
                let (x, reference) = (&x[r * size + at..][..LANES], &references[r * lanes + at - start..][..LANES]);
                for l in 0..LANES {
                    let y = x[l] - reference[l];
                    best[l] = if y > best[l] { y } else { best[l] };
                }
            }
            x[at..at + LANES].copy_from_slice(&best);
        }
    }
}

/// Weights `e_r = 2^(x_r - reference_r)`, with `t` the gradient of a weight: `x_r = e_r (t - delta)`, `t = sum_r e_r`.
#[inline(always)]
pub(super) fn weigh(
    x: &mut [f32],
    t: &mut [f32],
    (size, lanes): (usize, usize),
    components: usize,
    references: &[f32],
    deltas: &[f32],
) {
    let deltas = vectors(&deltas[..lanes]);
    let of = |r: usize| vectors(&references[r * lanes..][..lanes]);
    let (first, others) = x.split_at_mut(size);
    let rows = first.chunks_exact_mut(lanes).zip(t.chunks_exact_mut(lanes));
    // One and two components without an index, which would cost scalar instructions in the vector loop.
    if components == 1 {
        for (x, t) in rows {
            let queries = of(0).iter().zip(deltas);
            for ((x, t), (reference, delta)) in vectors_mut(x).iter_mut().zip(vectors_mut(t)).zip(queries) {
                for l in 0..LANES {
                    let e = exp2(x[l] - reference[l]);
                    x[l] = e * (t[l] - delta[l]);
                    t[l] = e;
                }
            }
        }
        return;
    }
    if components == 2 {
        for ((x, t), y) in rows.zip(others.chunks_exact_mut(lanes)) {
            let queries = of(0).iter().zip(of(1)).zip(deltas);
            let tiles = vectors_mut(x).iter_mut().zip(vectors_mut(y)).zip(vectors_mut(t));
            for (((x, y), t), ((one, two), delta)) in tiles.zip(queries) {
                for l in 0..LANES {
                    let (e, f) = (exp2(x[l] - one[l]), exp2(y[l] - two[l]));
                    let slope = t[l] - delta[l];
                    (x[l], y[l], t[l]) = (e * slope, f * slope, e + f);
                }
            }
        }
        return;
    }
    for (row, t) in t.chunks_exact_mut(lanes).enumerate() {
        for (v, (t, delta)) in vectors_mut(t).iter_mut().zip(deltas).enumerate() {
            let slope: Vector = std::array::from_fn(|l| t[l] - delta[l]);
            *t = [0.0; LANES];
            for r in 0..components {
                let x = &mut x[r * size + row * lanes + v * LANES..][..LANES];
                let reference = &references[r * lanes + v * LANES..][..LANES];
                for l in 0..LANES {
                    let e = exp2(x[l] - reference[l]);
                    x[l] = e * slope[l];
                    t[l] += e;
                }
            }
        }
    }
}

/// The same if only the best component has weight, with ties to the lowest index.
#[inline(always)]
pub(super) fn weigh_best(
    x: &mut [f32],
    t: &mut [f32],
    (size, lanes): (usize, usize),
    components: usize,
    references: &[f32],
    deltas: &[f32],
) {
    let deltas = vectors(&deltas[..lanes]);
    for (row, t) in t.chunks_exact_mut(lanes).enumerate() {
        for (v, (t, delta)) in vectors_mut(t).iter_mut().zip(deltas).enumerate() {
            let at = |r: usize| r * size + row * lanes + v * LANES;
            let reference = |r: usize| &references[r * lanes + v * LANES..][..LANES];
            let (mut best, mut owner) = ([f32::NEG_INFINITY; LANES], [0.0; LANES]);
            for r in 0..components {
                let (x, reference) = (&x[at(r)..][..LANES], reference(r));
                for l in 0..LANES {
                    let y = x[l] - reference[l];
                    owner[l] = if y > best[l] { r as f32 } else { owner[l] };
                    best[l] = if y > best[l] { y } else { best[l] };
                }
            }
            let weights: Vector = std::array::from_fn(|l| exp2(best[l]));
            for r in 0..components {
                let x = &mut x[at(r)..][..LANES];
                for l in 0..LANES {
                    x[l] = if owner[l] == r as f32 { weights[l] * (t[l] - delta[l]) } else { 0.0 };
                }
            }
            *t = weights;
        }
    }
}

/// `sum_jl w_jl (log_prior_j - top_l - (x_jl - reference_l))`, in base 2: how far scores are below the prior.
#[inline(always)]
pub(super) fn spread(
    weights: &[f32],
    scores: &[f32],
    lanes: usize,
    log_priors: &[f32],
    (tops, references): (&[f32], &[f32]),
) -> f32 {
    let mut sums = [0.0f32; LANES];
    let queries = || vectors(&tops[..lanes]).iter().zip(vectors(&references[..lanes]));
    for ((w, x), log_prior) in weights.chunks_exact(lanes).zip(scores.chunks_exact(lanes)).zip(log_priors) {
        for ((w, x), (top, reference)) in vectors(w).iter().zip(vectors(x)).zip(queries()) {
            // Hidden keys, infinitely far below, have weight 0. Multiplying after this condition, instead of before,
            // would prevent vectorisation.
            let terms: Vector = std::array::from_fn(|l| {
                let term = w[l] * ((log_prior - top[l]) - (x[l] - reference[l]));
                if w[l] == 0.0 { 0.0 } else { term }
            });
            for l in 0..LANES {
                sums[l] += terms[l];
            }
        }
    }
    crate::simd::tree(sums)
}

/// `sums_l += sum_j x_jl`.
#[inline(always)]
pub(super) fn add_rows(x: &[f32], lanes: usize, sums: &mut [f32]) {
    // One vector of queries after the other: its sums stay in a register.
    for (v, sum) in vectors_mut(&mut sums[..lanes]).iter_mut().enumerate() {
        let mut own = *sum;
        for row in x.chunks_exact(lanes) {
            let x = &vectors(row)[v];
            for l in 0..LANES {
                own[l] += x[l];
            }
        }
        *sum = own;
    }
}

/// Adds `sum_l x_jl` to the columns, in parts: `columns_jp += sum_v x_j,v+p` over the vectors of a row. So there is no
/// horizontal sum before [`settle`].
#[inline(always)]
pub(super) fn add_columns(x: &[f32], lanes: usize, columns: &mut [f32]) {
    for (row, column) in x.chunks_exact(lanes).zip(vectors_mut(columns)) {
        let mut sums = *column;
        for x in vectors(row) {
            for l in 0..LANES {
                sums[l] += x[l];
            }
        }
        *column = sums;
    }
}

/// Sums the parts of each column into the first.
#[inline(always)]
pub(super) fn settle(columns: &mut [f32]) {
    for column in vectors_mut(columns) {
        column[0] = crate::simd::tree(*column);
    }
}

/// `x_jl *= factors_l`.
#[inline(always)]
pub(super) fn scale(x: &mut [f32], lanes: usize, factors: &[f32]) {
    for (v, &factor) in vectors(&factors[..lanes]).iter().enumerate() {
        for row in x.chunks_exact_mut(lanes) {
            let x = &mut vectors_mut(row)[v];
            for l in 0..LANES {
                x[l] *= factor[l];
            }
        }
    }
}
