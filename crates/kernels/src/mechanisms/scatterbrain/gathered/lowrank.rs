//! Feature products of a tile of queries and keys, from log features.
//!
//! `phi_q.phi_k = 2^(r_i + s_j) sum_a Q_ia K_ja` with `K_ja = 2^(k_ja - c_a - s_j)`, `Q_ia = 2^(q_ia + c_a - r_i)`,
//! where `c_a` is about the largest log of feature `a` over the keys that every query of the tile sees, and `s_j`,
//! `r_i` bring the largest factor of every row to at most 1. No factor overflows, a row loses only terms far below its
//! largest, and no key affects a query that does not see it. All three are integers, so that they add no rounding
//! error: the low-rank sum is subtracted with as few lost digits as possible.

use crate::{
    gemm::{self, Matrix, Write},
    simd::{self, MultiplyAdd},
};

/// Converts the log features `[len,m]` of the keys to `K`; fills `c [m]`, from the first `common` keys, and `s [len]`.
pub fn scale_keys(logs: &mut [f32], m: usize, common: usize, c: &mut [f32], s: &mut [f32]) {
    simd::vectorize(
        #[inline(always)]
        || {
            c.fill(if common > 0 { f32::NEG_INFINITY } else { 0.0 });
            for row in logs.chunks_exact(m).take(common) {
                for (c, &log) in c.iter_mut().zip(row) {
                    *c = if log > *c { log } else { *c };
                }
            }
            c.iter_mut().for_each(|c| *c = c.ceil());
            for (row, s) in logs.chunks_exact_mut(m).zip(s) {
                for (log, &c) in row.iter_mut().zip(&*c) {
                    *log -= c;
                }
                *s = simd::max(row).ceil();
                for log in row {
                    *log = simd::exp2(*log - *s);
                }
            }
        },
    );
}

/// Fills `q [n,m]` with `Q` and `r [n]`, from the log features `[n,m]` of the queries.
pub fn scale_queries(logs: &[f32], m: usize, c: &[f32], q: &mut [f32], r: &mut [f32]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for ((logs, q), r) in logs.chunks_exact(m).zip(q.chunks_exact_mut(m)).zip(r) {
                for ((q, &log), &c) in q.iter_mut().zip(logs).zip(c) {
                    *q = log + c;
                }
                *r = simd::max(q).ceil();
                for q in q {
                    *q = simd::exp2(*q - *r);
                }
            }
        },
    );
}

/// `g = Q K^T`, `[n,len]`.
pub fn products((n, len, m): (usize, usize, usize), q: &[f32], k: &[f32], g: &mut [f32]) {
    gemm::product((n, len, m), 1.0, Matrix::rows(q, m), Matrix::rows(k, m).transposed(), Write::Over, g, len);
}

/// Gradients of the log features of the queries (added to `slopes_q [n,m]`) and of the keys (written to
/// `slopes_k [len,m]`) for gradients `w [n,len]` of the products `g`; overwrites `q`.
pub fn slopes(
    (n, len, m): (usize, usize, usize),
    w: &[f32],
    (q, k): (&mut [f32], &[f32]),
    product: &mut [f32],
    (slopes_q, slopes_k): (&mut [f32], &mut [f32]),
) {
    let w = Matrix::rows(w, len);
    gemm::product((n, m, len), 1.0, w, Matrix::rows(k, m), Write::Over, product, m);
    gemm::product((len, m, n), 1.0, w.transposed(), Matrix::rows(q, m), Write::Over, slopes_k, m);
    simd::vectorize(
        #[inline(always)]
        || {
            for ((slope, &q), &along) in slopes_q.iter_mut().zip(&*q).zip(&*product) {
                *slope = q.multiply_add(along, *slope);
            }
            for (slope, &k) in slopes_k.iter_mut().zip(k) {
                *slope *= k;
            }
        },
    );
}
