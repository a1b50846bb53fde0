//! Few queries, as in decoding: one pass over keys and values at the speed of memory.
//!
//! A tile would fill its lanes with queries that are not there. Here the queries of all heads that share keys are rows, at most
//! [`FEW`]; keys are cut into segments, each a task, whose sums are joined at the end (the split over keys of Flash-Decoding).

use std::{f32::consts::LN_2, ops::Range};

use super::Scores;
use crate::{
    Saved,
    gemm::{Matrix, Write},
    parallel::{self, Disjoint},
    simd::{self, FEW},
};

/// Keys of a task: scores of all rows stay in the first cache, and what is joined is small beside what was read.
const SEGMENT: usize = 512;

impl Scores<'_> {
    /// Query rows that share a head of keys.
    fn sharing(&self) -> usize {
        self.shape.group() * self.shape.queries
    }

    /// Whether the call is one of few queries and plain scores.
    pub(super) fn is_short(&self) -> bool {
        let plain =
            !self.gaussian && !self.hard && self.components() == 1 && self.prior.is_none() && self.shift.is_none();
        plain && self.bias.is_none() && self.slopes.is_none() && self.dropout.is_none() && self.sharing() <= FEW
    }

    /// As [`Scores::forward`].
    pub(super) fn forward_short(&self, out: &mut [f32]) -> Saved {
        let shape = self.shape;
        let (rows, width) = (self.sharing(), shape.value_width);
        let (heads, segments) = (shape.batch * shape.key_heads, shape.keys.div_ceil(SEGMENT));
        // Of each segment the sums of all rows, then what they are relative to, then their weights' sums.
        let len = rows * (width + 2);
        let [mut lse, mut references, mut inverses] = [(); 3].map(|()| vec![0.0; heads * rows]);
        parallel::with_shared(heads * segments * len, |parts| {
            let shared = Disjoint::new(parts);
            parallel::for_each(heads * segments, |task| {
                let (head, start) = (task / segments, task % segments * SEGMENT);
                // SAFETY: each task has its own part.
                let part = unsafe { shared.range(task * len, len) };
                let keys = start..(start + SEGMENT).min(shape.keys);
                self.sum_segment((head / shape.key_heads, head % shape.key_heads), keys, part);
            });
            let parts = &*parts;
            let written = Disjoint::new(out);
            let saved = [&mut lse, &mut references, &mut inverses].map(|x| Disjoint::new(x));
            parallel::for_each(heads, |head| {
                // SAFETY: the rows of this head are this task's.
                let saved = saved.each_ref().map(|x| unsafe { x.range(head * rows, rows) });
                self.join(head, &parts[head * segments * len..][..segments * len], &written, saved);
            });
        });
        vec![lse, references, inverses]
    }

    /// What rows get from a segment of keys.
    fn sum_segment(&self, (b, hk): (usize, usize), keys: Range<usize>, part: &mut [f32]) {
        let shape = &self.shape;
        let (rows, width, count) = (self.sharing(), shape.head_width, keys.len());
        let (sums, rest) = part.split_at_mut(rows * shape.value_width);
        let (tops, totals) = rest.split_at_mut(rows);
        parallel::with_parts([rows * width, rows * SEGMENT], |[q, x]| {
            let queries =
                (hk * shape.group()..(hk + 1) * shape.group()).flat_map(|h| (0..shape.queries).map(move |i| (h, i)));
            for ((h, i), row) in queries.clone().zip(q.chunks_exact_mut(width)) {
                row.copy_from_slice(shape.query_rows(b, h).row(self.q, i));
            }
            let k = shape.key_rows(b, hk, 0);
            let k = Matrix::rows(&self.k[k.start(keys.start)..], k.stride);
            simd::dots((rows, count, width), self.factor(0), q, k, x, SEGMENT);
            let valid = self.mask.valid_row(b).map(|valid| &valid[keys.clone()]);
            for (((_, i), x), (top, total)) in
                queries.zip(x.chunks_exact_mut(SEGMENT)).zip(tops.iter_mut().zip(totals.iter_mut()))
            {
                let x = &mut x[..count];
                let seen = self.mask.visible(i, shape.queries, shape.keys);
                let local = |j: usize| j.clamp(keys.start, keys.end) - keys.start;
                x[..local(seen.start)].fill(f32::NEG_INFINITY);
                x[local(seen.end)..].fill(f32::NEG_INFINITY);
                for (x, _) in x.iter_mut().zip(valid.unwrap_or_default()).filter(|(_, real)| **real == 0) {
                    *x = f32::NEG_INFINITY;
                }
                (*top, *total) = simd::vectorize(
                    #[inline(always)]
                    || {
                        let top = simd::max(x);
                        if top == f32::NEG_INFINITY {
                            x.fill(0.0);
                            return (top, 0.0);
                        }
                        x.iter_mut().for_each(|x| *x = simd::exp2(*x - top));
                        (top, simd::total(x))
                    },
                );
            }
            let v = shape.value_rows(b, hk);
            let v = Matrix::rows(&self.v[v.start(keys.start)..], v.stride);
            let size = (rows, shape.value_width, count);
            simd::tile_product(size, 1.0, Matrix::rows(x, SEGMENT), v, Write::Over, sums, shape.value_width);
        });
    }

    /// Brings the parts of all segments to one reference a row and divides.
    fn join(&self, head: usize, parts: &[f32], out: &Disjoint<f32>, [lse, references, inverses]: [&mut [f32]; 3]) {
        let shape = &self.shape;
        let (b, hk) = (head / shape.key_heads, head % shape.key_heads);
        let (rows, width) = (self.sharing(), shape.value_width);
        let segments = || parts.chunks_exact(rows * (width + 2));
        for r in 0..rows {
            let (h, i) = (hk * shape.group() + r / shape.queries, r % shape.queries);
            let of = |part: &[f32]| (part[rows * width + r], part[rows * (width + 1) + r]);
            let top = segments().map(|part| of(part).0).fold(f32::NEG_INFINITY, f32::max);
            // SAFETY: this row is this task's.
            let row = unsafe { out.row(&shape.out_rows(b, h), i) };
            row.fill(0.0);
            references[r] = top;
            if top == f32::NEG_INFINITY {
                (lse[r], inverses[r]) = (f32::NEG_INFINITY, 0.0);
                continue;
            }
            let mut total = 0.0;
            for part in segments() {
                let (reference, sum) = of(part);
                let scale = simd::exp2(reference - top);
                total += sum * scale;
                simd::add_scaled(row, scale, &part[r * width..][..width]);
            }
            inverses[r] = 1.0 / total;
            lse[r] = (top + total.log2()) * LN_2;
            row.iter_mut().for_each(|y| *y *= inverses[r]);
        }
    }
}
