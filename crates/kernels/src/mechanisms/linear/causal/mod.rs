//! Query `i` sees the real keys up to position `i + S - N`: running sums over chunks of positions, and within a chunk a
//! small masked product of its own queries and keys.
//!
//! Query and key at one position are processed together. The first `N - S` queries of a call with `N > S` come before
//! position 0 and see nothing; with `N < S` the first positions have keys only.

mod backward;
mod forward;

pub(super) use backward::{backward, grad_of_start};
pub(super) use forward::forward;

use std::ops::Range;

use super::blocks::{Blocks, CHUNK};
use crate::{
    AttentionShape,
    gemm::{Matrix, Write, product},
    parallel::runs,
};

/// Positions between two saved sums, from which the backward pass starts. Long enough that the saved sums are a
/// fraction of the keys, short enough that the sums of all chunks in between stay in the cache.
const SEGMENT: usize = 256;

/// Rows per strip of the masked product: work right of the diagonal is wasted, but short strips make slow products.
const STRIP: usize = 32;

/// Positions of the queries, and the spans of positions owned by tasks.
#[derive(Clone, Copy)]
struct Plan {
    /// Position of the first query at or after position 0.
    first_position: usize,
    /// That query.
    first_query: usize,
    spans: Blocks,
    /// Number of saved sums, one per segment.
    segments: usize,
}

impl Plan {
    /// With fewer than 8 independent sequences of keys, each is cut into spans at the cost of one more pass over it.
    fn new(shape: AttentionShape) -> Self {
        const ENOUGH: usize = 8;
        const TASKS: usize = 16;
        let streams = shape.batch * shape.key_heads;
        let spans = if streams >= ENOUGH { 1 } else { TASKS.div_ceil(streams) };
        Self {
            first_position: shape.keys.saturating_sub(shape.queries),
            first_query: shape.queries.saturating_sub(shape.keys),
            spans: Blocks::new(shape.keys, spans, SEGMENT),
            segments: shape.keys.div_ceil(SEGMENT),
        }
    }

    /// Queries at `positions`, and the number of positions before the first of them.
    fn queries(&self, positions: &Range<usize>) -> (Range<usize>, usize) {
        let start = positions.start.max(self.first_position).min(positions.end);
        let query = |position: usize| position - self.first_position + self.first_query;
        if start == positions.end { (0..0, 0) } else { (query(start)..query(positions.end), start - positions.start) }
    }
}

/// The masked product of one chunk, in strips of rows: query `t` of the chunk sees its keys up to `lead + t`.
#[derive(Clone, Copy)]
struct Triangle {
    queries: usize,
    lead: usize,
}

impl Triangle {
    /// Rows of each strip and the number of keys that its last row sees.
    fn strips(self) -> impl Iterator<Item = (Range<usize>, usize)> {
        runs(0..self.queries, STRIP).map(move |rows| {
            let seen = self.lead + rows.end;
            (rows, seen)
        })
    }

    /// `tile = left right^T` for `left [queries, width]`, `right [keys, width]`; masked elements are unspecified.
    fn outer(self, left: &[f32], right: Matrix, width: usize, tile: &mut [f32]) {
        for (rows, seen) in self.strips() {
            product(
                (rows.len(), seen, width),
                1.0,
                Matrix::rows(&left[rows.start * width..], width),
                right.transposed(),
                Write::Over,
                &mut tile[rows.start * CHUNK..],
                CHUNK,
            );
        }
    }

    /// `sum += tile right` for `right [keys, width]`, `sum [queries, width]`.
    fn times(self, tile: &[f32], right: Matrix, width: usize, sum: &mut [f32]) {
        for (rows, seen) in self.strips() {
            product(
                (rows.len(), width, seen),
                1.0,
                Matrix::rows(&tile[rows.start * CHUNK..], CHUNK),
                right,
                Write::Add,
                &mut sum[rows.start * width..],
                width,
            );
        }
    }

    /// `sum += tile^T left` for `left [queries, width]`, `sum [keys, width]`.
    fn transposed_times(self, tile: &[f32], left: &[f32], width: usize, sum: &mut [f32]) {
        for (rows, seen) in self.strips() {
            product(
                (seen, width, rows.len()),
                1.0,
                Matrix::rows(&tile[rows.start * CHUNK..], CHUNK).transposed(),
                Matrix::rows(&left[rows.start * width..], width),
                Write::Add,
                sum,
                width,
            );
        }
    }

    /// Zeroes masked elements and calls `row(t, seen)` on the visible ones: inlined, so that it is compiled with the
    /// vector instructions of the calling loop.
    #[inline(always)]
    fn mask(self, tile: &mut [f32], mut row: impl FnMut(usize, &mut [f32])) {
        for (rows, end) in self.strips() {
            for t in rows {
                let (seen, unseen) = tile[t * CHUNK..t * CHUNK + end].split_at_mut(self.lead + t + 1);
                unseen.fill(0.0);
                row(t, seen);
            }
        }
    }
}
