//! Shared by the two expert products: tasks, row offsets, transposed weights and sums over tokens.

use std::ops::Range;

use super::Routing;
use crate::{
    gemm::{self, Matrix, Write},
    parallel::{self, Disjoint, with_parts},
    simd::{Places, Spread, product_of_rows},
};

/// Assignments per task where each is handled separately.
const ROWS: usize = 258;
/// Tokens per task that sums over the experts of each.
const TOKENS: usize = 512;
/// Columns per such task; a quarter of it if there are few tokens.
const COLUMNS: usize = 256;
/// Below this number of tasks there are few.
const FEW: usize = 16;
/// Assignments whose terms are added to a weight gradient at a time.
const TERMS: usize = 256;

/// An expert, and the assignments of one task.
pub(super) type Chunk<'a> = (usize, &'a [u32]);

/// The groups of all experts in chunks, ordered by token range so that rows stay in cache; together they cover every
/// assignment once.
pub(super) fn chunks(routing: &Routing) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    for start in (0..routing.tokens()).step_by(TOKENS) {
        let tokens = start..(start + TOKENS).min(routing.tokens());
        for expert in 0..routing.experts() {
            let group = routing.group_within(expert, &tokens);
            chunks.extend(group.chunks(ROWS).map(|pairs| (expert, pairs)));
        }
    }
    chunks
}

/// Token of an assignment. 32-bit division is faster.
#[inline(always)]
fn token(pair: u32, active: usize) -> usize {
    (pair / active as u32) as usize
}

/// Start offsets of the rows of `width` of these assignments.
pub(super) fn pair_rows(pairs: &[u32], width: usize, rows: &mut Vec<usize>) {
    rows.clear();
    rows.extend(pairs.iter().map(|pair| *pair as usize * width));
}

/// Start offsets of the rows of `width` of the tokens of these assignments.
pub(super) fn token_rows(pairs: &[u32], active: usize, width: usize, rows: &mut Vec<usize>) {
    rows.clear();
    rows.extend(pairs.iter().map(|pair| token(*pair, active) * width));
}

/// Every expert's matrix `[rows,columns]` of `weights [E,rows,columns]`, transposed.
pub(super) fn turned(weights: &[f32], (rows, columns): (usize, usize)) -> Vec<f32> {
    let size = rows * columns;
    let mut all = vec![0.0; weights.len()];
    parallel::for_each_part(&mut all, size.max(1), |expert, dst| {
        let src = Matrix::rows(&weights[expert * size..(expert + 1) * size], columns);
        gemm::transpose(src, (rows, columns), dst);
    });
    all
}

/// `out_t (=) sum_s factor_ts row_ts W_e(t,s)` over the slots `s` of each token `t`: `rows [B,N,k,D]`,
/// `weights [E,D,d]`, `out [B,N,d]`, 0 for padding. The experts of a token are added in order.
pub(super) fn sum_over_slots(
    routing: &Routing,
    rows: &[f32],
    factors: Option<&[f32]>,
    weights: &[f32],
    (narrow, wide): (usize, usize),
    out: &mut [f32],
) {
    let tokens = routing.tokens();
    let few = tokens.div_ceil(TOKENS) * wide.div_ceil(COLUMNS) < FEW;
    let across_each = if few { COLUMNS / 4 } else { COLUMNS };
    let across = wide.div_ceil(across_each);
    let written = Disjoint::new(out);
    parallel::for_each(tokens.div_ceil(TOKENS) * across, |task| {
        let tile = task / across * TOKENS..((task / across + 1) * TOKENS).min(tokens);
        let left = task % across * across_each;
        let columns = left..(left + across_each).min(wide);
        for t in tile.clone() {
            // SAFETY: these columns of this token belong to this task alone.
            unsafe { written.range(t * wide + left, columns.len()) }.fill(0.0);
        }
        let (mut from, mut to, mut scale) = (Vec::new(), Vec::new(), Vec::new());
        for expert in 0..routing.experts() {
            let pairs = routing.group_within(expert, &tile);
            if pairs.is_empty() {
                continue;
            }
            pair_rows(pairs, narrow, &mut from);
            to.clear();
            to.extend(pairs.iter().map(|pair| token(*pair, routing.active()) * wide + left));
            scale.clear();
            scale.extend(factors.iter().flat_map(|factors| pairs.iter().map(|pair| factors[*pair as usize])));
            let size = (pairs.len(), columns.len(), narrow);
            let a = Spread::new(rows, Places::At(&from));
            let b = Spread::new(&weights[expert * narrow * wide + left..], Places::Every(wide));
            let factors = factors.map(|_| &scale[..]);
            // SAFETY: as above; a token occurs once per expert.
            unsafe { product_of_rows(size, a, b, factors, Write::Add, &written, Places::At(&to)) };
        }
    });
}

/// `sum_r factor_r narrow_r^T wide_t(r)` over the assignments `r` of each expert: `narrow [B,N,k,D]`, `wide [B,N,d]`.
/// Passes each expert's result `[D, columns]` to `store`, some columns at a time.
pub(super) fn sum_over_tokens(
    routing: &Routing,
    (rows, narrow): (&[f32], usize),
    factors: Option<&[f32]>,
    (tokens, wide): (&[f32], usize),
    store: impl Fn(usize, Range<usize>, &[f32]) + Sync + Send,
) {
    let across = wide.div_ceil(COLUMNS);
    parallel::for_each(routing.experts() * across, |task| {
        let expert = task / across;
        let left = task % across * COLUMNS;
        let columns = left..(left + COLUMNS).min(wide);
        with_parts!(sum = narrow * columns.len(), gathered = TERMS * narrow, {
            sum.fill(0.0);
            let mut at = Vec::with_capacity(TERMS);
            for pairs in routing.group(expert).chunks(TERMS) {
                for (to, pair) in gathered.chunks_exact_mut(narrow.max(1)).zip(pairs) {
                    let pair = *pair as usize;
                    let factor = factors.map_or(1.0, |factors| factors[pair]);
                    let row = &rows[pair * narrow..(pair + 1) * narrow];
                    to.iter_mut().zip(row).for_each(|(to, x)| *to = factor * x);
                }
                at.clear();
                at.extend(pairs.iter().map(|pair| token(*pair, routing.active()) * wide + left));
                let size = (narrow, columns.len(), pairs.len());
                let a = Spread { data: gathered, rows: Places::Every(1), step: narrow };
                let b = Spread::new(tokens, Places::At(&at));
                let dst = Disjoint::new(sum);
                // SAFETY: the sum belongs to this task.
                unsafe { product_of_rows(size, a, b, None, Write::Add, &dst, Places::Every(columns.len())) };
            }
            store(expert, columns, sum);
        });
    });
}
