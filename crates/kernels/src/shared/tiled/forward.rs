//! Forward pass: a running reference and denominator per query over tiles of keys.

use std::{f32::consts::LN_2, ops::Range};

use super::{
    Scores, lanes,
    strip::{STRIP, Strip, side_by_side},
    tile::{Tile, multiply},
};
use crate::{
    Saved,
    gemm::{Matrix, Write},
    parallel::{self, Disjoint, runs, with_parts},
    simd,
};

/// Powers of two by which a weight may exceed 1 before its query gets a new reference: sums are then seldom rescaled,
/// and never come close to overflow.
const SLACK: f32 = 8.0;

/// State that one strip carries from tile to tile.
struct Sums<'s> {
    /// `u_ir`, `[M][lanes]`.
    u: &'s [f32],
    /// Reference of the weights: the running maximum, to within `SLACK`, `[lanes]`.
    reference: &'s mut [f32],
    /// Scratch for the offsets subtracted from the scores of each component, `[M][lanes]`.
    offsets: &'s mut [f32],
    /// Sums of weights, `[lanes]`.
    total: &'s mut [f32],
    /// Sums of weights times values, `[value_width][lanes]`.
    values: &'s mut [f32],
}

impl Scores<'_> {
    /// Fills `out`; returns for each row's denominator its log, its reference, and its inverse.
    pub fn forward(&self, out: &mut [f32]) -> Saved {
        if self.is_short() {
            return self.forward_short(out);
        }
        let shape = self.shape;
        let rows = shape.batch * shape.heads * shape.queries;
        let [mut lse, mut references, mut inverses] = [(); 3].map(|()| vec![0.0; rows]);
        let (terms, tiles) = (self.key_terms(), shape.queries.div_ceil(self.query_block()));
        let written = Disjoint::new(out);
        let saved = [&mut lse, &mut references, &mut inverses].map(|x| Disjoint::new(x));
        // Under a causal mask the last queries do the most work: they come first, so that threads finish together.
        parallel::for_each(shape.batch * shape.heads * tiles, |task| {
            let (head, tile) = (task % (shape.batch * shape.heads), tiles - 1 - task / (shape.batch * shape.heads));
            let start = tile * self.query_block();
            let queries = start..(start + self.query_block()).min(shape.queries);
            // SAFETY: rows `queries` of this batch row and head belong to this task alone.
            let saved = saved.each_ref().map(|x| unsafe { x.range(head * shape.queries + start, queries.len()) });
            self.forward_task((head / shape.heads, head % shape.heads), queries, &terms, &written, saved);
        });
        Saved::with_lse(lse, [references, inverses])
    }

    fn forward_task(
        &self,
        (b, h): (usize, usize),
        queries: Range<usize>,
        terms: &[f32],
        out: &Disjoint<f32>,
        [lse, references, inverses]: [&mut [f32]; 3],
    ) {
        let shape = &self.shape;
        let (components, strips) = (self.components(), queries.len().div_ceil(STRIP));
        let (width, value_width, block) = (shape.head_width, shape.value_width, self.key_block());
        let size = block * STRIP;
        with_parts!(
            q = strips * width * STRIP,
            u = strips * components * STRIP,
            reference = strips * STRIP,
            total = strips * STRIP,
            sums = strips * value_width * STRIP,
            x = components * size,
            spare = self.spare() * size,
            k = self.copies() * block * width,
            v = block * value_width,
            offsets = components * STRIP,
            turned = STRIP * value_width,
            {
                reference.fill(f32::NEG_INFINITY);
                total.fill(0.0);
                sums.fill(0.0);
                for (s, strip) in Strip::cut(queries.clone()).enumerate() {
                    strip.turn(self.q, &shape.query_rows(b, h), &mut q[s * width * STRIP..]);
                    self.query_terms(b, h, &strip, &mut u[s * components * STRIP..][..components * strip.lanes]);
                }
                let values = shape.value_rows(b, h / shape.group());
                for keys in runs(self.hull(b, queries.clone()), block) {
                    let v = side_by_side(self.v, &values.slice(keys.start, keys.len()), v);
                    let k = self.keys((b, h), &keys, terms, k);
                    for (s, strip) in Strip::cut(queries.clone()).enumerate() {
                        let seen = self.mask.visible_to(strip.queries.clone(), shape.queries, shape.keys);
                        let seen = seen.start.max(keys.start)..seen.end.min(keys.end);
                        if seen.is_empty() {
                            continue;
                        }
                        let skipped = seen.start - keys.start;
                        let tile = Tile { b, h, strip: &strip, keys: seen };
                        let sums = &mut Sums {
                            u: &u[s * components * STRIP..],
                            reference: &mut reference[s * STRIP..],
                            offsets: &mut *offsets,
                            total: &mut total[s * STRIP..],
                            values: &mut sums[s * value_width * STRIP..],
                        };
                        self.score(&tile, &q[s * width * STRIP..], k.skip(skipped), (x, size), spare);
                        self.weigh(&tile, (x, size), sums);
                        if let Some(factors) = self.dropout_factors(&tile, spare) {
                            multiply(&mut x[..tile.len()], factors);
                        }
                        let v = v.skip_rows(skipped).transposed();
                        let (lanes, count) = (strip.lanes, tile.keys.len());
                        let p = Matrix::rows(x, lanes);
                        simd::tile_product((value_width, lanes, count), 1.0, v, p, Write::Add, sums.values, lanes);
                    }
                }
                let rows = shape.out_rows(b, h);
                for (s, strip) in Strip::cut(queries.clone()).enumerate() {
                    let (first, n) = (strip.queries.start - queries.start, strip.queries.len());
                    let total = &total[s * STRIP..];
                    for (i, (reference, total)) in (first..).zip(reference[s * STRIP..].iter().zip(total)).take(n) {
                        references[i] = *reference;
                        (inverses[i], lse[i]) = if *total > 0.0 {
                            (1.0 / total, (reference + total.log2()) * LN_2)
                        } else if *total == 0.0 && *reference == f32::NEG_INFINITY {
                            (0.0, f32::NEG_INFINITY)
                        } else {
                            // Scores that are NaN, or so large that their differences are lost: no row without a key.
                            (f32::NAN, f32::NAN)
                        };
                    }
                    let turned = &mut turned[..n * value_width];
                    strip.turn_back(&sums[s * value_width * STRIP..], value_width, turned);
                    for (i, row) in (first..).zip(turned.chunks_exact(value_width)) {
                        // SAFETY: this row of this batch row and head belongs to this task alone.
                        let out = unsafe { out.row(&rows, queries.start + i) };
                        for (y, x) in out.iter_mut().zip(row) {
                            *y = x * inverses[i];
                        }
                    }
                }
            }
        );
    }

    /// Converts the tiles of scores to one of weights, in place of the first, and rescales the sums so far to a new
    /// reference where scores exceed the old one by far.
    fn weigh(&self, tile: &Tile, (x, size): (&mut [f32], usize), sums: &mut Sums) {
        let (components, lanes, len) = (self.components(), tile.strip.lanes, tile.len());
        let mut top = [f32::NEG_INFINITY; STRIP];
        let mut sum = [0.0; STRIP];
        simd::vectorize(
            #[inline(always)]
            || {
                for (x, u) in x.chunks(size).zip(sums.u.chunks_exact(lanes)).take(components) {
                    let mut peaks = [f32::NEG_INFINITY; STRIP];
                    lanes::peaks(&x[..len], lanes, &mut peaks);
                    for ((top, peak), u) in top.iter_mut().zip(peaks).zip(u) {
                        *top = if peak + u > *top { peak + u } else { *top };
                    }
                }
                let mut moved = false;
                // Becomes the factors that rescale sums from the old references to the new ones.
                for (top, reference) in top.iter_mut().zip(&mut sums.reference[..lanes]) {
                    let passed = *top > *reference + SLACK;
                    let new = if passed { *top } else { *reference };
                    *top = if passed { simd::exp2(*reference - new) } else { 1.0 };
                    *reference = new;
                    moved |= passed;
                }
                if moved {
                    lanes::scale(&mut sums.total[..lanes], lanes, &top);
                    lanes::scale(&mut sums.values[..self.shape.value_width * lanes], lanes, &top);
                }
            },
        );
        simd::vectorize(
            #[inline(always)]
            || {
                let offsets = sums.offsets[..components * lanes].chunks_exact_mut(lanes);
                for (offsets, u) in offsets.zip(sums.u.chunks_exact(lanes)) {
                    for ((offset, reference), u) in offsets.iter_mut().zip(&*sums.reference).zip(u) {
                        // A query that has seen no key yet has only scores of negative infinity.
                        let reference = if *reference == f32::NEG_INFINITY { 0.0 } else { *reference };
                        *offset = reference - u;
                    }
                }
                if self.hard {
                    // The same arithmetic as in the backward pass, whose weights must be these.
                    lanes::keep_best(x, (size, len, lanes), components, sums.offsets);
                    sums.offsets[..lanes].fill(0.0);
                }
                let one = if self.hard { 1 } else { components };
                lanes::powers(x, (size, len, lanes), one, sums.offsets, &mut sum);
                // A tile is summed separately, so that each element takes part in few roundings.
                for (total, sum) in sums.total[..lanes].iter_mut().zip(sum) {
                    *total += sum;
                }
            },
        );
    }
}
