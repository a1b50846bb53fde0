//! Backward pass: weights are computed again, tile by tile, from each row's maximum and denominator. (From the log of
//! the denominator alone they would carry its rounding, which at scores of 200 is 1e-5 of every weight.)
//!
//! With `w_ijr = e_ijr t_ij`, `e_ijr` the normalised weight of a component and `t_ij = dO_i.v_j - dO_i.O_i`, and `g_r` the
//! gain of a component:
//!
//! - `dq_i = sum_jr g_r w_ijr (k_jr - q_i)`, `dk_jr = sum_i g_r w_ijr (q_i - k_jr)` (the subtracted vector for distances only),
//! - `dv_j = sum_ir e_ijr dO_i`, `dlog_prior_r = sum_ij w_ijr`, `ds_r = sum_ij w_ijr (log_prior_r - l_ijr) / s_r`.
//!
//! The terms in `q_i` and `k_jr` alone need only the sums of `w` over a row or a column.

use std::{f32::consts::LN_2, ops::Range};

use super::{Scores, blocks, rows};
use crate::{
    Rows, Saved,
    gemm::{self, Matrix, Write},
    parallel::{self, Disjoint},
    simd,
};

/// Gradients of a call; the optional ones where they exist and are wanted.
#[derive(Debug)]
pub(crate) struct Gradients {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub variance: Option<Vec<f32>>,
    pub prior: Option<Vec<f32>>,
    pub shift: Option<Vec<f32>>,
    pub bias: Option<Vec<f32>>,
}

/// Keys are cut into segments, each a task, where there are fewer key heads than this.
const TASKS: usize = 16;
/// Fewest keys of a segment.
const SEGMENT: usize = 512;

/// Buffers that tasks fill, each its own part.
struct Shared<'a> {
    /// `[segments]` copies of `q`'s gradient, to be added up.
    q: Disjoint<'a, f32>,
    k: Disjoint<'a, f32>,
    v: Disjoint<'a, f32>,
    bias: Option<Disjoint<'a, f32>>,
    /// `sum_i w_ijr`, `[B,H,M,S]`.
    columns: Disjoint<'a, f32>,
    /// `sum_ij w_ijr (log_prior_r - l_ijr)`, `[B,Hk,segments,M]`.
    spread: Disjoint<'a, f32>,
    /// This task's part of the gradient of the shifts, `[B,Hk,segments,M,D]`.
    shift: Disjoint<'a, f32>,
}

/// One thread's memory for one task.
struct Scratch<'s> {
    x: &'s mut [f32],
    p: &'s mut [f32],
    t: &'s mut [f32],
    /// Products of one row, kept where the gradient of the variances needs them after `w` stands in their place.
    row: &'s mut [f32],
    best: &'s mut [f32],
    owner: &'s mut [f32],
    q: &'s mut [f32],
    u: &'s mut [f32],
    c: &'s mut [f32],
    norms: &'s mut [f32],
    row_sums: &'s mut [f32],
    k: &'s mut [f32],
    v: &'s mut [f32],
    columns: &'s mut [f32],
    spread: &'s mut [f32],
    shift: &'s mut [f32],
}

/// One tile of one head.
struct Place<'a> {
    b: usize,
    h: usize,
    queries: &'a Range<usize>,
    keys: &'a Range<usize>,
    segment: &'a Range<usize>,
}

impl Scores<'_> {
    /// Gradients of `sum(out * grad_out)`, given what the forward pass returned.
    pub fn backward(&self, out: &[f32], saved: &Saved, grad_out: &[f32], variance: bool, bias: bool) -> Gradients {
        let shape = self.shape;
        let components = self.components();
        let (pairs, width) = (shape.batch * shape.key_heads, shape.head_width);
        let bias = bias && self.bias.is_some();
        let segments = TASKS.div_ceil(pairs).min(shape.keys.div_ceil(SEGMENT)).max(1);
        let segment = shape.keys.div_ceil(segments);
        let segments = shape.keys.div_ceil(segment);
        let deltas = self.deltas(out, grad_out);

        let mut q = vec![0.0; segments * self.q.len()];
        let mut k = vec![0.0; self.k.len()];
        let mut v = vec![0.0; self.v.len()];
        let mut bias_grad = bias.then(|| vec![0.0; shape.heads * shape.queries * shape.keys]);
        let columned = self.needs_columns();
        let mut columns = vec![0.0; if columned { shape.batch * shape.heads * components * shape.keys } else { 0 }];
        let mut spread = vec![0.0; if variance { pairs * segments * components } else { 0 }];
        let mut shift = vec![0.0; if self.shift.is_some() { pairs * segments * components * width } else { 0 }];
        let shared = Shared {
            q: Disjoint::new(&mut q),
            k: Disjoint::new(&mut k),
            v: Disjoint::new(&mut v),
            bias: bias_grad.as_mut().map(|b| Disjoint::new(b)),
            columns: Disjoint::new(&mut columns),
            spread: Disjoint::new(&mut spread),
            shift: Disjoint::new(&mut shift),
        };
        // The gradient of a bias sums over the batch, so its tasks hold all batch rows.
        let tasks = if bias { shape.key_heads * segments } else { pairs * segments };
        parallel::for_each(tasks, |task| {
            let (pair, index) = (task / segments, task % segments);
            let keys = index * segment..((index + 1) * segment).min(shape.keys);
            let batch = if bias { 0..shape.batch } else { pair / shape.key_heads..pair / shape.key_heads + 1 };
            for b in batch {
                let place = (b, pair % shape.key_heads, index, segments);
                self.backward_segment(place, &keys, ([&saved[1], &saved[2], &deltas], grad_out), variance, &shared);
            }
        });
        Gradients {
            q: add_up(q, self.q.len(), segments),
            k,
            v,
            variance: variance.then(|| self.variance_gradient(&spread)),
            prior: self.prior.map(|prior| self.prior_gradient(&columns, prior.len())),
            shift: self.shift.map(|_| self.shift_gradient(&shift, segments)),
            bias: bias_grad,
        }
    }

    /// Whether sums of `w` over columns and rows are needed at all.
    fn needs_columns(&self) -> bool {
        self.gaussian || self.prior.is_some() || self.shift.is_some()
    }

    /// `dO_i . O_i`, `[B,H,N]`.
    fn deltas(&self, out: &[f32], grad_out: &[f32]) -> Vec<f32> {
        let shape = self.shape;
        let mut deltas = vec![0.0; shape.batch * shape.heads * shape.queries];
        let written = Disjoint::new(&mut deltas);
        parallel::for_each(shape.batch * shape.heads, |head| {
            let rows = shape.out_rows(head / shape.heads, head % shape.heads);
            // SAFETY: this head's numbers belong to this task alone.
            let deltas = unsafe { written.range(head * shape.queries, shape.queries) };
            simd::vectorize(
                #[inline(always)]
                || {
                    for (i, delta) in deltas.iter_mut().enumerate() {
                        *delta = simd::dot(rows.row(out, i), rows.row(grad_out, i));
                    }
                },
            );
        });
        deltas
    }

    /// All gradients that one segment of keys of one key head contributes.
    fn backward_segment(
        &self,
        (b, hk, index, segments): (usize, usize, usize, usize),
        segment: &Range<usize>,
        (rows_saved, grad_out): ([&[f32]; 3], &[f32]),
        variance: bool,
        shared: &Shared,
    ) {
        let shape = &self.shape;
        let components = self.components();
        let copies = if self.shift.is_some() { 1 } else { components };
        let (width, value_width, group) = (shape.head_width, shape.value_width, shape.group());
        let (n, block) = (self.query_block(), self.key_block().min(segment.len()));
        let size = n * block;
        let columns = if self.needs_columns() { group * components * segment.len() } else { 0 };
        let sizes = [
            components * size,
            size,
            size,
            block,
            block,
            block,
            n * width,
            components * n,
            components * block,
            if variance { components * block } else { 0 },
            components * n,
            copies * segment.len() * width,
            segment.len() * value_width,
            columns,
            components,
            components * width,
        ];
        parallel::with_scratch(sizes.iter().sum(), |scratch| {
            let [x, p, t, row, best, owner, q, u, c, norms, row_sums, k, v, columns, spread, shift] =
                parallel::split(scratch, sizes);
            let mut s = Scratch { x, p, t, row, best, owner, q, u, c, norms, row_sums, k, v, columns, spread, shift };
            for sums in [&mut *s.k, s.v, s.columns, s.spread, s.shift] {
                sums.fill(0.0);
            }
            for h in hk * group..(hk + 1) * group {
                for queries in blocks(0..shape.queries, n) {
                    let seen = self.hull(b, queries.clone());
                    let seen = seen.start.max(segment.start)..seen.end.min(segment.end);
                    let first = (b * shape.heads + h) * shape.queries + queries.start;
                    let rows = first..first + queries.len();
                    s.q[..queries.len() * width].fill(0.0);
                    s.row_sums.fill(0.0);
                    self.query_terms(b, h, &queries, &mut s.u[..components * queries.len()]);
                    for keys in blocks(seen, block) {
                        let place = Place { b, h, queries: &queries, keys: &keys, segment };
                        let saved = rows_saved.map(|x| &x[rows.clone()]);
                        self.backward_tile(&place, (saved, grad_out), &mut s, shared);
                    }
                    self.finish_queries((b, h, index), &queries, &mut s, shared);
                }
            }
            self.finish_keys((b, hk), segment, &mut s, shared);
            let place = (b * shape.key_heads + hk) * segments + index;
            if variance {
                // SAFETY: these numbers belong to this batch row, key head and segment, hence to this task alone.
                unsafe { shared.spread.range(place * components, components) }.copy_from_slice(s.spread);
            }
            if self.shift.is_some() {
                let len = components * width;
                // SAFETY: as above.
                unsafe { shared.shift.range(place * len, len) }.copy_from_slice(s.shift);
            }
        });
    }

    fn backward_tile(&self, place: &Place, (saved, grad_out): ([&[f32]; 3], &[f32]), s: &mut Scratch, shared: &Shared) {
        let Place { b, h, queries, keys, segment } = *place;
        let shape = &self.shape;
        let (n, len) = (queries.len(), keys.len());
        let (width, value_width) = (shape.head_width, shape.value_width);
        let hk = h / shape.group();
        let components = self.components();
        let size = s.t.len();
        let local = keys.start - segment.start;

        self.tiles(b, h, queries, keys, s.x, size);
        let gradient = shape.out_rows(b, h).slice(queries.start, n);
        let value = shape.value_rows(b, hk).slice(keys.start, len);
        let dout = Matrix::rows(&grad_out[gradient.offset..], gradient.stride);
        let v = Matrix::rows(&self.v[value.offset..], value.stride);
        gemm::product((n, len, value_width), 1.0, dout, v.transposed(), Write::Over, s.t, len);

        self.key_terms(b, h, keys, &mut s.c[..components * len]);
        if !s.norms.is_empty() {
            for r in 0..components {
                let norms = &mut s.norms[r * len..(r + 1) * len];
                norms.fill(0.0);
                if self.gaussian {
                    self.for_each_norm((b, hk), r, keys, norms, |term, norm| *term = norm);
                }
            }
        }
        self.weigh_backward(place, saved, s);
        if let Some(bias) = &shared.bias {
            for i in 0..n {
                let start = (h * shape.queries + queries.start + i) * shape.keys + keys.start;
                // SAFETY: this head's rows at this segment's keys belong to this task alone.
                let row = unsafe { bias.range(start, len) };
                simd::add_scaled(row, 1.0, &s.x[i * len..(i + 1) * len]);
            }
        }

        let p = Matrix::rows(s.p, len).transposed();
        let dv = &mut s.v[local * value_width..];
        gemm::product((len, value_width, n), 1.0, p, dout, Write::Add, dv, value_width);
        let query = shape.query_rows(b, h).slice(queries.start, n);
        let q = Matrix::rows(&self.q[query.offset..], query.stride);
        let copies = if self.shift.is_some() { 1 } else { components };
        for r in 0..copies {
            // Shifted copies of a key share one tile, the sum of theirs times their gains.
            let gain = if self.shift.is_some() { 1.0 } else { self.gains[r] };
            let key = shape.key_rows(b, hk, r).slice(keys.start, len);
            let k = Matrix::rows(&self.k[key.offset..], key.stride);
            let w = Matrix::rows(&s.x[r * size..], len);
            gemm::product((n, width, len), gain, w, k, Write::Add, s.q, width);
            let dk = &mut s.k[(r * segment.len() + local) * width..];
            gemm::product((len, width, n), gain, w.transposed(), q, Write::Add, dk, width);
        }
    }

    /// Turns tiles of products into `w` (over `x`) and weights (`p`), and `dO.v` into `t`, adding up rows and columns.
    fn weigh_backward(&self, place: &Place, [tops, inverses, deltas]: [&[f32]; 3], s: &mut Scratch) {
        let Place { b, h, queries, keys, segment } = *place;
        let (n, len) = (queries.len(), keys.len());
        let components = self.components();
        let size = s.t.len();
        let group = h % self.shape.group();
        let local = keys.start - segment.start;
        let (columned, variance) = (!s.columns.is_empty(), !s.norms.is_empty());
        simd::vectorize(
            #[inline(always)]
            || {
                for i in 0..n {
                    let query = queries.start + i;
                    let seen = if inverses[i] == 0.0 { 0..0 } else { self.seen(query, keys) };
                    let (row, at) = (i * len..(i + 1) * len, i * len + seen.start..i * len + seen.end);
                    self.add_bias(h, query, keys, &mut s.x[row.clone()]);
                    s.p[row.start..at.start].fill(0.0);
                    s.p[at.end..row.end].fill(0.0);
                    for tile in s.x.chunks_exact_mut(size).take(components) {
                        tile[row.start..at.start].fill(0.0);
                        tile[at.end..row.end].fill(0.0);
                    }
                    let t = &mut s.t[at.clone()];
                    let p = &mut s.p[at.clone()];
                    if let Some(dropout) = self.dropout {
                        dropout.apply(self.row_number(b, h, query), keys.start + seen.start, t);
                    }
                    for t in t.iter_mut() {
                        *t -= deltas[i];
                    }
                    let (base, inverse) = (-tops[i], inverses[i]);
                    let terms = |r: usize| &s.c[r * len..][seen.clone()];
                    let (best, owner) = (&mut s.best[..t.len()], &mut s.owner[..t.len()]);
                    if self.hard {
                        for r in 0..components {
                            let x = &s.x[r * size..][at.clone()];
                            rows::claim(best, owner, x, terms(r), self.factor(r), s.u[r * n + i] + base, r);
                        }
                    }
                    for r in 0..components {
                        let x = &mut s.x[r * size..][at.clone()];
                        let u = s.u[r * n + i];
                        let products = &mut s.row[..x.len()];
                        if variance {
                            products.copy_from_slice(x);
                        }
                        if self.hard {
                            rows::weigh_owned(x, p, t, best, owner, r, inverse);
                        } else {
                            rows::weigh(x, p, t, terms(r), self.factor(r), (u + base, inverse), r == 0);
                        }
                        if columned {
                            let column = (group * components + r) * segment.len() + local;
                            s.row_sums[r * n + i] += rows::add_up(x, &mut s.columns[column..][seen.clone()]);
                        }
                        if variance {
                            s.spread[r] +=
                                rows::spread(x, products, &s.norms[r * len..][seen.clone()], self.factor(r), u);
                        }
                    }
                    if let Some(dropout) = self.dropout {
                        dropout.apply(self.row_number(b, h, query), keys.start + seen.start, p);
                    }
                    if self.shift.is_some() {
                        let (first, others) = s.x.split_at_mut(size);
                        let sum = &mut first[at.clone()];
                        sum.iter_mut().for_each(|w| *w *= self.gains[0]);
                        for r in 1..components {
                            simd::add_scaled(sum, self.gains[r], &others[(r - 1) * size..][at.clone()]);
                        }
                    }
                }
            },
        );
    }

    /// Adds to the gradient of `queries` what row sums alone decide, and writes it.
    fn finish_queries(
        &self,
        (b, h, index): (usize, usize, usize),
        queries: &Range<usize>,
        s: &mut Scratch,
        shared: &Shared,
    ) {
        let shape = &self.shape;
        let (n, width) = (queries.len(), shape.head_width);
        let query = shape.query_rows(b, h);
        for i in 0..n {
            let dq = &mut s.q[i * width..(i + 1) * width];
            let q = query.row(self.q, queries.start + i);
            for r in 0..self.components() {
                let weight = self.gains[r] * s.row_sums[r * n + i];
                if self.gaussian {
                    simd::add_scaled(dq, -weight, q);
                }
                if let Some(shift) = self.shift_of(h / shape.group(), r) {
                    simd::add_scaled(dq, weight, shift);
                    simd::add_scaled(&mut s.shift[r * width..(r + 1) * width], weight, q);
                }
            }
            let rows = Rows { offset: index * self.q.len() + query.offset, ..query };
            // SAFETY: this segment's copy of this row belongs to this task alone.
            unsafe { shared.q.row(&rows, queries.start + i) }.copy_from_slice(dq);
        }
    }

    /// Adds to the gradients of the segment's keys what column sums alone decide, and writes keys, values and columns.
    fn finish_keys(&self, (b, hk): (usize, usize), segment: &Range<usize>, s: &mut Scratch, shared: &Shared) {
        let shape = &self.shape;
        let (components, group, len) = (self.components(), shape.group(), segment.len());
        let (width, value_width) = (shape.head_width, shape.value_width);
        if self.gaussian {
            for r in 0..components {
                let copy = if self.shift.is_some() { 0 } else { r };
                let (rows, shift) = (self.key_rows(b, hk, r), self.shift_of(hk, r));
                for (local, j) in segment.clone().enumerate() {
                    let column = |g: usize| s.columns[(g * components + r) * len + local];
                    let weight = -self.gains[r] * (0..group).map(column).sum::<f32>();
                    let dk = &mut s.k[(copy * len + local) * width..][..width];
                    let key = rows.row(self.k, j);
                    simd::add_scaled(dk, weight, key);
                    if let Some(shift) = shift {
                        simd::add_scaled(dk, weight, shift);
                        let ds = &mut s.shift[r * width..(r + 1) * width];
                        simd::add_scaled(ds, weight, key);
                        simd::add_scaled(ds, weight, shift);
                    }
                }
            }
        }
        for copy in 0..s.k.len() / (len * width) {
            let rows = self.key_rows(b, hk, copy);
            for (local, j) in segment.clone().enumerate() {
                // SAFETY: this segment's keys of this batch row and head belong to this task alone.
                unsafe { shared.k.row(&rows, j) }.copy_from_slice(&s.k[(copy * len + local) * width..][..width]);
            }
        }
        let rows = shape.value_rows(b, hk);
        for (local, j) in segment.clone().enumerate() {
            // SAFETY: as above.
            unsafe { shared.v.row(&rows, j) }.copy_from_slice(&s.v[local * value_width..][..value_width]);
        }
        for (row, column) in s.columns.chunks_exact(len).enumerate() {
            let start = ((b * shape.heads + hk * group) * components + row) * shape.keys + segment.start;
            // SAFETY: as above, for the query heads that read this key head.
            unsafe { shared.columns.range(start, len) }.copy_from_slice(column);
        }
    }

    /// `ds_r`: the spread over all batch rows, heads and segments, in natural units, over `s_r`.
    fn variance_gradient(&self, spread: &[f32]) -> Vec<f32> {
        let components = self.components();
        let total = |r: usize| spread.iter().skip(r).step_by(components).sum::<f32>();
        (0..components).map(|r| total(r) * LN_2 * self.gains[r]).collect()
    }

    /// Column sums added up to the prior's shape: over the batch, and over positions where the prior is tied.
    fn prior_gradient(&self, columns: &[f32], len: usize) -> Vec<f32> {
        let positions = self.shape.keys;
        let rows = self.shape.heads * self.components();
        let tied = len == rows;
        let mut gradient = vec![0.0; len];
        for batch in columns.chunks_exact(rows * positions) {
            if tied {
                for (total, row) in gradient.iter_mut().zip(batch.chunks_exact(positions)) {
                    *total += simd::sum(positions, |j| row[j]);
                }
            } else {
                simd::add_scaled(&mut gradient, 1.0, batch);
            }
        }
        if tied {
            // A factor common to all components of a head cancels in the output, so their gradients sum to exactly 0:
            // what is left of the sum is rounding of terms much larger than it.
            for head in gradient.chunks_exact_mut(self.components()) {
                let mean = head.iter().sum::<f32>() / head.len() as f32;
                head.iter_mut().for_each(|gradient| *gradient -= mean);
            }
        }
        gradient
    }

    /// Parts of the tasks added up to `[Hk,M,D]`.
    fn shift_gradient(&self, parts: &[f32], segments: usize) -> Vec<f32> {
        let len = self.components() * self.shape.head_width;
        let mut gradient = vec![0.0; self.shape.key_heads * len];
        for (task, part) in parts.chunks_exact(len).enumerate() {
            let hk = task / segments % self.shape.key_heads;
            simd::add_scaled(&mut gradient[hk * len..(hk + 1) * len], 1.0, part);
        }
        gradient
    }
}

/// Sum of `copies` buffers of `len` floats, left to right, in the first.
fn add_up(mut buffers: Vec<f32>, len: usize, copies: usize) -> Vec<f32> {
    const CHUNK: usize = 1 << 14;
    let (first, others) = buffers.split_at_mut(len);
    if copies > 1 {
        let written = Disjoint::new(first);
        let others = &*others;
        parallel::for_each(len.div_ceil(CHUNK), |chunk| {
            let start = chunk * CHUNK;
            let size = CHUNK.min(len - start);
            // SAFETY: each chunk belongs to one task.
            let sums = unsafe { written.range(start, size) };
            simd::vectorize(
                #[inline(always)]
                || {
                    for copy in others.chunks_exact(len) {
                        simd::add_scaled(sums, 1.0, &copy[start..start + size]);
                    }
                },
            );
        });
    }
    buffers.truncate(len);
    buffers
}
