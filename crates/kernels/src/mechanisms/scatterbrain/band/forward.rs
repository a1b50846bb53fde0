//! Forward pass.

use std::f32::consts::LN_2;

use super::{
    Band, RowScales,
    plan::{Group, Plan, Zone},
    span::{Span, in_place},
    tile::{Tile, lanes, lanes_mut},
};
use crate::{
    gemm::{Matrix, Write, product_fetching},
    memory::arbitrary,
    parallel::{Disjoint, for_each, with_parts},
    simd::{self, LANES, MultiplyAdd},
};

/// A row whose denominator, relative to the largest possible feature term, is below this is computed weight by weight:
/// the sums may have lost terms to underflow.
const LEAST: f32 = 1e-21;

impl Band<'_> {
    pub(super) fn forward(&self, out: &mut [f32]) -> RowScales<'static> {
        let shape = self.problem.shape;
        let rows = shape.batch * shape.heads * shape.queries;
        let [mut lse, mut tops, mut inverses] = [(); 3].map(|()| arbitrary(rows));
        let written = Disjoint::new(out);
        let saved = [&mut lse, &mut tops, &mut inverses].map(|x| Disjoint::new(x));
        let spans = self.surroundings();
        for_each(self.streams() * self.spans(), |task| {
            // Key heads vary fastest: in the token-first layout they share pages.
            let (b, hk, span) = self.place(task);
            let kept = &spans[((b * shape.key_heads + hk) * self.spans() + span) * self.kept()..][..self.kept()];
            self.forward_span((b, hk, span), kept, &written, &saved);
        });
        self.forward_direct(&written, [&mut lse, &mut tops, &mut inverses]);
        RowScales { lse, tops, inverses, surroundings: spans.into() }
    }

    /// The part of the keys and values of the next task, which this thread will most likely take, that tile `t` of this
    /// one prefetches.
    fn ahead(&self, (b, hk, span): (usize, usize, usize), t: usize) -> [&[f32]; 2] {
        let shape = self.problem.shape;
        let task = (b * self.spans() + span) * shape.key_heads + hk;
        if task + 1 == self.streams() * self.spans() {
            return [&[]; 2];
        }
        let (b, hk, span) = self.place(task + 1);
        let (keys, tiles) = (self.reach(span), super::SPAN / self.tile);
        let part = |t: usize| keys.start + keys.len() * t / tiles;
        let part = part(t)..part(t + 1);
        [
            in_place(self.problem.k, &shape.key_rows(b, hk, 0), part.clone()),
            in_place(self.problem.v, &shape.value_rows(b, hk), part),
        ]
    }

    fn forward_span(
        &self,
        (b, hk, span): (usize, usize, usize),
        kept: &[f32],
        out: &Disjoint<f32>,
        saved: &[Disjoint<f32>; 3],
    ) {
        let shape = self.problem.shape;
        let [k, v, phi_k, outside, segments] = self.span_scratch();
        let [q, phi, weights, tops] = self.tile_scratch();
        with_parts!(
            k = k,
            v = v,
            phi_k = phi_k,
            outside = outside,
            segments = segments,
            q = q,
            phi = phi,
            x = weights,
            g = weights,
            tops = tops,
            totals = tops,
            sums = self.tile * self.state.values,
            {
                let near = self.load((b, hk, span), kept, [k, v, phi_k, outside, segments]);
                let mut plan = Plan::default();
                for (t, queries) in self.tiles(span).enumerate() {
                    self.plan(b, queries, &mut plan);
                    let outside = &near.outside[t * self.state.sums().min(near.outside.len())..];
                    for h in hk * shape.group()..(hk + 1) * shape.group() {
                        let mut tile = Tile { plan: &plan, q, tops, phi, x, g };
                        let ahead = if h == hk * shape.group() { self.ahead((b, hk, span), t) } else { [&[][..]; 2] };
                        self.score(&mut tile, (b, h), &near, None);
                        self.weigh(&mut tile, b, outside, totals);
                        self.sum(&tile, &near, outside, sums, ahead);
                        self.divide(&tile, (b, h), (sums, totals), out, saved);
                    }
                }
            }
        );
    }

    /// Converts scores to weights relative to the row maxima, those off the support included; `totals` receives their
    /// sums and those outside the hull.
    fn weigh(&self, tile: &mut Tile, b: usize, outside: &[f32], totals: &mut [f32]) {
        let (plan, m) = (tile.plan, self.state.features);
        let (stride, hull) = (plan.stride, plan.hull.len());
        let naive = self.problem.naive && m > 0;
        let valid = self.valid(b, &plan.hull);
        simd::vectorize(
            #[inline(always)]
            || {
                for (g, group) in plan.groups.iter().enumerate() {
                    let at = g * LANES;
                    let top = *lanes(tile.tops, at);
                    let mut total = [0.0f32; LANES];
                    for (zone, keys) in group.zones(hull) {
                        if m == 0 && zone == Zone::Beside {
                            continue;
                        }
                        for key in keys {
                            let x = lanes_mut(tile.x, key * stride + at);
                            if valid.is_some_and(|valid| valid[key] == 0) {
                                x.fill(0.0);
                                continue;
                            }
                            group.weigh((zone, key), x, lanes(tile.g, key * stride + at), &top, naive);
                            for (total, &weight) in total.iter_mut().zip(&*x) {
                                *total += weight;
                            }
                        }
                    }
                    for (a, &z) in outside[..m].iter().enumerate() {
                        for (total, &phi) in total.iter_mut().zip(lanes(tile.phi, a * stride + at)) {
                            *total = phi.multiply_add(z, *total);
                        }
                    }
                    *lanes_mut(totals, at) = total;
                }
            },
        );
    }

    /// Weighted sums of values of a tile. Prefetches `ahead` meanwhile.
    fn sum(&self, tile: &Tile, near: &Span, outside: &[f32], sums: &mut [f32], ahead: [&[f32]; 2]) {
        let (plan, m, values) = (tile.plan, self.state.features, self.state.values);
        let (stride, n, hull) = (plan.stride, plan.queries.len(), plan.hull.len());
        let first = near.place(plan);
        if m == 0 {
            for (g, group) in plan.groups.iter().enumerate() {
                let rows = g * LANES..n.min((g + 1) * LANES);
                let sums = &mut sums[rows.start * values..rows.end * values];
                if group.some.is_empty() {
                    sums.fill(0.0);
                    continue;
                }
                let v = near.v.skip_rows(first + group.some.start);
                let weights = Matrix::rows(&tile.x[group.some.start * stride + rows.start..], stride).transposed();
                let ahead = ahead.get(g).copied().unwrap_or_default();
                let size = (rows.len(), values, group.some.len());
                product_fetching(size, 1.0, weights, v, Write::Over, sums, values, ahead);
            }
            return;
        }
        let (phi, s) = (Matrix::rows(tile.phi, stride).transposed(), Matrix::rows(&outside[m..], values));
        product_fetching((n, values, m), 1.0, phi, s, Write::Over, sums, values, ahead[0]);
        if hull > 0 {
            let weights = Matrix::rows(tile.x, stride).transposed();
            let (size, v) = ((n, values, hull), near.v.skip_rows(first));
            product_fetching(size, 1.0, weights, v, Write::Add, sums, values, ahead[1]);
        }
    }

    /// Writes the sums of a tile divided by their denominators `totals`, and the saved scalars.
    fn divide(
        &self,
        tile: &Tile,
        (b, h): (usize, usize),
        (sums, totals): (&[f32], &[f32]),
        out: &Disjoint<f32>,
        saved: &[Disjoint<f32>; 3],
    ) {
        let (shape, plan, values) = (self.problem.shape, tile.plan, self.state.values);
        let (rows, n) = (shape.out_rows(b, h), plan.queries.len());
        let start = (b * shape.heads + h) * shape.queries + plan.queries.start;
        // SAFETY: these rows of this head belong to this task.
        let [lse, tops, inverses] = saved.each_ref().map(|x| unsafe { x.range(start, n) });
        tops.copy_from_slice(&tile.tops[..n]);
        simd::vectorize(
            #[inline(always)]
            || {
                for (inverse, &total) in inverses.iter_mut().zip(totals) {
                    *inverse = if total > 0.0 { 1.0 / total } else { 0.0 };
                }
                for (t, &inverse) in inverses.iter().enumerate() {
                    // SAFETY: this row of this head belongs to this task.
                    let row = unsafe { out.row(&rows, plan.queries.start + t) };
                    for (y, &x) in row.iter_mut().zip(&sums[t * values..(t + 1) * values]) {
                        *y = x * inverse;
                    }
                }
                for (t, inverse) in inverses.iter_mut().enumerate() {
                    // NaN counts as lost too.
                    let held = totals[t] > LEAST;
                    if !held && plan.groups[t / LANES].features[t % LANES] {
                        *inverse = -1.0;
                    }
                }
                for ((lse, &total), &top) in lse.iter_mut().zip(totals).zip(&*tops) {
                    // Subnormal totals count as lost, or are 0.
                    let log = (top + simd::log2(total)) * LN_2;
                    *lse = if total > 0.0 { log } else { f32::NEG_INFINITY };
                }
            },
        );
    }
}

impl Group {
    /// Converts scores of one key to weights relative to `2^top`, using the feature products `g` off the support, and
    /// with `naive` on it too.
    #[inline(always)]
    fn weigh(
        &self,
        (zone, key): (Zone, usize),
        x: &mut [f32; LANES],
        g: &[f32; LANES],
        top: &[f32; LANES],
        naive: bool,
    ) {
        if zone == Zone::Within && !naive {
            for (x, &top) in x.iter_mut().zip(top) {
                *x = simd::exp2(*x - top);
            }
            return;
        }
        for lane in 0..LANES {
            let (inside, beside) = self.of(key, lane);
            let beside = if beside { g[lane] } else { 0.0 };
            x[lane] = if zone == Zone::Beside {
                beside
            } else {
                let exact = simd::exp2(x[lane] - top[lane]) + if naive { g[lane] } else { 0.0 };
                if inside { exact } else { beside }
            };
        }
    }
}
