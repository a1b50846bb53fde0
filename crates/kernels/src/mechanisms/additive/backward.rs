//! Backward pass: the forward phases in reverse, each again block sums combined per head.
//!
//! With `dg_i` the gradient of the average `g_i` that row `i` sees, a token `j` gets `w_j R_j`, where
//! `R_j = sum_i c_ij dg_i`, and its score `w_j sum_i c_ij (x_j - g_i).dg_i`. Without causality all rows see one average,
//! `c_ij` is 1 and the score gets `w_j (x_j - g).R`.
//!
//! In the causal form `c_ij` is the share of the prefix of `j` in the prefix of `i >= j`, the product of one minus the
//! weights of the tokens in between, so that `R_j = dg_j + (1 - w_{j+1}) R_{j+1}`, a scan from the end whose factors
//! never exceed 1. The score gets `w_j ((1 - w_j) e_j - T_j)` with `e_j = (x_j - g_{j-1}).R_j` and
//! `T_j = sum_i c_ij (g_i - g_j).dg_i`, by `T_{j-1} = (1 - w_j) (T_j + w_j e_j)` another such scan. Only differences of
//! averages enter: where one token has nearly all the weight, products with the averages themselves would cancel.

use std::{convert::Infallible, ops::Range};

use crate::{
    Rows,
    gemm::{Matrix, Write, product},
    parallel::{Disjoint, for_each, for_each_part, with_parts},
    simd::{MultiplyAdd, dot_difference, vectorize},
};

use super::plan::{Average, BLOCK, Plan, add_scaled, follow, multiply};

/// Columns of `u` per task in the gradient of `w_t`.
const PROJECTION_ROWS: usize = 64;

/// Gradient of one average on its way to the tokens.
struct Pull {
    /// `[B,N,H*D]`: `dg`, then `R`; empty without causality, where all rows see the same average.
    rows: Vec<f32>,
    /// `[B,blocks + 1,H*D]`: what each block sends to the rows before it, then what it receives; without causality the sum
    /// of `dg` over each block, then over all in slot 0.
    sums: Vec<f32>,
    /// `[B,H,blocks]`: `T` of the average before each block, from the rows of the block alone, then `T` of its last row
    /// from the rows after it; unused without causality.
    deviations: Vec<f32>,
}

impl Pull {
    fn new(plan: &Plan) -> Self {
        let shape = &plan.shape;
        let rows = if plan.causal { plan.q.len() } else { 0 };
        Self {
            rows: vec![0.0; rows],
            sums: vec![0.0; shape.batch * (plan.blocks() + 1) * plan.width()],
            deviations: vec![0.0; shape.batch * shape.heads * plan.blocks()],
        }
    }

    /// Its rows, sums and deviations, for tasks that each access only their own rows, blocks and head.
    fn share(&mut self) -> [Disjoint<'_, f32>; 3] {
        [&mut self.rows, &mut self.sums, &mut self.deviations].map(|data| Disjoint::new(data))
    }
}

/// What a part of a sequence passes to the parts before it, given what it gets itself from those after it: for each head
/// of each batch row `R` and `T` of the average before the part. Without causality the sum of `dg` over its rows and 0.
pub(super) type PassOn<'a> = &'a dyn Fn(Option<&[f32]>) -> Vec<f32>;

impl Plan<'_> {
    /// Gradients of all inputs in order; that of `w_t` is empty unless `project`.
    pub fn backward(&self, saved: &[Vec<f32>], grad_out: &[f32], project: bool) -> Vec<Vec<f32>> {
        let alone: Result<_, Infallible> = self.backward_through(saved, grad_out, project, |_| Ok(None));
        alone.unwrap_or_else(|never| match never {})
    }

    /// The same over a part of a sequence; `exchange` is asked twice for what the gradient of an average gets from outside,
    /// `[B,H,D + 1]`: from the parts after it, or without causality the sums over all parts.
    pub(super) fn backward_through<E>(
        &self,
        saved: &[Vec<f32>],
        grad_out: &[f32],
        project: bool,
        mut exchange: impl FnMut(PassOn) -> Result<Option<Vec<f32>>, E>,
    ) -> Result<Vec<Vec<f32>>, E> {
        let queries = Average { weights: &saved[0], state: &saved[1] };
        let keys = Average { weights: &saved[2], state: &saved[3] };
        let size = self.q.len();
        let (mut dq, mut dk) = (vec![0.0; size], vec![0.0; size]);
        let mut dv = vec![0.0; if self.shared { 0 } else { size }];
        let mut pull = Pull::new(self);

        let mut values = vec![0.0; if project { size } else { 0 }];
        self.unproject((queries, keys), grad_out, (&mut dq, &mut dv, &mut values), &mut pull);
        let dw_t = if project { self.projection_gradient(&values, grad_out) } else { Vec::new() };
        drop(values);

        let outside = exchange(&|after| self.passed_on(keys, &pull, after))?;
        self.settle_back(keys, &mut pull, outside.as_deref());
        let dw_k = self.gated_keys((queries, keys), &mut dk, &mut pull);
        let outside = exchange(&|after| self.passed_on(queries, &pull, after))?;
        self.settle_back(queries, &mut pull, outside.as_deref());
        let dw_q = self.queries(queries, &mut dq, &mut pull);

        Ok(if self.shared { vec![dq, dk, dw_q, dw_k, dw_t] } else { vec![dq, dk, dv, dw_q, dw_k, dw_t] })
    }

    /// See [`PassOn`].
    fn passed_on(&self, average: Average, pull: &Pull, after: Option<&[f32]>) -> Vec<f32> {
        let (heads, head_width) = (self.shape.heads, self.shape.head_width);
        let mut passed = after.map_or_else(|| vec![0.0; self.shape.batch * heads * (head_width + 1)], <[f32]>::to_vec);
        for_each_part(&mut passed, head_width + 1, |task, passed| {
            let (b, h) = (task / heads, task % heads);
            let (carry, deviation) = passed.split_at_mut(head_width);
            for block in (0..self.blocks()).rev() {
                let sum = &pull.sums[self.partial(b, block, h)];
                match self.causal {
                    true => {
                        let own = pull.deviations[self.deviation(b, block, h)];
                        self.cross(average, (b, block, h), (sum, own), (carry, &mut deviation[0]));
                    }
                    false => add_scaled(carry, 1.0, sum),
                }
            }
        });
        passed
    }

    /// Takes `R` and `T` of the average after a block to those of the average before it; `sum` and `own` are what the rows
    /// of the block add.
    fn cross(
        &self,
        average: Average,
        (b, block, h): (usize, usize, usize),
        (sum, own): (&[f32], f32),
        (carry, deviation): (&mut [f32], &mut f32),
    ) {
        let weights = &average.weights[self.scalars(b, h, &self.seeing(b, block))];
        let keep: f32 = weights.iter().map(|weight| 1.0 - weight).product();
        let [before, after] = [block, block + 1].map(|block| &average.state[self.slot(b, block, h)]);
        *deviation = own + keep * (*deviation + dot_difference(after, before, carry));
        carry.iter_mut().zip(sum).for_each(|(carry, sum)| *carry = sum + keep * *carry);
    }

    /// From the output to `v` and the average of gated keys, and the residual's contribution to `q`. Stores `u` in
    /// `values`, unless that is empty.
    fn unproject(
        &self,
        (queries, keys): (Average, Average),
        grad_out: &[f32],
        (dq, dv, values): (&mut [f32], &mut [f32], &mut [f32]),
        pull: &mut Pull,
    ) {
        let (heads, head_width, width) = (self.shape.heads, self.shape.head_width, self.width());
        let keep_values = !values.is_empty();
        let (dq, dv, values) = (Disjoint::new(dq), Disjoint::new(dv), Disjoint::new(values));
        let [pull_rows, sums, deviations] = pull.share();
        for_each(self.shape.batch * self.blocks(), |task| {
            let (b, block) = self.place(task);
            let rows = &self.seeing(b, block);
            let count = rows.len();
            if count == 0 {
                return;
            }
            let grad_out = &grad_out[(b * self.shape.queries + rows.start) * width..][..count * width];
            with_parts!(du = BLOCK * width, query = head_width, key = head_width, gated = head_width, {
                let w_t = Matrix::rows(self.w_t, width).transposed();
                product((count, width, width), 1.0, Matrix::rows(grad_out, width), w_t, Write::Over, du, width);
                vectorize(
                    #[inline(always)]
                    || {
                        for h in 0..heads {
                            let head = self.head(b, h, rows);
                            let inner = self.token_first(b, h, rows);
                            let at = self.scalars(b, h, rows);
                            let (query_weights, key_weights) =
                                (&queries.weights[at.clone()], &keys.weights[at.clone()]);
                            let before = &keys.state[self.slot(b, block, h)];
                            query.copy_from_slice(&queries.state[self.slot(b, block, h)]);
                            key.copy_from_slice(before);
                            let (partial, at) = (self.partial(b, block, h), self.deviation(b, block, h));
                            // SAFETY: those of this block and head belong to this task alone.
                            let (sum, deviation) =
                                unsafe { (sums.range(partial.start, head_width), deviations.range(at, 1)) };
                            sum.fill(0.0);
                            let (mut keep, mut own) = (1.0, 0.0);
                            for i in 0..count {
                                let channels = i * width + h * head_width..i * width + (h + 1) * head_width;
                                let (residual, du) = (&grad_out[channels.clone()], &du[channels]);
                                let v = head.row(self.v, i);
                                if self.causal {
                                    follow(query, query_weights[i], head.row(self.q, i));
                                    multiply(gated, query, head.row(self.k, i));
                                    follow(key, key_weights[i], gated);
                                    // SAFETY: this row of this head belongs to this task alone.
                                    let dg = unsafe { pull_rows.row(&inner, i) };
                                    multiply(dg, du, v);
                                    keep *= 1.0 - key_weights[i];
                                    own += keep * dot_difference(key, before, dg);
                                } else {
                                    for ((sum, &du), &v) in sum.iter_mut().zip(du).zip(v) {
                                        *sum = du.multiply_add(v, *sum);
                                    }
                                }
                                if keep_values {
                                    // SAFETY: as above.
                                    multiply(unsafe { values.row(&inner, i) }, key, v);
                                }
                                // SAFETY: as above.
                                let dq = unsafe { dq.row(&head, i) };
                                if self.shared {
                                    for (((dq, &residual), &du), &key) in dq.iter_mut().zip(residual).zip(du).zip(&*key)
                                    {
                                        *dq = du.multiply_add(key, residual);
                                    }
                                } else {
                                    dq.copy_from_slice(residual);
                                    // SAFETY: as above.
                                    multiply(unsafe { dv.row(&head, i) }, du, key);
                                }
                            }
                            if self.causal {
                                deviation[0] = own;
                                send_back(sum, &pull_rows, &inner, key_weights);
                            }
                        }
                    },
                );
            });
        });
    }

    /// Gradient of `w_t`: `u^T grad_out` over all rows of the batch.
    fn projection_gradient(&self, values: &[f32], grad_out: &[f32]) -> Vec<f32> {
        let width = self.width();
        let tokens = self.shape.batch * self.shape.queries;
        let mut gradient = vec![0.0; width * width];
        for_each_part(&mut gradient, PROJECTION_ROWS * width, |task, rows| {
            let count = rows.len() / width;
            let values = Matrix::rows(&values[task * PROJECTION_ROWS..], width).transposed();
            product((count, width, tokens), 1.0, values, Matrix::rows(grad_out, width), Write::Over, rows, width);
        });
        gradient
    }

    /// Propagates what the blocks of a pull send over the blocks; `outside` is what comes from the rows after this part of
    /// a sequence, without causality the sum over all rows.
    fn settle_back(&self, average: Average, pull: &mut Pull, outside: Option<&[f32]>) {
        let (heads, head_width) = (self.shape.heads, self.shape.head_width);
        let [_, sums, deviations] = pull.share();
        for_each(self.shape.batch * heads, |task| {
            let (b, h) = (task / heads, task % heads);
            if self.first(b) == self.shape.queries {
                return;
            }
            let outside = outside.map(|all| &all[task * (head_width + 1)..][..head_width + 1]);
            with_parts!(carry = head_width, received = head_width, {
                match outside {
                    Some(outside) => carry.copy_from_slice(&outside[..head_width]),
                    None => carry.fill(0.0),
                }
                // SAFETY: sums and deviations of this head belong to this task alone, which holds one at a time.
                let sum = |block| unsafe { sums.range(self.partial(b, block, h).start, head_width) };
                if !self.causal {
                    for block in 0..if outside.is_some() { 0 } else { self.blocks() } {
                        add_scaled(carry, 1.0, sum(block));
                    }
                    sum(0).copy_from_slice(carry);
                    return;
                }
                let mut total = outside.map_or(0.0, |outside| outside[head_width]);
                for block in (0..self.blocks()).rev() {
                    // SAFETY: as above.
                    let deviation = unsafe { &mut deviations.range(self.deviation(b, block, h), 1)[0] };
                    let (own, sum) = (std::mem::replace(deviation, total), sum(block));
                    received.copy_from_slice(carry);
                    self.cross(average, (b, block, h), (sum, own), (carry, &mut total));
                    sum.copy_from_slice(received);
                }
            });
        });
    }

    /// From the average of gated keys to `k` and the average of queries, whose pull replaces the one given.
    /// Returns the gradient of `w_k`.
    fn gated_keys(&self, (queries, keys): (Average, Average), dk: &mut [f32], pull: &mut Pull) -> Vec<f32> {
        let (heads, head_width, width) = (self.shape.heads, self.shape.head_width, self.width());
        // Without causality all blocks read the total while writing their own sums: these go to a separate buffer.
        let mut next_sums = vec![0.0; pull.sums.len()];
        let sums = std::mem::take(&mut pull.sums);
        let [pull_rows, _, deviations] = pull.share();
        let (dk, next) = (Disjoint::new(dk), Disjoint::new(&mut next_sums));
        let dw_k = self.sum_vectors(self.w_k.len(), |(b, block), rows, dw_k| {
            let count = rows.len();
            with_parts!(gated = BLOCK * width, dp = BLOCK * width, slopes = heads * BLOCK, state = head_width, {
                vectorize(
                    #[inline(always)]
                    || {
                        for h in 0..heads {
                            let start = self.in_block(h, count).offset;
                            self.gate(queries, (b, block, h), rows, state, &mut gated[start..]);
                        }
                    },
                );
                let strips = |h| self.in_block(h, count);
                let pull = (&sums[..], [&pull_rows, &deviations]);
                self.pull_block(keys, pull, (b, block), rows, (gated, &strips), self.w_k, (state, slopes, dp, dw_k));
                vectorize(
                    #[inline(always)]
                    || {
                        for h in 0..heads {
                            let (head, inner) = (self.head(b, h, rows), self.token_first(b, h, rows));
                            let at = self.scalars(b, h, rows);
                            let weights = &queries.weights[at.clone()];
                            let before = &queries.state[self.slot(b, block, h)];
                            let (partial, at) = (self.partial(b, block, h), self.deviation(b, block, h));
                            // SAFETY: those of this block and head belong to this task alone.
                            let (sum, deviation) =
                                unsafe { (next.range(partial.start, head_width), deviations.range(at, 1)) };
                            sum.fill(0.0);
                            state.copy_from_slice(before);
                            let (mut keep, mut own) = (1.0, 0.0);
                            for i in 0..count {
                                let (dp, k) = (self.in_block(h, count).row(dp, i), head.row(self.k, i));
                                if self.causal {
                                    follow(state, weights[i], head.row(self.q, i));
                                    // SAFETY: this row of this head belongs to this task alone.
                                    let dg = unsafe { pull_rows.row(&inner, i) };
                                    multiply(dg, dp, k);
                                    keep *= 1.0 - weights[i];
                                    own += keep * dot_difference(state, before, dg);
                                } else {
                                    for ((sum, &dp), &k) in sum.iter_mut().zip(dp).zip(k) {
                                        *sum = dp.multiply_add(k, *sum);
                                    }
                                }
                                // SAFETY: as above.
                                multiply(unsafe { dk.row(&head, i) }, dp, state);
                            }
                            if self.causal {
                                deviation[0] = own;
                                send_back(sum, &pull_rows, &inner, weights);
                            }
                        }
                    },
                );
            });
        });
        pull.sums = next_sums;
        dw_k
    }

    /// From the average of queries to `q`. Returns the gradient of `w_q`.
    fn queries(&self, queries: Average, dq: &mut [f32], pull: &mut Pull) -> Vec<f32> {
        let (heads, head_width, width) = (self.shape.heads, self.shape.head_width, self.width());
        let sums = std::mem::take(&mut pull.sums);
        let ([pull_rows, _, deviations], dq) = (pull.share(), Disjoint::new(dq));
        self.sum_vectors(self.w_q.len(), |(b, block), rows, dw_q| {
            with_parts!(own = BLOCK * width, slopes = heads * BLOCK, state = head_width, {
                let strips = |h| self.head(b, h, rows);
                let pull = (&sums[..], [&pull_rows, &deviations]);
                let buffers = (&mut *state, &mut *slopes, &mut *own, dw_q);
                self.pull_block(queries, pull, (b, block), rows, (self.q, &strips), self.w_q, buffers);
                vectorize(
                    #[inline(always)]
                    || {
                        for h in 0..heads {
                            let (head, strip) = (self.head(b, h, rows), self.in_block(h, rows.len()));
                            for i in 0..rows.len() {
                                // SAFETY: this row of this head belongs to this task alone.
                                add_scaled(unsafe { dq.row(&head, i) }, 1.0, strip.row(own, i));
                            }
                        }
                    },
                );
            });
        })
    }

    /// Gradient of one average with respect to a block of its tokens `x` (in scratch order `[H,BLOCK,D]`, into `dx`) and
    /// to its score vectors. `state` is scratch for `[D]`, `slopes` for `[H,BLOCK]`.
    #[allow(clippy::too_many_arguments)]
    fn pull_block(
        &self,
        average: Average,
        (sums, [pull_rows, deviations]): (&[f32], [&Disjoint<f32>; 2]),
        (b, block): (usize, usize),
        rows: &Range<usize>,
        (x, strips): (&[f32], &dyn Fn(usize) -> Rows),
        vectors: &[f32],
        (state, slopes, dx, dvectors): (&mut [f32], &mut [f32], &mut [f32], &mut [f32]),
    ) {
        let (heads, head_width, width) = (self.shape.heads, self.shape.head_width, self.width());
        let count = rows.len();
        for h in 0..heads {
            let (strip, own, inner) = (strips(h), self.in_block(h, count), self.token_first(b, h, rows));
            let weights = &average.weights[self.scalars(b, h, rows)];
            let sum = &sums[self.slot(b, block, h)];
            // SAFETY: those of this block and head belong to this task alone.
            let mut deviation = unsafe { deviations.range(self.deviation(b, block, h), 1)[0] };
            let slopes = &mut slopes[h * BLOCK..][..count];
            // SAFETY: this row of this head belongs to this task alone.
            let reached = |i| if self.causal { unsafe { &*pull_rows.row(&inner, i) } } else { sum };
            vectorize(
                #[inline(always)]
                || {
                    if self.causal {
                        receive(sum, pull_rows, &inner, weights);
                    }
                    // What padding holds may be anything and must not be read: there the weight is 0.
                    state.copy_from_slice(&average.state[self.slot(b, block, h)]);
                    for (i, (slope, &weight)) in slopes.iter_mut().zip(weights).enumerate() {
                        let x = strip.row(x, i);
                        *slope = if weight == 0.0 { 0.0 } else { dot_difference(x, state, reached(i)) };
                        if self.causal {
                            follow(state, weight, x);
                        }
                    }
                    for (slope, &weight) in slopes.iter_mut().zip(weights).rev() {
                        let apart = *slope;
                        if self.causal {
                            *slope = (1.0 - weight) * apart - deviation;
                            deviation = (1.0 - weight) * (deviation + weight * apart);
                        }
                        *slope *= self.scale * weight;
                    }
                    for (i, (&slope, &weight)) in slopes.iter().zip(weights).enumerate() {
                        let dx = own.row_mut(dx, i);
                        if weight == 0.0 {
                            dx.fill(0.0);
                            continue;
                        }
                        let (x, reached) = (strip.row(x, i), reached(i));
                        if self.released {
                            for (dx, &reached) in dx.iter_mut().zip(reached) {
                                *dx = weight * reached;
                            }
                        } else {
                            let vector = self.vector(vectors, h);
                            for ((dx, &reached), &vector) in dx.iter_mut().zip(reached).zip(vector) {
                                *dx = slope.multiply_add(vector, weight * reached);
                            }
                            add_scaled(&mut dvectors[h * head_width..][..head_width], slope, x);
                        }
                    }
                },
            );
        }
        if self.released {
            for h in 0..heads {
                let (strip, own) = (strips(h), self.in_block(h, count));
                let slopes = Matrix::rows(slopes, BLOCK);
                let vectors = Matrix::rows(&vectors[h * head_width..], width);
                let dx = &mut dx[own.offset..];
                product((count, head_width, heads), 1.0, slopes.transposed(), vectors, Write::Add, dx, own.stride);
                let x = Matrix::rows(&x[strip.offset..], strip.stride);
                let dvectors = &mut dvectors[h * head_width..];
                product((heads, head_width, count), 1.0, slopes, x, Write::Over, dvectors, width);
            }
        }
    }

    /// Runs `task` on every block that has rows, with a zeroed buffer of `len`; returns the sum of these buffers.
    fn sum_vectors(
        &self,
        len: usize,
        task: impl Fn((usize, usize), &Range<usize>, &mut [f32]) + Sync + Send,
    ) -> Vec<f32> {
        let tasks = self.shape.batch * self.blocks();
        let mut partial = vec![0.0; tasks * len];
        let shared = Disjoint::new(&mut partial);
        for_each(tasks, |index| {
            let (b, block) = self.place(index);
            let rows = self.seeing(b, block);
            if !rows.is_empty() {
                // SAFETY: this buffer belongs to this task alone.
                task((b, block), &rows, unsafe { shared.range(index * len, len) });
            }
        });
        let mut total = vec![0.0; len];
        for partial in partial.chunks_exact(len) {
            add_scaled(&mut total, 1.0, partial);
        }
        total
    }
}

/// What the rows of a block pass back to the row before it, added to `carry`: each row's own gradient and that of the
/// rows after it, weighted by the share of the earlier average in that of the row.
#[inline(always)]
fn send_back(carry: &mut [f32], gradients: &Disjoint<f32>, rows: &Rows, weights: &[f32]) {
    for (i, &weight) in weights.iter().enumerate().rev() {
        let keep = 1.0 - weight;
        // SAFETY: the caller's task owns these rows and holds none of them now.
        for (carry, &own) in carry.iter_mut().zip(unsafe { &*gradients.row(rows, i) }) {
            *carry = keep * (*carry + own);
        }
    }
}

/// Adds to each row of a block the gradient from the rows after it; `carry` is that from the blocks after it.
#[inline(always)]
fn receive(carry: &[f32], gradients: &Disjoint<f32>, rows: &Rows, weights: &[f32]) {
    let mut keep = 1.0;
    for (i, &weight) in weights.iter().enumerate().rev() {
        // SAFETY: the caller's task owns these rows and holds no other of them now.
        let own = unsafe { gradients.row(rows, i) };
        if i + 1 == weights.len() {
            add_scaled(own, keep, carry);
        } else {
            // SAFETY: as above, and another row.
            add_scaled(own, keep, unsafe { &*gradients.row(rows, i + 1) });
        }
        keep = 1.0 - weight;
    }
}
