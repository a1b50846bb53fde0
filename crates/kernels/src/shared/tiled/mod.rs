//! Exact attention over tiles of scores, shared by softmax, the Gaussian kernel and the mixture of Gaussian keys.
//!
//! A score is `log2 e` times its natural value, so that weights are powers of two:
//!
//! `l_ijr = x_ijr f_r + u_ir + c_jr`, weight `2^(l_ijr - m_i)`, with `x_ijr = q_i . k_jr` from a matrix product.
//!
//! | mechanism | `f_r` | `u_ir` | `c_jr` |
//! |---|---|---|---|
//! | softmax | `tau` | 0 | 0 |
//! | Gaussian mixture | `1 / s_r` | `-|q_i|^2 / (2 s_r)` | `log_prior_r - |k_jr|^2 / (2 s_r)` |
//! | the same, shifted keys | `1 / s_r` | `q_i.b_r / s_r - |q_i|^2 / (2 s_r)` | `log_prior_r - |k_j + b_r|^2 / (2 s_r)` |
//! | dot-product mixture | `1 / s_r` | 0 (`q_i.b_r / s_r`) | `log_prior_r` |
//!
//! Scores of masked pairs are set to negative infinity at the end. The weight of a pair is the sum over its components:
//! its logarithm is never taken, so a mixture costs one matrix product and one exponential more per component (shifted
//! keys: only the exponential).

mod backward;
mod forward;
mod gradients;
mod lanes;
mod responsibilities;
mod short;
mod strip;
mod tile;

use std::{f32::consts::LOG2_E, ops::Range};

use crate::{AttentionShape, Dropout, Mask, Rows, memory::arbitrary, parallel, simd};
pub(crate) use short::{Kept, Source};
use strip::{STRIP, Strip};

/// Everything that defines the scores of a call, and its keys.
#[derive(Clone, Debug)]
pub(crate) struct Scores<'a> {
    pub shape: AttentionShape,
    pub mask: &'a Mask,
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    /// `1/s_r`, or the score scale of softmax, `[M]`.
    pub gains: Vec<f32>,
    /// Scores are distances, which include the norms of queries and keys.
    pub gaussian: bool,
    /// Only the best component instead of the sum.
    pub hard: bool,
    /// `log_prior`, `[H,M]` or `[H,M,S]`.
    pub prior: Option<&'a [f32]>,
    /// Shifts `[Hk,M,D]`: one product serves all components.
    pub shift: Option<&'a [f32]>,
    /// Additive bias `[H,N,S]`.
    pub bias: Option<&'a [f32]>,
    /// ALiBi slopes `[H]`.
    pub slopes: Option<&'a [f32]>,
    pub dropout: Option<Dropout>,
}

/// Queries per task: several strips, which find the same keys in the L2 cache.
const QUERY_BLOCK: usize = 512;
/// Scores of a strip, in floats, that fit in the L1 cache next to the operands; mixtures may use half as many more, so
/// that products cover enough keys at a time.
const TILE: usize = 96 * STRIP;
/// Minimum keys per tile: every tile reads and writes the strip's sums once.
const FEWEST_KEYS: usize = 32;
/// Tiles of queries are halved, down to a quarter, until there are this many tasks.
const TASKS: usize = 32;

impl<'a> Scores<'a> {
    /// Components `M`.
    fn components(&self) -> usize {
        self.gains.len()
    }

    /// Key tiles per product: one for all components if keys are shifted.
    fn copies(&self) -> usize {
        if self.shift.is_some() { 1 } else { self.components() }
    }

    /// Queries per task: fewer if there would be few tasks.
    fn query_block(&self) -> usize {
        let AttentionShape { batch, heads, queries, .. } = self.shape;
        let mut block = QUERY_BLOCK;
        while block > QUERY_BLOCK / 4 && batch * heads * queries.div_ceil(block) < TASKS {
            block /= 2;
        }
        block.min(queries)
    }

    /// Keys per tile.
    fn key_block(&self) -> usize {
        let most = TILE / STRIP;
        (3 * most / 2 / self.components()).clamp(FEWEST_KEYS, most).min(self.shape.keys)
    }

    /// Keys visible to queries `rows` of batch row `b`: the mask's hull, limited to the first and last real key.
    fn hull(&self, b: usize, rows: Range<usize>) -> Range<usize> {
        let AttentionShape { queries, keys, .. } = self.shape;
        let seen = self.mask.visible_to(rows, queries, keys);
        let Some(valid) = self.mask.valid_row(b) else { return seen };
        let first = valid.iter().position(|&x| x != 0).unwrap_or(keys);
        let last = valid.iter().rposition(|&x| x != 0).map_or(0, |j| j + 1);
        let start = seen.start.max(first);
        start..seen.end.min(last).max(start)
    }

    /// `c_jr` of all keys in base 2, `[B,H,M,S]`.
    fn key_terms(&self) -> Vec<f32> {
        let AttentionShape { batch, heads, keys, .. } = self.shape;
        let len = self.components() * keys;
        let mut terms = arbitrary(batch * heads * len);
        parallel::for_each_part(&mut terms, len, |task, terms| self.key_terms_of(task / heads, task % heads, terms));
        terms
    }

    fn key_terms_of(&self, b: usize, h: usize, terms: &mut [f32]) {
        let (keys, hk) = (self.shape.keys, h / self.shape.group());
        self.prior_terms(h, &(0..keys), terms);
        let mut norms = [0.0; TILE / STRIP];
        for (r, terms) in terms.chunks_exact_mut(keys).enumerate() {
            let rows = self.key_rows(b, hk, r);
            let half = 0.5 * self.gains[r] * LOG2_E;
            for (n, terms) in terms.chunks_mut(norms.len()).enumerate().filter(|_| self.gaussian) {
                let rows = rows.slice(n * norms.len(), terms.len());
                simd::square_norms(self.k, &rows, self.shift_of(hk, r), &mut norms);
                for (term, norm) in terms.iter_mut().zip(&norms) {
                    *term -= half * *norm;
                }
            }
        }
    }

    /// Base-2 log priors of `keys`, `[M][keys]`: 0 without a prior.
    fn prior_terms(&self, h: usize, keys: &Range<usize>, terms: &mut [f32]) {
        let (components, n) = (self.components(), keys.len());
        for r in 0..components {
            let terms = &mut terms[r * n..(r + 1) * n];
            match self.prior {
                None => terms.fill(0.0),
                Some(prior) if prior.len() == self.shape.heads * components => {
                    terms.fill(prior[h * components + r] * LOG2_E);
                }
                Some(prior) => {
                    let start = (h * components + r) * self.shape.keys + keys.start;
                    for (term, log_prior) in terms.iter_mut().zip(&prior[start..start + n]) {
                        *term = log_prior * LOG2_E;
                    }
                }
            }
        }
    }

    /// Rows of the keys of component `r`: the same for all shifted copies.
    fn key_rows(&self, b: usize, hk: usize, r: usize) -> Rows {
        self.shape.key_rows(b, hk, if self.shift.is_some() { 0 } else { r })
    }

    /// `u_ir` of a strip's queries in base 2, `[M][lanes]`; 0 in lanes without a query.
    fn query_terms(&self, b: usize, h: usize, strip: &Strip, terms: &mut [f32]) {
        let shape = &self.shape;
        let query = shape.query_rows(b, h);
        terms.fill(0.0);
        for (r, terms) in terms.chunks_exact_mut(strip.lanes).enumerate() {
            let gain = self.gains[r] * LOG2_E;
            let shift = self.shift_of(h / shape.group(), r);
            if !self.gaussian && shift.is_none() {
                continue;
            }
            if self.gaussian {
                simd::square_norms(self.q, &query.slice(strip.queries.start, strip.queries.len()), None, terms);
            }
            simd::vectorize(
                #[inline(always)]
                || {
                    for (term, i) in terms.iter_mut().zip(strip.queries.clone()) {
                        let along = shift.map_or(0.0, |shift| simd::dot(query.row(self.q, i), shift));
                        *term = gain * (along - 0.5 * *term);
                    }
                },
            );
        }
    }

    /// Shift of component `r` of key head `hk`.
    fn shift_of(&self, hk: usize, r: usize) -> Option<&'a [f32]> {
        let width = self.shape.head_width;
        self.shift.map(|shift| &shift[(hk * self.components() + r) * width..][..width])
    }

    /// Factor `f_r` in base 2.
    #[inline(always)]
    fn factor(&self, r: usize) -> f32 {
        self.gains[r] * LOG2_E
    }

    /// Row index of query `i` for dropout.
    fn row_number(&self, b: usize, h: usize, i: usize) -> u64 {
        ((b * self.shape.heads + h) * self.shape.queries + i) as u64
    }
}
