//! Few queries, as in decoding: one memory-bound pass over keys and values.
//!
//! Most lanes of a tile would be empty. Here the queries of all heads that share keys are rows, at most [`FEW`]; keys
//! are cut into segments, each a task, whose sums are merged at the end (the split over keys of Flash-Decoding).

use std::{
    f32::consts::{LN_2, LOG2_E},
    ops::Range,
};

use super::{Scores, backward::Gradients};
use crate::{
    Rows, Saved,
    deltas::deltas,
    gemm::{Matrix, Write},
    memory::arbitrary,
    parallel::{self, Disjoint, runs, with_parts},
    simd::{self, FEW},
    stored::Stored,
};

/// Keys per task: scores of all rows stay in the L1 cache, and merging is cheap compared to reading.
const SEGMENT: usize = 512;
/// Keys that are converted to f32, or whose gradients are computed, at a time.
const BLOCK: usize = 64;
/// Floats of partial sums that one thread merges in a few microseconds: waking others takes longer.
const SMALL: usize = 1 << 14;

/// Rows of a head in their storage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub stored: Stored<'a>,
    pub rows: Rows,
}

impl Source<'_> {
    /// Rows `range` as f32: in place, or converted in `room`.
    fn matrix<'s>(&'s self, range: &Range<usize>, room: &'s mut [f32]) -> Matrix<'s> {
        self.stored.rows(&self.rows.slice(range.start, range.len()), room)
    }
}

/// Keys, per component of the products, and values of one key head of a batch row.
#[derive(Clone, Debug)]
pub(crate) struct Kept<'a> {
    pub k: Vec<Source<'a>>,
    pub v: Source<'a>,
}

/// One key head of a batch row, and the keys of a task that its queries may see.
struct Segment<'a> {
    b: usize,
    hk: usize,
    keys: Range<usize>,
    kept: &'a Kept<'a>,
}

impl Segment<'_> {
    fn count(&self) -> usize {
        self.keys.len()
    }

    /// Blocks of the segment's keys, each with the number of keys before it. Rows that are read only `once`, in place,
    /// come in one block, since no second pass needs them in the L1 cache.
    fn blocks(&self, source: &Source, once: bool) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let size = if once && source.stored.is_plain() { SEGMENT } else { BLOCK };
        let start = self.keys.start;
        runs(self.keys.clone(), size).map(move |keys| (keys.start - start, keys))
    }
}

impl<'a> Scores<'a> {
    /// Query rows that share a head of keys.
    fn sharing(&self) -> usize {
        self.shape.group() * self.shape.queries
    }

    /// Whether forward and backward use this path. Mixture gradients involve sums that cancel and need weights from the
    /// same arithmetic as the forward pass, so both of their passes use tiles.
    pub(super) fn is_short(&self) -> bool {
        self.is_plain() && self.bias.is_none() && self.dropout.is_none() && self.sharing() <= FEW
    }

    /// Whether scores are plain query-key products.
    fn is_plain(&self) -> bool {
        let one = !self.gaussian && !self.hard && self.components() == 1;
        one && self.prior.is_none() && self.shift.is_none() && self.slopes.is_none()
    }

    /// Number of key heads over all batch rows.
    fn kept_heads(&self) -> usize {
        self.shape.batch * self.shape.key_heads
    }

    /// All keys, cut into those of tasks.
    fn all_segments(&self) -> Vec<Range<usize>> {
        runs(0..self.shape.keys, SEGMENT).collect()
    }

    /// The keys `all` of a task of key head `head`, and of them those that any query sees.
    fn segment<'s>(&self, head: usize, all: &Range<usize>, kept: &'s [Kept<'s>]) -> Segment<'s> {
        let (b, hk) = (head / self.shape.key_heads, head % self.shape.key_heads);
        let seen = self.hull(b, 0..self.shape.queries);
        let keys = seen.start.max(all.start)..seen.end.min(all.end);
        let keys = if keys.is_empty() { all.start..all.start } else { keys };
        Segment { b, hk, keys, kept: &kept[head] }
    }

    /// Query heads and queries of the rows that share key head `hk`, in order.
    fn row_queries(&self, hk: usize) -> impl Iterator<Item = (usize, usize)> + Clone + use<> {
        let (group, queries) = (self.shape.group(), self.shape.queries);
        (hk * group..(hk + 1) * group).flat_map(move |h| (0..queries).map(move |i| (h, i)))
    }

    /// Keys and values of the key heads of all batch rows, from the tensors of the call.
    fn kept(&self) -> Vec<Kept<'a>> {
        let shape = &self.shape;
        let of = |data, rows| Source { stored: Stored::F32(data), rows };
        let head = |b: usize, hk: usize| Kept {
            k: (0..self.copies()).map(|r| of(self.k, shape.key_rows(b, hk, r))).collect(),
            v: of(self.v, shape.value_rows(b, hk)),
        };
        (0..shape.batch * shape.key_heads).map(|at| head(at / shape.key_heads, at % shape.key_heads)).collect()
    }

    /// As [`Scores::forward`].
    pub(super) fn forward_short(&self, out: &mut [f32]) -> Saved {
        self.attend(&self.kept(), out)
    }

    /// As [`Scores::forward`] without dropout and bias, on the `kept` keys and values of each key head of each batch
    /// row, for any number of rows.
    pub(crate) fn attend(&self, kept: &[Kept], out: &mut [f32]) -> Saved {
        self.attend_to(&self.all_segments(), kept, out)
    }

    /// As [`Scores::attend`], of the keys of these ranges alone, which do not overlap; without any the output is 0.
    pub(crate) fn attend_within(&self, ranges: &[Range<usize>], kept: &[Kept], out: &mut [f32]) -> Saved {
        let cut: Vec<_> = ranges.iter().flat_map(|range| runs(range.clone(), SEGMENT)).collect();
        self.attend_to(&cut, kept, out)
    }

    /// Attention to the keys of these segments.
    fn attend_to(&self, all: &[Range<usize>], kept: &[Kept], out: &mut [f32]) -> Saved {
        assert!(self.bias.is_none() && self.dropout.is_none(), "neither bias nor dropout comes this way");
        let (rows, width) = (self.sharing(), self.shape.value_width);
        let (heads, segments) = (self.kept_heads(), all.len());
        // For each segment the sums of all rows, then their references, then their total weights.
        let len = rows * (width + 2);
        let [mut lse, mut references, mut inverses] = [(); 3].map(|()| vec![0.0; heads * rows]);
        parallel::with_shared(heads * segments * len, |parts| {
            parallel::for_each_part(parts, len, |task, part| {
                self.sum_segment(&self.segment(task / segments, &all[task % segments], kept), part);
            });
            let parts = &*parts;
            let written = Disjoint::new(out);
            let saved = [&mut lse, &mut references, &mut inverses].map(|x| Disjoint::new(x));
            let joined = |head: usize| {
                // SAFETY: the rows of this head belong to this task.
                let saved = saved.each_ref().map(|x| unsafe { x.range(head * rows, rows) });
                self.join(head, &parts[head * segments * len..][..segments * len], &written, saved);
            };
            if parts.len() < SMALL { (0..heads).for_each(joined) } else { parallel::for_each(heads, joined) }
        });
        Saved::with_lse(lse, [references, inverses])
    }

    /// Copies the queries of a segment to `q [rows][width]`.
    fn load_queries(&self, segment: &Segment, q: &mut [f32]) {
        for ((h, i), row) in self.row_queries(segment.hk).zip(q.chunks_exact_mut(self.shape.head_width)) {
            row.copy_from_slice(self.shape.query_rows(segment.b, h).row(self.q, i));
        }
    }

    /// Scratch floats for the scores of a segment: terms of keys and priors, and converted keys.
    fn score_room(&self) -> [usize; 3] {
        let terms = if self.is_plain() { 0 } else { self.components() * SEGMENT };
        [
            if self.gaussian { terms } else { 0 },
            if self.prior.is_some() { terms } else { 0 },
            BLOCK * self.shape.head_width,
        ]
    }

    /// Scores in base 2 of queries `q [rows][width]`, `x [M][rows][SEGMENT]`, negative infinity where the mask hides a pair.
    fn score_segment(&self, segment: &Segment, q: &[f32], x: &mut [f32], [norms, priors, room]: [&mut [f32]; 3]) {
        let (width, rows) = (self.shape.head_width, self.sharing());
        let (copies, size) = (self.copies(), rows * SEGMENT);
        for r in 0..copies {
            let factor = if self.shift.is_some() { 1.0 } else { self.factor(r) };
            let source = &segment.kept.k[r];
            for (first, keys) in segment.blocks(source, !self.gaussian) {
                let (count, k) = (keys.len(), source.matrix(&keys, room));
                for (q, x) in q.chunks(FEW * width).zip(x[r * size..][..size].chunks_mut(FEW * SEGMENT)) {
                    simd::dots((q.len() / width, count, width), factor, q, k, &mut x[first..], SEGMENT);
                }
                // Shifted copies share their key.
                for c in (0..self.components()).filter(|c| self.gaussian && (copies == 1 || *c == r)) {
                    let rows = Rows { offset: 0, stride: k.row, count, width };
                    let norms = &mut norms[c * SEGMENT + first..][..count];
                    simd::square_norms(k.data, &rows, self.shift_of(segment.hk, c), norms);
                }
            }
        }
        if !self.is_plain() {
            self.add_terms(segment, q, x, norms, priors);
        }
        for x in x.chunks_exact_mut(size) {
            self.hide_in_segment(segment, x, f32::NEG_INFINITY);
        }
    }

    /// Adds the query and key terms to the products of a segment, for all components.
    fn add_terms(&self, segment: &Segment, q: &[f32], x: &mut [f32], norms: &[f32], priors: &mut [f32]) {
        let (components, count, width) = (self.components(), segment.count(), self.shape.head_width);
        let size = self.sharing() * SEGMENT;
        for (row, (h, i)) in self.row_queries(segment.hk).enumerate() {
            let q = &q[row * width..][..width];
            if i == 0 && self.prior.is_some() {
                self.prior_terms(h, &segment.keys, &mut priors[..components * count]);
            }
            // The first component holds the product shared by all shifted copies, so it comes last.
            for r in (0..components).rev() {
                let (first, x) = x.split_at_mut(if r == 0 { 0 } else { r * size });
                let x = &mut x[row * SEGMENT..][..count];
                if self.shift.is_some() {
                    let factor = self.factor(r);
                    match r {
                        0 => x.iter_mut().for_each(|x| *x *= factor),
                        _ => x.iter_mut().zip(&first[row * SEGMENT..]).for_each(|(x, product)| *x = factor * product),
                    }
                }
                let gain = self.gains[r] * LOG2_E;
                let along = self.shift_of(segment.hk, r).map_or(0.0, |shift| simd::dot(q, shift));
                let norm = if self.gaussian { simd::dot(q, q) } else { 0.0 };
                let term = gain * (along - 0.5 * norm);
                x.iter_mut().for_each(|x| *x += term);
                if self.gaussian {
                    simd::add_scaled(x, -0.5 * gain, &norms[r * SEGMENT..][..count]);
                }
                if self.prior.is_some() {
                    simd::add_scaled(x, 1.0, &priors[r * count..][..count]);
                }
                if let Some(slopes) = self.slopes {
                    let slope = slopes[h] * LOG2_E;
                    let position = self.mask.position(i, self.shape.queries, self.shape.keys) as f32;
                    for (x, j) in x.iter_mut().zip(segment.keys.clone()) {
                        *x -= slope * (j as f32 - position).abs();
                    }
                }
            }
        }
    }

    /// As [`Scores::hide`], for rows of [`SEGMENT`].
    fn hide_in_segment(&self, Segment { b, hk, keys, .. }: &Segment, x: &mut [f32], value: f32) {
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

    /// Sums of the rows over a segment of keys.
    fn sum_segment(&self, segment: &Segment, part: &mut [f32]) {
        let shape = &self.shape;
        let (rows, width, count) = (self.sharing(), shape.value_width, segment.count());
        let (components, size) = (self.components(), self.sharing() * SEGMENT);
        let (sums, rest) = part.split_at_mut(rows * width);
        let (tops, totals) = rest.split_at_mut(rows);
        let [norms, priors, keys] = self.score_room();
        with_parts!(
            q = rows * shape.head_width,
            x = components * size,
            norms = norms,
            priors = priors,
            room = keys.max(BLOCK * width),
            {
                self.load_queries(segment, q);
                self.score_segment(segment, q, x, [norms, priors, room]);
                let (x, others) = x.split_at_mut(size);
                for (row, (x, (top, total))) in x.chunks_exact_mut(SEGMENT).zip(tops.iter_mut().zip(totals)).enumerate()
                {
                    let x = &mut x[..count];
                    let others = || others.chunks_exact(size).map(|other| &other[row * SEGMENT..][..count]);
                    (*top, *total) = simd::vectorize(
                        #[inline(always)]
                        || {
                            let top = others().fold(simd::max(x), |top, other| top.max(simd::max(other)));
                            if top == f32::NEG_INFINITY {
                                x.fill(0.0);
                                return (top, 0.0);
                            }
                            if self.hard {
                                others().for_each(|other| x.iter_mut().zip(other).for_each(|(x, y)| *x = x.max(*y)));
                            }
                            x.iter_mut().for_each(|x| *x = simd::exp2(*x - top));
                            for other in others().filter(|_| !self.hard) {
                                x.iter_mut().zip(other).for_each(|(x, y)| *x += simd::exp2(*y - top));
                            }
                            (top, simd::total(x))
                        },
                    );
                }
                sums.fill(0.0);
                for (first, keys) in segment.blocks(&segment.kept.v, true) {
                    let v = segment.kept.v.matrix(&keys, room);
                    let x = Matrix::rows(&x[first..], SEGMENT);
                    simd::tile_product((rows, width, keys.len()), 1.0, x, v, Write::Add, sums, width);
                }
            }
        );
    }

    /// Rescales the parts of all segments to one reference per row and divides.
    fn join(&self, head: usize, parts: &[f32], out: &Disjoint<f32>, [lse, references, inverses]: [&mut [f32]; 3]) {
        let shape = &self.shape;
        let (b, hk) = (head / shape.key_heads, head % shape.key_heads);
        let (rows, width) = (self.sharing(), shape.value_width);
        let segments = || parts.chunks_exact(rows * (width + 2));
        for (r, (h, i)) in self.row_queries(hk).enumerate() {
            let of = |part: &[f32]| (part[rows * width + r], part[rows * (width + 1) + r]);
            let top = segments().map(|part| of(part).0).fold(f32::NEG_INFINITY, f32::max);
            // SAFETY: this row belongs to this task.
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
        let (heads, all, kept) = (self.kept_heads(), self.all_segments(), self.kept());
        let segments = all.len();
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
                let segment = self.segment(head, &all[index], &kept);
                self.backward_short_segment(&all[index], &segment, given, dq, [&k_written, &v_written]);
            });
            let (parts, written) = (&*parts, Disjoint::new(&mut q));
            parallel::for_each(heads, |head| {
                let (b, hk) = (head / shape.key_heads, head % shape.key_heads);
                for (r, (h, i)) in self.row_queries(hk).enumerate() {
                    // SAFETY: this row belongs to this task.
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

    /// Gradients from the keys `all` of a task, of which those of `segment` are visible.
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
        let (keys, values) = (&segment.kept.k[0], &segment.kept.v);
        with_parts!(
            q = rows * width,
            dout = rows * value_width,
            p = rows * SEGMENT,
            w = rows * SEGMENT,
            block = BLOCK * width.max(value_width),
            {
                self.load_queries(segment, q);
                self.score_segment(segment, q, p, [&mut [], &mut [], &mut []]);
                for ((h, i), row) in self.row_queries(segment.hk).zip(dout.chunks_exact_mut(value_width)) {
                    row.copy_from_slice(shape.out_rows(segment.b, h).row(grad_out, i));
                }
                let (k, v) = (keys.matrix(&segment.keys, &mut []), values.matrix(&segment.keys, &mut []));
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
                let gradients = [(w, &*q, &keys.rows, k_written), (p, &*dout, &values.rows, v_written)];
                for (weights, operand, rows_written, written) in gradients {
                    let width = rows_written.width;
                    let operand = Matrix::rows(operand, width);
                    for start in segment.keys.clone().step_by(BLOCK) {
                        let count = BLOCK.min(segment.keys.end - start);
                        let weights = weights.transposed().skip_rows(start - segment.keys.start);
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
            }
        );
    }
}
