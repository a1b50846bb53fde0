//! Backward pass: weights are recomputed, tile by tile, from each row's reference and denominator. (From the log of the
//! denominator alone they would carry its rounding error, which at scores of 200 is 1e-5 of every weight.)
//!
//! With `w_ijr = e_ijr t_ij`, `e_ijr` the normalised weight of a component and `t_ij = dO_i.v_j - dO_i.O_i`, and `g_r`
//! the scale of a component:
//!
//! - `dq_i = sum_jr g_r w_ijr (k_jr - q_i)`, `dk_jr = sum_i g_r w_ijr (q_i - k_jr)` (the subtracted vector for distances only),
//! - `dv_j = sum_ir e_ijr dO_i`, `dlog_prior_r = sum_ij w_ijr`, `ds_r = sum_ij w_ijr (log_prior_r - l_ijr) / s_r`.
//!
//! The terms in `q_i` and `k_jr` alone need only the sums of `w` over a row or a column. With equal scales a row's sum over all
//! keys is 0, but not over a part of them, which may be measured from a place of its own. Weights stay relative to their reference: their
//! normalisation is folded into `dO_i` and `dO_i.O_i`, once per query.

use std::ops::Range;

use super::{
    QUERY_BLOCK, Scores, lanes,
    strip::{STRIP, Strip, side_by_side},
    tile::{Keys, Tile, multiply},
};
use crate::{
    Rows, Saved,
    deltas::deltas,
    gemm::{Matrix, Write},
    memory::arbitrary,
    parallel::{self, Disjoint, Parts, runs, with_parts},
    simd::{self, LANES, MultiplyAdd},
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

/// With fewer key heads than this, keys are cut into segments, each a task.
const TASKS: usize = 16;
/// Minimum keys per segment.
const SEGMENT: usize = 512;

/// Shared input of all tasks.
struct Given<'a> {
    references: &'a [f32],
    inverses: &'a [f32],
    deltas: &'a [f32],
    out: &'a [f32],
    grad_out: &'a [f32],
    /// Key terms.
    terms: &'a [f32],
    /// Whether the gradient of the variances is wanted.
    variance: bool,
}

/// Buffers that tasks fill, each its own part.
struct Shared<'a> {
    /// Gradient of `q` from the first segment of keys.
    q: Disjoint<'a, f32>,
    /// The same from each other segment, to be summed.
    q_copies: Disjoint<'a, f32>,
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

/// The head and keys of a task.
struct Segment {
    b: usize,
    hk: usize,
    index: usize,
    count: usize,
    keys: Range<usize>,
}

/// Sums over all queries for the keys of a segment.
struct KeySums<'s> {
    k: &'s mut [f32],
    v: &'s mut [f32],
    /// `sum_i w_ijr` in [`LANES`] parts, `[group,M,keys,LANES]`; finally summed in the first of them.
    columns: &'s mut [f32],
    spread: &'s mut [f32],
    shift: &'s mut [f32],
}

/// One strip's operands and sums.
struct Operands<'s> {
    /// `[width][lanes]`, then `[queries][width]`.
    q: &'s mut [f32],
    q_rows: &'s mut [f32],
    /// Normalised, `[value_width][lanes]`, then `[queries][value_width]`.
    dout: &'s mut [f32],
    dout_rows: &'s mut [f32],
    /// Offset subtracted from the scores of each component, `[M][lanes]`: infinite in lanes that see nothing.
    offsets: &'s mut [f32],
    tops: &'s mut [f32],
    /// `dO_i.O_i`, normalised, `[lanes]`.
    deltas: &'s mut [f32],
    /// Gradient of `q`, `[width][lanes]`.
    dq: &'s mut [f32],
    /// `sum_j w_ijr`, `[M][lanes]`.
    row_sums: &'s mut [f32],
}

/// Scratch for one tile.
struct Room<'s> {
    /// Scores of each component, then `w`.
    x: &'s mut [f32],
    /// Gradients `t`, then weights.
    t: &'s mut [f32],
    /// A copy of the scores, if the gradient of the variances needs them after `w` has replaced them.
    kept: &'s mut [f32],
    /// Base-2 log priors, `[M][keys]`, for the same.
    priors: &'s mut [f32],
    spare: &'s mut [f32],
    /// Floats of `x` for one component.
    size: usize,
}

impl<'s> Operands<'s> {
    fn of(scores: &Scores, memory: &'s mut [f32]) -> Self {
        Self::lay_out(scores, &mut Parts::new(memory))
    }

    fn lay_out(scores: &Scores, parts: &mut Parts<'s>) -> Self {
        let (width, value_width) = (scores.shape.head_width * STRIP, scores.shape.value_width * STRIP);
        let components = scores.components() * STRIP;
        Self {
            q: parts.take(width),
            q_rows: parts.take(width),
            dout: parts.take(value_width),
            dout_rows: parts.take(value_width),
            offsets: parts.take(components),
            tops: parts.take(STRIP),
            deltas: parts.take(STRIP),
            dq: parts.take(width),
            row_sums: parts.take(components),
        }
    }
}

/// `dO_i.O_i`, one channel after the other, as a tile of the product with values is summed. A row that attends to one key alone has
/// that key's value as its output, so that the two cancel to the bit, and scores that change nothing have no gradient.
fn in_order(out: &[f32], grad_out: &[f32]) -> f32 {
    out.iter().zip(grad_out).fold(0.0, |sum, (x, y)| x.multiply_add(*y, sum))
}

impl Scores<'_> {
    /// Gradients of `sum(out * grad_out)`, given the results of the forward pass.
    pub fn backward(&self, out: &[f32], saved: &Saved, grad_out: &[f32], variance: bool, bias: bool) -> Gradients {
        if self.is_short() {
            return self.backward_short(out, saved, grad_out);
        }
        let shape = self.shape;
        let components = self.components();
        let (pairs, width) = (shape.batch * shape.key_heads, shape.head_width);
        let bias = bias && self.bias.is_some();
        let segments = TASKS.div_ceil(pairs).min(shape.keys.div_ceil(SEGMENT)).max(1);
        let segment = shape.keys.div_ceil(segments);
        let segments = shape.keys.div_ceil(segment);
        let (deltas, terms) = (deltas(&self.shape, out, grad_out), self.key_terms());
        let (references, inverses) = (&saved[1][..], &saved[2][..]);
        let given = Given { references, inverses, deltas: &deltas, out, grad_out, terms: &terms, variance };

        let mut q = arbitrary(self.q.len());
        let mut k = arbitrary(self.k.len());
        let mut v = arbitrary(self.v.len());
        let mut bias_grad = bias.then(|| vec![0.0; shape.heads * shape.queries * shape.keys]);
        let columned = self.needs_columns();
        let mut columns = vec![0.0; if columned { shape.batch * shape.heads * components * shape.keys } else { 0 }];
        let mut spread = vec![0.0; if variance { pairs * segments * components } else { 0 }];
        let mut shift = vec![0.0; if self.shift.is_some() { pairs * segments * components * width } else { 0 }];
        parallel::with_shared((segments - 1) * q.len(), |q_copies| {
            let shared = Shared {
                q: Disjoint::new(&mut q),
                q_copies: Disjoint::new(q_copies),
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
                    let hk = pair % shape.key_heads;
                    let segment = Segment { b, hk, index, count: segments, keys: keys.clone() };
                    self.backward_segment(&segment, &given, &shared);
                }
            });
            parallel::add_copies(&mut q, q_copies);
        });
        Gradients {
            q,
            k,
            v,
            variance: variance.then(|| self.variance_gradient(&spread)),
            prior: self.prior.map(|prior| self.prior_gradient(&columns, prior.len())),
            shift: self.shift.map(|_| self.shift_gradient(&shift, segments)),
            bias: bias_grad,
        }
    }

    /// Whether column sums of `w` are needed.
    fn needs_columns(&self) -> bool {
        self.gaussian || self.prior.is_some() || self.shift.is_some()
    }

    /// Whether row sums of `w` are needed.
    fn needs_row_sums(&self) -> bool {
        self.shift.is_some() || self.gaussian
    }

    /// All gradients from one segment of keys of one key head.
    fn backward_segment(&self, segment: &Segment, given: &Given, shared: &Shared) {
        let shape = &self.shape;
        let (components, copies, group) = (self.components(), self.copies(), shape.group());
        let (width, value_width) = (shape.head_width, shape.value_width);
        let (n, block) = (QUERY_BLOCK.min(shape.queries), self.key_block().min(segment.keys.len()));
        let size = block * STRIP;
        let strip_size = Parts::floats(|parts| Operands::lay_out(self, parts));
        let columns = if self.needs_columns() { group * components * segment.keys.len() * LANES } else { 0 };
        with_parts!(
            x = components * size,
            t = size,
            kept = if given.variance { components * size } else { 0 },
            priors = if given.variance { components * block } else { 0 },
            spare = self.spare() * size,
            strips = n.div_ceil(STRIP) * strip_size,
            k = copies * block * width,
            v = block * value_width,
            dk = copies * segment.keys.len() * width,
            dv = segment.keys.len() * value_width,
            columns = columns,
            spread = components,
            shift = components * width,
            {
                let mut room = Room { x, t, kept, priors, spare, size };
                let mut sums = KeySums { k: dk, v: dv, columns, spread, shift };
                for sums in [&mut *sums.k, sums.v, sums.columns, sums.spread, sums.shift] {
                    sums.fill(0.0);
                }
                let (b, hk) = (segment.b, segment.hk);
                for h in hk * group..(hk + 1) * group {
                    for queries in runs(0..shape.queries, n) {
                        for (strip, memory) in Strip::cut(queries.clone()).zip(strips.chunks_exact_mut(strip_size)) {
                            self.load((b, h), &strip, given, Operands::of(self, memory));
                        }
                        let seen = self.hull(b, queries.clone());
                        let seen = seen.start.max(segment.keys.start)..seen.end.min(segment.keys.end);
                        for keys in runs(seen, block) {
                            let values = shape.value_rows(b, hk).slice(keys.start, keys.len());
                            let v = side_by_side(self.v, &values, v);
                            let k = self.keys((b, h), &keys, given.terms, k);
                            for (strip, memory) in Strip::cut(queries.clone()).zip(strips.chunks_exact_mut(strip_size))
                            {
                                let seen = self.mask.visible_to(strip.queries.clone(), shape.queries, shape.keys);
                                let seen = seen.start.max(keys.start)..seen.end.min(keys.end);
                                if seen.is_empty() {
                                    continue;
                                }
                                let skipped = seen.start - keys.start;
                                let v = v.skip_rows(skipped);
                                let tile = Tile { b, h, strip: &strip, keys: seen };
                                let mut operands = Operands::of(self, memory);
                                let operand = (&k.skip(skipped), v, &mut operands);
                                self.backward_tile(&tile, segment, operand, &mut room, &mut sums);
                                if let Some(bias) = &shared.bias {
                                    self.add_bias_gradient(&tile, bias, &mut room);
                                }
                            }
                        }
                        for (strip, memory) in Strip::cut(queries.clone()).zip(strips.chunks_exact_mut(strip_size)) {
                            let operands = Operands::of(self, memory);
                            self.finish_strip(segment, h, &strip, operands, &mut sums, shared);
                        }
                    }
                }
                self.finish_keys(segment, &mut sums, shared);
                let place = (b * shape.key_heads + hk) * segment.count + segment.index;
                if given.variance {
                    // SAFETY: these elements belong to this batch row, key head and segment, hence to this task alone.
                    unsafe { shared.spread.range(place * components, components) }.copy_from_slice(sums.spread);
                }
                if self.shift.is_some() {
                    let len = components * width;
                    // SAFETY: as above.
                    unsafe { shared.shift.range(place * len, len) }.copy_from_slice(sums.shift);
                }
            }
        );
    }

    /// Fills a strip's operands and clears its sums.
    fn load(&self, (b, h): (usize, usize), strip: &Strip, given: &Given, s: Operands) {
        let shape = &self.shape;
        let (n, lanes, width) = (strip.queries.len(), strip.lanes, shape.value_width);
        let first = (b * shape.heads + h) * shape.queries + strip.queries.start;
        let [references, inverses] = [given.references, given.inverses].map(|all| {
            let mut some = [0.0; STRIP];
            some[..n].copy_from_slice(&all[first..first + n]);
            some
        });
        let query = shape.query_rows(b, h);
        strip.turn(self.q, &query, s.q);
        let gradient = shape.out_rows(b, h);
        for (l, i) in strip.queries.clone().enumerate() {
            s.q_rows[l * query.width..][..query.width].copy_from_slice(query.row(self.q, i));
            for (to, from) in s.dout_rows[l * width..][..width].iter_mut().zip(gradient.row(given.grad_out, i)) {
                *to = inverses[l] * from;
            }
            s.deltas[l] = match inverses[l] {
                1.0 => in_order(gradient.row(given.out, i), gradient.row(given.grad_out, i)),
                inverse => inverse * given.deltas[first + l],
            };
        }
        s.deltas[n..].fill(0.0);
        strip.turn_rows(Matrix::rows(s.dout_rows, width), width, s.dout);
        self.query_terms(b, h, strip, &mut s.offsets[..self.components() * lanes]);
        for offsets in s.offsets[..self.components() * lanes].chunks_exact_mut(lanes) {
            for (l, offset) in offsets.iter_mut().enumerate() {
                *offset = if inverses[l] == 0.0 { f32::INFINITY } else { references[l] - *offset };
            }
        }
        s.tops.copy_from_slice(&references);
        s.dq.fill(0.0);
        s.row_sums.fill(0.0);
    }

    fn backward_tile(
        &self,
        tile: &Tile,
        segment: &Segment,
        (k, v, s): (&Keys, Matrix, &mut Operands),
        room: &mut Room,
        sums: &mut KeySums,
    ) {
        let (count, lanes, n) = (tile.keys.len(), tile.strip.lanes, tile.strip.queries.len());
        let (width, value_width, size) = (self.shape.head_width, self.shape.value_width, room.size);
        let local = tile.keys.start - segment.keys.start;

        self.score(tile, s.q, *k, (room.x, size), room.spare);
        let dout = Matrix::rows(s.dout, lanes);
        simd::tile_product((count, lanes, value_width), 1.0, v, dout, Write::Over, room.t, lanes);
        self.hide(tile, room.t, 0.0);
        room.kept.copy_from_slice(&room.x[..room.kept.len()]);
        let factors = self.dropout_factors(tile, room.spare);
        if let Some(factors) = factors {
            multiply(&mut room.t[..tile.len()], factors);
        }
        self.weigh_backward(tile, s, (&mut *room.x, &mut *room.t, size));
        if let Some(factors) = factors {
            multiply(&mut room.t[..tile.len()], factors);
        }
        self.add_up_weights(tile, segment, s, room, sums);

        let p = Matrix::rows(room.t, lanes);
        let dout = Matrix::rows(s.dout_rows, value_width);
        let dv = &mut sums.v[local * value_width..];
        simd::tile_product((count, value_width, n), 1.0, p, dout, Write::Add, dv, value_width);
        let q = Matrix::rows(s.q_rows, width);
        for r in 0..self.copies() {
            // Shifted copies of a key share one tile, the sum of their `w` times their scales.
            let gain = if self.shift.is_some() { 1.0 } else { self.gains[r] };
            let w = Matrix::rows(&room.x[r * size..], lanes);
            let dk = &mut sums.k[(r * segment.keys.len() + local) * width..];
            simd::tile_product((count, width, n), gain, w, q, Write::Add, dk, width);
            simd::tile_product((width, lanes, count), gain, k.of(r).transposed(), w, Write::Add, s.dq, lanes);
        }
    }

    /// Converts scores to `w`, and gradients to weights.
    fn weigh_backward(&self, tile: &Tile, s: &Operands, (x, t, size): (&mut [f32], &mut [f32], usize)) {
        let (lanes, components) = (tile.strip.lanes, self.components());
        let t = &mut t[..tile.len()];
        simd::vectorize(
            #[inline(always)]
            || {
                if self.hard {
                    lanes::weigh_best(x, t, (size, lanes), components, s.offsets, s.deltas);
                } else {
                    lanes::weigh(x, t, (size, lanes), components, s.offsets, s.deltas);
                }
            },
        );
    }

    /// Sums `w` over rows and columns; leaves the sum of shifted copies times their scales in the first tile.
    fn add_up_weights(&self, tile: &Tile, segment: &Segment, s: &mut Operands, room: &mut Room, sums: &mut KeySums) {
        let (count, lanes, len) = (tile.keys.len(), tile.strip.lanes, tile.len());
        let components = self.components();
        let (variance, columned, rowed) = (!room.kept.is_empty(), self.needs_columns(), self.needs_row_sums());
        if variance {
            self.prior_terms(tile.h, &tile.keys, &mut room.priors[..components * count]);
        }
        let column = |r: usize| {
            (tile.h % self.shape.group() * components + r) * segment.keys.len() + tile.keys.start - segment.keys.start
        };
        simd::vectorize(
            #[inline(always)]
            || {
                for r in 0..components {
                    let w = &room.x[r * room.size..][..len];
                    if columned {
                        lanes::add_columns(w, lanes, &mut sums.columns[column(r) * LANES..][..count * LANES]);
                    }
                    if rowed {
                        lanes::add_rows(w, lanes, &mut s.row_sums[r * lanes..]);
                    }
                    if variance {
                        let scores = &room.kept[r * room.size..][..len];
                        let log_priors = &room.priors[r * count..][..count];
                        sums.spread[r] +=
                            lanes::spread(w, scores, lanes, log_priors, (s.tops, &s.offsets[r * lanes..]));
                    }
                }
                if self.shift.is_some() {
                    let (first, others) = room.x.split_at_mut(room.size);
                    let sum = &mut first[..len];
                    sum.iter_mut().for_each(|w| *w *= self.gains[0]);
                    for (w, gain) in others.chunks(room.size).zip(&self.gains[1..]) {
                        simd::add_scaled(sum, *gain, &w[..len]);
                    }
                }
            },
        );
    }

    fn add_bias_gradient(&self, tile: &Tile, bias: &Disjoint<f32>, room: &mut Room) {
        let (count, shape) = (tile.keys.len(), &self.shape);
        let half = room.spare.len() / 2;
        let turned = &mut room.spare[half..];
        tile.strip.turn_back(room.x, count, turned);
        for (i, row) in tile.strip.queries.clone().zip(turned.chunks_exact(count)) {
            let start = (tile.h * shape.queries + i) * shape.keys + tile.keys.start;
            // SAFETY: this head's rows at this segment's keys belong to this task alone.
            simd::add_scaled(unsafe { bias.range(start, count) }, 1.0, row);
        }
    }

    /// Adds the row-sum terms to the gradient of a strip's queries, and writes it.
    fn finish_strip(
        &self,
        segment: &Segment,
        h: usize,
        strip: &Strip,
        s: Operands,
        sums: &mut KeySums,
        shared: &Shared,
    ) {
        let shape = &self.shape;
        let (width, query) = (shape.head_width, shape.query_rows(segment.b, h));
        // The transposed operand is no longer needed.
        let turned = s.q;
        strip.turn_back(s.dq, width, turned);
        for (l, i) in strip.queries.clone().enumerate() {
            let dq = &mut turned[l * width..][..width];
            let q = &s.q_rows[l * width..][..width];
            if self.needs_row_sums() {
                for r in 0..self.components() {
                    let weight = self.gains[r] * s.row_sums[r * strip.lanes + l];
                    if self.gaussian {
                        simd::add_scaled(dq, -weight, q);
                    }
                    if let Some(shift) = self.shift_of(segment.hk, r) {
                        simd::add_scaled(dq, weight, shift);
                        simd::add_scaled(&mut sums.shift[r * width..(r + 1) * width], weight, q);
                    }
                }
            }
            // SAFETY: this segment's copy of this row belongs to this task alone.
            let row = unsafe {
                match segment.index {
                    0 => shared.q.row(&query, i),
                    later => {
                        let offset = (later - 1) * self.q.len() + query.offset;
                        shared.q_copies.row(&Rows { offset, ..query }, i)
                    }
                }
            };
            row.copy_from_slice(dq);
        }
    }

    /// Adds the column-sum terms to the gradients of the segment's keys, and writes keys, values and columns.
    fn finish_keys(&self, segment: &Segment, sums: &mut KeySums, shared: &Shared) {
        let shape = &self.shape;
        let (b, hk, keys) = (segment.b, segment.hk, &segment.keys);
        let (components, group, len) = (self.components(), shape.group(), keys.len());
        let (width, value_width) = (shape.head_width, shape.value_width);
        simd::vectorize(
            #[inline(always)]
            || lanes::settle(sums.columns),
        );
        if self.gaussian {
            for r in 0..components {
                let copy = if self.shift.is_some() { 0 } else { r };
                let (rows, shift) = (self.key_rows(b, hk, r), self.shift_of(hk, r));
                for (local, j) in keys.clone().enumerate() {
                    let column = |g: usize| sums.columns[((g * components + r) * len + local) * LANES];
                    let weight = -self.gains[r] * (0..group).map(column).sum::<f32>();
                    let dk = &mut sums.k[(copy * len + local) * width..][..width];
                    let key = rows.row(self.k, j);
                    simd::add_scaled(dk, weight, key);
                    if let Some(shift) = shift {
                        simd::add_scaled(dk, weight, shift);
                        let ds = &mut sums.shift[r * width..(r + 1) * width];
                        simd::add_scaled(ds, weight, key);
                        simd::add_scaled(ds, weight, shift);
                    }
                }
            }
        }
        for copy in 0..self.copies() {
            let rows = self.key_rows(b, hk, copy);
            for (local, j) in keys.clone().enumerate() {
                // SAFETY: this segment's keys of this batch row and head belong to this task alone.
                unsafe { shared.k.row(&rows, j) }.copy_from_slice(&sums.k[(copy * len + local) * width..][..width]);
            }
        }
        let rows = shape.value_rows(b, hk);
        for (local, j) in keys.clone().enumerate() {
            // SAFETY: as above.
            unsafe { shared.v.row(&rows, j) }.copy_from_slice(&sums.v[local * value_width..][..value_width]);
        }
        if !self.needs_columns() {
            return;
        }
        for (row, columns) in sums.columns.chunks_exact(len * LANES).enumerate() {
            let start = ((b * shape.heads + hk * group) * components + row) * shape.keys + keys.start;
            // SAFETY: as above, for the query heads that read this key head.
            let to = unsafe { shared.columns.range(start, len) };
            to.iter_mut().zip(columns.iter().step_by(LANES)).for_each(|(to, column)| *to = *column);
        }
    }
}
