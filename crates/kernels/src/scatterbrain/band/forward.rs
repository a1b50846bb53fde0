//! Forward pass.

use std::{
    f32::consts::{LN_2, LOG2_E},
    ops::Range,
};

use super::{Band, RowScales, span::Span};
use crate::{
    gemm::{Matrix, Write, product},
    parallel::{Disjoint, for_each, split, with_scratch},
    simd,
};

/// A row whose denominator, relative to the largest term that its features could hold, is below this is formed weight by
/// weight: the sums may have lost terms below the smallest f32.
const LEAST: f32 = 1e-21;

/// Weights of one tile, before division by the denominators.
pub(super) struct Tile<'s> {
    /// Queries of the tile, and keys of its hull.
    pub queries: Range<usize>,
    pub hull: Range<usize>,
    /// Row maxima, to base 2.
    pub tops: &'s mut [f32],
    /// Log features of the queries, then features `2^(l - top)`, `[n,m]`, 0 in rows without features.
    pub phi: &'s mut [f32],
    /// Scores to base 2, then exact weights, on the support; `[n,hull]`.
    pub x: &'s mut [f32],
    /// Products of features, `[n,hull]`; formed in the columns of [`Corners`] alone.
    pub g: &'s mut [f32],
}

/// Columns of a hull that are off the support of some row.
#[derive(Clone, Debug)]
pub(super) struct Corners(pub [Range<usize>; 2]);

impl Band<'_> {
    pub(super) fn forward(&self, out: &mut [f32]) -> RowScales {
        let shape = self.problem.shape;
        let rows = shape.batch * shape.heads * shape.queries;
        let [mut lse, mut tops, mut inverses] = [(); 3].map(|()| vec![0.0f32; rows]);
        let written = Disjoint::new(out);
        let saved = [&mut lse, &mut tops, &mut inverses].map(|x| Disjoint::new(x));
        self.with_surroundings(|spans| {
            for_each(self.streams() * self.spans(), |task| {
                // Key heads run fastest: in the token-first layout they share pages.
                let (b, rest) = (task / (self.spans() * shape.key_heads), task % (self.spans() * shape.key_heads));
                let (span, hk) = (rest / shape.key_heads, rest % shape.key_heads);
                let kept = &spans[((b * shape.key_heads + hk) * self.spans() + span) * self.kept()..][..self.kept()];
                self.forward_span((b, hk, span), kept, &written, &saved);
            });
        });
        self.forward_direct(&written, [&mut lse, &mut tops, &mut inverses]);
        RowScales { lse, tops, inverses }
    }

    fn forward_span(
        &self,
        (b, hk, span): (usize, usize, usize),
        kept: &[f32],
        out: &Disjoint<f32>,
        saved: &[Disjoint<f32>; 3],
    ) {
        let shape = self.problem.shape;
        let (m, values, hull) = (self.state.features, shape.value_width, self.hull_len());
        let [k, v, k_columns, phi, phi_columns, outside, running] = self.span_scratch().sizes();
        let sizes = [
            k,
            v,
            k_columns,
            phi,
            phi_columns,
            outside,
            running,
            shape.group() * super::SPAN * m,
            self.tile * hull,
            self.tile * hull,
            self.tile * values,
        ];
        with_scratch(sizes.iter().sum(), |scratch| {
            let [k, v, k_columns, phi, phi_columns, outside, running, logs, x, g, sums] = split(scratch, sizes);
            let near = self.load((b, hk, span), kept, [k, v, k_columns, phi, phi_columns, outside, running]);
            self.query_logs((b, hk, span), logs);
            for (t, queries) in self.tiles(span).enumerate() {
                let outside = &near.outside[t * self.state.sums().min(near.outside.len())..];
                for h in hk * shape.group()..(hk + 1) * shape.group() {
                    let start = (b * shape.heads + h) * shape.queries + queries.start;
                    // SAFETY: these rows of this head are this task's.
                    let [lse, tops, inverses] = saved.each_ref().map(|x| unsafe { x.range(start, queries.len()) });
                    let mut tile = Tile {
                        queries: queries.clone(),
                        hull: self.hull(queries.clone()),
                        tops,
                        phi: self.tile_logs(&queries, h % shape.group(), logs),
                        x,
                        g,
                    };
                    self.score(&mut tile, (b, h), &near, true);
                    self.weigh(&mut tile, outside, lse);
                    self.sum(&tile, &near, outside, sums);
                    let rows = shape.out_rows(b, h);
                    for (i, (lse, inverse)) in lse.iter_mut().zip(inverses).enumerate() {
                        let total = *lse;
                        let features = self.has_features(b, queries.start + i);
                        *inverse = if total > 0.0 { 1.0 / total } else { 0.0 };
                        *lse = if total > 0.0 { (tile.tops[i] + total.log2()) * LN_2 } else { f32::NEG_INFINITY };
                        // SAFETY: this row of this head is this task's.
                        let row = unsafe { out.row(&rows, queries.start + i) };
                        for (y, &x) in row.iter_mut().zip(&sums[i * values..]) {
                            *y = x * *inverse;
                        }
                        // NaN counts as lost too.
                        let held = total > LEAST;
                        if features && !held {
                            *inverse = -1.0;
                        }
                    }
                }
            }
        });
    }

    /// Log features of the queries of a span, for each query head of key head `hk`.
    pub(super) fn query_logs(&self, (b, hk, span): (usize, usize, usize), logs: &mut [f32]) {
        let Some(map) = self.problem.features else { return };
        let (shape, queries) = (self.problem.shape, self.span(span));
        for (g, logs) in logs.chunks_exact_mut(super::SPAN * self.state.features).enumerate() {
            let rows = shape.query_rows(b, hk * shape.group() + g).slice(queries.start, queries.len());
            map.logs(Matrix::rows(&self.problem.q[rows.offset..], rows.stride), queries.len(), logs);
        }
    }

    /// The part of one tile of query head `g` of its key head.
    pub(super) fn tile_logs<'l>(&self, queries: &Range<usize>, g: usize, logs: &'l mut [f32]) -> &'l mut [f32] {
        let m = self.state.features;
        &mut logs[(g * super::SPAN + queries.start % super::SPAN) * m..][..queries.len() * m]
    }

    /// Columns of the hull of `queries` where some row needs features.
    pub(super) fn corners(&self, queries: &Range<usize>, hull: &Range<usize>) -> Corners {
        let len = hull.len();
        if self.state.features == 0 {
            return Corners([0..0, 0..0]);
        }
        if self.radius.is_none() || self.problem.naive {
            return Corners([0..len, 0..0]);
        }
        let column = |key: usize| key.clamp(hull.start, hull.end) - hull.start;
        let left = column(self.support(queries.end - 1).start);
        let right = if self.looks_ahead() { column(self.support(queries.start).end) } else { len };
        if left >= right { Corners([0..len, 0..0]) } else { Corners([0..left, right..len]) }
    }

    /// Scores of the hull, row maxima (found anew, or given), query features, and their products in the corners.
    pub(super) fn score(&self, tile: &mut Tile, (b, h): (usize, usize), near: &Span, find_tops: bool) {
        let shape = self.problem.shape;
        let (n, len, m) = (tile.queries.len(), tile.hull.len(), self.state.features);
        let rows = shape.query_rows(b, h).slice(tile.queries.start, n);
        let q = Matrix::rows(&self.problem.q[rows.offset..], rows.stride);
        let first = tile.hull.start.saturating_sub(near.keys.start);
        if self.radius.is_some() && len > 0 {
            let k = Matrix::rows(&near.k_columns[first..], near.keys.len());
            let factor = self.problem.scale * LOG2_E;
            product((n, len, shape.head_width), factor, q, k, Write::Over, tile.x, len);
        }
        let valid = self.problem.mask.valid_row(b);
        simd::vectorize(
            #[inline(always)]
            || {
                for t in 0..n {
                    let i = tile.queries.start + t;
                    let support = self.columns(self.support(i), &tile.hull);
                    let row = &mut tile.x[t * len..(t + 1) * len];
                    if let Some(valid) = valid {
                        for (x, &real) in row[support.clone()].iter_mut().zip(&valid[tile.hull.start + support.start..])
                        {
                            *x = if real == 0 { f32::NEG_INFINITY } else { *x };
                        }
                    }
                    let phi = &mut tile.phi[t * m..(t + 1) * m];
                    let features = self.has_features(b, i);
                    if find_tops {
                        let mut top = simd::max(&row[support]);
                        if features {
                            let features = largest_sum(phi, near.scales);
                            top = if features > top { features } else { top };
                        }
                        tile.tops[t] = if top == f32::NEG_INFINITY { 0.0 } else { top };
                    }
                    let top = tile.tops[t];
                    if features {
                        for (l, &scale) in phi.iter_mut().zip(near.scales) {
                            *l = simd::exp2(*l + scale - top);
                        }
                    } else {
                        phi.fill(0.0);
                    }
                }
            },
        );
        for columns in self.corners(&tile.queries, &tile.hull).0 {
            if !columns.is_empty() {
                let right = Matrix::rows(&near.phi_columns[first + columns.start..], near.keys.len());
                let left = Matrix::rows(tile.phi, m);
                product((n, columns.len(), m), 1.0, left, right, Write::Over, &mut tile.g[columns.start..], len);
            }
        }
    }

    /// `keys` as columns of a hull.
    #[inline(always)]
    pub(super) fn columns(&self, keys: Range<usize>, hull: &Range<usize>) -> Range<usize> {
        let start = keys.start.clamp(hull.start, hull.end);
        start - hull.start..keys.end.clamp(start, hull.end) - hull.start
    }

    /// Turns scores into weights relative to the row maxima, those off the support included; `totals` gets their sums and
    /// those of what lies outside.
    fn weigh(&self, tile: &mut Tile, outside: &[f32], totals: &mut [f32]) {
        let (n, len, m) = (tile.queries.len(), tile.hull.len(), self.state.features);
        let naive = self.problem.naive && m > 0;
        simd::vectorize(
            #[inline(always)]
            || {
                for t in 0..n {
                    let i = tile.queries.start + t;
                    let support = self.columns(self.support(i), &tile.hull);
                    let seen = self.columns(self.visible(i), &tile.hull);
                    let (row, g) = (&mut tile.x[t * len..(t + 1) * len], &tile.g[t * len..]);
                    let top = tile.tops[t];
                    let mut total = exponentials(&mut row[support.clone()], top);
                    row[seen.end..].fill(0.0);
                    if m > 0 {
                        for part in [0..support.start.min(seen.end), support.end..seen.end] {
                            if part.start < part.end {
                                row[part.clone()].copy_from_slice(&g[part.clone()]);
                                total += simd::sum(part.len(), |j| g[part.start + j]);
                            }
                        }
                        if naive {
                            for j in support.clone() {
                                row[j] += g[j];
                            }
                            total += simd::sum(support.len(), |j| g[support.start + j]);
                        }
                        total += simd::dot(&tile.phi[t * m..(t + 1) * m], &outside[..m]);
                    } else {
                        row[..support.start].fill(0.0);
                        row[support.end..].fill(0.0);
                    }
                    totals[t] = total;
                }
            },
        );
    }

    /// Sums of values under the weights of a tile.
    fn sum(&self, tile: &Tile, near: &Span, outside: &[f32], sums: &mut [f32]) {
        let (n, len, m, values) = (tile.queries.len(), tile.hull.len(), self.state.features, self.state.values);
        let mut write = Write::Over;
        if len > 0 {
            let first = tile.hull.start - near.keys.start;
            let v = Matrix { data: &near.v.data[first * near.v.row..], ..near.v };
            product((n, values, len), 1.0, Matrix::rows(tile.x, len), v, write, sums, values);
            write = Write::Add;
        }
        if m > 0 {
            let s = Matrix::rows(&outside[m..], values);
            product((n, values, m), 1.0, Matrix::rows(tile.phi, m), s, write, sums, values);
            write = Write::Add;
        }
        if write == Write::Over {
            sums[..n * values].fill(0.0);
        }
    }
}

/// `x = 2^(x - top)`; returns the sum.
#[inline(always)]
pub(super) fn exponentials(x: &mut [f32], top: f32) -> f32 {
    let mut lanes = [0.0f32; simd::LANES];
    let (blocks, rest) = x.as_chunks_mut::<{ simd::LANES }>();
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *x = simd::exp2(*x - top);
            *lane += *x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *x = simd::exp2(*x - top);
        *lane += *x;
    }
    simd::tree(lanes)
}

/// Largest `x_a + y_a`.
#[inline(always)]
fn largest_sum(x: &[f32], y: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; simd::LANES];
    let (x_blocks, x_rest) = x.as_chunks::<{ simd::LANES }>();
    let (y_blocks, y_rest) = y.as_chunks::<{ simd::LANES }>();
    for (x, y) in x_blocks.iter().zip(y_blocks) {
        for l in 0..simd::LANES {
            let sum = x[l] + y[l];
            lanes[l] = if sum > lanes[l] { sum } else { lanes[l] };
        }
    }
    for ((x, y), lane) in x_rest.iter().zip(y_rest).zip(&mut lanes) {
        let sum = x + y;
        *lane = if sum > *lane { sum } else { *lane };
    }
    simd::max(&lanes)
}
