//! Rows computed weight by weight, from logarithms: rare ones, whose feature sums overflow or underflow f32.

use std::f32::consts::{LN_2, LOG2_E};

use super::{Band, Grads, RowScales, span::CHUNK};
use crate::{
    gemm::Matrix,
    parallel::{Disjoint, for_each},
    scatterbrain::log_product,
    simd,
};

/// Base-2 logits of one row over a run of keys: exact ones and those of features, negative infinity where absent.
struct Logits {
    exact: Vec<f32>,
    features: Vec<f32>,
    /// Log features of the keys, `[keys,m]`, and of the query, `[m]`.
    keys: Vec<f32>,
    query: Vec<f32>,
    /// Scratch for keys.
    rows: Vec<f32>,
}

impl Band<'_> {
    fn logits(&self, (b, h, i): (usize, usize, usize)) -> Logits {
        let (shape, m) = (self.problem.shape, self.state.features);
        let map = self.problem.features.expect("rows without features need no logarithm");
        let mut query = vec![0.0; m];
        map.logs(Matrix::rows(shape.query_rows(b, h).row(self.problem.q, i), shape.head_width), 1, &mut query);
        let [exact, features, keys, rows] = [1, 1, m, shape.head_width].map(|width| vec![0.0; CHUNK * width]);
        Logits { exact, features, keys, query, rows }
    }

    /// Fills the logits of keys `start .. end`.
    fn fill(&self, logits: &mut Logits, (b, h, i): (usize, usize, usize), (start, end): (usize, usize)) {
        let (shape, m) = (self.problem.shape, self.state.features);
        let map = self.problem.features.expect("rows without features need no logarithm");
        let q = shape.query_rows(b, h).row(self.problem.q, i);
        let rows = shape.key_rows(b, h / shape.group(), 0);
        let (support, naive) = (self.support(i), self.problem.naive);
        // Computed as in the main pass, bit for bit: large logarithms have large rounding errors.
        let k = self.rows((self.problem.k, rows), b, start..end, &mut logits.rows);
        map.log_rows(&self.turned, k, end - start, &mut logits.keys, &[]);
        for (at, j) in (start..end).enumerate() {
            (logits.exact[at], logits.features[at]) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            if !self.real(b, j) {
                continue;
            }
            let k = rows.row(self.problem.k, j);
            if support.contains(&j) {
                logits.exact[at] = self.problem.scale * LOG2_E * simd::dot(q, k);
                if !naive {
                    continue;
                }
            }
            logits.features[at] = log_product(&logits.query, &logits.keys[at * m..(at + 1) * m]);
        }
    }

    /// Recomputes the rows marked in the main pass.
    pub(super) fn forward_direct(&self, out: &Disjoint<f32>, [lse, tops, inverses]: [&mut Vec<f32>; 3]) {
        let shape = self.problem.shape;
        let marked: Vec<usize> = (0..inverses.len()).filter(|&row| inverses[row] < 0.0).collect();
        let saved = [lse, tops, inverses].map(|x| Disjoint::new(&mut x[..]));
        for_each(marked.len(), |n| {
            let (head, i) = (marked[n] / shape.queries, marked[n] % shape.queries);
            let (b, h) = (head / shape.heads, head % shape.heads);
            let values = shape.value_rows(b, h / shape.group());
            let mut logits = self.logits((b, h, i));
            let (mut top, mut total) = (f32::NEG_INFINITY, 0.0f32);
            let mut sums = vec![0.0f32; shape.value_width];
            let seen = self.visible(i);
            for start in seen.clone().step_by(CHUNK) {
                let end = (start + CHUNK).min(seen.end);
                self.fill(&mut logits, (b, h, i), (start, end));
                for (at, j) in (start..end).enumerate() {
                    for l in [logits.exact[at], logits.features[at]] {
                        if l == f32::NEG_INFINITY {
                            continue;
                        }
                        if l > top {
                            let factor = simd::exp2(top - l);
                            total *= factor;
                            sums.iter_mut().for_each(|x| *x *= factor);
                            top = l;
                        }
                        let weight = simd::exp2(l - top);
                        total += weight;
                        simd::add_scaled(&mut sums, weight, values.row(self.problem.v, j));
                    }
                }
            }
            // SAFETY: each task has its own row.
            let [lse, tops, inverses] = saved.each_ref().map(|x| unsafe { &mut x.range(marked[n], 1)[0] });
            // SAFETY: as above.
            let row = unsafe { out.row(&shape.out_rows(b, h), i) };
            (*lse, *tops, *inverses) = ((top + total.log2()) * LN_2, top, -1.0 / total);
            for (y, x) in row.iter_mut().zip(&sums) {
                *y = x / total;
            }
        });
    }

    /// Adds the gradients of the rows recomputed this way.
    pub(super) fn backward_direct(&self, out: &[f32], scales: &RowScales, grad_out: &[f32], grads: &mut Grads) {
        let (shape, m) = (self.problem.shape, self.state.features);
        let Some(map) = self.problem.features else { return };
        let (width, tau) = (shape.head_width, self.problem.scale);
        for row in (0..scales.inverses.len()).filter(|&row| scales.inverses[row] < 0.0) {
            let (head, i) = (row / shape.queries, row % shape.queries);
            let (b, h) = (head / shape.heads, head % shape.heads);
            let hk = h / shape.group();
            let (keys, values) = (shape.key_rows(b, hk, 0), shape.value_rows(b, hk));
            let (queries, outs) = (shape.query_rows(b, h), shape.out_rows(b, h));
            let q = queries.row(self.problem.q, i);
            let grad = outs.row(grad_out, i);
            let delta = simd::dot(grad, outs.row(out, i));
            let (top, inverse) = (scales.tops[row], -scales.inverses[row]);
            let mut logits = self.logits((b, h, i));
            let mut query_slopes = vec![0.0f32; m];
            let mut key_slopes = vec![0.0f32; m];
            let seen = self.visible(i);
            for start in seen.clone().step_by(CHUNK) {
                let end = (start + CHUNK).min(seen.end);
                self.fill(&mut logits, (b, h, i), (start, end));
                for (at, j) in (start..end).enumerate() {
                    let slope = simd::dot(grad, values.row(self.problem.v, j)) - delta;
                    let weight = |l: f32| simd::exp2(l - top) * inverse;
                    let (exact, featured) = (weight(logits.exact[at]), weight(logits.features[at]));
                    if exact == 0.0 && featured == 0.0 {
                        continue;
                    }
                    simd::add_scaled(values.row_mut(&mut grads.v, j), exact + featured, grad);
                    let k = keys.row(self.problem.k, j);
                    if exact > 0.0 {
                        let along = tau * exact * slope;
                        simd::add_scaled(queries.row_mut(&mut grads.q, i), along, k);
                        simd::add_scaled(keys.row_mut(&mut grads.k, j), along, q);
                    }
                    if featured > 0.0 {
                        let logs = &logits.keys[at * m..(at + 1) * m];
                        for (a, slopes) in key_slopes.iter_mut().enumerate() {
                            let share = simd::exp2(logits.query[a] + logs[a] - logits.features[at]);
                            *slopes = featured * slope * share;
                            query_slopes[a] += *slopes;
                        }
                        let grad_k = keys.row_mut(&mut grads.k, j);
                        map.pull(&mut key_slopes, Matrix::rows(k, width), 1, grad_k, width);
                    }
                }
            }
            let grad_q = queries.row_mut(&mut grads.q, i);
            map.pull(&mut query_slopes, Matrix::rows(q, width), 1, grad_q, width);
        }
    }
}
