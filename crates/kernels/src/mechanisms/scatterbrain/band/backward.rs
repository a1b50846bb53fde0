//! Backward pass.
//!
//! With `P` the normalised weights, `dP_ij = dO_i.v_j` and `delta_i = dO_i.out_i`, every weight has the gradient
//! `dP_ij - delta_i`. Inside a tile's hull gradients are computed one by one. For keys outside, a tile produces the
//! state `(-Phi_q^T delta, Phi_q^T dO)`, the mirror image of the sums of the forward pass: keys before and after a tile
//! receive their gradients from the sum of these states over all tiles whose hull does not contain them.

use std::ops::Range;

use super::{
    Band, Grads, RowScales,
    given::Output,
    plan::{Group, Plan, Run, Zone},
    span::{Span, add},
    tile::{Tile, lanes, lanes_mut},
};
use crate::{
    gemm::{Matrix, Write, product},
    memory::arbitrary,
    parallel::{Disjoint, Parts, for_each, with_parts},
    simd::{self, LANES},
};

/// Gradients with respect to the near keys of a span.
struct NearGrads<'s> {
    k: &'s mut [f32],
    v: &'s mut [f32],
    /// Gradients of the features at the scales of the span, `[keys,m]`.
    phi: &'s mut [f32],
    /// For each tile, its state for the keys outside its hull.
    outside: &'s mut [f32],
}

/// Buffers of one tile. Rows over queries have the plan's stride.
struct Work<'s> {
    /// `dP`, then gradients of exact scores, `[hull,n]`.
    slopes: &'s mut [f32],
    /// Gradients of feature products, `[hull,n]`.
    feature_slopes: &'s mut [f32],
    /// `dO / Z`, `[n,Dv]`, its transpose, and `delta / Z`, `[n]`.
    grad: &'s mut [f32],
    grad_columns: &'s mut [f32],
    delta: &'s mut [f32],
    /// Inverse denominators, `[n]`; 0 after the last query.
    inverses: &'s mut [f32],
    /// Features of the queries, `[n,m]`, and their gradients, `[m,n]`.
    phi: &'s mut [f32],
    phi_slopes: &'s mut [f32],
    /// Scratch for sums of gradients, `[n]`.
    totals: &'s mut [f32],
    q: &'s mut [f32],
}

impl Band<'_> {
    fn work<'s>(&self, parts: &mut Parts<'s>) -> Work<'s> {
        let [_, phi, pairs, row] = self.tile_scratch();
        let (width, values) = (self.problem.shape.head_width, self.problem.shape.value_width);
        Work {
            slopes: parts.take(pairs),
            feature_slopes: parts.take(pairs),
            grad: parts.take(row * values),
            grad_columns: parts.take(row * values),
            delta: parts.take(row),
            inverses: parts.take(row),
            phi: parts.take(phi),
            phi_slopes: parts.take(phi),
            totals: parts.take(row),
            q: parts.take(row * width),
        }
    }

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
            // All keys are far: the spans alone give the states.
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
        // Spans whose hulls share keys are processed one after the other.
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
                // SAFETY: the state of this span belongs to this task.
                let given = unsafe { given.range(number * self.state.sums(), self.state.sums()) };
                self.backward_span((b, hk, span), stride, (kept, received), output, grads, given);
            });
        }
    }

    /// Zeroes the gradient of keys in no hull.
    fn clear_unreached(&self, grads: &[Disjoint<f32>; 3]) {
        let shape = self.problem.shape;
        let mut next = 0;
        for reach in (0..self.spans()).map(|span| self.reach(span)).chain(std::iter::once(shape.keys..shape.keys)) {
            for stream in 0..self.streams() {
                let place = (stream / shape.key_heads, stream % shape.key_heads);
                // SAFETY: the tasks of the spans are done, and these keys belonged to none of them.
                unsafe { self.clear_keys(place, next..reach.start, grads) };
            }
            next = next.max(reach.end);
        }
    }

    /// Zeroes the gradient of some keys.
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
            // SAFETY: guaranteed by the caller.
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

    /// Keys of a span that are in no hull of an earlier turn.
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
        let (m, width, values, len) = (self.state.features, shape.head_width, shape.value_width, self.state.sums());
        let keys = self.reach(span);
        let near = [width, values, m].map(|columns| keys.len() * columns);
        let [k, v, phi_k, outside, segments] = self.span_scratch();
        let [q, phi, pairs, row] = self.tile_scratch();
        let of_work = Parts::floats(|parts| self.work(parts));
        with_parts!(
            k = k,
            v = v,
            phi_k = phi_k,
            outside = outside,
            segments = segments,
            near_k = near[0],
            near_v = near[1],
            near_phi = near[2],
            given_here = outside,
            states = segments,
            q_columns = q,
            tops = row,
            phi = phi,
            x = pairs,
            g = pairs,
            work = of_work,
            {
                let near = self.load((b, hk, span), kept, [k, v, phi_k, outside, segments]);
                for buffer in [&mut *near_k, &mut *near_v, &mut *near_phi] {
                    buffer.fill(0.0);
                }
                let mut grads = NearGrads { k: near_k, v: near_v, phi: near_phi, outside: given_here };
                let mut work = self.work(&mut Parts::new(work));
                let mut plan = Plan::default();
                for (t, queries) in self.tiles(span).enumerate() {
                    self.plan(b, queries, &mut plan);
                    let outside = &near.outside[t * len.min(near.outside.len())..];
                    for h in hk * shape.group()..(hk + 1) * shape.group() {
                        let mut tile = Tile { plan: &plan, q: q_columns, tops, phi, x, g };
                        let write = if h == hk * shape.group() { Write::Over } else { Write::Add };
                        let state = (m > 0).then(|| (t * len..(t + 1) * len, write));
                        self.backward_tile(&mut tile, (b, h), (&near, outside), output, &mut work, &mut grads, state);
                        let rows = shape.query_rows(b, h);
                        for (t, i) in plan.queries.clone().enumerate() {
                            // SAFETY: this row of this head belongs to this task.
                            let row = unsafe { grad_q.row(&rows, i) };
                            row.copy_from_slice(&work.q[t * width..(t + 1) * width]);
                        }
                    }
                }
                if m > 0 && keys.is_empty() {
                    given.fill(0.0);
                    for state in grads.outside.chunks_exact(len).take(self.tiles(span).len()) {
                        add(given, state);
                    }
                } else if m > 0 {
                    self.pass_on(span, &near, received, states, &mut grads);
                    simd::vectorize(
                        #[inline(always)]
                        || simd::multiply(grads.phi, near.phi),
                    );
                    let map = self.problem.features.expect("features");
                    map.pull(grads.phi, near.k, keys.len(), grads.k, width);
                }
                let (key_rows, value_rows) = (shape.key_rows(b, hk, 0), shape.value_rows(b, hk));
                let fresh = self.fresh(span, stride);
                for (t, j) in keys.clone().enumerate() {
                    // SAFETY: no other span of this turn has this key in its hull.
                    let (k, v) = unsafe { (grad_k.row(&key_rows, j), grad_v.row(&value_rows, j)) };
                    let (near_k, near_v) =
                        (&grads.k[t * width..(t + 1) * width], &grads.v[t * values..(t + 1) * values]);
                    if fresh.contains(&j) {
                        // Nothing has been written there yet.
                        k.copy_from_slice(near_k);
                        v.copy_from_slice(near_v);
                    } else {
                        add(k, near_k);
                        add(v, near_v);
                    }
                }
            }
        );
    }

    /// Gradients of the queries of a tile, into `work.q`, and of its keys; `state` is its index among the states of the
    /// span, and whether it is the first there.
    #[allow(clippy::too_many_arguments)]
    fn backward_tile(
        &self,
        tile: &mut Tile,
        (b, h): (usize, usize),
        (near, outside): (&Span, &[f32]),
        output: Output,
        work: &mut Work,
        grads: &mut NearGrads,
        state: Option<(Range<usize>, Write)>,
    ) {
        let (shape, plan) = (self.problem.shape, tile.plan);
        let (n, stride, values) = (plan.queries.len(), plan.stride, self.state.values);
        let row = (b * shape.heads + h) * shape.queries + plan.queries.start;
        tile.tops[..n].copy_from_slice(&output.scales.tops[row..row + n]);
        work.inverses[..n].copy_from_slice(&output.scales.inverses[row..row + n]);
        work.inverses[n..stride].fill(0.0);
        self.score(tile, (b, h), near, Some(work.inverses));
        self.scale_gradient((b, h), &plan.queries, output, (work.grad, work.delta));
        work.delta[n..stride].fill(0.0);
        simd::transpose(Matrix::rows(work.grad, values), (n, values), work.grad_columns, stride);
        if let Some((state, write)) = state {
            self.give_rows((tile.phi, stride), work.grad, &work.delta[..n], &mut grads.outside[state], write);
        }
        self.slope(tile, b, near, work);
        self.pull_tile(tile, (b, h), near, outside, work, grads);
    }

    /// Converts scores to weights relative to the row maxima, and computes the gradients of scores and of feature
    /// products.
    fn slope(&self, tile: &mut Tile, b: usize, near: &Span, work: &mut Work) {
        let (plan, m, values) = (tile.plan, self.state.features, self.state.values);
        let (first, stride, hull) = (near.place(plan), plan.stride, plan.hull.len());
        // dP over the denominators; without features it is needed only on the supports.
        let everywhere = [Run { keys: 0..hull, lanes: 0..plan.queries.len() }];
        for run in if m > 0 { &everywhere[..] } else { &plan.scores } {
            if run.keys.is_empty() {
                continue;
            }
            let grad = Matrix::rows(&work.grad_columns[run.lanes.start..], stride);
            let slopes = &mut work.slopes[run.keys.start * stride + run.lanes.start..];
            let size = (run.keys.len(), run.lanes.len(), values);
            product(size, 1.0, near.v.skip_rows(first + run.keys.start), grad, Write::Over, slopes, stride);
        }
        let naive = self.problem.naive && m > 0;
        let valid = self.valid(b, &plan.hull);
        simd::vectorize(
            #[inline(always)]
            || {
                for (g, group) in plan.groups.iter().enumerate() {
                    let at = g * LANES;
                    let (top, delta) = (lanes(tile.tops, at), lanes(work.delta, at));
                    let walked = lanes(work.inverses, at).map(|inverse| inverse > 0.0);
                    for (zone, keys) in group.zones(hull) {
                        for key in keys {
                            let place = key * stride + at;
                            let x = lanes_mut(tile.x, place);
                            let slopes = lanes_mut(work.slopes, place);
                            let feature_slopes = lanes_mut(work.feature_slopes, place);
                            if valid.is_some_and(|valid| valid[key] == 0) || m == 0 && zone == Zone::Beside {
                                for row in [x, slopes, feature_slopes] {
                                    row.fill(0.0);
                                }
                                continue;
                            }
                            let g = lanes(tile.g, place);
                            group.slope((zone, key), (x, g), (slopes, feature_slopes), (top, delta, &walked), naive);
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
        let (shape, plan) = (self.problem.shape, tile.plan);
        let (n, hull, m, stride) = (plan.queries.len(), plan.hull.len(), self.state.features, plan.stride);
        let (width, values, tau) = (shape.head_width, self.state.values, self.problem.scale);
        let rows = shape.query_rows(b, h).slice(plan.queries.start, n);
        let q = Matrix::rows(&self.problem.q[rows.offset..], rows.stride);
        let first = near.place(plan);
        for (g, group) in plan.groups.iter().enumerate() {
            let rows = g * LANES..n.min((g + 1) * LANES);
            let grad_q = &mut work.q[rows.start * width..rows.end * width];
            if group.some.is_empty() {
                grad_q.fill(0.0);
                continue;
            }
            let slopes = Matrix::rows(&work.slopes[group.some.start * stride + rows.start..], stride).transposed();
            let k = near.k.skip_rows(first + group.some.start);
            product((rows.len(), width, group.some.len()), tau, slopes, k, Write::Over, grad_q, width);
        }
        // Keys of the hull get gradients from the rows that have them in their support.
        for Run { keys, lanes } in &plan.scores {
            let at = keys.start * stride + lanes.start;
            let key = first + keys.start;
            let slopes = Matrix::rows(&work.slopes[at..], stride);
            let q = q.skip_rows(lanes.start);
            let size = (keys.len(), width, lanes.len());
            product(size, tau, slopes, q, Write::Add, &mut grads.k[key * width..], width);
            if m == 0 {
                let weights = Matrix::rows(&tile.x[at..], stride);
                let grad = Matrix::rows(&work.grad[lanes.start * values..], values);
                let size = (keys.len(), values, lanes.len());
                product(size, 1.0, weights, grad, Write::Add, &mut grads.v[key * values..], values);
            }
        }
        let Some(map) = self.problem.features else { return };
        if hull > 0 {
            let (weights, grad) = (Matrix::rows(tile.x, stride), Matrix::rows(work.grad, values));
            product((hull, values, n), 1.0, weights, grad, Write::Add, &mut grads.v[first * values..], values);
        }
        let (z, s) = outside.split_at(m);
        let phi_slopes = &mut work.phi_slopes[..m * stride];
        let grad = Matrix::rows(work.grad_columns, stride);
        product((m, n, values), 1.0, Matrix::rows(s, values), grad, Write::Over, phi_slopes, stride);
        simd::vectorize(
            #[inline(always)]
            || {
                for (slopes, &z) in phi_slopes.chunks_exact_mut(stride).zip(z) {
                    simd::add_scaled(slopes, -z, &work.delta[..stride]);
                }
            },
        );
        simd::transpose(Matrix::rows(tile.phi, stride), (m, n), work.phi, m);
        for Run { keys, lanes } in &plan.products {
            let key = first + keys.start;
            let slopes = Matrix::rows(&work.feature_slopes[keys.start * stride + lanes.start..], stride);
            let features = Matrix::rows(&near.phi[key * m..], m).transposed();
            let to = &mut phi_slopes[lanes.start..];
            product((m, lanes.len(), keys.len()), 1.0, features, slopes, Write::Add, to, stride);
            let queries = Matrix::rows(&work.phi[lanes.start * m..], m);
            product((keys.len(), m, lanes.len()), 1.0, slopes, queries, Write::Add, &mut grads.phi[key * m..], m);
        }
        simd::vectorize(
            #[inline(always)]
            || simd::multiply(phi_slopes, &tile.phi[..m * stride]),
        );
        map.pull_columns((phi_slopes, stride, n), q, work.totals, work.q);
    }

    /// Gradients that near keys receive from tiles of the span whose hulls do not contain them, and from other spans:
    /// `received`, the states of the atoms. `states` is scratch for those of the segments.
    fn pass_on(&self, span: usize, near: &Span, received: &[f32], states: &mut [f32], grads: &mut NearGrads) {
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
        // Keys after the hulls of earlier tiles.
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
            let (s, slopes) = (Matrix::rows(s, values), &mut grads.phi[at * m..(at + n) * m]);
            simd::vectorize(
                #[inline(always)]
                || {
                    for slopes in slopes.chunks_exact_mut(m) {
                        simd::each_pair(slopes, z, |slope, z| slope + z);
                    }
                },
            );
            product((n, m, values), 1.0, near.v.skip_rows(at), s.transposed(), Write::Add, slopes, m);
            let phi = Matrix::rows(&near.phi[at * m..], m);
            product((n, values, m), 1.0, phi, s, Write::Add, &mut grads.v[at * values..], values);
        }
    }
}

impl Group {
    /// Converts the scores `x` of one key to weights relative to `2^top` and `slopes`, initially `dP`, to score
    /// gradients; fills the gradients of the feature products `g`. Queries that are not `walked` get none.
    #[inline(always)]
    fn slope(
        &self,
        (zone, key): (Zone, usize),
        (x, g): (&mut [f32; LANES], &[f32; LANES]),
        (slopes, feature_slopes): (&mut [f32; LANES], &mut [f32; LANES]),
        (top, delta, walked): (&[f32; LANES], &[f32; LANES], &[bool; LANES]),
        naive: bool,
    ) {
        for lane in 0..LANES {
            let (inside, beside) = self.of(key, lane);
            let (inside, beside) = (inside & walked[lane], beside & walked[lane]);
            let slope = slopes[lane] - delta[lane];
            let mut weight = if beside { g[lane] } else { 0.0 };
            let mut own = 0.0;
            if zone != Zone::Beside {
                let exact = simd::exp2(x[lane] - top[lane]);
                own = if inside { exact * slope } else { 0.0 };
                weight = if inside { exact + if naive { g[lane] } else { 0.0 } } else { weight };
            }
            x[lane] = weight;
            slopes[lane] = own;
            feature_slopes[lane] = if beside | (naive & inside) { slope } else { 0.0 };
        }
    }
}
