//! Keys that a call does not hold, by the sums over their features: the part of a longer sequence on the other ranks.
//!
//! Of the keys `j` of a part the sums `z_a = sum_j phi_a(k_j)` and `S_a = sum_j phi_a(k_j) v_j` are all that features need:
//! query `i` has the denominator `sum_a phi_a(q_i) z_a` over them and the numerator `sum_a phi_a(q_i) S_a`. Each feature has
//! a scale of its own, the largest of its logs, so that neither tiny nor huge features are lost. All terms are positive;
//! outputs over disjoint keys are merged in proportion to their denominators.

use std::{f32::consts::LN_2, ops::Range};

use super::{FeatureMap, Problem, Scatterbrain};
use crate::{
    Saved, ScaledSums, View,
    deltas::deltas,
    gemm::{Matrix, Write, product},
    parallel::{Disjoint, for_each, runs, with_parts},
    scaled::HEAD,
    simd,
};

/// Rows of one tile product.
const CHUNK: usize = 64;
/// Rows per task.
const BLOCK: usize = 4096;
impl Scatterbrain {
    /// Sums over the features of `keys`, for inputs of the operator: `[B,Hk,m]` rows `[top, z, S]`.
    ///
    /// # Panics
    /// If the operator has no features, or LSH.
    pub fn feature_sums(&self, inputs: &[View<f32>], keys: Range<usize>) -> ScaledSums {
        let inputs = self.read(inputs);
        let inputs = &inputs.views();
        Far::new(self.problem(inputs)).sums(keys)
    }

    /// Attention to the keys of the sums alone, all of which all queries see; fills `out`. Saved as by a forward pass.
    ///
    /// # Panics
    /// As for [`Scatterbrain::feature_sums`], or if the sums are of another shape.
    pub fn attend_sums(&self, inputs: &[View<f32>], sums: &ScaledSums, out: &mut [f32]) -> Saved {
        let inputs = self.read(inputs);
        let inputs = &inputs.views();
        Far::new(self.problem(inputs)).attend(sums, out)
    }

    /// Gradients of the queries (added to `grad_q`) and of the sums, through the weights of the sums' keys, for rows with
    /// these outputs and denominators, which may be over more keys than these.
    ///
    /// # Panics
    /// As for [`Scatterbrain::attend_sums`].
    pub fn backward_sums(
        &self,
        inputs: &[View<f32>],
        sums: &ScaledSums,
        (out, saved): (&[f32], &Saved),
        grad_out: &[f32],
        grad_q: &mut [f32],
    ) -> ScaledSums {
        let inputs = self.read(inputs);
        let inputs = &inputs.views();
        Far::new(self.problem(inputs)).backward_queries(sums, (out, saved), grad_out, grad_q)
    }

    /// Gradients of `keys` and their values from those of the sums over them, added to `grad_k` and `grad_v`.
    ///
    /// # Panics
    /// As for [`Scatterbrain::attend_sums`].
    pub fn backward_feature_sums(
        &self,
        inputs: &[View<f32>],
        keys: Range<usize>,
        gradients: &ScaledSums,
        [grad_k, grad_v]: [&mut [f32]; 2],
    ) {
        let inputs = self.read(inputs);
        let inputs = &inputs.views();
        Far::new(self.problem(inputs)).backward_keys(keys, gradients, grad_k, grad_v);
    }
}

struct Far<'a> {
    problem: Problem<'a>,
    map: FeatureMap<'a>,
    /// Features.
    count: usize,
    /// Floats of a feature.
    len: usize,
}

impl<'a> Far<'a> {
    fn new(problem: Problem<'a>) -> Self {
        let map = problem.features.expect("an operator with features");
        Self { problem, map, count: map.count(), len: problem.shape.value_width + HEAD }
    }

    /// Heads of keys over all batch rows.
    fn streams(&self) -> usize {
        self.problem.shape.batch * self.problem.shape.key_heads
    }

    /// Floats of the sums of one head.
    fn head_len(&self) -> usize {
        self.count * self.len
    }

    /// Base-2 logs of the features of keys, negative infinity for padded ones.
    fn key_logs(&self, (b, hk): (usize, usize), keys: &Range<usize>, logs: &mut [f32]) {
        let rows = self.problem.shape.key_rows(b, hk, 0);
        let x = Matrix::rows(&self.problem.k[rows.start(keys.start)..], rows.stride);
        self.map.logs(x, keys.len(), logs);
        if let Some(real) = self.problem.mask.valid_row(b) {
            for (logs, _) in logs.chunks_exact_mut(self.count).zip(keys.clone()).filter(|(_, j)| real[*j] == 0) {
                logs.fill(f32::NEG_INFINITY);
            }
        }
    }

    fn query_logs(&self, (b, h): (usize, usize), queries: &Range<usize>, logs: &mut [f32]) {
        let rows = self.problem.shape.query_rows(b, h);
        let x = Matrix::rows(&self.problem.q[rows.start(queries.start)..], rows.stride);
        self.map.logs(x, queries.len(), logs);
    }

    fn sums(&self, keys: Range<usize>) -> ScaledSums {
        let shape = &self.problem.shape;
        let blocks: Vec<_> = runs(keys, BLOCK).collect();
        let len = self.head_len();
        let parts = self.blocks(blocks.len(), f32::NEG_INFINITY, |stream, block, sums| {
            let place = (stream / shape.key_heads, stream % shape.key_heads);
            let values = shape.value_rows(place.0, place.1);
            with_parts!(logs = CHUNK * self.count, tops = self.count, {
                for keys in runs(blocks[block].clone(), CHUNK) {
                    let logs = &mut logs[..keys.len() * self.count];
                    self.key_logs(place, &keys, logs);
                    simd::vectorize(
                        #[inline(always)]
                        || {
                            tops.iter_mut().zip(sums.chunks_exact(self.len)).for_each(|(top, sum)| *top = sum[0]);
                            for logs in logs.chunks_exact(self.count) {
                                for (top, &log) in tops.iter_mut().zip(logs) {
                                    *top = if log > *top { log } else { *top };
                                }
                            }
                            for (sum, &top) in sums.chunks_exact_mut(self.len).zip(&*tops) {
                                if top > sum[0] {
                                    let factor = simd::exp2(sum[0] - top);
                                    sum[0] = top;
                                    sum[1..].iter_mut().for_each(|x| *x *= factor);
                                }
                            }
                            for logs in logs.chunks_exact_mut(self.count) {
                                let features = logs.iter_mut().zip(sums.chunks_exact_mut(self.len));
                                for (log, sum) in features {
                                    *log = if sum[0].is_finite() { simd::exp2(*log - sum[0]) } else { 0.0 };
                                    sum[1] += *log;
                                }
                            }
                        },
                    );
                    let v = Matrix::rows(&self.problem.v[values.start(keys.start)..], values.stride);
                    let size = (self.count, shape.value_width, keys.len());
                    let weights = Matrix::rows(logs, self.count).transposed();
                    product(size, 1.0, weights, v, Write::Add, &mut sums[HEAD..], self.len);
                }
            });
        });
        self.folded(parts, blocks.len(), len, ScaledSums::add)
    }

    /// The parts `[streams,blocks]` of a task each, which start as features without any.
    fn blocks(&self, blocks: usize, top: f32, task: impl Fn(usize, usize, &mut [f32]) + Sync) -> Vec<f32> {
        let len = self.head_len();
        let mut parts = vec![0.0; self.streams() * blocks * len];
        let shared = Disjoint::new(&mut parts);
        for_each(self.streams() * blocks, |n| {
            // SAFETY: each task has its own part.
            let part = unsafe { shared.range(n * len, len) };
            part.iter_mut().step_by(self.len).for_each(|own| *own = top);
            task(n / blocks, n % blocks, part);
        });
        parts
    }

    /// Joins the blocks of each head, in order.
    fn folded(&self, parts: Vec<f32>, blocks: usize, len: usize, add: fn(&mut ScaledSums, &ScaledSums)) -> ScaledSums {
        let values = self.problem.shape.value_width;
        if blocks == 0 {
            let mut data = vec![0.0; self.streams() * len];
            data.iter_mut().step_by(self.len).for_each(|top| *top = f32::NEG_INFINITY);
            return ScaledSums::new(data, values);
        }
        let heads = parts.chunks_exact(blocks * len).flat_map(|blocks| {
            let mut blocks = blocks.chunks_exact(len).map(|block| ScaledSums::new(block.to_vec(), values));
            let mut total = blocks.next().expect("a block");
            blocks.for_each(|block| add(&mut total, &block));
            total.into_vec()
        });
        ScaledSums::new(heads.collect(), values)
    }

    fn of_head<'s>(&self, sums: &'s ScaledSums, b: usize, hk: usize) -> &'s [f32] {
        let head = b * self.problem.shape.key_heads + hk;
        &sums.as_slice()[head * self.head_len()..(head + 1) * self.head_len()]
    }

    fn attend(&self, sums: &ScaledSums, out: &mut [f32]) -> Saved {
        let shape = &self.problem.shape;
        assert_eq!(
            (sums.row_len(), sums.as_slice().len()),
            (self.len, self.streams() * self.head_len()),
            "sums of another shape"
        );
        let rows = shape.batch * shape.heads * shape.queries;
        let [mut lse, mut tops, mut inverses] = [(); 3].map(|()| vec![0.0; rows]);
        let saved = [&mut lse, &mut tops, &mut inverses].map(|x| Disjoint::new(x));
        let (out, blocks) = (Disjoint::new(out), shape.queries.div_ceil(BLOCK));
        for_each(shape.batch * shape.heads * blocks, |task| {
            let (head, block) = (task / blocks, task % blocks);
            let (b, h) = (head / shape.heads, head % shape.heads);
            let sums = self.of_head(sums, b, h / shape.group());
            let out_rows = shape.out_rows(b, h);
            with_parts!(logs = CHUNK * self.count, numerators = CHUNK * shape.value_width, {
                for queries in runs(block * BLOCK..((block + 1) * BLOCK).min(shape.queries), CHUNK) {
                    let (n, first) = (queries.len(), head * shape.queries + queries.start);
                    let logs = &mut logs[..n * self.count];
                    self.query_logs((b, h), &queries, logs);
                    // SAFETY: these rows of this head belong to this task.
                    let [lse, tops, inverses] = saved.each_ref().map(|x| unsafe { x.range(first, n) });
                    simd::vectorize(
                        #[inline(always)]
                        || {
                            for (t, logs) in logs.chunks_exact_mut(self.count).enumerate() {
                                let mut top = f32::NEG_INFINITY;
                                for (log, sum) in logs.iter_mut().zip(sums.chunks_exact(self.len)) {
                                    *log += sum[0];
                                    top = if *log > top { *log } else { top };
                                }
                                let mut total = 0.0;
                                for (log, sum) in logs.iter_mut().zip(sums.chunks_exact(self.len)) {
                                    *log = if top.is_finite() { simd::exp2(*log - top) } else { 0.0 };
                                    total = log.mul_add(sum[1], total);
                                }
                                inverses[t] = if total > 0.0 { 1.0 / total } else { 0.0 };
                                tops[t] = top;
                                lse[t] = if total > 0.0 { (top + total.log2()) * LN_2 } else { f32::NEG_INFINITY };
                            }
                        },
                    );
                    let (weights, s) = (Matrix::rows(logs, self.count), Matrix::rows(&sums[HEAD..], self.len));
                    let width = shape.value_width;
                    product((n, width, self.count), 1.0, weights, s, Write::Over, numerators, width);
                    for (t, row) in numerators.chunks_exact(width).take(n).enumerate() {
                        // SAFETY: as above.
                        let to = unsafe { out.row(&out_rows, queries.start + t) };
                        to.iter_mut().zip(row).for_each(|(to, from)| *to = from * inverses[t]);
                    }
                }
            });
        });
        Saved::with_lse(lse, [tops, inverses])
    }

    fn backward_queries(
        &self,
        sums: &ScaledSums,
        (out, saved): (&[f32], &Saved),
        grad_out: &[f32],
        grad_q: &mut [f32],
    ) -> ScaledSums {
        let shape = &self.problem.shape;
        let deltas = deltas(shape, out, grad_out);
        let (tops, inverses) = (&saved[1], &saved[2]);
        let (grad_q, blocks) = (Disjoint::new(grad_q), shape.queries.div_ceil(BLOCK));
        let (width, values, m) = (shape.head_width, shape.value_width, self.count);
        let parts = self.blocks(blocks, f32::INFINITY, |stream, block, gradients| {
            let (b, hk) = (stream / shape.key_heads, stream % shape.key_heads);
            let sums = self.of_head(sums, b, hk);
            for (gradient, sum) in gradients.chunks_exact_mut(self.len).zip(sums.chunks_exact(self.len)) {
                gradient[0] = if sum[0].is_finite() { sum[0] } else { f32::INFINITY };
            }
            with_parts!(logs = CHUNK * m, slopes = CHUNK * m, grad = CHUNK * values, pulled = CHUNK * width, {
                for h in hk * shape.group()..(hk + 1) * shape.group() {
                    let [query_rows, out_rows] = [shape.query_rows(b, h), shape.out_rows(b, h)];
                    for queries in runs(block * BLOCK..((block + 1) * BLOCK).min(shape.queries), CHUNK) {
                        let (n, first) = (queries.len(), (b * shape.heads + h) * shape.queries + queries.start);
                        let (logs, slopes) = (&mut logs[..n * m], &mut slopes[..n * m]);
                        self.query_logs((b, h), &queries, logs);
                        for (row, i) in grad.chunks_exact_mut(values).zip(queries.clone()) {
                            row.copy_from_slice(out_rows.row(grad_out, i));
                        }
                        let s = Matrix::rows(&sums[HEAD..], self.len).transposed();
                        product((n, m, values), 1.0, Matrix::rows(grad, values), s, Write::Over, slopes, m);
                        simd::vectorize(
                            #[inline(always)]
                            || {
                                for (t, (weights, slopes)) in
                                    logs.chunks_exact_mut(m).zip(slopes.chunks_exact_mut(m)).enumerate()
                                {
                                    let (top, inverse) = (tops[first + t], inverses[first + t].abs());
                                    let delta = deltas[first + t];
                                    let features = weights.iter_mut().zip(slopes).zip(sums.chunks_exact(self.len));
                                    for ((weight, slope), sum) in features {
                                        let log = *weight + sum[0] - top;
                                        let some = inverse > 0.0 && sum[0].is_finite();
                                        *weight = if some { inverse * simd::exp2(log) } else { 0.0 };
                                        *slope = *weight * (*slope - delta * sum[1]);
                                    }
                                }
                            },
                        );
                        for (t, weights) in logs.chunks_exact(m).enumerate() {
                            for (gradient, weight) in gradients.chunks_exact_mut(self.len).zip(weights) {
                                gradient[1] -= weight * deltas[first + t];
                            }
                        }
                        let weights = Matrix::rows(logs, m).transposed();
                        let rows = Matrix::rows(grad, values);
                        product((m, values, n), 1.0, weights, rows, Write::Add, &mut gradients[HEAD..], self.len);
                        pulled.fill(0.0);
                        let x = Matrix::rows(&self.problem.q[query_rows.start(queries.start)..], query_rows.stride);
                        self.map.pull(slopes, x, n, pulled, width);
                        for (row, i) in pulled.chunks_exact(width).zip(queries) {
                            // SAFETY: this row of this head belongs to this task.
                            simd::add_scaled(unsafe { grad_q.row(&query_rows, i) }, 1.0, row);
                        }
                    }
                }
            });
        });
        self.folded(parts, blocks, self.head_len(), ScaledSums::add_gradients)
    }

    fn backward_keys(&self, keys: Range<usize>, gradients: &ScaledSums, grad_k: &mut [f32], grad_v: &mut [f32]) {
        let shape = &self.problem.shape;
        let blocks: Vec<_> = runs(keys, BLOCK).collect();
        let (grad_k, grad_v) = (Disjoint::new(grad_k), Disjoint::new(grad_v));
        let (width, values, m) = (shape.head_width, shape.value_width, self.count);
        for_each(self.streams() * blocks.len(), |task| {
            let (stream, block) = (task / blocks.len(), task % blocks.len());
            let (b, hk) = (stream / shape.key_heads, stream % shape.key_heads);
            let gradients = self.of_head(gradients, b, hk);
            let [key_rows, value_rows] = [shape.key_rows(b, hk, 0), shape.value_rows(b, hk)];
            let pulled_len = CHUNK * width.max(values);
            with_parts!(logs = CHUNK * m, slopes = CHUNK * m, pulled = pulled_len, {
                for keys in runs(blocks[block].clone(), CHUNK) {
                    let n = keys.len();
                    let (logs, slopes) = (&mut logs[..n * m], &mut slopes[..n * m]);
                    self.key_logs((b, hk), &keys, logs);
                    let v = Matrix::rows(&self.problem.v[value_rows.start(keys.start)..], value_rows.stride);
                    let s = Matrix::rows(&gradients[HEAD..], self.len);
                    product((n, m, values), 1.0, v, s.transposed(), Write::Over, slopes, m);
                    simd::vectorize(
                        #[inline(always)]
                        || {
                            for (weights, slopes) in logs.chunks_exact_mut(m).zip(slopes.chunks_exact_mut(m)) {
                                let features = weights.iter_mut().zip(slopes).zip(gradients.chunks_exact(self.len));
                                for ((weight, slope), gradient) in features {
                                    let log = *weight - gradient[0];
                                    *weight = if gradient[0].is_finite() { simd::exp2(log) } else { 0.0 };
                                    *slope = *weight * (*slope + gradient[1]);
                                }
                            }
                        },
                    );
                    let weights = Matrix::rows(logs, m);
                    product((n, values, m), 1.0, weights, s, Write::Over, pulled, values);
                    for (row, j) in pulled.chunks_exact(values).zip(keys.clone()) {
                        // SAFETY: this row of this head belongs to this task.
                        simd::add_scaled(unsafe { grad_v.row(&value_rows, j) }, 1.0, row);
                    }
                    let pulled = &mut pulled[..n * width];
                    pulled.fill(0.0);
                    let x = Matrix::rows(&self.problem.k[key_rows.start(keys.start)..], key_rows.stride);
                    self.map.pull(slopes, x, n, pulled, width);
                    for (row, j) in pulled.chunks_exact(width).zip(keys) {
                        // SAFETY: as above.
                        simd::add_scaled(unsafe { grad_k.row(&key_rows, j) }, 1.0, row);
                    }
                }
            });
        });
    }
}
