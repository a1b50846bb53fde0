//! Backward pass.
//!
//! With `P` the normalised weights, `dP_ij = dO_i.v_j` and `delta_i = dO_i.out_i`, every weight has the slope
//! `dP_ij - delta_i`. Inside a tile's hull slopes are formed one by one. Towards the keys outside, a tile gives the state
//! `(-Phi_q^T delta, Phi_q^T dO)`, the mirror image of the sums of the forward pass: the keys before and behind a tile
//! receive their gradients from the sum of these states over all tiles whose hull they are not in.

use std::ops::Range;

use super::{
    Band, Grads, RowScales,
    forward::{Parts, Tile},
    given::Output,
    span::{Span, add},
};
use crate::{
    gemm::{Matrix, Write, product},
    memory::arbitrary,
    parallel::{Disjoint, for_each, split, with_scratch},
    simd,
};

/// Gradients with respect to the near keys of a span.
struct NearGrads<'s> {
    k: &'s mut [f32],
    v: &'s mut [f32],
    /// Slopes of the features at the scales of the span, as columns `[m,keys]`.
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
}

/// What the backward pass forms of a span beside what it loads.
struct Turned<'s> {
    /// Values of the near keys as columns, `[Dv,keys]`.
    v_columns: &'s [f32],
    /// Features of the near keys, `[keys,m]`.
    phi: &'s [f32],
}

impl Band<'_> {
    pub(super) fn backward(&self, out: &[f32], scales: &RowScales, grad_out: &[f32]) -> Grads {
        let problem = &self.problem;
        let mut grads =
            Grads { q: arbitrary(problem.q.len()), k: arbitrary(problem.k.len()), v: arbitrary(problem.v.len()) };
        let output = Output { out, grad: grad_out, scales };
        let spans = &*scales.surroundings;
        let mut given = vec![0.0f32; self.streams() * self.spans() * self.state.sums()];
        let shared = [&mut grads.q, &mut grads.k, &mut grads.v].map(|x| Disjoint::new(&mut x[..]));
        if self.state.features == 0 {
            self.backward_spans(spans, &[], output, &mut given, &shared);
            self.clear_unreached(&shared);
        } else if self.hull_len() == 0 {
            // All keys are far: the spans themselves tell what they give.
            self.backward_spans(spans, &[], output, &mut given, &shared);
            self.backward_far(&self.receive(spans, &given), &shared);
        } else {
            self.give(spans, output, &mut given);
            let received = self.receive(spans, &given);
            self.backward_spans(spans, &received, output, &mut given, &shared);
            self.backward_far(&received, &shared);
        }
        self.backward_direct(out, scales, grad_out, &mut grads);
        grads
    }

    fn backward_spans(
        &self,
        spans: &[f32],
        received: &[f32],
        output: Output,
        given: &mut [f32],
        grads: &[Disjoint<f32>; 3],
    ) {
        let shape = self.problem.shape;
        let given = Disjoint::new(given);
        // Spans whose hulls share keys go one after the other.
        let stride = self.stride();
        for turn in 0..stride.min(self.spans()) {
            let count = (self.spans() - turn).div_ceil(stride);
            for_each(self.streams() * count, |task| {
                let (b, rest) = (task / (count * shape.key_heads), task % (count * shape.key_heads));
                let (span, hk) = (turn + stride * (rest / shape.key_heads), rest % shape.key_heads);
                let stream = b * shape.key_heads + hk;
                let number = stream * self.spans() + span;
                let kept = &spans[number * self.kept()..][..self.kept()];
                let of_stream = received.len() / self.streams();
                let received = &received[stream * of_stream..][..of_stream];
                // SAFETY: the state of this span is this task's.
                let given = unsafe { given.range(number * self.state.sums(), self.state.sums()) };
                self.backward_span((b, hk, span), stride, (kept, received), output, grads, given);
            });
        }
    }

    /// Gradient 0 for keys in no hull.
    fn clear_unreached(&self, grads: &[Disjoint<f32>; 3]) {
        let shape = self.problem.shape;
        let mut next = 0;
        for reach in (0..self.spans()).map(|span| self.reach(span)).chain(std::iter::once(shape.keys..shape.keys)) {
            for stream in 0..self.streams() {
                let place = (stream / shape.key_heads, stream % shape.key_heads);
                // SAFETY: the tasks of the spans are done, and these keys were nobody's.
                unsafe { self.clear_keys(place, next..reach.start, grads) };
            }
            next = next.max(reach.end);
        }
    }

    /// Gradient 0 for some keys.
    ///
    /// # Safety
    /// No task may hold these rows.
    pub(super) unsafe fn clear_keys(
        &self,
        (b, hk): (usize, usize),
        keys: Range<usize>,
        [_, grad_k, grad_v]: &[Disjoint<f32>; 3],
    ) {
        let (key_rows, value_rows) = (self.problem.shape.key_rows(b, hk, 0), self.problem.shape.value_rows(b, hk));
        for j in keys {
            // SAFETY: the caller's promise.
            unsafe {
                grad_k.row(&key_rows, j).fill(0.0);
                grad_v.row(&value_rows, j).fill(0.0);
            }
        }
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
        (kept, received): (&[f32], &[f32]),
        output: Output,
        [grad_q, grad_k, grad_v]: &[Disjoint<f32>; 3],
        given: &mut [f32],
    ) {
        let shape = self.problem.shape;
        let (m, width, values, hull) = (self.state.features, shape.head_width, shape.value_width, self.hull_stride());
        let [k, v, k_columns, phi_columns, outside, segments] = self.span_scratch().sizes();
        let keys = self.reach(span);
        let (near_keys, rows, len) = (keys.len(), self.tile, self.state.sums());
        let columns = simd::row_stride(near_keys);
        let sizes = [
            k,
            v,
            k_columns,
            phi_columns,
            outside,
            segments,
            shape.group() * super::SPAN * m,
            rows * hull,
            rows * hull,
            near_keys * width,
            near_keys * values,
            m * columns,
            outside,
            rows * hull,
            rows * hull,
            rows * values,
            rows,
            rows * m,
            rows * width,
            values * columns,
            near_keys * m,
            rows,
            segments,
            columns,
        ];
        with_scratch(sizes.iter().sum(), |scratch| {
            let [
                k,
                v,
                k_columns,
                phi_columns,
                outside,
                segments,
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
                phi,
                tops,
                states,
                totals,
            ] = split(scratch, sizes);
            let near = self.load((b, hk, span), kept, [k, v, k_columns, phi_columns, outside, segments]);
            self.query_logs((b, hk, span), logs);
            for buffer in [&mut *near_k, &mut *near_v, &mut *near_phi] {
                buffer.fill(0.0);
            }
            let mut grads = NearGrads { k: near_k, v: near_v, phi: near_phi, outside: tile_states };
            simd::transpose(near.v, (near_keys, values), v_columns, columns);
            simd::transpose(Matrix::rows(near.phi_columns, columns), (m, near_keys), phi, m);
            let turned = Turned { v_columns, phi };
            let mut work = Work { slopes, feature_slopes, grad, delta, phi: slopes_phi, q };
            let mut parts = Vec::with_capacity(self.tile);
            for (t, queries) in self.tiles(span).enumerate() {
                let hull_keys = self.hull(queries.clone());
                self.part(b, &queries, &hull_keys, &mut parts);
                let outside = &near.outside[t * len.min(near.outside.len())..];
                for h in hk * shape.group()..(hk + 1) * shape.group() {
                    let n = queries.len();
                    let row = (b * shape.heads + h) * shape.queries + queries.start;
                    tops[..n].copy_from_slice(&output.scales.tops[row..row + n]);
                    let mut tile = Tile {
                        queries: queries.clone(),
                        hull: hull_keys.clone(),
                        parts: &parts,
                        tops: &mut tops[..n],
                        phi: self.tile_logs(&queries, h % shape.group(), logs),
                        stride: hull,
                        x,
                        g,
                    };
                    self.score(&mut tile, (b, h), &near, false);
                    let inverses = &output.scales.inverses[row..row + n];
                    self.drop_rows(inverses, tile.phi);
                    self.scale_gradient((b, h), &queries, output, (work.grad, work.delta));
                    if m > 0 {
                        let write = if h == hk * shape.group() { Write::Over } else { Write::Add };
                        let state = &mut grads.outside[t * len..(t + 1) * len];
                        self.give_rows(tile.phi, work.grad, &work.delta[..n], state, write);
                    }
                    self.slope(&mut tile, (&near, &turned), inverses, &mut work);
                    self.pull_tile(&tile, (b, h), (&near, &turned), outside, &mut work, &mut grads);
                    let rows = shape.query_rows(b, h);
                    for (t, i) in queries.clone().enumerate() {
                        // SAFETY: this row of this head is this task's.
                        let row = unsafe { grad_q.row(&rows, i) };
                        row.copy_from_slice(&work.q[t * width..(t + 1) * width]);
                    }
                }
            }
            if m > 0 && near_keys == 0 {
                given.fill(0.0);
                for state in grads.outside.chunks_exact(len).take(self.tiles(span).len()) {
                    add(given, state);
                }
            } else if m > 0 {
                self.pass_on(span, (&near, &turned), received, states, &mut grads);
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for (slope, phi) in grads.phi.iter_mut().zip(near.phi_columns) {
                            *slope *= phi;
                        }
                    },
                );
                let map = self.problem.features.expect("features");
                map.pull_columns((grads.phi, columns, near_keys), near.k, totals, grads.k);
            }
            let (key_rows, value_rows) = (shape.key_rows(b, hk, 0), shape.value_rows(b, hk));
            let fresh = self.fresh(span, stride);
            for (t, j) in keys.clone().enumerate() {
                // SAFETY: no other span of this turn has this key in its hull.
                let (k, v) = unsafe { (grad_k.row(&key_rows, j), grad_v.row(&value_rows, j)) };
                let (near_k, near_v) = (&grads.k[t * width..(t + 1) * width], &grads.v[t * values..(t + 1) * values]);
                if fresh.contains(&j) {
                    // Nothing stands there yet to be added to.
                    k.copy_from_slice(near_k);
                    v.copy_from_slice(near_v);
                } else {
                    add(k, near_k);
                    add(v, near_v);
                }
            }
        });
    }

    /// Turns scores into weights relative to the row maxima, and forms the slopes of scores and of products of features.
    fn slope(&self, tile: &mut Tile, (near, turned): (&Span, &Turned), inverses: &[f32], work: &mut Work) {
        let (n, len, m, values) = (tile.queries.len(), tile.hull.len(), self.state.features, self.state.values);
        if len == 0 {
            return;
        }
        let (first, stride) = (tile.hull.start - near.keys.start, tile.stride);
        // dP over the denominators; without features it is needed on the supports alone.
        let mut form = |rows: Range<usize>, columns: Range<usize>| {
            if !columns.is_empty() {
                let grad = Matrix::rows(&work.grad[rows.start * values..], values);
                let v = Matrix::rows(&turned.v_columns[first + columns.start..], near.stride);
                let slopes = &mut work.slopes[rows.start * stride + columns.start..];
                product((rows.len(), columns.len(), values), 1.0, grad, v, Write::Over, slopes, stride);
            }
        };
        if m > 0 {
            form(0..n, 0..len);
        } else {
            for group in self.groups(tile) {
                let columns = self.group_columns(tile, &group);
                form(group, columns);
            }
        }
        let naive = self.problem.naive && m > 0;
        simd::vectorize(
            #[inline(always)]
            || {
                for t in 0..n {
                    let row = t * stride..(t + 1) * stride;
                    let (x, g) = (&mut tile.x[row.clone()], &tile.g[row.clone()]);
                    let (slopes, feature_slopes) = (&mut work.slopes[row.clone()], &mut work.feature_slopes[row]);
                    let walked = inverses[t] > 0.0;
                    if !walked {
                        for row in [x, slopes, feature_slopes] {
                            row.fill(0.0);
                        }
                        continue;
                    }
                    let parts = &tile.parts[t];
                    parts.slope((x, g), (slopes, feature_slopes), (tile.tops[t], work.delta[t]), naive);
                }
            },
        );
    }

    /// Gradients of a tile's queries, of the keys and values of its hull, and of their features.
    fn pull_tile(
        &self,
        tile: &Tile,
        (b, h): (usize, usize),
        (near, turned): (&Span, &Turned),
        outside: &[f32],
        work: &mut Work,
        grads: &mut NearGrads,
    ) {
        let shape = self.problem.shape;
        let (n, len, m, stride) = (tile.queries.len(), tile.hull.len(), self.state.features, tile.stride);
        let (width, values, tau) = (shape.head_width, self.state.values, self.problem.scale);
        let rows = shape.query_rows(b, h).slice(tile.queries.start, n);
        let q = Matrix::rows(&self.problem.q[rows.offset..], rows.stride);
        let first = tile.hull.start.saturating_sub(near.keys.start);
        if self.radius.is_some() {
            for group in self.groups(tile) {
                let columns = self.group_columns(tile, &group);
                let grad_q = &mut work.q[group.start * width..group.end * width];
                if columns.is_empty() {
                    grad_q.fill(0.0);
                    continue;
                }
                let k = Matrix { data: &near.k.data[(first + columns.start) * near.k.row..], ..near.k };
                let slopes = Matrix::rows(&work.slopes[group.start * stride + columns.start..], stride);
                product((group.len(), width, columns.len()), tau, slopes, k, Write::Over, grad_q, width);
            }
        } else {
            work.q[..n * width].fill(0.0);
        }
        // Keys of the hull get gradients from the rows that have them in their support.
        for (columns, group) in self.columns_of_rows(tile) {
            let at = group.start * stride + columns.start;
            let size = (columns.len(), width, group.len());
            let slopes = Matrix::rows(&work.slopes[at..], stride).transposed();
            let q = Matrix { data: &q.data[group.start * q.row..], ..q };
            let key = first + columns.start;
            product(size, tau, slopes, q, Write::Add, &mut grads.k[key * width..], width);
            if m == 0 {
                let size = (columns.len(), values, group.len());
                let weights = Matrix::rows(&tile.x[at..], stride).transposed();
                let grad = Matrix::rows(&work.grad[group.start * values..], values);
                product(size, 1.0, weights, grad, Write::Add, &mut grads.v[key * values..], values);
            }
        }
        let Some(map) = self.problem.features else { return };
        if len > 0 {
            let weights = Matrix::rows(tile.x, stride).transposed();
            let grad = Matrix::rows(work.grad, values);
            product((len, values, n), 1.0, weights, grad, Write::Add, &mut grads.v[first * values..], values);
        }
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
        for group in self.groups(tile) {
            for columns in self.corners(tile, &group).0.into_iter().filter(|columns| !columns.is_empty()) {
                let slopes = Matrix::rows(&work.feature_slopes[group.start * stride + columns.start..], stride);
                let keys = Matrix::rows(&turned.phi[(first + columns.start) * m..], m);
                product((group.len(), m, columns.len()), 1.0, slopes, keys, Write::Add, &mut phi[group.start * m..], m);
            }
        }
        for columns in self.corners(tile, &(0..n)).0.into_iter().filter(|columns| !columns.is_empty()) {
            let slopes = Matrix::rows(&work.feature_slopes[columns.start..], stride);
            let queries = Matrix::rows(tile.phi, m).transposed();
            let to = &mut grads.phi[first + columns.start..];
            product((m, columns.len(), n), 1.0, queries, slopes, Write::Add, to, near.stride);
        }
        simd::vectorize(
            #[inline(always)]
            || {
                for (slope, phi) in phi.iter_mut().zip(&*tile.phi) {
                    *slope *= phi;
                }
            },
        );
        map.pull(phi, q, n, work.q, width);
    }

    /// Runs of columns of a tile with the rows that have any of them in their support.
    fn columns_of_rows(&self, tile: &Tile) -> Vec<(Range<usize>, Range<usize>)> {
        let (n, len) = (tile.queries.len(), tile.hull.len());
        if self.radius.is_none() || len == 0 {
            return Vec::new();
        }
        // Three halves of a group fill the blocks of the products.
        let step = if self.group < self.tile { 3 * self.group / 2 } else { len };
        let support = |t: usize| &tile.parts[t].support;
        let (mut start, mut end) = (0, 0);
        let runs = (0..len).step_by(step).map(|column| {
            let columns = column..(column + step).min(len);
            while start < n && support(start).end <= columns.start {
                start += 1;
            }
            while end < n && support(end).start < columns.end {
                end += 1;
            }
            (columns, start..end.max(start))
        });
        runs.filter(|(_, rows)| !rows.is_empty()).collect()
    }

    /// Gradients that near keys receive from the tiles of the span whose hulls they are outside of, and from other spans:
    /// `received`, the states of the atoms. `states` is lent for those of the segments.
    fn pass_on(
        &self,
        span: usize,
        (near, turned): (&Span, &Turned),
        received: &[f32],
        states: &mut [f32],
        grads: &mut NearGrads,
    ) {
        let (m, values, len) = (self.state.features, self.state.values, self.state.sums());
        let segments = self.segments(span);
        let hulls: Vec<_> = self.tiles(span).map(|queries| self.hull(queries)).collect();
        let states = &mut states[..segments.len() * len];
        self.pick(span, near.scales, &segments, received, states);
        let mut running = vec![0.0f32; len];
        // Keys before the hulls of later tiles.
        let mut next = hulls.len();
        for (segment, state) in segments.iter().zip(states.chunks_exact_mut(len)).rev() {
            while next > 0 && hulls[next - 1].start >= segment.end {
                next -= 1;
                add(&mut running, &grads.outside[next * len..(next + 1) * len]);
            }
            add(state, &running);
        }
        // Keys behind the hulls of earlier tiles.
        if self.looks_ahead() {
            running.fill(0.0);
            let mut next = 0;
            for (segment, state) in segments.iter().zip(states.chunks_exact_mut(len)) {
                while next < hulls.len() && hulls[next].end <= segment.start {
                    add(&mut running, &grads.outside[next * len..(next + 1) * len]);
                    next += 1;
                }
                add(state, &running);
            }
        }
        for (segment, state) in segments.iter().zip(states.chunks_exact(len)) {
            let (at, n) = (segment.start - near.keys.start, segment.len());
            let (z, s) = state.split_at(m);
            let s = Matrix::rows(s, values);
            for (row, &z) in grads.phi.chunks_exact_mut(near.stride).zip(z) {
                row[at..at + n].iter_mut().for_each(|slope| *slope += z);
            }
            let v = Matrix::rows(&turned.v_columns[at..], near.stride);
            product((m, n, values), 1.0, s, v, Write::Add, &mut grads.phi[at..], near.stride);
            let phi = Matrix::rows(&near.phi_columns[at..], near.stride).transposed();
            product((n, values, m), 1.0, phi, s, Write::Add, &mut grads.v[at * values..], values);
        }
    }
}

impl Parts {
    /// Turns the scores `x` of a row into weights relative to `2^top` and `slopes`, which come as `dP`, into those of the
    /// scores; fills the slopes of the products `g` of features.
    #[inline(always)]
    fn slope(
        &self,
        (x, g): (&mut [f32], &[f32]),
        (slopes, feature_slopes): (&mut [f32], &mut [f32]),
        (top, delta): (f32, f32),
        naive: bool,
    ) {
        let (x, _) = x.as_chunks_mut::<{ simd::LANES }>();
        let (g, _) = g.as_chunks::<{ simd::LANES }>();
        let (slopes, _) = slopes.as_chunks_mut::<{ simd::LANES }>();
        let (feature_slopes, _) = feature_slopes.as_chunks_mut::<{ simd::LANES }>();
        for (n, (x, g)) in x.iter_mut().zip(g).enumerate() {
            let start = n * simd::LANES;
            let exact = start < self.support.end && start + simd::LANES > self.support.start;
            let (slopes, feature_slopes) = (&mut slopes[n], &mut feature_slopes[n]);
            for lane in 0..simd::LANES {
                let (inside, beside) = self.of(start + lane);
                let slope = slopes[lane] - delta;
                let mut weight = if beside { g[lane] } else { 0.0 };
                let mut own = 0.0;
                if exact {
                    let exact = simd::exp2(x[lane] - top);
                    own = if inside { exact * slope } else { 0.0 };
                    weight = if inside { exact + if naive { g[lane] } else { 0.0 } } else { weight };
                }
                x[lane] = weight;
                slopes[lane] = own;
                feature_slopes[lane] = if beside | (naive & inside) { slope } else { 0.0 };
            }
        }
    }
}
