//! Forward pass: two rounds of block sums, each combined per head, then values, projection and residual in one pass.

use std::{f32::consts::LN_2, ops::Range};

use crate::{
    Layout, Rows, Saved, ScaledSums,
    gemm::{Matrix, Write, product},
    parallel::{Disjoint, for_each, with_parts, with_scratch},
    scaled::HEAD,
    simd::{MultiplyAdd, dot, exp, max, sum, vectorize},
};

use super::plan::{Average, BLOCK, Plan, add_scaled, follow, multiply};

/// Means "no maximum yet": below every score, but finite, so that differences with it are never NaN.
pub(super) const LOWEST: f32 = f32::MIN;

/// Sums over blocks of tokens on their way to averages.
pub(super) struct Blocks {
    /// Scores, `[B,H,N]`.
    pub weights: Vec<f32>,
    /// Sums, `[B,blocks + 1,H*D]`, the last slot of each batch row 0.
    pub state: Vec<f32>,
    /// Largest scores, `[B,H,blocks]`.
    pub tops: Vec<f32>,
}

/// An average: see [`Average`].
pub(super) struct Settled {
    pub weights: Vec<f32>,
    pub state: Vec<f32>,
}

impl Settled {
    pub fn view(&self) -> Average<'_> {
        Average { weights: &self.weights, state: &self.state }
    }
}

impl Plan<'_> {
    /// Fills `out`; saves weights and states of the average of queries, then of gated keys.
    pub fn forward(&self, out: &mut [f32]) -> Saved {
        let queries = self.settle(self.sum_blocks(None), None);
        let keys = self.settle(self.sum_blocks(Some(queries.view())), None);
        self.project(queries.view(), keys.view(), out);
        vec![queries.weights, queries.state, keys.weights, keys.state].into()
    }

    /// Sums over the blocks of the queries, or, given their average, of the gated keys.
    pub(super) fn sum_blocks(&self, gate: Option<Average>) -> Blocks {
        let shape = &self.shape;
        let (heads, width, blocks) = (shape.heads, self.width(), self.blocks());
        let mut weights = vec![0.0; shape.batch * heads * shape.queries];
        let mut state = vec![0.0; shape.batch * (blocks + 1) * width];
        let mut tops = vec![LOWEST; shape.batch * heads * blocks];
        {
            let (weights, state, tops) =
                (Disjoint::new(&mut weights), Disjoint::new(&mut state), Disjoint::new(&mut tops));
            for_each(shape.batch * blocks, |task| {
                let (b, block) = self.place(task);
                self.sum_block(gate, b, block, |h, rows| {
                    // SAFETY: these belong to this batch row, block and head, which no other task has and which this
                    // one accesses one head at a time.
                    unsafe {
                        let top = tops.range((b * heads + h) * blocks + block, 1);
                        let at = self.partial(b, block, h);
                        let scores = self.scalars(b, h, rows);
                        (weights.range(scores.start, scores.len()), state.range(at.start, at.len()), &mut top[0])
                    }
                });
            });
        }
        Blocks { weights, state, tops }
    }

    /// The averages of these blocks and of the tokens outside of this part of the sequence: under a causal mask those
    /// before it, otherwise all, this part's included.
    pub(super) fn settle(&self, sums: Blocks, outside: Option<&ScaledSums>) -> Settled {
        let (shape, heads, blocks) = (&self.shape, self.shape.heads, self.blocks());
        let Blocks { mut weights, mut state, mut tops } = sums;
        let shared = (Disjoint::new(&mut weights), Disjoint::new(&mut state), Disjoint::new(&mut tops));
        let (scores, state_sums, all_tops) = &shared;
        for_each(shape.batch * heads, |task| {
            let (b, h) = (task / heads, task % heads);
            // SAFETY: the scores and maxima of this head belong to this task alone.
            let (scores, tops) = unsafe {
                let rows = self.scalars(b, h, &(0..shape.queries));
                (scores.range(rows.start, rows.len()), all_tops.range(task * blocks, blocks))
            };
            let outside = outside.map(|sums| &sums.as_slice()[task * sums.row_len()..][..sums.row_len()]);
            with_scratch(BLOCK + shape.head_width, |scratch| {
                vectorize(
                    #[inline(always)]
                    || match self.causal {
                        true => self.settle_prefixes((b, h), outside, scores, tops, state_sums, scratch),
                        false => self.settle_total((b, h), outside, scores, tops, state_sums, scratch),
                    },
                );
            });
        });
        Settled { weights, state }
    }

    /// Scores of a block's rows, their maximum, and the sum of the rows weighted by `e^(score - maximum)`; written for
    /// each head to the buffers of `target`: scores, sum, maximum.
    fn sum_block<'t>(
        &self,
        gate: Option<Average>,
        b: usize,
        block: usize,
        target: impl Fn(usize, &Range<usize>) -> (&'t mut [f32], &'t mut [f32], &'t mut f32),
    ) {
        let (heads, head_width, width) = (self.shape.heads, self.shape.head_width, self.width());
        let rows = &self.seeing(b, block);
        let count = rows.len();
        if count == 0 {
            return;
        }
        let real = self.mask.valid_row(b).map(|real| &real[rows.clone()]);
        let vectors = if gate.is_some() { self.w_k } else { self.w_q };
        // Scores over all channels need the gated keys of all heads at once; otherwise those of one head, still in
        // cache, suffice.
        let kept = if self.released { heads } else { 1 };
        let gated = if gate.is_some() { kept * BLOCK * head_width } else { 0 };
        with_parts!(gated = gated, state = head_width, powers = BLOCK, all_scores = heads * BLOCK, {
            let powers = &mut powers[..count];
            let strip = |h: usize| -> Rows {
                match gate {
                    Some(_) => self.in_block(h % kept, count),
                    None => self.head(b, h, rows),
                }
            };
            if self.released {
                for h in 0..heads {
                    if let Some(average) = gate {
                        let start = strip(h).offset;
                        vectorize(
                            #[inline(always)]
                            || self.gate(average, (b, block, h), rows, state, &mut gated[start..]),
                        );
                    }
                    let (strip, data) = (strip(h), if gate.is_some() { &*gated } else { self.q });
                    let rows = Matrix::rows(&data[strip.offset..], strip.stride);
                    let write = if h == 0 { Write::Over } else { Write::Add };
                    let vectors = Matrix::rows(&vectors[h * head_width..], width);
                    product(
                        (heads, count, head_width),
                        self.scale,
                        vectors,
                        rows.transposed(),
                        write,
                        all_scores,
                        BLOCK,
                    );
                }
            }
            for h in 0..heads {
                let (scores, total, top) = target(h, rows);
                vectorize(
                    #[inline(always)]
                    || {
                        if let (Some(average), false) = (gate, self.released) {
                            self.gate(average, (b, block, h), rows, state, gated);
                        }
                        let (strip, data) = (strip(h), if gate.is_some() { &*gated } else { self.q });
                        if self.released {
                            scores.copy_from_slice(&all_scores[h * BLOCK..][..count]);
                        } else {
                            let vector = self.vector(vectors, h);
                            for (i, score) in scores.iter_mut().enumerate() {
                                *score = self.scale * dot(strip.row(data, i), vector);
                            }
                        }
                        if let Some(real) = real {
                            for (score, &real) in scores.iter_mut().zip(real) {
                                *score = if real == 0 { f32::NEG_INFINITY } else { *score };
                            }
                        }
                        *top = max(scores).max(LOWEST);
                        for (power, &score) in powers.iter_mut().zip(scores.iter()) {
                            *power = exp(score - *top);
                        }
                        total.fill(0.0);
                        add_rows(total, powers, &strip, data);
                    },
                );
            }
        });
    }

    /// Converts a head's scores to weights, and its block sums to one average in slot 0.
    #[inline(always)]
    fn settle_total(
        &self,
        (b, h): (usize, usize),
        outside: Option<&[f32]>,
        scores: &mut [f32],
        tops: &[f32],
        sums: &Disjoint<f32>,
        total: &mut [f32],
    ) {
        if self.first(b) == scores.len() {
            return;
        }
        let top = outside.map_or_else(|| max(tops), |outside| outside[0] * LN_2);
        for score in scores.iter_mut() {
            *score = exp(*score - top);
        }
        let inverse = 1.0 / outside.map_or_else(|| sum(scores.len(), |i| scores[i]), |outside| outside[1]);
        for weight in scores.iter_mut() {
            *weight *= inverse;
        }
        let total = &mut total[..self.shape.head_width];
        if let Some(outside) = outside {
            let at = self.partial(b, 0, h);
            // SAFETY: sums of this head belong to this task alone, which holds one at a time.
            let slot = unsafe { sums.range(at.start, at.len()) };
            slot.iter_mut().zip(&outside[HEAD..]).for_each(|(slot, sum)| *slot = sum * inverse);
            return;
        }
        total.fill(0.0);
        for (block, &block_top) in tops.iter().enumerate() {
            let at = self.partial(b, block, h);
            // SAFETY: sums of this head belong to this task alone, which holds one at a time.
            add_scaled(total, exp(block_top - top) * inverse, unsafe { sums.range(at.start, at.len()) });
        }
        let at = self.partial(b, 0, h);
        // SAFETY: as above.
        unsafe { sums.range(at.start, at.len()) }.copy_from_slice(total);
    }

    /// Converts a head's scores to weights within the prefix that ends at each, and its block sums to the averages that
    /// enter each block.
    #[inline(always)]
    fn settle_prefixes(
        &self,
        (b, h): (usize, usize),
        before: Option<&[f32]>,
        scores: &mut [f32],
        tops: &[f32],
        sums: &Disjoint<f32>,
        scratch: &mut [f32],
    ) {
        let (decay_buffer, running) = scratch.split_at_mut(BLOCK);
        let running = &mut running[..self.shape.head_width];
        running.fill(0.0);
        // The running denominator is `denominator * e^top`.
        let (mut top, mut denominator) = (LOWEST, 0.0f64);
        if let Some(before) = before.filter(|before| before[1] > 0.0) {
            (top, denominator) = (before[0] * LN_2, f64::from(before[1]));
            running.iter_mut().zip(&before[HEAD..]).for_each(|(running, sum)| *running = sum / before[1]);
        }
        for (block, &block_top) in tops.iter().enumerate() {
            let scores = &mut scores[self.seeing(b, block)];
            let (old_top, old_denominator) = (top, denominator);
            let decays = &mut decay_buffer[..scores.len()];
            for (score, decay) in scores.iter_mut().zip(decays.iter_mut()) {
                let new_top = if *score > top { *score } else { top };
                *decay = top - new_top;
                *score -= new_top;
                top = new_top;
            }
            for (power, decay) in scores.iter_mut().zip(decays.iter_mut()) {
                *power = exp(*power);
                *decay = exp(*decay);
            }
            for (weight, &decay) in scores.iter_mut().zip(decays.iter()) {
                let power = f64::from(*weight);
                denominator = denominator * f64::from(decay) + power;
                *weight = if denominator == 0.0 { 0.0 } else { (power / denominator) as f32 };
            }
            // Replaces the slot's sum with the average that enters its block.
            let inverse = if denominator == 0.0 { 0.0 } else { 1.0 / denominator };
            let keep = (old_denominator * f64::from(exp(old_top - top)) * inverse) as f32;
            let add = (f64::from(exp(block_top - top)) * inverse) as f32;
            let at = self.partial(b, block, h);
            // SAFETY: sums of this head belong to this task alone, which holds one at a time.
            let slot = unsafe { sums.range(at.start, at.len()) };
            for (slot, running) in slot.iter_mut().zip(running.iter_mut()) {
                let entering = *running;
                *running = keep * entering + add * *slot;
                *slot = entering;
            }
        }
        let at = self.partial(b, tops.len(), h);
        // SAFETY: as above.
        unsafe { sums.range(at.start, at.len()) }.copy_from_slice(running);
    }

    /// `u_i = g_k * v_i`, then `out = u W_t + q`, one block of rows per task.
    pub(super) fn project(&self, queries: Average, keys: Average, out: &mut [f32]) {
        let (heads, head_width, width) = (self.shape.heads, self.shape.head_width, self.width());
        let out = Disjoint::new(out);
        for_each(self.shape.batch * self.blocks(), |task| {
            let (b, block) = self.place(task);
            let (all, rows) = (self.block(block), &self.seeing(b, block));
            let start = b * self.shape.queries;
            // SAFETY: the rows of this block belong to this task alone.
            let out = unsafe { out.range((start + all.start) * width, all.len() * width) };
            let (blind, out) = out.split_at_mut((rows.start - all.start) * width);
            blind.fill(0.0);
            if rows.is_empty() {
                return;
            }
            with_parts!(values = BLOCK * width, states = 3 * head_width, {
                vectorize(
                    #[inline(always)]
                    || {
                        for h in 0..heads {
                            let values = &mut values[h * head_width..];
                            self.values((queries, keys), (b, block, h), rows, states, values);
                        }
                        if self.shape.layout == Layout::TokenFirst {
                            out.copy_from_slice(&self.q[(start + rows.start) * width..][..rows.len() * width]);
                        } else {
                            for h in 0..heads {
                                let head = self.head(b, h, rows);
                                for (i, out) in out.chunks_exact_mut(width).enumerate() {
                                    out[h * head_width..][..head_width].copy_from_slice(head.row(self.q, i));
                                }
                            }
                        }
                    },
                );
                let (values, w_t) = (Matrix::rows(values, width), Matrix::rows(self.w_t, width));
                product((rows.len(), width, width), 1.0, values, w_t, Write::Add, out, width);
            });
        });
    }

    /// One head of `u`, in rows of all channels. `states` is scratch for `3 D` floats.
    #[inline(always)]
    fn values(
        &self,
        (queries, keys): (Average, Average),
        (b, block, h): (usize, usize, usize),
        rows: &Range<usize>,
        states: &mut [f32],
        values: &mut [f32],
    ) {
        let head_width = self.shape.head_width;
        let (query, rest) = states.split_at_mut(head_width);
        let (key, gated) = rest.split_at_mut(head_width);
        query.copy_from_slice(&queries.state[self.slot(b, block, h)]);
        key.copy_from_slice(&keys.state[self.slot(b, block, h)]);
        let head = self.head(b, h, rows);
        let scalars = self.scalars(b, h, rows);
        let (query_weights, key_weights) = (&queries.weights[scalars.clone()], &keys.weights[scalars]);
        for (i, values) in values.chunks_mut(self.width()).take(rows.len()).enumerate() {
            if self.causal {
                follow(query, query_weights[i], head.row(self.q, i));
                multiply(gated, query, head.row(self.k, i));
                follow(key, key_weights[i], gated);
            }
            multiply(values, key, head.row(self.v, i));
        }
    }
}

/// Adds weighted rows; rows of weight 0 may hold anything. Four at a time, so that the sum stays in registers.
#[inline(always)]
fn add_rows(total: &mut [f32], weights: &[f32], rows: &Rows, data: &[f32]) {
    let (fours, rest) = weights.as_chunks::<4>();
    for (i, &four) in fours.iter().enumerate() {
        let row = |j: usize| rows.row(data, 4 * i + j);
        if four.contains(&0.0) {
            for (j, &weight) in four.iter().enumerate().filter(|(_, weight)| **weight != 0.0) {
                add_scaled(total, weight, row(j));
            }
            continue;
        }
        for ((((total, &a), &b), &c), &d) in total.iter_mut().zip(row(0)).zip(row(1)).zip(row(2)).zip(row(3)) {
            *total += four[0].multiply_add(a, four[1] * b) + four[2].multiply_add(c, four[3] * d);
        }
    }
    for (j, &weight) in rest.iter().enumerate().filter(|(_, weight)| **weight != 0.0) {
        add_scaled(total, weight, rows.row(data, 4 * fours.len() + j));
    }
}
