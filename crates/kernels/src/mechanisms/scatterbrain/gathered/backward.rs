//! Backward pass: weights are recomputed from each row's maximum and denominator.
//!
//! With `A_ij = W_ij / Z_i` and `t_ij = dO_i.v_j - dO_i.O_i`, the gradient of a weight is `t_ij / Z_i` wherever it
//! comes from, so the low-rank part over all keys has its own pass (with the final output and denominators), and the
//! support adds the gradients of its exponentials and subtracts those of its feature products.

use std::ops::Range;

use super::{
    Call,
    groups::{KEYS, QUERIES, Seen},
    lowrank, rows,
    tile::{Meeting, Tile, Weigh, gather},
};
use crate::{
    Rows,
    deltas::deltas,
    gemm::{self, Matrix, Write},
    memory::arbitrary,
    parallel::{self, Disjoint, Parts, with_parts},
    scatterbrain::{Grads, RowScales},
    simd,
};

/// With fewer key heads than this, and supports that share keys, queries are cut into parts, each with its own sums
/// over keys.
const TASKS: usize = 8;
/// Minimum queries per part.
const PART: usize = 2048;

/// Saved per-row data, `[B,H,N]` each, and the gradient of the output.
struct Saved<'a> {
    tops: &'a [f32],
    inverses: &'a [f32],
    deltas: &'a [f32],
    grad_out: &'a [f32],
}

/// Gradients that tasks fill.
struct Shared<'a> {
    q: Disjoint<'a, f32>,
    /// Copies of `[B,S,Hk,D]`, one per part.
    k: Disjoint<'a, f32>,
    v: Disjoint<'a, f32>,
}

/// Scratch of one thread.
struct Scratch<'s> {
    tile: Tile<'s>,
    p: &'s mut [f32],
    t: &'s mut [f32],
    dout: &'s mut [f32],
    dq: &'s mut [f32],
    dk: &'s mut [f32],
    dv: &'s mut [f32],
    slopes_q: &'s mut [f32],
    slopes_k: &'s mut [f32],
    product: &'s mut [f32],
    /// Gradients of the keys' features from promoted pairs.
    promoted: &'s mut [f32],
}

impl Call<'_> {
    /// Gradients of `sum(out * grad_out)`, given the results of the forward pass.
    pub fn backward(&self, out: &[f32], scales: &RowScales, grad_out: &[f32]) -> Grads {
        let shape = &self.problem.shape;
        let deltas = deltas(&self.problem.shape, out, grad_out);
        let (kept, redone) = self.separate(&scales.inverses);
        let mut grads = match self.problem.features {
            None => self.zeros(),
            Some(_) => {
                let inverses = if self.correction.is_some() { self.low_rank(&kept) } else { scales.inverses.clone() };
                self.problem.backward_band(None, out, &RowScales { inverses, ..scales.clone() }, grad_out)
            }
        };
        let saved = Saved { tops: &scales.tops, inverses: &kept, deltas: &deltas, grad_out };
        let weigh = if self.correction.is_some() { Weigh::Corrected } else { Weigh::Exact };
        let run = |meeting: &Meeting, part, shared: &Shared| self.backward_meeting(meeting, part, &saved, shared);
        if self.supports.keys_overlap() {
            let pairs = shape.batch * shape.key_heads;
            let parts = TASKS.div_ceil(pairs).min(shape.queries.div_ceil(PART)).max(1);
            let size = shape.queries.div_ceil(parts);
            let [k, v] = [grads.k.len(), grads.v.len()];
            parallel::with_shared(parts * (k + v), |copies| {
                parallel::clear(copies);
                let [k, v] = parallel::split(copies, [parts * k, parts * v]);
                let shared = Shared { q: Disjoint::new(&mut grads.q), k: Disjoint::new(k), v: Disjoint::new(v) };
                parallel::for_each(pairs * parts, |task| {
                    let (pair, part) = (task / parts, task % parts);
                    let (b, hk) = (pair / shape.key_heads, pair % shape.key_heads);
                    for h in hk * shape.group()..(hk + 1) * shape.group() {
                        for pass in 0..self.supports.passes() {
                            // A group belongs to the part of its first query, in every pass alike.
                            self.groups((b, h), pass, weigh, |meeting| {
                                if meeting.queries[0] as usize / size == part {
                                    run(meeting, part, &shared);
                                }
                            });
                        }
                    }
                });
                parallel::add_copies(&mut grads.k, k);
                parallel::add_copies(&mut grads.v, v);
            });
        } else {
            let shared = Shared::whole(&mut grads);
            // Query heads that share keys take turns; groups of one pass of one query head share neither queries nor keys.
            for turn in 0..shape.group() {
                let heads: Vec<_> = self.heads().filter(|(_, h)| h % shape.group() == turn).collect();
                for pass in 0..self.supports.passes() {
                    self.for_each_group(pass, &heads, weigh, |meeting| run(meeting, 0, &shared));
                }
            }
        }
        if let Some(redone) = redone {
            let inverses: Vec<f32> = scales.inverses.iter().map(|inverse| -inverse).collect();
            let saved = Saved { inverses: &inverses, ..saved };
            let shared = Shared::whole(&mut grads);
            parallel::for_each(shape.batch * shape.key_heads, |pair| {
                let (b, hk) = (pair / shape.key_heads, pair % shape.key_heads);
                for h in hk * shape.group()..(hk + 1) * shape.group() {
                    let apart = self.apart(b, &redone[b * shape.heads + h]);
                    for list in apart.iter().filter(|list| !list.is_empty()) {
                        self.backward_meeting(&self.whole(b, h, list), 0, &saved, &shared);
                    }
                }
            });
        }
        grads
    }

    fn zeros(&self) -> Grads {
        let Self { problem, .. } = self;
        let [q, k, v] = [problem.q, problem.k, problem.v].map(|input| {
            let mut zeros = arbitrary(input.len());
            parallel::clear(&mut zeros);
            zeros
        });
        Grads { q, k, v }
    }

    /// Inverses with 0 for the rows computed without subtraction, and those rows of each head, if any.
    fn separate(&self, inverses: &[f32]) -> (Vec<f32>, Option<Vec<Vec<u32>>>) {
        if self.correction.is_none() {
            // Nothing is subtracted; the sign matters only for the low-rank part.
            return (inverses.iter().map(|inverse| inverse.abs()).collect(), None);
        }
        let kept = inverses.iter().map(|&inverse| inverse.max(0.0)).collect();
        let any = inverses.iter().any(|&inverse| inverse < 0.0);
        let list = |row: &[f32]| (0..row.len()).filter(|&i| row[i] < 0.0).map(|i| i as u32).collect();
        (kept, any.then(|| inverses.chunks_exact(self.problem.shape.queries).map(list).collect()))
    }

    /// Inverses with 0 for the rows without a low-rank part.
    fn low_rank(&self, inverses: &[f32]) -> Vec<f32> {
        let mut inverses = inverses.to_vec();
        let queries = self.problem.shape.queries;
        for ((b, h), row) in self.heads().zip(inverses.chunks_exact_mut(queries)) {
            for (i, inverse) in row.iter_mut().enumerate() {
                if self.supports.covers(b, h, i as u32) {
                    *inverse = 0.0;
                }
            }
        }
        inverses
    }

    /// Adds the gradients that a group contributes, those of keys to copy `part`.
    fn backward_meeting(&self, meeting: &Meeting, part: usize, saved: &Saved, shared: &Shared) {
        let shape = &self.problem.shape;
        let (width, value_width) = (shape.head_width, shape.value_width);
        let (most, len) = self.tile_sizes();
        let of_tile = Parts::floats(|parts| self.tile(parts));
        let map = self.features_of(meeting);
        let m = map.map_or(0, |map| map.count());
        let hk = meeting.h / shape.group();
        let query_rows = shape.query_rows(meeting.b, meeting.h);
        let out_rows = shape.out_rows(meeting.b, meeting.h);
        let key_rows = copy(shape.key_rows(meeting.b, hk, 0), part, self.problem.k.len());
        let value_rows = copy(shape.value_rows(meeting.b, hk), part, self.problem.v.len());
        with_parts!(
            tile = of_tile,
            p = most * len,
            t = most * len,
            dout = most * value_width,
            dq = most * width,
            dk = len * width,
            dv = len * value_width,
            slopes_q = most * m,
            slopes_k = len * m,
            product = most * m,
            promoted = len * m,
            {
                let tile = self.tile(&mut Parts::new(tile));
                let mut s = Scratch { tile, p, t, dout, dq, dk, dv, slopes_q, slopes_k, product, promoted };
                for queries in meeting.queries.chunks(QUERIES) {
                    let n = queries.len();
                    self.load_queries(meeting, queries, &mut s.tile);
                    gather(saved.grad_out, &out_rows, queries, s.dout);
                    s.dq[..n * width].fill(0.0);
                    s.slopes_q[..n * m].fill(0.0);
                    for keys in meeting.keys.chunks(KEYS) {
                        let seen = Seen::new(queries, keys, meeting.radius, meeting.not_self, self.positions);
                        if seen.any {
                            self.backward_tile(meeting, (queries, keys), &seen, saved, &mut s);
                            // SAFETY: no other task that runs now has these keys, or this copy of them.
                            unsafe {
                                add_rows(&shared.k, &key_rows, keys, s.dk);
                                add_rows(&shared.v, &value_rows, keys, s.dv);
                            }
                        }
                    }
                    if let Some(map) = map {
                        map.pull(&mut s.slopes_q[..n * m], Matrix::rows(s.tile.q, width), n, s.dq, width);
                    }
                    // SAFETY: no other task that runs now has these queries.
                    unsafe { add_rows(&shared.q, &query_rows, queries, s.dq) };
                }
            }
        );
    }

    /// Fills the tile's `dk` and `dv`, adds to `dq` and to the gradients of the queries' features.
    fn backward_tile(
        &self,
        meeting: &Meeting,
        (queries, keys): (&[u32], &[u32]),
        seen: &Seen,
        saved: &Saved,
        s: &mut Scratch,
    ) {
        let shape = &self.problem.shape;
        let (n, len) = (queries.len(), keys.len());
        let (width, value_width) = (shape.head_width, shape.value_width);
        self.load_keys(meeting, queries, keys, &mut s.tile);
        let v = Matrix::rows(s.tile.v, value_width);
        let dout = Matrix::rows(s.dout, value_width);
        gemm::product((n, len, value_width), 1.0, dout, v.transposed(), Write::Over, s.t, len);
        self.weigh_backward(meeting, (queries, keys), seen, saved, s);
        let (w, p) = (Matrix::rows(s.tile.x, len), Matrix::rows(s.p, len));
        let dout = Matrix::rows(s.dout, value_width);
        let (q, k) = (Matrix::rows(s.tile.q, width), Matrix::rows(s.tile.k, width));
        let scale = self.problem.scale;
        gemm::product((len, value_width, n), 1.0, p.transposed(), dout, Write::Over, s.dv, value_width);
        gemm::product((len, width, n), scale, w.transposed(), q, Write::Over, s.dk, width);
        gemm::product((n, width, len), scale, w, k, Write::Add, s.dq, width);
        if let Some(map) = self.features_of(meeting) {
            let m = map.count();
            let phi = (&mut s.tile.phi_q[..n * m], &s.tile.phi_k[..len * m]);
            let slopes = (&mut s.slopes_q[..n * m], &mut s.slopes_k[..len * m]);
            lowrank::slopes((n, len, m), s.tile.g, phi, s.product, slopes);
            if let Weigh::Joint(_) = meeting.weigh {
                simd::add_scaled(&mut s.slopes_k[..len * m], 1.0, &s.promoted[..len * m]);
            }
            map.pull(&mut s.slopes_k[..len * m], k, len, s.dk, width);
        }
    }

    /// Converts products to gradients of scores (in `x`) and of feature products (in `g`) and weights (`p`).
    fn weigh_backward(
        &self,
        meeting: &Meeting,
        (queries, keys): (&[u32], &[u32]),
        seen: &Seen,
        saved: &Saved,
        s: &mut Scratch,
    ) {
        let (len, f) = (keys.len(), self.factor());
        let first = (meeting.b * self.problem.shape.heads + meeting.h) * self.problem.shape.queries;
        if let Weigh::Joint(_) = meeting.weigh {
            s.promoted.fill(0.0);
        }
        simd::vectorize(
            #[inline(always)]
            || {
                for (i, &query) in queries.iter().enumerate() {
                    let at = first + query as usize;
                    let (top, inverse, delta) = (saved.tops[at], saved.inverses[at], saved.deltas[at]);
                    let range = if inverse > 0.0 { seen.range(i) } else { 0..0 };
                    let row = i * len..(i + 1) * len;
                    for buffer in [&mut *s.tile.x, &mut *s.p, &mut *s.tile.g] {
                        // Without features there are no feature products.
                        if let Some(row) = buffer.get_mut(row.clone()) {
                            row[..range.start].fill(0.0);
                            row[range.end..].fill(0.0);
                        }
                    }
                    if range.is_empty() {
                        continue;
                    }
                    self.hide(meeting, i, query, len, seen, &mut s.tile);
                    if let Weigh::Joint(homes) = meeting.weigh {
                        self.mark(meeting, homes, (i, query), keys, seen, &mut s.tile);
                    }
                    let t = &mut s.t[row.clone()][range.clone()];
                    t.iter_mut().for_each(|t| *t -= delta);
                    let x = &mut s.tile.x[row.clone()][range.clone()];
                    let p = &mut s.p[row.clone()][range.clone()];
                    let features = &s.tile.s[range.clone()];
                    let g = s.tile.g.get_mut(row).map_or(&mut [][..], |g| &mut g[range.clone()]);
                    let exponents = (-top, s.tile.r[i] - top);
                    match meeting.weigh {
                        Weigh::Exact => rows::weigh(x, p, t, f, -top, inverse),
                        Weigh::Corrected => rows::weigh_corrected(x, g, p, t, features, f, exponents, inverse),
                        Weigh::Joint(_) => {
                            let marks = &s.tile.marks[range.clone()];
                            rows::weigh_joint(x, marks, g, p, t, features, f, exponents, inverse);
                            self.promote(meeting, i, range, len, s);
                        }
                    }
                }
            },
        );
    }
}

impl Call<'_> {
    /// Adds the gradients of the promoted pairs of row `i` and removes them from the tile.
    fn promote(&self, meeting: &Meeting, i: usize, range: Range<usize>, len: usize, s: &mut Scratch) {
        let Some(map) = self.features_of(meeting) else { return };
        let m = map.count();
        for j in range {
            if s.tile.marks[j] == rows::PROMOTED {
                let w = s.p[i * len + j] * s.t[i * len + j];
                let slopes = (&mut s.slopes_q[i * m..(i + 1) * m], &mut s.promoted[j * m..(j + 1) * m]);
                self.promoted_slopes(&map, (i, j, len), w, &mut s.tile, slopes);
                s.tile.x[i * len + j] = 0.0;
            }
        }
    }
}

impl<'a> Shared<'a> {
    fn whole(grads: &'a mut Grads) -> Self {
        let Grads { q, k, v } = grads;
        Self { q: Disjoint::new(q), k: Disjoint::new(k), v: Disjoint::new(v) }
    }
}

/// The same rows in copy `part` of a buffer of `len`.
fn copy(rows: Rows, part: usize, len: usize) -> Rows {
    Rows { offset: rows.offset + part * len, ..rows }
}

/// Adds consecutive rows to rows `list`.
///
/// # Safety
/// The caller must have exclusive access to these rows.
unsafe fn add_rows(to: &Disjoint<f32>, rows: &Rows, list: &[u32], from: &[f32]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (from, &i) in from.chunks_exact(rows.width).zip(list) {
                // SAFETY: guaranteed by the caller.
                simd::add_scaled(unsafe { to.row(rows, i as usize) }, 1.0, from);
            }
        },
    );
}
