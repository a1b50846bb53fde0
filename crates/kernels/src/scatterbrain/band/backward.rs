//! Backward pass.
//!
//! With `P` the normalised weights, `dP_ij = dO_i.v_j` and `delta_i = dO_i.out_i`, every weight has the slope
//! `dP_ij - delta_i`. Inside a tile's hull slopes are formed one by one. Towards the keys outside, a tile gives the state
//! `(Phi_q^T dO, -Phi_q^T delta)`, the mirror image of the sums of the forward pass: the keys before and behind a tile
//! receive their gradients from the sum of these states over all tiles whose hull they are not in.

use std::ops::Range;

use super::{
    Band, Grads, RowScales,
    forward::Tile,
    span::{CHUNK, Span},
    states::exponentiate,
};
use crate::{
    gemm::{Matrix, Write, product, transpose},
    parallel::{Disjoint, for_each, split, with_scratch},
    simd,
};

/// Gradients with respect to the near keys of a span.
struct NearGrads<'s> {
    k: &'s mut [f32],
    v: &'s mut [f32],
    /// Slopes of the features, at the scales of the span.
    phi: &'s mut [f32],
    /// Of each tile, the state that it gives to the keys outside its hull.
    outside: &'s mut [f32],
}

/// Buffers of one tile.
struct Work<'s> {
    /// `dP`, then slopes of exact scores, `[n,hull]`.
    slopes: &'s mut [f32],
    /// Slopes of products of features, `[n,hull]`.
    feature_slopes: &'s mut [f32],
    /// `dO / Z`, `[n,Dv]`, and `delta / Z`, `[n]`.
    grad: &'s mut [f32],
    delta: &'s mut [f32],
    /// Slopes of the query features, `[n,m]`.
    phi: &'s mut [f32],
    q: &'s mut [f32],
    /// Values of the near keys as columns, `[Dv,keys]`.
    v_columns: &'s mut [f32],
}

/// The output, its gradient, and the denominators.
#[derive(Clone, Copy)]
struct Output<'a> {
    out: &'a [f32],
    grad: &'a [f32],
    scales: &'a RowScales,
}

impl Band<'_> {
    pub(super) fn backward(&self, out: &[f32], scales: &RowScales, grad_out: &[f32]) -> Grads {
        let problem = &self.problem;
        let shape = problem.shape;
        let mut grads =
            Grads { q: vec![0.0; problem.q.len()], k: vec![0.0; problem.k.len()], v: vec![0.0; problem.v.len()] };
        let output = Output { out, grad: grad_out, scales };
        let mut given = vec![0.0f32; self.streams() * self.spans() * self.state.sums()];
        self.with_surroundings(|spans| {
            let shared = [&mut grads.q, &mut grads.k, &mut grads.v].map(|x| Disjoint::new(&mut x[..]));
            let shared_given = Disjoint::new(&mut given);
            // Spans whose hulls share keys go one after the other.
            let stride = self.stride();
            for turn in 0..stride.min(self.spans()) {
                let count = (self.spans() - turn).div_ceil(stride);
                for_each(self.streams() * count, |task| {
                    let (b, rest) = (task / (count * shape.key_heads), task % (count * shape.key_heads));
                    let (span, hk) = (turn + stride * (rest / shape.key_heads), rest % shape.key_heads);
                    let number = (b * shape.key_heads + hk) * self.spans() + span;
                    let kept = &spans[number * self.kept()..][..self.kept()];
                    // SAFETY: the state of this span is this task's.
                    let given = unsafe { shared_given.range(number * self.state.sums(), self.state.sums()) };
                    self.backward_span((b, hk, span), stride, kept, output, &shared, given);
                });
            }
            if self.state.features > 0 {
                self.backward_far(spans, &given, &shared);
            }
        });
        self.backward_direct(out, scales, grad_out, &mut grads);
        grads
    }

    /// Spans this far apart have hulls without a common key.
    fn stride(&self) -> usize {
        let reach = (0..self.spans()).map(|span| self.reach(span));
        let ends: Vec<_> = reach.collect();
        (1..ends.len())
            .find(|&apart| (apart..ends.len()).all(|n| ends[n - apart].end <= ends[n].start))
            .unwrap_or(ends.len().max(1))
    }

    /// Keys of a span that no span of an earlier turn has in its hull.
    fn fresh(&self, span: usize, stride: usize) -> Range<usize> {
        let turn = span % stride;
        if turn == 0 {
            return 0..usize::MAX;
        }
        // Turns count upwards along the sequence, from 0 again at each multiple of the stride.
        let next = span + stride - turn;
        let end = if next < self.spans() { self.reach(next).start } else { usize::MAX };
        self.reach(span - 1).end..end
    }

    fn backward_span(
        &self,
        (b, hk, span): (usize, usize, usize),
        stride: usize,
        kept: &[f32],
        output: Output,
        [grad_q, grad_k, grad_v]: &[Disjoint<f32>; 3],
        given: &mut [f32],
    ) {
        let shape = self.problem.shape;
        let (m, width, values, hull) = (self.state.features, shape.head_width, shape.value_width, self.hull_len());
        let loaded = self.span_scratch().sizes();
        let [k, v, k_columns, phi, phi_columns, outside, running] = loaded;
        let keys = self.reach(span);
        let (near_keys, rows, len) = (keys.len(), self.tile, self.state.sums());
        let sizes = [
            k,
            v,
            k_columns,
            phi,
            phi_columns,
            outside,
            running,
            shape.group() * super::SPAN * m,
            rows * hull,
            rows * hull,
            near_keys * width,
            near_keys * values,
            near_keys * m,
            outside,
            rows * hull,
            rows * hull,
            rows * values,
            rows,
            rows * m,
            rows * width,
            near_keys * values,
            rows,
        ];
        with_scratch(sizes.iter().sum(), |scratch| {
            let [
                k,
                v,
                k_columns,
                phi,
                phi_columns,
                outside,
                running,
                logs,
                x,
                g,
                near_k,
                near_v,
                near_phi,
                tile_states,
                slopes,
                feature_slopes,
                grad,
                delta,
                slopes_phi,
                q,
                v_columns,
                tops,
            ] = split(scratch, sizes);
            let near = self.load((b, hk, span), kept, [k, v, k_columns, phi, phi_columns, outside, running]);
            self.query_logs((b, hk, span), logs);
            for buffer in [&mut *near_k, &mut *near_v, &mut *near_phi, &mut *tile_states] {
                buffer.fill(0.0);
            }
            let mut grads = NearGrads { k: near_k, v: near_v, phi: near_phi, outside: tile_states };
            transpose(near.v, (near_keys, values), v_columns);
            let mut work = Work { slopes, feature_slopes, grad, delta, phi: slopes_phi, q, v_columns };
            for (t, queries) in self.tiles(span).enumerate() {
                let outside = &near.outside[t * len.min(near.outside.len())..];
                for h in hk * shape.group()..(hk + 1) * shape.group() {
                    let n = queries.len();
                    let row = (b * shape.heads + h) * shape.queries + queries.start;
                    tops[..n].copy_from_slice(&output.scales.tops[row..row + n]);
                    let mut tile = Tile {
                        queries: queries.clone(),
                        hull: self.hull(queries.clone()),
                        tops: &mut tops[..n],
                        phi: self.tile_logs(&queries, h % shape.group(), logs),
                        x,
                        g,
                    };
                    self.score(&mut tile, (b, h), &near, false);
                    let inverses = &output.scales.inverses[row..row + n];
                    let tile_state = if m > 0 { &mut grads.outside[t * len..(t + 1) * len] } else { &mut [][..] };
                    self.scale_gradient(&mut tile, (b, h), output, inverses, &mut work);
                    self.give(&tile, &work, tile_state);
                    self.slope(&mut tile, &near, inverses, &mut work);
                    self.pull_tile(&tile, (b, h), &near, outside, &mut work, &mut grads);
                    let rows = shape.query_rows(b, h);
                    for (t, i) in queries.clone().enumerate() {
                        // SAFETY: this row of this head is this task's.
                        let row = unsafe { grad_q.row(&rows, i) };
                        row.copy_from_slice(&work.q[t * width..(t + 1) * width]);
                    }
                }
            }
            if m > 0 {
                self.pass_on(span, &near, &mut grads, given);
                if near_keys > 0 {
                    for (slope, phi) in grads.phi.iter_mut().zip(near.phi) {
                        *slope *= phi;
                    }
                    let map = self.problem.features.expect("features");
                    map.pull(grads.phi, near.k, near_keys, grads.k, width);
                }
            }
            let (key_rows, value_rows) = (shape.key_rows(b, hk, 0), shape.value_rows(b, hk));
            let fresh = self.fresh(span, stride);
            for (t, j) in keys.clone().enumerate() {
                // SAFETY: no other span of this turn has this key in its hull.
                let (k, v) = unsafe { (grad_k.row(&key_rows, j), grad_v.row(&value_rows, j)) };
                let (near_k, near_v) = (&grads.k[t * width..(t + 1) * width], &grads.v[t * values..(t + 1) * values]);
                if fresh.contains(&j) {
                    // To add would read memory that has no page yet.
                    k.copy_from_slice(near_k);
                    v.copy_from_slice(near_v);
                } else {
                    simd::add_scaled(k, 1.0, near_k);
                    simd::add_scaled(v, 1.0, near_v);
                }
            }
        });
    }

    /// `dO / Z` and `delta / Z`, 0 in rows that take no part or are done weight by weight.
    fn scale_gradient(
        &self,
        tile: &mut Tile,
        (b, h): (usize, usize),
        output: Output,
        inverses: &[f32],
        work: &mut Work,
    ) {
        let (values, rows) = (self.state.values, self.problem.shape.out_rows(b, h));
        simd::vectorize(
            #[inline(always)]
            || {
                for (t, i) in tile.queries.clone().enumerate() {
                    let scaled = &mut work.grad[t * values..(t + 1) * values];
                    let inverse = inverses[t];
                    let walked = inverse > 0.0;
                    if !walked {
                        // NaN may stand where the range of f32 was left.
                        scaled.fill(0.0);
                        work.delta[t] = 0.0;
                        continue;
                    }
                    let grad = rows.row(output.grad, i);
                    work.delta[t] = inverse * simd::dot(grad, rows.row(output.out, i));
                    for (y, &x) in scaled.iter_mut().zip(grad) {
                        *y = inverse * x;
                    }
                }
            },
        );
        let m = self.state.features;
        for (phi, &inverse) in tile.phi.chunks_exact_mut(m.max(1)).zip(inverses) {
            let walked = inverse > 0.0;
            if !walked && m > 0 {
                phi.fill(0.0);
            }
        }
    }

    /// What a tile gives to the keys outside its hull.
    fn give(&self, tile: &Tile, work: &Work, state: &mut [f32]) {
        let (m, values, n) = (self.state.features, self.state.values, tile.queries.len());
        if m == 0 {
            return;
        }
        let (z, s) = state.split_at_mut(m);
        simd::vectorize(
            #[inline(always)]
            || {
                for (phi, &delta) in tile.phi.chunks_exact(m).zip(&work.delta[..n]) {
                    for (z, &f) in z.iter_mut().zip(phi) {
                        *z -= delta * f;
                    }
                }
            },
        );
        let phi = Matrix::rows(tile.phi, m).transposed();
        product((m, values, n), 1.0, phi, Matrix::rows(work.grad, values), Write::Add, s, values);
    }

    /// Turns scores into weights relative to the row maxima, and forms the slopes of scores and of products of features.
    fn slope(&self, tile: &mut Tile, near: &Span, inverses: &[f32], work: &mut Work) {
        let (n, len, m, values) = (tile.queries.len(), tile.hull.len(), self.state.features, self.state.values);
        if len == 0 {
            return;
        }
        let first = tile.hull.start - near.keys.start;
        let v = Matrix::rows(&work.v_columns[first..], near.keys.len());
        // dP over the denominators.
        product((n, len, values), 1.0, Matrix::rows(work.grad, values), v, Write::Over, work.slopes, len);
        let naive = self.problem.naive && m > 0;
        simd::vectorize(
            #[inline(always)]
            || {
                for t in 0..n {
                    let i = tile.queries.start + t;
                    let row = t * len..(t + 1) * len;
                    let (x, g) = (&mut tile.x[row.clone()], &tile.g[row.clone()]);
                    let (slopes, feature_slopes) = (&mut work.slopes[row.clone()], &mut work.feature_slopes[row]);
                    let walked = inverses[t] > 0.0;
                    if !walked {
                        for row in [x, slopes, feature_slopes] {
                            row.fill(0.0);
                        }
                        continue;
                    }
                    let support = self.columns(self.support(i), &tile.hull);
                    let seen = self.columns(self.visible(i), &tile.hull);
                    let (top, delta) = (tile.tops[t], work.delta[t]);
                    if m > 0 {
                        feature_slopes[seen.end..].fill(0.0);
                        for part in [0..support.start.min(seen.end), support.end..seen.end] {
                            for j in part {
                                feature_slopes[j] = slopes[j] - delta;
                                x[j] = g[j];
                                slopes[j] = 0.0;
                            }
                        }
                    } else {
                        for part in [0..support.start, support.end..len] {
                            x[part.clone()].fill(0.0);
                            slopes[part].fill(0.0);
                        }
                    }
                    x[seen.end..].fill(0.0);
                    slopes[seen.end..].fill(0.0);
                    let exact = support.clone().zip(x[support.clone()].iter_mut().zip(&mut slopes[support.clone()]));
                    if naive {
                        for (j, (x, slope)) in exact {
                            let weight = simd::exp2(*x - top);
                            feature_slopes[j] = *slope - delta;
                            *slope = weight * (*slope - delta);
                            *x = weight + g[j];
                        }
                    } else {
                        for (_, (x, slope)) in exact {
                            let weight = simd::exp2(*x - top);
                            *slope = weight * (*slope - delta);
                            *x = weight;
                        }
                        if m > 0 {
                            feature_slopes[support].fill(0.0);
                        }
                    }
                }
            },
        );
    }

    /// Gradients of a tile's queries, of the keys and values of its hull, and of their features.
    fn pull_tile(
        &self,
        tile: &Tile,
        (b, h): (usize, usize),
        near: &Span,
        outside: &[f32],
        work: &mut Work,
        grads: &mut NearGrads,
    ) {
        let shape = self.problem.shape;
        let (n, len, m) = (tile.queries.len(), tile.hull.len(), self.state.features);
        let (width, values, tau) = (shape.head_width, self.state.values, self.problem.scale);
        let rows = shape.query_rows(b, h).slice(tile.queries.start, n);
        let q = Matrix::rows(&self.problem.q[rows.offset..], rows.stride);
        let first = tile.hull.start.saturating_sub(near.keys.start);
        let slopes = Matrix::rows(work.slopes, len);
        work.q[..n * width].fill(0.0);
        if len > 0 {
            if self.radius.is_some() {
                let k = Matrix { data: &near.k.data[first * near.k.row..], ..near.k };
                product((n, width, len), tau, slopes, k, Write::Over, work.q, width);
                let grad_k = &mut grads.k[first * width..];
                product((len, width, n), tau, slopes.transposed(), q, Write::Add, grad_k, width);
            }
            let weights = Matrix::rows(tile.x, len).transposed();
            let grad = Matrix::rows(work.grad, values);
            product((len, values, n), 1.0, weights, grad, Write::Add, &mut grads.v[first * values..], values);
        }
        let Some(map) = self.problem.features else { return };
        let (z, s) = outside.split_at(m);
        let phi = &mut work.phi[..n * m];
        let grad = Matrix::rows(work.grad, values);
        product((n, m, values), 1.0, grad, Matrix::rows(s, values).transposed(), Write::Over, phi, m);
        simd::vectorize(
            #[inline(always)]
            || {
                for (slopes, &delta) in phi.chunks_exact_mut(m).zip(&work.delta[..n]) {
                    simd::add_scaled(slopes, -delta, &z[..m]);
                }
            },
        );
        for columns in self.corners(&tile.queries, &tile.hull).0 {
            if columns.is_empty() {
                continue;
            }
            let at = (first + columns.start) * m;
            let slopes = Matrix::rows(&work.feature_slopes[columns.start..], len);
            let keys = Matrix::rows(&near.phi[at..], m);
            product((n, m, columns.len()), 1.0, slopes, keys, Write::Add, phi, m);
            let queries = Matrix::rows(tile.phi, m);
            product((columns.len(), m, n), 1.0, slopes.transposed(), queries, Write::Add, &mut grads.phi[at..], m);
        }
        for (slope, phi) in phi.iter_mut().zip(&*tile.phi) {
            *slope *= phi;
        }
        map.pull(phi, q, n, work.q, width);
    }

    /// Gradients that the tiles of a span give to near keys outside their hulls; `given` gets the sum of all tiles, for
    /// the keys that are near to none of them.
    fn pass_on(&self, span: usize, near: &Span, grads: &mut NearGrads, given: &mut [f32]) {
        let (m, values, len) = (self.state.features, self.state.values, self.state.sums());
        given.fill(0.0);
        for state in grads.outside.chunks_exact(len).take(self.tiles(span).len()) {
            simd::add_scaled(given, 1.0, state);
        }
        let keys = near.keys.clone();
        let hulls: Vec<_> = self.tiles(span).map(|queries| self.hull(queries)).collect();
        let apply = |grads: &mut NearGrads, state: &[f32], range: Range<usize>| {
            if range.is_empty() {
                return;
            }
            let (at, n) = (range.start - keys.start, range.len());
            let v = Matrix { data: &near.v.data[at * near.v.row..], ..near.v };
            let (z, s) = state.split_at(m);
            let slopes = &mut grads.phi[at * m..(at + n) * m];
            for row in slopes.chunks_exact_mut(m) {
                simd::add_scaled(row, 1.0, z);
            }
            product((n, m, values), 1.0, v, Matrix::rows(s, values).transposed(), Write::Add, slopes, m);
            let phi = Matrix::rows(&near.phi[at * m..], m);
            product((n, values, m), 1.0, phi, Matrix::rows(s, values), Write::Add, &mut grads.v[at * values..], values);
        };
        // Keys before the hulls of later tiles.
        let mut running = vec![0.0f32; len];
        for t in (1..hulls.len()).rev() {
            simd::add_scaled(&mut running, 1.0, &grads.outside[t * len..(t + 1) * len]);
            apply(grads, &running, hulls[t - 1].start..hulls[t].start);
        }
        if !self.looks_ahead() {
            return;
        }
        // Keys behind the hulls of earlier tiles.
        running.fill(0.0);
        for t in 0..hulls.len().saturating_sub(1) {
            simd::add_scaled(&mut running, 1.0, &grads.outside[t * len..(t + 1) * len]);
            apply(grads, &running, hulls[t].end..hulls[t + 1].end);
        }
    }

    /// Gradients that spans give to the keys outside their hulls. `spans` is what the forward pass kept of each span,
    /// `given` the state that it gives.
    fn backward_far(&self, spans: &[f32], given: &[f32], [_, grad_k, grad_v]: &[Disjoint<f32>; 3]) {
        let (shape, state) = (self.problem.shape, self.state);
        let (m, len, atoms, kept) = (state.features, state.len(), self.atoms.len(), self.kept());
        let map = self.problem.features.expect("features");
        let mut received = vec![0.0f32; self.streams() * atoms * len];
        let shared = Disjoint::new(&mut received);
        for_each(self.streams(), |stream| {
            // SAFETY: each task has the atoms of its own stream.
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
        let reaches: Vec<_> = (0..self.spans()).map(|span| self.reach(span)).collect();
        for_each(self.streams() * atoms, |task| {
            let (stream, atom) = (task / atoms, task % atoms);
            let (b, hk) = (stream / shape.key_heads, stream % shape.key_heads);
            // To add where no span has written would read memory that has no page yet.
            let fresh = !reaches.iter().any(|reach| reach.contains(&self.atoms[atom].start));
            let received = &received[task * len..(task + 1) * len];
            let (scales, sums) = received.split_at(m);
            if scales.iter().all(|&scale| scale == f32::INFINITY) {
                return;
            }
            let (z, s) = sums.split_at(m);
            let s = Matrix::rows(s, shape.value_width);
            let widths = [shape.head_width, shape.value_width, m, m, shape.head_width, shape.value_width];
            let (key_rows, value_rows) = (shape.key_rows(b, hk, 0), shape.value_rows(b, hk));
            let all = self.atoms[atom].clone();
            with_scratch(CHUNK * widths.iter().sum::<usize>(), |scratch| {
                let [k, v, phi, slopes, near_k, near_v] = split(scratch, widths.map(|width| CHUNK * width));
                for start in all.clone().step_by(CHUNK) {
                    let keys = start..(start + CHUNK).min(all.end);
                    let n = keys.len();
                    let k = self.rows((self.problem.k, key_rows), b, keys.clone(), k);
                    let v = self.rows((self.problem.v, value_rows), b, keys.clone(), v);
                    let (phi, slopes) = (&mut phi[..n * m], &mut slopes[..n * m]);
                    map.logs(k, n, phi);
                    exponentiate(phi, scales, |j| self.real(b, start + j));
                    for row in slopes.chunks_exact_mut(m) {
                        row.copy_from_slice(z);
                    }
                    product((n, m, shape.value_width), 1.0, v, s.transposed(), Write::Add, slopes, m);
                    let values = shape.value_width;
                    product((n, values, m), 1.0, Matrix::rows(phi, m), s, Write::Over, near_v, values);
                    for (slope, phi) in slopes.iter_mut().zip(&*phi) {
                        *slope *= phi;
                    }
                    let near_k = &mut near_k[..n * shape.head_width];
                    near_k.fill(0.0);
                    map.pull(slopes, k, n, near_k, shape.head_width);
                    for (t, j) in keys.enumerate() {
                        // SAFETY: this key of this head is this task's.
                        let (k, v) = unsafe { (grad_k.row(&key_rows, j), grad_v.row(&value_rows, j)) };
                        let near_k = &near_k[t * shape.head_width..(t + 1) * shape.head_width];
                        let near_v = &near_v[t * values..(t + 1) * values];
                        if fresh {
                            k.copy_from_slice(near_k);
                            v.copy_from_slice(near_v);
                        } else {
                            simd::add_scaled(k, 1.0, near_k);
                            simd::add_scaled(v, 1.0, near_v);
                        }
                    }
                }
            });
        });
    }

    /// Adds the state `sums` that queries give, at the scales of their keys, to `running`, whose scales become the lower
    /// ones: queries that see fewer keys may have lower scales, and a product with features at the lower scale is the
    /// larger number.
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
}
