//! Exact attention over tiles of scores: what softmax, the Gaussian kernel and the mixture of Gaussian keys share.
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
//! Padded keys have `c = -infinity`. The weight of a pair is the sum over its components: no logarithm is ever taken of
//! it, so a mixture costs one matrix product and one exponential more a component (shifted keys: the exponential alone).

mod backward;
mod forward;
mod responsibilities;
mod rows;

use std::{f32::consts::LOG2_E, ops::Range};

use crate::{
    AttentionShape, Dropout, Mask, Rows,
    gemm::{self, Matrix, Write},
    simd,
};

/// Everything that defines the scores of a call, and its keys.
#[derive(Clone, Debug)]
pub(crate) struct Scores<'a> {
    pub shape: AttentionShape,
    pub mask: &'a Mask,
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    /// `1/s_r`, or the score scale of softmax: `M` numbers.
    pub gains: Vec<f32>,
    /// Scores are distances: the norms of queries and keys enter.
    pub gaussian: bool,
    /// The best component alone instead of the sum over them.
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

/// Queries of a tile: the more, the less often keys are packed for a product. Run in turn at 2k tokens of width 64, tiles of
/// 512 by 256 were 5 to 10 % faster than 256 by 256 for mixtures and causal masks, and level for softmax; 1,024 queries, 128
/// or 512 keys gained nothing.
const QUERY_BLOCK: usize = 512;
/// Keys of a tile.
const KEY_BLOCK: usize = 256;
/// Tiles of queries are halved, down to a quarter, until there are this many tasks.
const TASKS: usize = 32;

impl<'a> Scores<'a> {
    /// Components `M`.
    fn components(&self) -> usize {
        self.gains.len()
    }

    /// Queries of a tile: fewer where half of the tile on the diagonal is wasted, and where there would be few tasks.
    fn query_block(&self) -> usize {
        let AttentionShape { batch, heads, queries, .. } = self.shape;
        let masked = self.mask.causal || self.mask.window.is_some();
        let mut block = if masked { QUERY_BLOCK / 2 } else { QUERY_BLOCK };
        while block > QUERY_BLOCK / 4 && batch * heads * queries.div_ceil(block) < TASKS {
            block /= 2;
        }
        block.min(queries)
    }

    fn key_block(&self) -> usize {
        KEY_BLOCK.min(self.shape.keys)
    }

    /// Keys that queries `rows` of batch row `b` see: the mask's hull, cut to the first and last real key.
    fn hull(&self, b: usize, rows: Range<usize>) -> Range<usize> {
        let AttentionShape { queries, keys, .. } = self.shape;
        let seen = self.mask.visible_to(rows, queries, keys);
        let Some(valid) = self.mask.valid_row(b) else { return seen };
        let first = valid.iter().position(|&x| x != 0).unwrap_or(keys);
        let last = valid.iter().rposition(|&x| x != 0).map_or(0, |j| j + 1);
        let start = seen.start.max(first);
        start..seen.end.min(last).max(start)
    }

    /// `x_r = q k_r^T` for queries `rows` and `keys`: `M` tiles of `rows x keys`, `size` apart.
    fn tiles(&self, b: usize, h: usize, rows: &Range<usize>, keys: &Range<usize>, x: &mut [f32], size: usize) {
        let shape = &self.shape;
        let (m, n, width) = (rows.len(), keys.len(), shape.head_width);
        let query = shape.query_rows(b, h).slice(rows.start, m);
        let q = Matrix::rows(&self.q[query.offset..], query.stride);
        for r in 0..self.components() {
            if r > 0 && self.shift.is_some() {
                // One product serves all shifted copies of a key.
                x.copy_within(0..m * n, r * size);
                continue;
            }
            let key = shape.key_rows(b, h / shape.group(), r).slice(keys.start, n);
            let k = Matrix::rows(&self.k[key.offset..], key.stride);
            gemm::product((m, n, width), 1.0, q, k.transposed(), Write::Over, &mut x[r * size..], n);
        }
    }

    /// `c_jr` of `keys` in base 2, `[M][keys]`.
    fn key_terms(&self, b: usize, h: usize, keys: &Range<usize>, terms: &mut [f32]) {
        let shape = &self.shape;
        let hk = h / shape.group();
        let (components, n) = (self.components(), keys.len());
        let valid = self.mask.valid_row(b);
        for r in 0..components {
            let terms = &mut terms[r * n..(r + 1) * n];
            match self.prior {
                None => terms.fill(0.0),
                Some(prior) if prior.len() == shape.heads * components => {
                    terms.fill(prior[h * components + r] * LOG2_E);
                }
                Some(prior) => {
                    let start = (h * components + r) * shape.keys + keys.start;
                    for (term, log_prior) in terms.iter_mut().zip(&prior[start..start + n]) {
                        *term = log_prior * LOG2_E;
                    }
                }
            }
            if self.gaussian {
                self.for_each_norm((b, hk), r, keys, terms, |term, norm| *term -= norm);
            }
            if let Some(valid) = valid {
                for (term, j) in terms.iter_mut().zip(keys.clone()) {
                    *term = if valid[j] == 0 { f32::NEG_INFINITY } else { *term };
                }
            }
        }
    }

    /// Hands `use_norm` each entry of `terms` with `|k_jr|^2 / (2 s_r)` in base 2.
    fn for_each_norm(
        &self,
        (b, hk): (usize, usize),
        r: usize,
        keys: &Range<usize>,
        terms: &mut [f32],
        use_norm: impl Fn(&mut f32, f32),
    ) {
        let rows = self.key_rows(b, hk, r);
        let half = 0.5 * self.gains[r] * LOG2_E;
        let shift = self.shift_of(hk, r);
        simd::vectorize(
            #[inline(always)]
            || {
                for (term, j) in terms.iter_mut().zip(keys.clone()) {
                    let key = rows.row(self.k, j);
                    let square = match shift {
                        None => simd::dot(key, key),
                        Some(shift) => simd::sum_pairs(key, shift, |key, shift| (key + shift) * (key + shift)),
                    };
                    use_norm(term, half * square);
                }
            },
        );
    }

    /// Rows of the keys of component `r`: the same for all shifted copies.
    fn key_rows(&self, b: usize, hk: usize, r: usize) -> Rows {
        self.shape.key_rows(b, hk, if self.shift.is_some() { 0 } else { r })
    }

    /// `u_ir` of queries `rows` in base 2, `[M][rows]`.
    fn query_terms(&self, b: usize, h: usize, rows: &Range<usize>, terms: &mut [f32]) {
        let shape = &self.shape;
        let query = shape.query_rows(b, h);
        for (r, terms) in terms.chunks_exact_mut(rows.len()).enumerate() {
            let gain = self.gains[r] * LOG2_E;
            let shift = self.shift_of(h / shape.group(), r);
            if !self.gaussian && shift.is_none() {
                terms.fill(0.0);
                continue;
            }
            simd::vectorize(
                #[inline(always)]
                || {
                    for (term, i) in terms.iter_mut().zip(rows.clone()) {
                        let q = query.row(self.q, i);
                        let norm = if self.gaussian { 0.5 * simd::dot(q, q) } else { 0.0 };
                        let along = shift.map_or(0.0, |shift| simd::dot(q, shift));
                        *term = gain * (along - norm);
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

    /// Adds bias and ALiBi, which softmax alone has, to one row of products, in units of the products.
    #[inline(always)]
    fn add_bias(&self, h: usize, i: usize, keys: &Range<usize>, x: &mut [f32]) {
        if self.bias.is_none() && self.slopes.is_none() {
            return;
        }
        let AttentionShape { queries, keys: s, .. } = self.shape;
        let inverse = 1.0 / self.gains[0];
        if let Some(bias) = self.bias {
            let start = (h * queries + i) * s + keys.start;
            simd::add_scaled(x, inverse, &bias[start..start + x.len()]);
        }
        if let Some(slopes) = self.slopes {
            let slope = slopes[h] * inverse;
            let position = (i + s) as f32 - queries as f32;
            for (x, j) in x.iter_mut().zip(keys.start..) {
                *x -= slope * (j as f32 - position).abs();
            }
        }
    }

    /// Part of tile row `i` (a query) that it sees among `keys`, as indices into the tile.
    #[inline(always)]
    fn seen(&self, i: usize, keys: &Range<usize>) -> Range<usize> {
        let visible = self.mask.visible(i, self.shape.queries, self.shape.keys);
        let start = visible.start.clamp(keys.start, keys.end);
        let end = visible.end.clamp(start, keys.end);
        start - keys.start..end - keys.start
    }

    /// Number that names the row of query `i` in dropout draws.
    fn row_number(&self, b: usize, h: usize, i: usize) -> u64 {
        ((b * self.shape.heads + h) * self.shape.queries + i) as u64
    }
}

/// Splits `range` into blocks of at most `block`.
fn blocks(range: Range<usize>, block: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(block.max(1)).map(move |start| start..(start + block).min(end))
}
