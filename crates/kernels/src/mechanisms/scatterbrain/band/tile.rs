//! Scores and features of one tile of one query head. Queries are in lanes, so that their maxima, denominators and
//! masks are vectors; keys and values are read in place.

use std::f32::consts::LOG2_E;

use super::{
    Band,
    plan::{Group, Plan, Zone},
    span::{Span, in_place},
};
use crate::{
    gemm::{Matrix, Write, product, product_fetching},
    simd::{self, LANES},
};

/// One tile. Rows of all its buffers over queries have the plan's stride.
pub(super) struct Tile<'s> {
    pub plan: &'s Plan,
    /// Queries, `[D,n]`.
    pub q: &'s mut [f32],
    /// Row maxima to base 2, rounded up.
    pub tops: &'s mut [f32],
    /// Features `2^(l - top)` of the queries, `[m,n]`, 0 in rows without features.
    pub phi: &'s mut [f32],
    /// Scores to base 2, then weights, `[hull,n]`; scores are computed only in [`Plan::scores`].
    pub x: &'s mut [f32],
    /// Feature products, `[hull,n]`, computed only in [`Plan::products`].
    pub g: &'s mut [f32],
}

/// The vector of queries that starts here.
#[inline(always)]
pub(super) fn lanes(x: &[f32], start: usize) -> &[f32; LANES] {
    x[start..].first_chunk().expect("a vector of queries")
}

/// The same, mutable.
#[inline(always)]
pub(super) fn lanes_mut(x: &mut [f32], start: usize) -> &mut [f32; LANES] {
    x[start..].first_chunk_mut().expect("a vector of queries")
}

impl Band<'_> {
    /// Computes scores, row maxima, query features, and feature products. In the backward pass, which passes the
    /// inverse denominators, maxima are given, and excluded rows and rows computed weight by weight have no features.
    pub(super) fn score(&self, tile: &mut Tile, (b, h): (usize, usize), near: &Span, inverses: Option<&[f32]>) {
        let (shape, plan, m) = (self.problem.shape, tile.plan, self.state.features);
        let (width, stride, n) = (shape.head_width, plan.stride, plan.queries.len());
        let rows = shape.query_rows(b, h).slice(plan.queries.start, n);
        simd::transpose(Matrix::rows(&self.problem.q[rows.offset..], rows.stride), (n, width), tile.q, stride);
        let first = near.place(plan);
        let factor = self.problem.scale * LOG2_E;
        let next = plan.queries.end..(plan.queries.end + self.tile).min(shape.queries);
        let mut ahead = in_place(self.problem.q, &shape.query_rows(b, h), next);
        for run in &plan.scores {
            let k = near.k.skip_rows(first + run.keys.start);
            let q = Matrix::rows(&tile.q[run.lanes.start..], stride);
            let x = &mut tile.x[run.keys.start * stride + run.lanes.start..];
            let size = (run.keys.len(), run.lanes.len(), width);
            // Prefetch everything with the largest block.
            let fetched = if run.lanes.len() == n { std::mem::take(&mut ahead) } else { &[] };
            product_fetching(size, factor, k, q, Write::Over, x, stride, fetched);
        }
        if let Some(map) = self.problem.features {
            map.log_columns(tile.q, n, tile.phi, stride);
        }
        let valid = self.valid(b, &plan.hull);
        simd::vectorize(
            #[inline(always)]
            || {
                for (g, group) in plan.groups.iter().enumerate() {
                    let at = g * LANES;
                    if inverses.is_none() {
                        let mut top = group.largest(tile.x, (stride, at), plan.hull.len(), valid);
                        let mut featured = [f32::NEG_INFINITY; LANES];
                        for (a, &scale) in near.scales.iter().enumerate() {
                            for (most, &l) in featured.iter_mut().zip(lanes(tile.phi, a * stride + at)) {
                                let sum = l + scale;
                                *most = if sum > *most { sum } else { *most };
                            }
                        }
                        for lane in 0..LANES {
                            let higher = group.features[lane] & (featured[lane] > top[lane]);
                            top[lane] = if higher { featured[lane] } else { top[lane] };
                            // An integer, like the scales.
                            top[lane] = if top[lane] == f32::NEG_INFINITY { 0.0 } else { top[lane].ceil() };
                        }
                        *lanes_mut(tile.tops, at) = top;
                    }
                    let mut tops = *lanes(tile.tops, at);
                    for lane in 0..LANES {
                        let walked = inverses.is_none_or(|inverses| inverses[at + lane] > 0.0);
                        // 2^-infinity is 0.
                        tops[lane] = if group.features[lane] & walked { tops[lane] } else { f32::INFINITY };
                    }
                    featurize(tile.phi, (stride, at), near.scales, &tops);
                }
            },
        );
        for run in &plan.products {
            let keys = Matrix::rows(&near.phi[(first + run.keys.start) * m..], m);
            let queries = Matrix::rows(&tile.phi[run.lanes.start..], stride);
            let g = &mut tile.g[run.keys.start * stride + run.lanes.start..];
            product((run.keys.len(), run.lanes.len(), m), 1.0, keys, queries, Write::Over, g, stride);
        }
    }
}

/// Log features in lanes `at ..` of rows of `stride` to features `2^(l + c - top)`.
#[inline(always)]
pub(super) fn featurize(phi: &mut [f32], (stride, at): (usize, usize), scales: &[f32], tops: &[f32; LANES]) {
    for (a, &scale) in scales.iter().enumerate() {
        for (l, &top) in lanes_mut(phi, a * stride + at).iter_mut().zip(tops) {
            *l = simd::exp2(*l + scale - top);
        }
    }
}

impl Group {
    /// Largest scores of the supports, over real keys.
    #[inline(always)]
    fn largest(&self, x: &[f32], (stride, at): (usize, usize), hull: usize, valid: Option<&[u8]>) -> [f32; LANES] {
        let mut top = [f32::NEG_INFINITY; LANES];
        for (zone, keys) in self.zones(hull) {
            if zone == Zone::Beside {
                continue;
            }
            for key in keys {
                if valid.is_some_and(|valid| valid[key] == 0) {
                    continue;
                }
                let x = lanes(x, key * stride + at);
                for lane in 0..LANES {
                    let inside = zone == Zone::Within || self.of(key, lane).0;
                    top[lane] = if inside & (x[lane] > top[lane]) { x[lane] } else { top[lane] };
                }
            }
        }
        top
    }
}
