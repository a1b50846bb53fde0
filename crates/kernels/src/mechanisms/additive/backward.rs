//! Backward pass: the forward phases in reverse, each again block sums combined per head.
//!
//! With `dg_i` the gradient of the average that row `i` sees, a token `j` gets `w_j R_j` and its score
//! `w_j (x_j.R_j - T_j)`, where `R_j = sum_i c_ij dg_i`, `T_j = sum_i c_ij g_i.dg_i` and `c_ij` is 1 without causality.
//! In the causal form `c_ij` is the share of the prefix of `j` in the prefix of `i >= j`, the product of one minus the
//! weights of the tokens in between: both sums are scans from the end, `R_j = dg_j + (1 - w_{j+1}) R_{j+1}`, whose
//! factors never exceed 1.

use std::{convert::Infallible, ops::Range};

use crate::{
    Rows,
    gemm::{Matrix, Write, product},
    parallel::{Disjoint, for_each, for_each_part, with_parts, with_scratch},
    simd::{MultiplyAdd, dot, vectorize},
};

use super::plan::{Average, BLOCK, Plan, add_scaled, follow, multiply};

/// Columns of `u` per task in the gradient of `w_t`.
const PROJECTION_ROWS: usize = 64;

/// Gradient of one average on its way to the tokens.
struct Pull {
    /// `[B,N,H*D]`: `dg`, then `R`; empty without causality, where all rows see the same average.
    rows: Vec<f32>,
    /// `[B,blocks,H*D]`: what each block sends to the rows before it, then what it receives; without causality the sum
    /// of `dg` over each block, then over all in slot 0.
    sums: Vec<f32>,
    /// `[B,H,N]`: `g.dg`, then `T`.
    totals: Vec<f32>,
}

impl Pull {
    fn new(plan: &Plan) -> Self {
        let shape = &plan.shape;
        let rows = if plan.causal { plan.q.len() } else { 0 };
        Self {
            rows: vec![0.0; rows],
            sums: vec![0.0; shape.batch * plan.blocks() * plan.width()],
            totals: vec![0.0; shape.batch * shape.heads * shape.queries],
        }
    }

    /// Its parts, the sums first, for tasks that each access only their own rows and head.
    fn share(&mut self) -> (Disjoint<'_, f32>, OwnRows<'_>) {
        let rows = OwnRows { rows: Disjoint::new(&mut self.rows), totals: Disjoint::new(&mut self.totals) };
        (Disjoint::new(&mut self.sums), rows)
    }
}

/// The per-row data of a pull.
struct OwnRows<'a> {
    rows: Disjoint<'a, f32>,
    totals: Disjoint<'a, f32>,
}

impl Plan<'_> {
    /// Gradients of all inputs in order; that of `w_t` is empty unless `project`.
    pub fn backward(&self, saved: &[Vec<f32>], grad_out: &[f32], project: bool) -> Vec<Vec<f32>> {
        let alone: Result<_, Infallible> = self.backward_through(saved, grad_out, project, |_| Ok(None));
        alone.unwrap_or_else(|never| match never {})
    }

    /// The same over a part of a sequence; `exchange` is asked twice for what the gradient of an average gets from outside.
    pub(super) fn backward_through<E>(
        &self,
        saved: &[Vec<f32>],
        grad_out: &[f32],
        project: bool,
        mut exchange: impl FnMut(&dyn Fn() -> Vec<f32>) -> Result<Option<Vec<f32>>, E>,
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

        let outside = exchange(&|| self.passed_on(keys, &pull))?;
        self.settle_back(keys, &mut pull, outside.as_deref());
        let dw_k = self.gated_keys((queries, keys), &mut dk, &mut pull);
        let outside = exchange(&|| self.passed_on(queries, &pull))?;
        self.settle_back(queries, &mut pull, outside.as_deref());
        let dw_q = self.queries(queries, &mut dq, &mut pull);

        Ok(if self.shared { vec![dq, dk, dw_q, dw_k, dw_t] } else { vec![dq, dk, dv, dw_q, dw_k, dw_t] })
    }

    /// What this part of a sequence has to say about the gradient of an average, for each head of each batch row a vector
    /// `[D]`, a scalar and a factor. Under a causal mask what it passes to the rows before it is the vector plus the factor
    /// times that from the rows after it, the scalar likewise; otherwise the vector is the sum over its rows.
    fn passed_on(&self, average: Average, pull: &Pull) -> Vec<f32> {
        let (heads, head_width) = (self.shape.heads, self.shape.head_width);
        let mut passed = vec![0.0; self.shape.batch * heads * (head_width + 2)];
        for_each_part(&mut passed, head_width + 2, |task, passed| {
            let (b, h) = (task / heads, task % heads);
            let (carry, rest) = passed.split_at_mut(head_width);
            rest[1] = 1.0;
            for block in (0..self.blocks()).rev() {
                let sum = &pull.sums[self.partial(b, block, h)];
                let rows = self.scalars(b, h, &self.seeing(b, block));
                let mut keep = 1.0;
                if self.causal {
                    for (own, weight) in pull.totals[rows.clone()].iter().zip(&average.weights[rows]).rev() {
                        rest[0] = (1.0 - weight) * (rest[0] + own);
                        keep *= 1.0 - weight;
                    }
                }
                carry.iter_mut().zip(sum).for_each(|(carry, sum)| *carry = sum + keep * *carry);
                rest[1] *= keep;
            }
        });
        passed
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
        let (sums, pull) = pull.share();
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
                            query.copy_from_slice(&queries.state[self.slot(b, block, h)]);
                            key.copy_from_slice(&keys.state[self.slot(b, block, h)]);
                            let partial = self.partial(b, block, h);
                            // SAFETY: sums and scalars of this block and head belong to this task alone.
                            let (sum, totals) =
                                unsafe { (sums.range(partial.start, head_width), pull.totals.range(at.start, count)) };
                            sum.fill(0.0);
                            for i in 0..count {
                                let channels = i * width + h * head_width..i * width + (h + 1) * head_width;
                                let (residual, du) = (&grad_out[channels.clone()], &du[channels]);
                                let v = head.row(self.v, i);
                                if self.causal {
                                    follow(query, query_weights[i], head.row(self.q, i));
                                    multiply(gated, query, head.row(self.k, i));
                                    follow(key, key_weights[i], gated);
                                    // SAFETY: this row of this head belongs to this task alone.
                                    let dg = unsafe { pull.rows.row(&inner, i) };
                                    multiply(dg, du, v);
                                    totals[i] = dot(key, dg);
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
                                send_back(sum, &pull.rows, &inner, key_weights);
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

    /// Propagates the block sums of a pull over the blocks, and its scalars over the rows; `outside` is what comes from the
    /// rows after this part of a sequence, without causality the sum over all rows.
    fn settle_back(&self, average: Average, pull: &mut Pull, outside: Option<&[f32]>) {
        let (heads, head_width) = (self.shape.heads, self.shape.head_width);
        let (sums, pull) = pull.share();
        for_each(self.shape.batch * heads, |task| {
            let (b, h) = (task / heads, task % heads);
            if self.first(b) == self.shape.queries {
                return;
            }
            let outside = outside.map(|all| &all[task * (head_width + 2)..][..head_width + 2]);
            with_scratch(head_width, |carry| {
                match outside {
                    Some(outside) => carry.copy_from_slice(&outside[..head_width]),
                    None => carry.fill(0.0),
                }
                // SAFETY: sums of this head belong to this task alone, which holds one at a time.
                let sum = |block| unsafe { sums.range(self.partial(b, block, h).start, head_width) };
                // SAFETY: so do its scalars.
                let totals = |rows: &Range<usize>| unsafe {
                    let at = self.scalars(b, h, rows);
                    pull.totals.range(at.start, at.len())
                };
                if !self.causal {
                    for block in 0..if outside.is_some() { 0 } else { self.blocks() } {
                        add_scaled(carry, 1.0, sum(block));
                    }
                    sum(0).copy_from_slice(carry);
                    totals(&(0..self.shape.queries)).fill(dot(&average.state[self.slot(b, 0, h)], carry));
                    return;
                }
                let mut total = outside.map_or(0.0, |outside| outside[head_width]);
                for block in (0..self.blocks()).rev() {
                    let rows = self.seeing(b, block);
                    let weights = &average.weights[self.scalars(b, h, &rows)];
                    let mut keep = 1.0;
                    for (own, &weight) in totals(&rows).iter_mut().zip(weights).rev() {
                        *own += total;
                        total = (1.0 - weight) * *own;
                        keep *= 1.0 - weight;
                    }
                    for (sum, carry) in sum(block).iter_mut().zip(carry.iter_mut()) {
                        let sent = *sum + keep * *carry;
                        *sum = *carry;
                        *carry = sent;
                    }
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
        let (_, own) = pull.share();
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
                let pull = (&sums[..], &own);
                self.pull_block(keys, pull, (b, block), rows, (gated, &strips), self.w_k, (slopes, dp, dw_k));
                vectorize(
                    #[inline(always)]
                    || {
                        for h in 0..heads {
                            let (head, inner) = (self.head(b, h, rows), self.token_first(b, h, rows));
                            let at = self.scalars(b, h, rows);
                            let weights = &queries.weights[at.clone()];
                            let partial = self.partial(b, block, h);
                            // SAFETY: sums and scalars of this block and head belong to this task alone.
                            let (sum, totals) =
                                unsafe { (next.range(partial.start, head_width), own.totals.range(at.start, count)) };
                            sum.fill(0.0);
                            state.copy_from_slice(&queries.state[self.slot(b, block, h)]);
                            for i in 0..count {
                                let (dp, k) = (self.in_block(h, count).row(dp, i), head.row(self.k, i));
                                if self.causal {
                                    follow(state, weights[i], head.row(self.q, i));
                                    // SAFETY: this row of this head belongs to this task alone.
                                    let dg = unsafe { own.rows.row(&inner, i) };
                                    multiply(dg, dp, k);
                                    totals[i] = dot(state, dg);
                                } else {
                                    for ((sum, &dp), &k) in sum.iter_mut().zip(dp).zip(k) {
                                        *sum = dp.multiply_add(k, *sum);
                                    }
                                }
                                // SAFETY: as above.
                                multiply(unsafe { dk.row(&head, i) }, dp, state);
                            }
                            if self.causal {
                                send_back(sum, &own.rows, &inner, weights);
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
        let (heads, width) = (self.shape.heads, self.width());
        let sums = std::mem::take(&mut pull.sums);
        let ((_, own_rows), dq) = (pull.share(), Disjoint::new(dq));
        self.sum_vectors(self.w_q.len(), |(b, block), rows, dw_q| {
            with_parts!(own = BLOCK * width, slopes = heads * BLOCK, {
                let strips = |h| self.head(b, h, rows);
                let pull = (&sums[..], &own_rows);
                self.pull_block(queries, pull, (b, block), rows, (self.q, &strips), self.w_q, (slopes, own, dw_q));
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
    /// to its score vectors. `slopes` is scratch for `[H,BLOCK]`.
    #[allow(clippy::too_many_arguments)]
    fn pull_block(
        &self,
        average: Average,
        (sums, pull): (&[f32], &OwnRows),
        (b, block): (usize, usize),
        rows: &Range<usize>,
        (x, strips): (&[f32], &dyn Fn(usize) -> Rows),
        vectors: &[f32],
        (slopes, dx, dvectors): (&mut [f32], &mut [f32], &mut [f32]),
    ) {
        let (heads, head_width, width) = (self.shape.heads, self.shape.head_width, self.width());
        let count = rows.len();
        for h in 0..heads {
            let (strip, own, inner) = (strips(h), self.in_block(h, count), self.token_first(b, h, rows));
            let at = self.scalars(b, h, rows);
            let weights = &average.weights[at.clone()];
            let slot = self.slot(b, block, h);
            let sum = &sums[slot];
            // SAFETY: scalars of this block and head belong to this task alone.
            let totals = unsafe { &*pull.totals.range(at.start, count) };
            let slopes = &mut slopes[h * BLOCK..][..count];
            vectorize(
                #[inline(always)]
                || {
                    if self.causal {
                        receive(sum, &pull.rows, &inner, weights);
                    }
                    for (i, &weight) in weights.iter().enumerate() {
                        let dx = own.row_mut(dx, i);
                        if weight == 0.0 {
                            slopes[i] = 0.0;
                            dx.fill(0.0);
                            continue;
                        }
                        // SAFETY: this row of this head belongs to this task alone.
                        let reached = if self.causal { unsafe { &*pull.rows.row(&inner, i) } } else { sum };
                        let x = strip.row(x, i);
                        let slope = self.scale * weight * (dot(x, reached) - totals[i]);
                        slopes[i] = slope;
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
