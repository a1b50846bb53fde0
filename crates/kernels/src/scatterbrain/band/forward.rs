//! Forward pass.

use std::{
    f32::consts::{LN_2, LOG2_E},
    ops::Range,
};

use super::{Band, RowScales, span::Span};
use crate::{
    gemm::{Matrix, Write, product},
    memory::arbitrary,
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
    /// What columns of the hull are to each row.
    pub parts: &'s [Parts],
    /// Row maxima to base 2, rounded up.
    pub tops: &'s mut [f32],
    /// Log features of the queries, then features `2^(l - top)`, `[n,m]`, 0 in rows without features.
    pub phi: &'s mut [f32],
    /// Length of the rows over the hull: a whole number of vectors.
    pub stride: usize,
    /// Scores to base 2, then weights, `[n,hull]`; scores are formed on the support alone.
    pub x: &'s mut [f32],
    /// Products of features, `[n,hull]`; formed in the columns of [`Corners`] alone.
    pub g: &'s mut [f32],
}

/// Columns of a hull that are off the support of some row.
#[derive(Clone, Debug)]
pub(super) struct Corners(pub [Range<usize>; 2]);

impl Band<'_> {
    pub(super) fn forward(&self, out: &mut [f32]) -> RowScales<'static> {
        let shape = self.problem.shape;
        let rows = shape.batch * shape.heads * shape.queries;
        let [mut lse, mut tops, mut inverses] = [(); 3].map(|()| arbitrary(rows));
        let written = Disjoint::new(out);
        let saved = [&mut lse, &mut tops, &mut inverses].map(|x| Disjoint::new(x));
        let spans = self.surroundings();
        for_each(self.streams() * self.spans(), |task| {
            // Key heads run fastest: in the token-first layout they share pages.
            let (b, rest) = (task / (self.spans() * shape.key_heads), task % (self.spans() * shape.key_heads));
            let (span, hk) = (rest / shape.key_heads, rest % shape.key_heads);
            let kept = &spans[((b * shape.key_heads + hk) * self.spans() + span) * self.kept()..][..self.kept()];
            self.forward_span((b, hk, span), kept, &written, &saved);
        });
        self.forward_direct(&written, [&mut lse, &mut tops, &mut inverses]);
        RowScales { lse, tops, inverses, surroundings: spans.into() }
    }

    fn forward_span(
        &self,
        (b, hk, span): (usize, usize, usize),
        kept: &[f32],
        out: &Disjoint<f32>,
        saved: &[Disjoint<f32>; 3],
    ) {
        let shape = self.problem.shape;
        let (m, values, stride) = (self.state.features, shape.value_width, self.hull_stride());
        let [k, v, k_columns, phi_columns, outside, segments] = self.span_scratch().sizes();
        let logs = shape.group() * super::SPAN * m;
        let weights = self.tile * stride;
        let sizes = [k, v, k_columns, phi_columns, outside, segments, logs, weights, weights, self.tile * values];
        with_scratch(sizes.iter().sum(), |scratch| {
            let [k, v, k_columns, phi_columns, outside, segments, logs, x, g, sums] = split(scratch, sizes);
            let near = self.load((b, hk, span), kept, [k, v, k_columns, phi_columns, outside, segments]);
            self.query_logs((b, hk, span), logs);
            let mut parts = Vec::with_capacity(self.tile);
            for (t, queries) in self.tiles(span).enumerate() {
                let hull = self.hull(queries.clone());
                self.part(b, &queries, &hull, &mut parts);
                let outside = &near.outside[t * self.state.sums().min(near.outside.len())..];
                for h in hk * shape.group()..(hk + 1) * shape.group() {
                    let start = (b * shape.heads + h) * shape.queries + queries.start;
                    // SAFETY: these rows of this head are this task's.
                    let [lse, tops, inverses] = saved.each_ref().map(|x| unsafe { x.range(start, queries.len()) });
                    let mut tile = Tile {
                        queries: queries.clone(),
                        hull: hull.clone(),
                        parts: &parts,
                        tops,
                        phi: self.tile_logs(&queries, h % shape.group(), logs),
                        stride,
                        x,
                        g,
                    };
                    self.score(&mut tile, (b, h), &near, true);
                    self.weigh(&mut tile, outside, lse);
                    self.sum(&tile, &near, outside, sums);
                    self.divide(&tile, (b, h), sums, out, (lse, inverses));
                }
            }
        });
    }

    /// Writes the sums of a tile over their denominators, which come in `lse`, and what is saved of them.
    fn divide(
        &self,
        tile: &Tile,
        (b, h): (usize, usize),
        sums: &[f32],
        out: &Disjoint<f32>,
        (lse, inverses): (&mut [f32], &mut [f32]),
    ) {
        let (rows, values) = (self.problem.shape.out_rows(b, h), self.state.values);
        simd::vectorize(
            #[inline(always)]
            || {
                for (inverse, &total) in inverses.iter_mut().zip(&*lse) {
                    *inverse = if total > 0.0 { 1.0 / total } else { 0.0 };
                }
                for (t, &inverse) in inverses.iter().enumerate() {
                    // SAFETY: this row of this head is this task's.
                    let row = unsafe { out.row(&rows, tile.queries.start + t) };
                    for (y, &x) in row.iter_mut().zip(&sums[t * values..(t + 1) * values]) {
                        *y = x * inverse;
                    }
                }
                for (t, total) in lse.iter().enumerate() {
                    // NaN counts as lost too.
                    let held = *total > LEAST;
                    if !held && tile.parts[t].features {
                        inverses[t] = -1.0;
                    }
                }
                for (lse, &top) in lse.iter_mut().zip(&*tile.tops) {
                    let total = *lse;
                    // Totals below the normal numbers count as lost, or are 0.
                    let log = (top + simd::log2(total)) * LN_2;
                    *lse = if total > 0.0 { log } else { f32::NEG_INFINITY };
                }
            },
        );
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

    /// What columns of the hull of a tile are to each of its rows.
    pub(super) fn part(&self, b: usize, queries: &Range<usize>, hull: &Range<usize>, parts: &mut Vec<Parts>) {
        let featured = self.state.features > 0;
        parts.clear();
        parts.extend(queries.clone().map(|i| {
            let support = self.support(i);
            let visible = if featured { self.visible(i) } else { 0..0 };
            Parts {
                features: featured && self.sees_beside(b, visible.clone(), support.clone()),
                seen: if featured { self.columns(visible, hull).end } else { 0 },
                support: self.columns(support, hull),
            }
        }));
    }

    /// Columns of the hull where some of rows `group` need features.
    pub(super) fn corners(&self, tile: &Tile, group: &Range<usize>) -> Corners {
        let (first, last) = (&tile.parts[group.start], &tile.parts[group.end - 1]);
        let end = last.seen;
        if self.radius.is_none() || self.problem.naive {
            return Corners([0..end, 0..0]);
        }
        let left = last.support.start;
        let right = if self.looks_ahead() { first.support.end } else { end };
        if left >= right { Corners([0..end, 0..0]) } else { Corners([0..left.min(end), right.min(end)..end]) }
    }

    /// Rows of a tile that go together where only the columns that they need are formed.
    pub(super) fn groups(&self, tile: &Tile) -> impl Iterator<Item = Range<usize>> + use<> {
        let (n, rows) = (tile.queries.len(), self.group);
        (0..n).step_by(rows).map(move |start| start..(start + rows).min(n))
    }

    /// Columns of the supports of rows `group` of a tile.
    pub(super) fn group_columns(&self, tile: &Tile, group: &Range<usize>) -> Range<usize> {
        let (first, last) = (&tile.parts[group.start].support, &tile.parts[group.end - 1].support);
        first.start..last.end.max(first.start)
    }

    /// Scores of the support, row maxima (found anew, or given), query features, and their products in the corners.
    pub(super) fn score(&self, tile: &mut Tile, (b, h): (usize, usize), near: &Span, find_tops: bool) {
        let shape = self.problem.shape;
        let (n, stride, m) = (tile.queries.len(), tile.stride, self.state.features);
        let rows = shape.query_rows(b, h).slice(tile.queries.start, n);
        let first = tile.hull.start.saturating_sub(near.keys.start);
        if self.radius.is_some() {
            let factor = self.problem.scale * LOG2_E;
            for group in self.groups(tile) {
                let columns = self.group_columns(tile, &group);
                if columns.is_empty() {
                    continue;
                }
                let q = Matrix::rows(&self.problem.q[rows.start(group.start)..], rows.stride);
                let k = Matrix::rows(&near.k_columns[first + columns.start..], near.stride);
                let x = &mut tile.x[group.start * stride + columns.start..];
                product((group.len(), columns.len(), shape.head_width), factor, q, k, Write::Over, x, stride);
            }
        }
        let valid = self.valid(b, &tile.hull);
        simd::vectorize(
            #[inline(always)]
            || {
                for t in 0..n {
                    let Parts { support, features, .. } = tile.parts[t].clone();
                    let row = &mut tile.x[t * stride..(t + 1) * stride];
                    if let Some(valid) = valid {
                        for (x, &real) in row[support.clone()].iter_mut().zip(&valid[support.clone()]) {
                            *x = if real == 0 { f32::NEG_INFINITY } else { *x };
                        }
                    }
                    let phi = &mut tile.phi[t * m..(t + 1) * m];
                    if find_tops {
                        let mut top = largest(row, &support);
                        if features {
                            let features = largest_sum(phi, near.scales);
                            top = if features > top { features } else { top };
                        }
                        // Whole, like the scales.
                        tile.tops[t] = if top == f32::NEG_INFINITY { 0.0 } else { top.ceil() };
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
        if m == 0 {
            return;
        }
        for group in self.groups(tile) {
            for columns in self.corners(tile, &group).0 {
                if !columns.is_empty() {
                    let right = Matrix::rows(&near.phi_columns[first + columns.start..], near.stride);
                    let left = Matrix::rows(&tile.phi[group.start * m..], m);
                    let g = &mut tile.g[group.start * stride + columns.start..];
                    product((group.len(), columns.len(), m), 1.0, left, right, Write::Over, g, stride);
                }
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
        let (stride, m) = (tile.stride, self.state.features);
        let naive = self.problem.naive && m > 0;
        simd::vectorize(
            #[inline(always)]
            || {
                for (t, total) in totals.iter_mut().enumerate() {
                    let (row, g) = (&mut tile.x[t * stride..][..stride], &tile.g[t * stride..][..stride]);
                    *total = tile.parts[t].weigh(row, g, tile.tops[t], naive);
                    if m > 0 {
                        *total += simd::dot(&tile.phi[t * m..(t + 1) * m], &outside[..m]);
                    }
                }
            },
        );
    }

    /// Sums of values under the weights of a tile.
    fn sum(&self, tile: &Tile, near: &Span, outside: &[f32], sums: &mut [f32]) {
        let (n, len, m, values) = (tile.queries.len(), tile.hull.len(), self.state.features, self.state.values);
        let first = tile.hull.start.saturating_sub(near.keys.start);
        if m == 0 {
            for group in self.groups(tile) {
                let columns = self.group_columns(tile, &group);
                let sums = &mut sums[group.start * values..group.end * values];
                if columns.is_empty() {
                    sums.fill(0.0);
                    continue;
                }
                let v = Matrix { data: &near.v.data[(first + columns.start) * near.v.row..], ..near.v };
                let weights = Matrix::rows(&tile.x[group.start * tile.stride + columns.start..], tile.stride);
                product((group.len(), values, columns.len()), 1.0, weights, v, Write::Over, sums, values);
            }
            return;
        }
        let s = Matrix::rows(&outside[m..], values);
        product((n, values, m), 1.0, Matrix::rows(tile.phi, m), s, Write::Over, sums, values);
        if len > 0 {
            let v = Matrix { data: &near.v.data[first * near.v.row..], ..near.v };
            product((n, values, len), 1.0, Matrix::rows(tile.x, tile.stride), v, Write::Add, sums, values);
        }
    }
}

/// Columns of a row over its hull: its support, and where what it sees ends.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub support: Range<usize>,
    /// 0 without features, which alone give weight to what is off the support.
    pub seen: usize,
    /// Whether features give the row any weight, in the hull or outside it.
    pub features: bool,
}

impl Parts {
    /// Whether a column is in the support, and whether it is seen beside it.
    #[inline(always)]
    pub(super) fn of(&self, column: usize) -> (bool, bool) {
        let (column, start) = (column as u32, self.support.start as u32);
        let inside = column.wrapping_sub(start) < self.support.len() as u32;
        (inside, !inside & (column < self.seen as u32))
    }

    /// Turns the scores `x` of a row into weights relative to `2^top`, by the products of features `g` beside the support, and
    /// with `naive` on it too; returns their sum.
    #[inline(always)]
    fn weigh(&self, x: &mut [f32], g: &[f32], top: f32, naive: bool) -> f32 {
        let mut lanes = [0.0f32; simd::LANES];
        let (blocks, _) = x.as_chunks_mut::<{ simd::LANES }>();
        let (products, _) = g.as_chunks::<{ simd::LANES }>();
        for (n, (x, g)) in blocks.iter_mut().zip(products).enumerate() {
            let start = n * simd::LANES;
            let exact = start < self.support.end && start + simd::LANES > self.support.start;
            for lane in 0..simd::LANES {
                let (inside, beside) = self.of(start + lane);
                let mut weight = if beside { g[lane] } else { 0.0 };
                if exact {
                    let own = simd::exp2(x[lane] - top) + if naive { g[lane] } else { 0.0 };
                    weight = if inside { own } else { weight };
                }
                x[lane] = weight;
                lanes[lane] += weight;
            }
        }
        simd::tree(lanes)
    }
}

/// Largest of a part of a row.
#[inline(always)]
fn largest(row: &[f32], part: &Range<usize>) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; simd::LANES];
    let (blocks, _) = row.as_chunks::<{ simd::LANES }>();
    let first = part.start / simd::LANES;
    let end = part.end.div_ceil(simd::LANES).max(first);
    for (n, block) in blocks[first..end].iter().enumerate() {
        let start = (first + n) * simd::LANES;
        for lane in 0..simd::LANES {
            let inside = ((start + lane) as u32).wrapping_sub(part.start as u32) < part.len() as u32;
            let above = inside & (block[lane] > lanes[lane]);
            lanes[lane] = if above { block[lane] } else { lanes[lane] };
        }
    }
    simd::largest_lane(lanes)
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
    simd::largest_lane(lanes)
}
