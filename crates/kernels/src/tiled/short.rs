//! Few queries, as in decoding: one pass over keys and values at the speed of memory.
//!
//! A tile would fill its lanes with queries that are not there. Here the queries of all heads that share keys are rows, at most
//! [`FEW`]; keys are cut into segments, each a task, whose sums are joined at the end (the split over keys of Flash-Decoding).

use std::{f32::consts::LN_2, ops::Range};

use super::{Scores, backward::Gradients};
use crate::{
    Rows, Saved,
    deltas::deltas,
    gemm::{Matrix, Write},
    memory::arbitrary,
    parallel::{self, Disjoint},
    simd::{self, FEW},
};

/// Keys of a task: scores of all rows stay in the first cache, and what is joined is small beside what was read.
const SEGMENT: usize = 512;
/// Keys whose gradients are formed at a time.
const BLOCK: usize = 64;

/// One key head of a batch row, and the keys of a task that its queries may see.
struct Segment {
    b: usize,
    hk: usize,
    keys: Range<usize>,
}

impl Segment {
    fn count(&self) -> usize {
        self.keys.len()
    }

    fn matrix<'a>(&self, data: &'a [f32], rows: &Rows) -> Matrix<'a> {
        Matrix::rows(&data[rows.start(self.keys.start)..], rows.stride)
    }
}

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

    /// Key heads of all batch rows, and the segments of each.
    fn segments(&self) -> (usize, usize) {
        (self.shape.batch * self.shape.key_heads, self.shape.keys.div_ceil(SEGMENT))
    }

    /// All keys of a task, and those of them that any query may see.
    fn segment(&self, head: usize, index: usize) -> (Range<usize>, Segment) {
        let (b, hk) = (head / self.shape.key_heads, head % self.shape.key_heads);
        let all = index * SEGMENT..((index + 1) * SEGMENT).min(self.shape.keys);
        let seen = self.hull(b, 0..self.shape.queries);
        let keys = seen.start.max(all.start)..seen.end.min(all.end);
        let keys = if keys.is_empty() { all.start..all.start } else { keys };
        (all, Segment { b, hk, keys })
    }

    /// Query heads and queries of the rows that share key head `hk`, in their order.
    fn row_queries(&self, hk: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
        let (group, queries) = (self.shape.group(), self.shape.queries);
        (hk * group..(hk + 1) * group).flat_map(move |h| (0..queries).map(move |i| (h, i)))
    }

    /// As [`Scores::forward`].
    pub(super) fn forward_short(&self, out: &mut [f32]) -> Saved {
        let (rows, width) = (self.sharing(), self.shape.value_width);
        let (heads, segments) = self.segments();
        // Of each segment the sums of all rows, then what they are relative to, then their weights' sums.
        let len = rows * (width + 2);
        let [mut lse, mut references, mut inverses] = [(); 3].map(|()| vec![0.0; heads * rows]);
        parallel::with_shared(heads * segments * len, |parts| {
            parallel::for_each_part(parts, len, |task, part| {
                self.sum_segment(&self.segment(task / segments, task % segments).1, part);
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

    /// `q [rows][width]`, and their scores in base 2, `x [rows][SEGMENT]`, negative infinity where the mask hides a pair.
    fn score_segment(&self, segment: &Segment, q: &mut [f32], x: &mut [f32]) {
        let (shape, width) = (&self.shape, self.shape.head_width);
        for ((h, i), row) in self.row_queries(segment.hk).zip(q.chunks_exact_mut(width)) {
            row.copy_from_slice(shape.query_rows(segment.b, h).row(self.q, i));
        }
        let k = segment.matrix(self.k, &shape.key_rows(segment.b, segment.hk, 0));
        simd::dots((self.sharing(), segment.count(), width), self.factor(0), q, k, x, SEGMENT);
        self.hide_in_segment(segment, x, f32::NEG_INFINITY);
    }

    /// As [`Scores::hide`], for rows of [`SEGMENT`].
    fn hide_in_segment(&self, Segment { b, hk, keys }: &Segment, x: &mut [f32], value: f32) {
        let valid = self.mask.valid_row(*b).map(|valid| &valid[keys.clone()]);
        for ((_, i), x) in self.row_queries(*hk).zip(x.chunks_exact_mut(SEGMENT)) {
            let x = &mut x[..keys.len()];
            let seen = self.mask.visible(i, self.shape.queries, self.shape.keys);
            let local = |j: usize| j.clamp(keys.start, keys.end) - keys.start;
            x[..local(seen.start)].fill(value);
            x[local(seen.end)..].fill(value);
            for (x, _) in x.iter_mut().zip(valid.unwrap_or_default()).filter(|(_, real)| **real == 0) {
                *x = value;
            }
        }
    }

    /// What rows get from a segment of keys.
    fn sum_segment(&self, segment: &Segment, part: &mut [f32]) {
        let shape = &self.shape;
        let (rows, width, count) = (self.sharing(), shape.value_width, segment.count());
        let (sums, rest) = part.split_at_mut(rows * width);
        let (tops, totals) = rest.split_at_mut(rows);
        parallel::with_parts([rows * shape.head_width, rows * SEGMENT], |[q, x]| {
            self.score_segment(segment, q, x);
            for (x, (top, total)) in x.chunks_exact_mut(SEGMENT).zip(tops.iter_mut().zip(totals)) {
                let x = &mut x[..count];
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
            let v = segment.matrix(self.v, &shape.value_rows(segment.b, segment.hk));
            simd::tile_product((rows, width, count), 1.0, Matrix::rows(x, SEGMENT), v, Write::Over, sums, width);
        });
    }

    /// Brings the parts of all segments to one reference a row and divides.
    fn join(&self, head: usize, parts: &[f32], out: &Disjoint<f32>, [lse, references, inverses]: [&mut [f32]; 3]) {
        let shape = &self.shape;
        let (b, hk) = (head / shape.key_heads, head % shape.key_heads);
        let (rows, width) = (self.sharing(), shape.value_width);
        let segments = || parts.chunks_exact(rows * (width + 2));
        for (r, (h, i)) in self.row_queries(hk).enumerate() {
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

    /// As [`Scores::backward`].
    pub(super) fn backward_short(&self, out: &[f32], saved: &Saved, grad_out: &[f32]) -> Gradients {
        let shape = self.shape;
        let (rows, width) = (self.sharing(), shape.head_width);
        let (heads, segments) = self.segments();
        let deltas = deltas(&shape, out, grad_out);
        let [mut q, mut k, mut v] = [self.q, self.k, self.v].map(|x| arbitrary(x.len()));
        let (k_written, v_written) = (Disjoint::new(&mut k), Disjoint::new(&mut v));
        let len = rows * width;
        parallel::with_shared(heads * segments * len, |parts| {
            parallel::for_each_part(parts, len, |task, dq| {
                let (head, index) = (task / segments, task % segments);
                let [references, inverses, deltas] =
                    [&saved[1], &saved[2], &deltas].map(|x| &x[head * rows..(head + 1) * rows]);
                let given = (grad_out, references, inverses, deltas);
                let (all, segment) = self.segment(head, index);
                self.backward_short_segment(&all, &segment, given, dq, [&k_written, &v_written]);
            });
            let (parts, written) = (&*parts, Disjoint::new(&mut q));
            parallel::for_each(heads, |head| {
                let (b, hk) = (head / shape.key_heads, head % shape.key_heads);
                for (r, (h, i)) in self.row_queries(hk).enumerate() {
                    // SAFETY: this row is this task's.
                    let row = unsafe { written.row(&shape.query_rows(b, h), i) };
                    row.fill(0.0);
                    for part in parts[head * segments * len..][..segments * len].chunks_exact(len) {
                        simd::add_scaled(row, 1.0, &part[r * width..][..width]);
                    }
                }
            });
        });
        Gradients { q, k, v, variance: None, prior: None, shift: None, bias: None }
    }

    /// Gradients that the keys `all` of a task contribute, of which those of `segment` are seen.
    fn backward_short_segment(
        &self,
        all: &Range<usize>,
        segment: &Segment,
        (grad_out, references, inverses, deltas): (&[f32], &[f32], &[f32], &[f32]),
        dq: &mut [f32],
        [k_written, v_written]: [&Disjoint<f32>; 2],
    ) {
        let (shape, rows, count) = (&self.shape, self.sharing(), segment.count());
        let (width, value_width) = (shape.head_width, shape.value_width);
        let (key_rows, value_rows) =
            (shape.key_rows(segment.b, segment.hk, 0), shape.value_rows(segment.b, segment.hk));
        let sizes =
            [rows * width, rows * value_width, rows * SEGMENT, rows * SEGMENT, BLOCK * width.max(value_width)];
        parallel::with_parts(sizes, |[q, dout, p, w, block]| {
            self.score_segment(segment, q, p);
            for ((h, i), row) in self.row_queries(segment.hk).zip(dout.chunks_exact_mut(value_width)) {
                row.copy_from_slice(shape.out_rows(segment.b, h).row(grad_out, i));
            }
            let (k, v) = (segment.matrix(self.k, &key_rows), segment.matrix(self.v, &value_rows));
            simd::dots((rows, count, value_width), 1.0, dout, v, w, SEGMENT);
            self.hide_in_segment(segment, w, 0.0);
            for (r, (p, w)) in p.chunks_exact_mut(SEGMENT).zip(w.chunks_exact_mut(SEGMENT)).enumerate() {
                let (p, w) = (&mut p[..count], &mut w[..count]);
                // A row that sees nothing has weights of 0.
                let reference = if inverses[r] > 0.0 { references[r] } else { f32::INFINITY };
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for (p, w) in p.iter_mut().zip(w) {
                            *p = inverses[r] * simd::exp2(*p - reference);
                            *w = self.gains[0] * *p * (*w - deltas[r]);
                        }
                    },
                );
            }
            let (p, w) = (Matrix::rows(p, SEGMENT), Matrix::rows(w, SEGMENT));
            simd::tile_product((rows, width, count), 1.0, w, k, Write::Over, dq, width);
            let gradients = [(w, &*q, &key_rows, k_written), (p, &*dout, &value_rows, v_written)];
            for (weights, operand, rows_written, written) in gradients {
                let width = rows_written.width;
                let operand = Matrix::rows(operand, width);
                for start in segment.keys.clone().step_by(BLOCK) {
                    let count = BLOCK.min(segment.keys.end - start);
                    let weights = weights.transposed().from_row(start - segment.keys.start);
                    simd::tile_product((count, width, rows), 1.0, weights, operand, Write::Over, block, width);
                    for (j, row) in (start..).zip(block.chunks_exact(width)).take(count) {
                        // SAFETY: this task's keys of this batch row and head belong to it alone.
                        unsafe { written.row(rows_written, j) }.copy_from_slice(row);
                    }
                }
                for j in (all.start..segment.keys.start).chain(segment.keys.end..all.end) {
                    // SAFETY: as above.
                    unsafe { written.row(rows_written, j) }.fill(0.0);
                }
            }
        });
    }
}
