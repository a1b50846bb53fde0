//! One tile: the scores of a strip of queries against a block of keys.

use std::ops::Range;

use super::{
    Scores,
    strip::{STRIP, Strip, side_by_side},
};
use crate::{
    AttentionShape,
    gemm::{Matrix, Write},
    simd::{self, MultiplyAdd},
};

/// A strip of one head and a block of its keys.
#[derive(Clone, Debug)]
pub(super) struct Tile<'a> {
    pub b: usize,
    pub h: usize,
    pub strip: &'a Strip,
    pub keys: Range<usize>,
}

impl Tile<'_> {
    /// Number of scores per component.
    pub fn len(&self) -> usize {
        self.keys.len() * self.strip.lanes
    }
}

/// Keys as product operands: contiguous rows, component after component.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys<'a> {
    /// Rows from the first key on.
    rows: &'a [f32],
    width: usize,
    /// Distance between the rows of two components.
    apart: usize,
    /// `c_jr` in base 2, component `r` from `r * stride` on.
    terms: &'a [f32],
    stride: usize,
}

impl<'a> Keys<'a> {
    /// Rows of component `r`.
    pub fn of(&self, r: usize) -> Matrix<'a> {
        Matrix::rows(&self.rows[r * self.apart..], self.width)
    }

    /// Without the first `count`.
    pub fn skip(&self, count: usize) -> Self {
        Self { rows: &self.rows[count * self.width..], terms: &self.terms[count..], ..*self }
    }
}

impl Scores<'_> {
    /// Keys `keys` of the head that `h` reads, with their part of the [terms](Scores::key_terms) of all; `buffer` is
    /// for interleaved rows: see [`side_by_side`].
    pub(super) fn keys<'s>(
        &'s self,
        (b, h): (usize, usize),
        keys: &Range<usize>,
        terms: &'s [f32],
        buffer: &'s mut [f32],
    ) -> Keys<'s> {
        let (width, count) = (self.shape.head_width, keys.len());
        let rows_of = |r: usize| self.shape.key_rows(b, h / self.shape.group(), r).slice(keys.start, count);
        let stride = self.shape.keys;
        let terms = &terms[(b * self.shape.heads + h) * self.components() * stride + keys.start..];
        let copies = self.copies();
        let (rows, apart) = if rows_of(0).stride == width {
            let first = rows_of(0).offset;
            (&self.k[first..], if copies > 1 { rows_of(1).offset - first } else { 0 })
        } else {
            for (r, buffer) in buffer.chunks_exact_mut(count * width).take(copies).enumerate() {
                side_by_side(self.k, &rows_of(r), buffer);
            }
            (&*buffer, count * width)
        };
        Keys { rows, width, apart, terms, stride }
    }

    /// `x_r f_r + c_r`, with bias, and negative infinity for masked pairs: `M` tiles, `size` apart, without the query
    /// terms. `q [width][lanes]`; `spare` holds two tiles if [`Scores::spare`].
    pub(super) fn score(&self, tile: &Tile, q: &[f32], keys: Keys, (x, size): (&mut [f32], usize), spare: &mut [f32]) {
        let (count, lanes, width) = (tile.keys.len(), tile.strip.lanes, self.shape.head_width);
        let q = Matrix::rows(q, lanes);
        let terms = |r: usize| &keys.terms[r * keys.stride..][..count];
        if self.shift.is_some() {
            // One product serves all shifted copies of a key.
            let product = &mut spare[..tile.len()];
            simd::tile_product((count, lanes, width), 1.0, keys.of(0), q, Write::Over, product, lanes);
            for r in 0..self.components() {
                let (f, x) = (self.factor(r), &mut x[r * size..][..tile.len()]);
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for ((x, product), c) in
                            x.chunks_exact_mut(lanes).zip(product.chunks_exact(lanes)).zip(terms(r))
                        {
                            for (x, product) in x.iter_mut().zip(product) {
                                *x = product.multiply_add(f, *c);
                            }
                        }
                    },
                );
            }
        } else {
            for r in 0..self.components() {
                let (f, x) = (self.factor(r), &mut x[r * size..]);
                simd::tile_product_plus((count, lanes, width), f, keys.of(r), q, terms(r), x, lanes);
            }
        }
        self.add_bias(tile, x, spare);
        for x in x.chunks_mut(size).take(self.components()) {
            self.hide(tile, x, f32::NEG_INFINITY);
        }
    }

    /// Whether passes over a tile need spare tiles: for shared products, bias, or dropout.
    pub(super) fn spare(&self) -> usize {
        if self.shift.is_some() || self.bias.is_some() || self.dropout.is_some() { 2 } else { 0 }
    }

    /// Whether every query sees every key of the tile, ignoring padding.
    fn sees_all(&self, tile: &Tile) -> bool {
        let AttentionShape { queries, keys, .. } = self.shape;
        // Both ends of the visible range advance with the query.
        let first = self.mask.visible(tile.strip.queries.start, queries, keys);
        let last = self.mask.visible(tile.strip.queries.end - 1, queries, keys);
        last.start <= tile.keys.start && tile.keys.end <= first.end
    }

    /// Overwrites masked pairs, padded keys included, with `value`: adding to an overflow, or multiplying it, would not
    /// hide it.
    pub(super) fn hide(&self, tile: &Tile, x: &mut [f32], value: f32) {
        let AttentionShape { queries, keys, .. } = self.shape;
        if let Some(real) = self.mask.valid_row(tile.b) {
            for (row, _) in
                x.chunks_exact_mut(tile.strip.lanes).zip(&real[tile.keys.clone()]).filter(|(_, real)| **real == 0)
            {
                row.fill(value);
            }
        }
        if self.sees_all(tile) {
            return;
        }
        let (lanes, count) = (tile.strip.lanes, tile.keys.len());
        // Relative to the tile's first key, these are small integers.
        let (mut starts, mut ends) = ([0.0; STRIP], [0.0; STRIP]);
        for (l, i) in tile.strip.queries.clone().enumerate() {
            let seen = self.mask.visible(i, queries, keys);
            let local = |j: usize| j.clamp(tile.keys.start, tile.keys.end) - tile.keys.start;
            (starts[l], ends[l]) = (local(seen.start) as f32, local(seen.end) as f32);
        }
        simd::vectorize(
            #[inline(always)]
            || {
                for (j, row) in x.chunks_exact_mut(lanes).take(count).enumerate() {
                    let j = j as f32;
                    for ((x, start), end) in row.iter_mut().zip(&starts).zip(&ends) {
                        *x = if j >= *start && j < *end { *x } else { value };
                    }
                }
            },
        );
    }

    /// Adds bias and ALiBi, which only softmax has.
    fn add_bias(&self, tile: &Tile, x: &mut [f32], spare: &mut [f32]) {
        let AttentionShape { queries: n, keys: s, .. } = self.shape;
        let lanes = tile.strip.lanes;
        if let Some(bias) = self.bias {
            let start = (tile.h * n + tile.strip.queries.start) * s + tile.keys.start;
            let rows = Matrix::rows(&bias[start..], s);
            simd::transpose(rows, (tile.strip.queries.len(), tile.keys.len()), spare, lanes);
            for (row, bias) in x[..tile.len()].chunks_exact_mut(lanes).zip(spare.chunks_exact(lanes)) {
                let queries = ..tile.strip.queries.len();
                simd::add_scaled(&mut row[queries], std::f32::consts::LOG2_E, &bias[queries]);
            }
        }
        if let Some(slopes) = self.slopes {
            let slope = slopes[tile.h] * std::f32::consts::LOG2_E;
            let first = self.mask.position(tile.strip.queries.start, n, s) as f32;
            for (row, j) in x[..tile.len()].chunks_exact_mut(lanes).zip(tile.keys.start..) {
                for (x, l) in row.iter_mut().zip(0u16..) {
                    *x -= slope * (j as f32 - (first + f32::from(l))).abs();
                }
            }
        }
    }

    /// Dropout factors for a tile, `[keys][lanes]`, in the first spare tile.
    pub(super) fn dropout_factors<'s>(&self, tile: &Tile, spare: &'s mut [f32]) -> Option<&'s [f32]> {
        let dropout = self.dropout?;
        let count = tile.keys.len();
        let (turned, rows) = spare.split_at_mut(spare.len() / 2);
        for (i, row) in tile.strip.queries.clone().zip(rows.chunks_exact_mut(count)) {
            row.fill(1.0);
            simd::vectorize(
                #[inline(always)]
                || dropout.apply(self.row_number(tile.b, tile.h, i), tile.keys.start, row),
            );
        }
        let turned = &mut turned[..tile.len()];
        turned.fill(0.0);
        simd::transpose(Matrix::rows(rows, count), (tile.strip.queries.len(), count), turned, tile.strip.lanes);
        Some(turned)
    }
}

/// `x_i *= y_i`.
pub(super) fn multiply(x: &mut [f32], y: &[f32]) {
    simd::vectorize(
        #[inline(always)]
        || simd::multiply(x, y),
    );
}
