//! Passes over one row of a tile, to be called inside [`crate::simd::vectorize`].

use crate::simd::{LANES, exp2, tree};

/// Largest `x_j f + c_j`.
#[inline(always)]
pub(super) fn max(x: &[f32], c: &[f32], f: f32) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (xs, cs) = (x.chunks_exact(LANES), c.chunks_exact(LANES));
    let (x_rest, c_rest) = (xs.remainder(), cs.remainder());
    for (x, c) in xs.zip(cs) {
        for l in 0..LANES {
            let y = x[l].mul_add(f, c[l]);
            lanes[l] = if y > lanes[l] { y } else { lanes[l] };
        }
    }
    let mut best = f32::NEG_INFINITY;
    for (x, c) in x_rest.iter().zip(c_rest) {
        best = best.max(x.mul_add(f, *c));
    }
    lanes.into_iter().fold(best, f32::max)
}

/// `x_j = 2^(x_j f + c_j + u)`; returns the sum.
#[inline(always)]
pub(super) fn exp_in_place(x: &mut [f32], c: &[f32], f: f32, u: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut xs = x.chunks_exact_mut(LANES);
    let cs = c.chunks_exact(LANES);
    let c_rest = cs.remainder();
    for (x, c) in (&mut xs).zip(cs) {
        for l in 0..LANES {
            let p = exp2(x[l].mul_add(f, c[l] + u));
            x[l] = p;
            lanes[l] += p;
        }
    }
    for ((x, c), lane) in xs.into_remainder().iter_mut().zip(c_rest).zip(&mut lanes) {
        *x = exp2(x.mul_add(f, c + u));
        *lane += *x;
    }
    tree(lanes)
}

/// `p_j += 2^(x_j f + c_j + u)`; returns the sum of the powers.
#[inline(always)]
pub(super) fn exp_add(p: &mut [f32], x: &[f32], c: &[f32], f: f32, u: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut ps = p.chunks_exact_mut(LANES);
    let (xs, cs) = (x.chunks_exact(LANES), c.chunks_exact(LANES));
    let (x_rest, c_rest) = (xs.remainder(), cs.remainder());
    for ((p, x), c) in (&mut ps).zip(xs).zip(cs) {
        for l in 0..LANES {
            let e = exp2(x[l].mul_add(f, c[l] + u));
            p[l] += e;
            lanes[l] += e;
        }
    }
    for (((p, x), c), lane) in ps.into_remainder().iter_mut().zip(x_rest).zip(c_rest).zip(&mut lanes) {
        let e = exp2(x.mul_add(f, c + u));
        *p += e;
        *lane += e;
    }
    tree(lanes)
}

/// `x_j = x_j f + c_j + u`.
#[inline(always)]
pub(super) fn score(x: &mut [f32], c: &[f32], f: f32, u: f32) {
    for (x, c) in x.iter_mut().zip(c) {
        *x = x.mul_add(f, c + u);
    }
}

/// `best_j = max(best_j, x_j f + c_j + u)`.
#[inline(always)]
pub(super) fn keep_best(best: &mut [f32], x: &[f32], c: &[f32], f: f32, u: f32) {
    for ((best, x), c) in best.iter_mut().zip(x).zip(c) {
        let l = x.mul_add(f, c + u);
        *best = if l > *best { l } else { *best };
    }
}

/// The same, and `owner_j = r` where component `r` is better than all before it: the lowest index wins a tie.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) fn claim(best: &mut [f32], owner: &mut [f32], x: &[f32], c: &[f32], f: f32, u: f32, r: usize) {
    for (((best, owner), x), c) in best.iter_mut().zip(owner).zip(x).zip(c) {
        let l = x.mul_add(f, c + u);
        let wins = r == 0 || l > *best;
        *best = if wins { l } else { *best };
        *owner = if wins { r as f32 } else { *owner };
    }
}

/// `x_j = 2^(x_j)`; returns the sum.
#[inline(always)]
pub(super) fn exp(x: &mut [f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for block in x.chunks_mut(LANES) {
        for (x, lane) in block.iter_mut().zip(&mut lanes) {
            *x = exp2(*x);
            *lane += *x;
        }
    }
    tree(lanes)
}

/// `x_j = e_j t_j` and `p_j += e_j` (`p_j = e_j` where `first`), with `e_j = 2^(x_j f + c_j + u) scale`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) fn weigh(x: &mut [f32], p: &mut [f32], t: &[f32], c: &[f32], f: f32, (u, scale): (f32, f32), first: bool) {
    if first {
        for (((x, p), t), c) in x.iter_mut().zip(p).zip(t).zip(c) {
            let e = exp2(x.mul_add(f, c + u)) * scale;
            *p = e;
            *x = e * t;
        }
    } else {
        for (((x, p), t), c) in x.iter_mut().zip(p).zip(t).zip(c) {
            let e = exp2(x.mul_add(f, c + u)) * scale;
            *p += e;
            *x = e * t;
        }
    }
}

/// The same where component `r` owns key `j`, whose score is `best_j`; elsewhere `x_j = 0`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) fn weigh_owned(x: &mut [f32], p: &mut [f32], t: &[f32], best: &[f32], owner: &[f32], r: usize, scale: f32) {
    for ((((x, p), t), best), owner) in x.iter_mut().zip(p).zip(t).zip(best).zip(owner) {
        let owned = *owner == r as f32;
        let e = exp2(*best) * scale;
        *p = e;
        *x = if owned { e * t } else { 0.0 };
    }
}

/// `sum_j w_j (norm_j - x_j f - u)`: in base 2, how far the scores lie below the prior.
#[inline(always)]
pub(super) fn spread(w: &[f32], x: &[f32], norms: &[f32], f: f32, u: f32) -> f32 {
    crate::simd::sum(w.len(), |j| w[j] * (norms[j] - x[j].mul_add(f, u)))
}

/// `columns_j += w_j`; returns the sum of `w`.
#[inline(always)]
pub(super) fn add_up(w: &[f32], columns: &mut [f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut cs = columns.chunks_exact_mut(LANES);
    let ws = w.chunks_exact(LANES);
    let rest = ws.remainder();
    for (w, c) in ws.zip(&mut cs) {
        for l in 0..LANES {
            c[l] += w[l];
            lanes[l] += w[l];
        }
    }
    for ((w, c), lane) in rest.iter().zip(cs.into_remainder()).zip(&mut lanes) {
        *c += w;
        *lane += w;
    }
    tree(lanes)
}
