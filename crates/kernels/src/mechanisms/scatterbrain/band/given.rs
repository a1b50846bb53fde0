//! Gradient states that queries pass to the keys outside their hulls, and the gradients of these keys.

use std::ops::Range;

use super::{Band, RowScales, span::CHUNK, states::exponentiate, tile::featurize};
use crate::{
    gemm::{Matrix, Write, product},
    parallel::{Disjoint, for_each, with_parts},
    simd::{self, LANES},
};

/// The output, its gradient, and the denominators.
#[derive(Clone, Copy)]
pub(super) struct Output<'a> {
    pub out: &'a [f32],
    pub grad: &'a [f32],
    pub scales: &'a RowScales<'a>,
}

impl Band<'_> {
    /// The state of every span for the keys outside its hull, `[B,Hk,spans,sums]`, at its scales in `spans`.
    pub(super) fn give(&self, spans: &[f32], output: Output, given: &mut [f32]) {
        let (shape, m) = (self.problem.shape, self.state.features);
        let map = self.problem.features.expect("features");
        let given = Disjoint::new(given);
        for_each(self.streams() * self.spans(), |task| {
            let (b, hk, span) = self.place(task);
            let number = (b * shape.key_heads + hk) * self.spans() + span;
            let scales = &spans[number * self.kept()..][..m];
            // SAFETY: the state of this span belongs to this task.
            let state = unsafe { given.range(number * self.state.sums(), self.state.sums()) };
            state.fill(0.0);
            let all = self.span(span);
            with_parts!(
                q = CHUNK * shape.head_width,
                phi = CHUNK * m,
                grad = CHUNK * self.state.values,
                delta = CHUNK,
                {
                    for h in hk * shape.group()..(hk + 1) * shape.group() {
                        for start in all.clone().step_by(CHUNK) {
                            let queries = start..(start + CHUNK).min(all.end);
                            let n = queries.len();
                            let rows = shape.query_rows(b, h).slice(start, n);
                            let x = Matrix::rows(&self.problem.q[rows.offset..], rows.stride);
                            simd::transpose(x, (n, shape.head_width), q, CHUNK);
                            map.log_columns(q, n, phi, CHUNK);
                            self.query_features((b, h), &queries, output, scales, phi);
                            self.scale_gradient((b, h), &queries, output, (grad, delta));
                            self.give_rows((phi, CHUNK), grad, &delta[..n], state, Write::Add);
                        }
                    }
                }
            );
        });
    }

    /// Log features of queries, `[m,n]`, to features `2^(l + c - top)`, 0 in rows without features, excluded rows and
    /// rows computed weight by weight.
    fn query_features(
        &self,
        (b, h): (usize, usize),
        queries: &Range<usize>,
        output: Output,
        scales: &[f32],
        phi: &mut [f32],
    ) {
        let first = (b * self.problem.shape.heads + h) * self.problem.shape.queries;
        simd::vectorize(
            #[inline(always)]
            || {
                for at in (0..queries.len()).step_by(LANES) {
                    let mut tops = [f32::INFINITY; LANES];
                    for (top, i) in tops.iter_mut().zip(queries.start + at..queries.end) {
                        if output.scales.inverses[first + i] > 0.0 && self.has_features(b, i) {
                            *top = output.scales.tops[first + i];
                        }
                    }
                    featurize(phi, (CHUNK, at), scales, &tops);
                }
            },
        );
    }

    /// `dO / Z` and `delta / Z`, 0 in excluded rows and rows computed weight by weight.
    pub(super) fn scale_gradient(
        &self,
        (b, h): (usize, usize),
        queries: &Range<usize>,
        output: Output,
        (scaled, delta): (&mut [f32], &mut [f32]),
    ) {
        let (shape, values) = (self.problem.shape, self.state.values);
        let rows = shape.out_rows(b, h);
        let inverses = &output.scales.inverses[(b * shape.heads + h) * shape.queries..][..shape.queries];
        simd::vectorize(
            #[inline(always)]
            || {
                for (t, i) in queries.clone().enumerate() {
                    let scaled = &mut scaled[t * values..(t + 1) * values];
                    let inverse = inverses[i];
                    let walked = inverse > 0.0;
                    if !walked {
                        // Values may be NaN where f32 overflowed.
                        scaled.fill(0.0);
                        delta[t] = 0.0;
                        continue;
                    }
                    simd::prefetch(output.grad, &rows, i);
                    simd::prefetch(output.out, &rows, i);
                    let grad = rows.row(output.grad, i);
                    delta[t] = inverse * simd::dot(grad, rows.row(output.out, i));
                    for (y, &x) in scaled.iter_mut().zip(grad) {
                        *y = inverse * x;
                    }
                }
            },
        );
    }

    /// State `(-Phi_q^T delta, Phi_q^T dO)` of queries with features `phi [m,n]` in rows of `stride`.
    pub(super) fn give_rows(
        &self,
        (phi, stride): (&[f32], usize),
        grad: &[f32],
        delta: &[f32],
        state: &mut [f32],
        write: Write,
    ) {
        let (m, values, n) = (self.state.features, self.state.values, delta.len());
        let (z, s) = state.split_at_mut(m);
        if write == Write::Over {
            z.fill(0.0);
        }
        simd::vectorize(
            #[inline(always)]
            || {
                for (z, phi) in z.iter_mut().zip(phi.chunks(stride)) {
                    *z -= simd::dot(&phi[..n], delta);
                }
            },
        );
        product((m, values, n), 1.0, Matrix::rows(phi, stride), Matrix::rows(grad, values), write, s, values);
    }

    /// For every atom, the state that it receives from the spans whose hulls do not contain it: `[B,Hk,atoms,len]`,
    /// with scales of infinity where there is none.
    pub(super) fn receive(&self, spans: &[f32], given: &[f32]) -> Vec<f32> {
        let state = self.state;
        let (m, len, atoms, kept) = (state.features, state.len(), self.atoms.len(), self.kept());
        let mut received = vec![0.0f32; self.streams() * atoms * len];
        let shared = Disjoint::new(&mut received);
        for_each(self.streams(), |stream| {
            // SAFETY: each task accesses only the atoms of its own stream.
            let received = unsafe { shared.range(stream * atoms * len, atoms * len) };
            let scales = |span: usize| &spans[(stream * self.spans() + span) * kept..][..m];
            let given = |span: usize| &given[(stream * self.spans() + span) * state.sums()..][..state.sums()];
            let mut running = vec![0.0f32; len];
            running[..m].fill(f32::INFINITY);
            let mut next = self.spans();
            for (atom, received) in self.atoms.iter().zip(received.chunks_exact_mut(len)).rev() {
                while next > 0 && self.reach(next - 1).start >= atom.end {
                    next -= 1;
                    self.lower(&mut running, scales(next), given(next));
                }
                received.copy_from_slice(&running);
            }
            if !self.looks_ahead() {
                return;
            }
            running.fill(0.0);
            running[..m].fill(f32::INFINITY);
            let mut next = 0;
            for (atom, received) in self.atoms.iter().zip(received.chunks_exact_mut(len)) {
                while next < self.spans() && self.reach(next).end <= atom.start {
                    self.lower(&mut running, scales(next), given(next));
                    next += 1;
                }
                let (scales, sums) = running.split_at(m);
                self.lower(received, scales, sums);
            }
        });
        received
    }

    /// Adds the state `sums` of queries, at the scales of their keys, to `running`, whose scales become the minimum of
    /// both: queries that see fewer keys may have lower scales, and a product with features at the lower scale is
    /// larger.
    fn lower(&self, running: &mut [f32], scales: &[f32], sums: &[f32]) {
        let (state, m) = (self.state, self.state.features);
        let (to_scales, to_sums) = running.split_at_mut(m);
        let (to_z, to_s) = to_sums.split_at_mut(m);
        let (z, s) = sums.split_at(m);
        for a in 0..m {
            if scales[a] == f32::NEG_INFINITY || scales[a] == f32::INFINITY {
                continue;
            }
            let row = a * state.values..(a + 1) * state.values;
            if scales[a] < to_scales[a] {
                let factor = (scales[a] - to_scales[a]).exp2();
                to_z[a] *= factor;
                to_s[row.clone()].iter_mut().for_each(|x| *x *= factor);
                to_scales[a] = scales[a];
            }
            let factor = if to_scales[a] == scales[a] { 1.0 } else { (to_scales[a] - scales[a]).exp2() };
            to_z[a] += factor * z[a];
            simd::add_scaled(&mut to_s[row.clone()], factor, &s[row]);
        }
    }

    /// States that the segments of a span take from their atoms, at the scales of the span: only from atoms that are in
    /// no hull of an earlier span, which would already have taken them.
    pub(super) fn pick(
        &self,
        span: usize,
        scales: &[f32],
        segments: &[Range<usize>],
        received: &[f32],
        states: &mut [f32],
    ) {
        let (m, values, len) = (self.state.features, self.state.values, self.state.len());
        let taken = if span > 0 { self.reach(span - 1).end } else { 0 };
        let mut atom = self.atoms.partition_point(|atom| atom.end <= segments[0].start);
        for (segment, state) in segments.iter().zip(states.chunks_exact_mut(self.state.sums())) {
            state.fill(0.0);
            if segment.start < taken {
                continue;
            }
            while self.atoms[atom].end <= segment.start {
                atom += 1;
            }
            let (from_scales, from) = received[atom * len..(atom + 1) * len].split_at(m);
            let (from_z, from_s) = from.split_at(m);
            let (z, s) = state.split_at_mut(m);
            simd::vectorize(
                #[inline(always)]
                || {
                    for a in 0..m {
                        if from_scales[a] == f32::INFINITY || scales[a] == f32::NEG_INFINITY {
                            continue;
                        }
                        // Later spans see more keys under a causal mask, and the same keys without one: their scales
                        // are not below those of this span.
                        let factor = simd::exp2(scales[a] - from_scales[a]);
                        let row = a * values..(a + 1) * values;
                        z[a] = factor * from_z[a];
                        simd::add_scaled(&mut s[row.clone()], factor, &from_s[row]);
                    }
                },
            );
        }
    }

    /// Gradients of the keys that are in no hull.
    pub(super) fn backward_far(&self, received: &[f32], grads: &[Disjoint<f32>; 3]) {
        let (shape, state) = (self.problem.shape, self.state);
        let (m, len) = (state.features, state.len());
        let (width, values) = (shape.head_width, shape.value_width);
        let map = self.problem.features.expect("features");
        let reaches: Vec<_> = (0..self.spans()).map(|span| self.reach(span)).collect();
        let far = |atom: &usize| !reaches.iter().any(|reach| reach.contains(&self.atoms[*atom].start));
        let atoms: Vec<usize> = (0..self.atoms.len()).filter(far).collect();
        if atoms.is_empty() {
            return;
        }
        for_each(self.streams() * atoms.len(), |task| {
            let (stream, atom) = (task / atoms.len(), atoms[task % atoms.len()]);
            let (b, hk) = (stream / shape.key_heads, stream % shape.key_heads);
            let received = &received[(stream * self.atoms.len() + atom) * len..][..len];
            let (scales, sums) = received.split_at(m);
            if scales.iter().all(|&scale| scale == f32::INFINITY) {
                // SAFETY: the keys of this atom of this head belong to this task.
                unsafe { self.clear_keys((b, hk), self.atoms[atom].clone(), grads) };
                return;
            }
            let [_, grad_k, grad_v] = grads;
            let (z, s) = sums.split_at(m);
            let s = Matrix::rows(s, values);
            let (key_rows, value_rows) = (shape.key_rows(b, hk, 0), shape.value_rows(b, hk));
            let all = self.atoms[atom].clone();
            let [keys, vals, features] = [width, values, m].map(|columns| CHUNK * columns);
            with_parts!(k = keys, v = vals, phi = features, slopes = features, near_k = keys, near_v = vals, {
                for start in all.clone().step_by(CHUNK) {
                    let keys = start..(start + CHUNK).min(all.end);
                    let n = keys.len();
                    let k = self.rows((self.problem.k, key_rows), b, keys.clone(), k);
                    let v = self.rows((self.problem.v, value_rows), b, keys.clone(), v);
                    let (phi, slopes) = (&mut phi[..n * m], &mut slopes[..n * m]);
                    map.log_rows(&self.turned, k, n, phi, v.dense(n, values));
                    exponentiate(phi, scales, self.valid(b, &keys));
                    product((n, m, values), 1.0, v, s.transposed(), Write::Over, slopes, m);
                    simd::vectorize(
                        #[inline(always)]
                        || {
                            for (slopes, phi) in slopes.chunks_exact_mut(m).zip(phi.chunks_exact(m)) {
                                simd::each_pair(slopes, z, |slope, z| slope + z);
                                simd::each_pair(slopes, phi, |slope, phi| slope * phi);
                            }
                        },
                    );
                    product((n, values, m), 1.0, Matrix::rows(phi, m), s, Write::Over, near_v, values);
                    let near_k = &mut near_k[..n * width];
                    near_k.fill(0.0);
                    map.pull(slopes, k, n, near_k, width);
                    for (t, j) in keys.enumerate() {
                        // SAFETY: this key of this head belongs to this task.
                        let (k, v) = unsafe { (grad_k.row(&key_rows, j), grad_v.row(&value_rows, j)) };
                        k.copy_from_slice(&near_k[t * width..(t + 1) * width]);
                        v.copy_from_slice(&near_v[t * values..(t + 1) * values]);
                    }
                }
            });
        });
    }
}
