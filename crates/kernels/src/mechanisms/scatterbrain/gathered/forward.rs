//! Forward pass: running maxima and denominators of all rows, pass after pass over the groups.
//!
//! With features, a row starts from its low-rank part over all keys and adds the support's corrections. That difference
//! cancels where the low-rank part is much larger than the result: such rows are recomputed without subtraction, pair
//! by pair over all visible keys.

use std::f32::consts::LN_2;

use super::{
    Call,
    groups::{KEYS, QUERIES, Seen},
    rows,
    tile::{Meeting, Tile, Weigh},
};
use crate::{
    gemm::{self, Matrix, Write},
    parallel::{self, Disjoint, Parts, with_parts},
    scatterbrain::RowScales,
    simd,
};

/// A low-rank part this much larger than the denominator loses too many digits.
const CANCELLATION: f32 = 4.0;

/// Buffers of all rows.
struct Rows<'a> {
    /// Numerators, in place of the output.
    sums: Disjoint<'a, f32>,
    tops: Disjoint<'a, f32>,
    totals: Disjoint<'a, f32>,
}

impl Call<'_> {
    /// Fills `out`. A row computed without subtraction has a negative inverse.
    pub fn forward(&self, out: &mut [f32]) -> RowScales<'static> {
        let shape = &self.problem.shape;
        let count = shape.batch * shape.heads * shape.queries;
        let mut tops = vec![f32::NEG_INFINITY; count];
        let mut totals = vec![0.0; count];
        let low = if self.problem.features.is_some() {
            self.problem.forward_band(None, out)
        } else {
            parallel::clear(out);
            RowScales { inverses: vec![0.0; count], ..RowScales::default() }
        };
        self.start(&low, out, &mut tops, &mut totals);
        let rows =
            Rows { sums: Disjoint::new(out), tops: Disjoint::new(&mut tops), totals: Disjoint::new(&mut totals) };
        let heads: Vec<_> = self.heads().collect();
        let weigh = if self.correction.is_some() { Weigh::Corrected } else { Weigh::Exact };
        for pass in 0..self.supports.passes() {
            self.for_each_group(pass, &heads, weigh, |meeting| self.forward_meeting(meeting, &rows));
        }
        let redone = self.correction.map(|_| self.cancelled(&low, &tops, &totals));
        let mut lse = vec![f32::NEG_INFINITY; count];
        let mut inverses = vec![0.0; count];
        if let Some(redone) = &redone {
            self.redo(redone, out, &mut tops, &mut totals);
        }
        self.finish(out, [&mut lse, &mut tops, &mut totals, &mut inverses]);
        match redone {
            Some(redone) => {
                for (head, list) in redone.iter().enumerate() {
                    list.iter().for_each(|&i| inverses[head * shape.queries + i as usize] *= -1.0);
                }
            }
            // The backward pass of the low-rank part needs its signs.
            None => inverses.iter_mut().zip(&low.inverses).for_each(|(x, low)| *x = x.copysign(*low)),
        }
        RowScales { lse, tops, inverses, surroundings: low.surroundings }
    }

    /// Converts the low-rank output to numerators, each row scaled so that its denominator is about 1.
    fn start(&self, low: &RowScales, out: &mut [f32], tops: &mut [f32], totals: &mut [f32]) {
        let shape = &self.problem.shape;
        let rows = Rows { sums: Disjoint::new(out), tops: Disjoint::new(tops), totals: Disjoint::new(totals) };
        parallel::for_each(shape.batch * shape.heads, |head| {
            let (b, h) = (head / shape.heads, head % shape.heads);
            let numerators = shape.out_rows(b, h);
            for i in 0..shape.queries {
                let at = head * shape.queries + i;
                // SAFETY: the rows of this head belong to this task alone.
                let (sums, top, total) =
                    unsafe { (rows.sums.row(&numerators, i), rows.tops.range(at, 1), rows.totals.range(at, 1)) };
                if low.inverses[at] == 0.0 || (self.correction.is_some() && self.supports.covers(b, h, i as u32)) {
                    sums.fill(0.0);
                    continue;
                }
                let mass = 1.0 / low.inverses[at].abs();
                let shift = mass.log2().floor();
                top[0] = low.tops[at] + shift;
                total[0] = mass * (-shift).exp2();
                sums.iter_mut().for_each(|sum| *sum *= total[0]);
            }
        });
    }

    /// Adds what a group contributes to its queries.
    fn forward_meeting(&self, meeting: &Meeting, rows: &Rows) {
        let shape = &self.problem.shape;
        let value_width = shape.value_width;
        let (most, _) = self.tile_sizes();
        let of_tile = Parts::floats(|parts| self.tile(parts));
        let numerators = shape.out_rows(meeting.b, meeting.h);
        let first = (meeting.b * shape.heads + meeting.h) * shape.queries;
        with_parts!(sums = most * value_width, best = most, total = most, tile = of_tile, {
            let mut tile = self.tile(&mut Parts::new(tile));
            for queries in meeting.queries.chunks(QUERIES) {
                self.load_queries(meeting, queries, &mut tile);
                for (i, &query) in queries.iter().enumerate() {
                    let at = first + query as usize;
                    // SAFETY: groups of a pass share no query, and a group's rows belong to this task alone.
                    let (row, top, mass) = unsafe {
                        (rows.sums.row(&numerators, query as usize), rows.tops.range(at, 1), rows.totals.range(at, 1))
                    };
                    sums[i * value_width..(i + 1) * value_width].copy_from_slice(row);
                    (best[i], total[i]) = (top[0], mass[0]);
                }
                for keys in meeting.keys.chunks(KEYS) {
                    let seen = Seen::new(queries, keys, meeting.radius, meeting.not_self, self.positions);
                    if !seen.any {
                        continue;
                    }
                    self.load_keys(meeting, queries, keys, &mut tile);
                    self.weigh_tile(meeting, (queries, keys), &seen, &mut tile, (best, total, sums));
                    let (n, len) = (queries.len(), keys.len());
                    let (x, v) = (Matrix::rows(tile.x, len), Matrix::rows(tile.v, value_width));
                    gemm::product((n, value_width, len), 1.0, x, v, Write::Add, sums, value_width);
                }
                for (i, &query) in queries.iter().enumerate() {
                    let at = first + query as usize;
                    // SAFETY: as above.
                    let (row, top, mass) = unsafe {
                        (rows.sums.row(&numerators, query as usize), rows.tops.range(at, 1), rows.totals.range(at, 1))
                    };
                    row.copy_from_slice(&sums[i * value_width..(i + 1) * value_width]);
                    (top[0], mass[0]) = (best[i], total[i]);
                }
            }
        });
    }

    /// Converts products to weights relative to each row's running maximum and rescales the sums so far to the new
    /// maximum.
    fn weigh_tile(
        &self,
        meeting: &Meeting,
        (queries, keys): (&[u32], &[u32]),
        seen: &Seen,
        tile: &mut Tile,
        (best, total, sums): (&mut [f32], &mut [f32], &mut [f32]),
    ) {
        let (len, width, f) = (keys.len(), self.problem.shape.value_width, self.factor());
        simd::vectorize(
            #[inline(always)]
            || {
                for (i, &query) in queries.iter().enumerate() {
                    let range = seen.range(i);
                    let row = &mut tile.x[i * len..(i + 1) * len];
                    row[..range.start].fill(0.0);
                    row[range.end..].fill(0.0);
                    if range.is_empty() {
                        continue;
                    }
                    self.hide(meeting, i, query, len, seen, tile);
                    if let Weigh::Joint(homes) = meeting.weigh {
                        self.mark(meeting, homes, (i, query), keys, seen, tile);
                    }
                    let row = &mut tile.x[i * len..][range.clone()];
                    let s = &tile.s[range.clone()];
                    let g = tile.g.get(i * len..(i + 1) * len).map_or(&[][..], |g| &g[range.clone()]);
                    let marks = &tile.marks[range.clone()];
                    let top = match meeting.weigh {
                        Weigh::Joint(_) => rows::joint_top(row, marks, g, s, f, tile.r[i]),
                        _ => simd::max(row) * f,
                    };
                    let top = if top > best[i] { top } else { best[i] };
                    if top == f32::NEG_INFINITY {
                        row.fill(0.0);
                        continue;
                    }
                    let sum = match meeting.weigh {
                        Weigh::Exact => rows::exp(row, f, -top),
                        // Such a row is recomputed, like every row that gives NaN.
                        Weigh::Corrected if rows::lost(row, g, s, tile.r[i] - top) => f32::NAN,
                        Weigh::Corrected => rows::exp_corrected(row, g, s, f, -top, tile.r[i] - top),
                        Weigh::Joint(_) => rows::exp_joint(row, marks, g, s, f, -top, tile.r[i] - top),
                    };
                    if top > best[i] {
                        let scale = simd::exp2(best[i] - top);
                        total[i] *= scale;
                        for y in &mut sums[i * width..(i + 1) * width] {
                            *y *= scale;
                        }
                        best[i] = top;
                    }
                    total[i] += sum;
                }
            },
        );
    }

    /// Rows of each head whose low-rank part is too large relative to their denominator.
    fn cancelled(&self, low: &RowScales, tops: &[f32], totals: &[f32]) -> Vec<Vec<u32>> {
        let shape = &self.problem.shape;
        let cancelled = |head: usize, i: usize| {
            let at = head * shape.queries + i;
            if low.inverses[at] == 0.0 || self.supports.covers(head / shape.heads, head % shape.heads, i as u32) {
                return false;
            }
            let mass = (low.tops[at] - tops[at]).exp2() / low.inverses[at];
            // Rows that the feature sums cannot represent have a negative inverse. NaN counts as cancelled too.
            !(low.inverses[at] > 0.0 && totals[at] > 0.0 && totals[at] * CANCELLATION >= mass)
        };
        (0..shape.batch * shape.heads)
            .map(|head| (0..shape.queries).filter(|&i| cancelled(head, i)).map(|i| i as u32).collect())
            .collect()
    }

    /// Recomputes these rows of each head without subtraction.
    fn redo(&self, redone: &[Vec<u32>], out: &mut [f32], tops: &mut [f32], totals: &mut [f32]) {
        let shape = &self.problem.shape;
        let rows = Rows { sums: Disjoint::new(out), tops: Disjoint::new(tops), totals: Disjoint::new(totals) };
        let lists = redone.iter().enumerate().flat_map(|(head, list)| {
            let apart = self.apart(head / shape.heads, list);
            apart.into_iter().filter(|list| !list.is_empty()).map(move |list| (head, list))
        });
        let lists: Vec<_> = lists.collect();
        let chunks = lists.iter().flat_map(|(head, list)| list.chunks(QUERIES).map(|list| (*head, list)));
        let chunks: Vec<_> = chunks.collect();
        parallel::for_each(chunks.len(), |task| {
            let (head, list) = chunks[task];
            let (b, h) = (head / shape.heads, head % shape.heads);
            for &i in list {
                let at = head * shape.queries + i as usize;
                // SAFETY: these rows belong to this task alone.
                unsafe {
                    rows.sums.row(&shape.out_rows(b, h), i as usize).fill(0.0);
                    rows.tops.range(at, 1)[0] = f32::NEG_INFINITY;
                    rows.totals.range(at, 1)[0] = 0.0;
                }
            }
            self.forward_meeting(&self.whole(b, h, list), &rows);
        });
    }

    /// Divides numerators by denominators.
    fn finish(&self, out: &mut [f32], [lse, tops, totals, inverses]: [&mut [f32]; 4]) {
        let shape = &self.problem.shape;
        let out = Disjoint::new(out);
        let rows = [lse, tops, totals, inverses].map(Disjoint::new);
        parallel::for_each(shape.batch * shape.heads, |head| {
            // SAFETY: the rows of this head belong to this task alone.
            let [lse, tops, totals, inverses] =
                rows.each_ref().map(|rows| unsafe { rows.range(head * shape.queries, shape.queries) });
            let numerators = shape.out_rows(head / shape.heads, head % shape.heads);
            for i in 0..shape.queries {
                // SAFETY: as above.
                let row = unsafe { out.row(&numerators, i) };
                if totals[i] > 0.0 {
                    inverses[i] = 1.0 / totals[i];
                    lse[i] = (tops[i] + totals[i].log2()) * LN_2;
                    row.iter_mut().for_each(|y| *y *= inverses[i]);
                } else if totals[i] == 0.0 && tops[i] == f32::NEG_INFINITY {
                    tops[i] = 0.0;
                    row.fill(0.0);
                } else {
                    // Scores that are NaN, or so large that their differences are lost: no row without a key.
                    (tops[i], inverses[i], lse[i]) = (0.0, f32::NAN, f32::NAN);
                    row.fill(f32::NAN);
                }
            }
        });
    }
}
