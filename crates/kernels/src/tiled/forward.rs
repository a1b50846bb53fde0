//! Forward pass: running maximum and denominator over tiles of keys.

use std::{f32::consts::LN_2, ops::Range};

use super::{Scores, blocks, rows};
use crate::{
    Saved,
    gemm::{self, Matrix, Write},
    parallel::{self, Disjoint},
    simd,
};

impl Scores<'_> {
    /// Fills `out`; returns what the backward pass and callers need of each row's denominator.
    pub fn forward(&self, out: &mut [f32]) -> Saved {
        let shape = self.shape;
        let rows = shape.batch * shape.heads * shape.queries;
        let [mut lse, mut tops, mut inverses] = [(); 3].map(|()| vec![0.0; rows]);
        let tiles = shape.queries.div_ceil(self.query_block());
        let written = Disjoint::new(out);
        let saved = [&mut lse, &mut tops, &mut inverses].map(|x| Disjoint::new(x));
        // Under a causal mask the last queries do the most work: they come first, so that threads end together.
        parallel::for_each(shape.batch * shape.heads * tiles, |task| {
            let (head, tile) = (task % (shape.batch * shape.heads), tiles - 1 - task / (shape.batch * shape.heads));
            let start = tile * self.query_block();
            let queries = start..(start + self.query_block()).min(shape.queries);
            // SAFETY: rows `queries` of this batch row and head belong to this task alone.
            let saved = saved.each_ref().map(|x| unsafe { x.range(head * shape.queries + start, queries.len()) });
            self.forward_tile(head / shape.heads, head % shape.heads, queries, &written, saved);
        });
        vec![lse, tops, inverses]
    }

    fn forward_tile(
        &self,
        b: usize,
        h: usize,
        queries: Range<usize>,
        out: &Disjoint<f32>,
        [lse, tops, inverses]: [&mut [f32]; 3],
    ) {
        let shape = &self.shape;
        let (components, n) = (self.components(), queries.len());
        let (width, block) = (shape.value_width, self.key_block());
        let size = n * block;
        let sizes = [components * size, n * width, n, n, components * n, components * block];
        parallel::with_scratch(sizes.iter().sum(), |scratch| {
            let [x, sums, best, total, u, c] = parallel::split(scratch, sizes);
            sums.fill(0.0);
            best.fill(f32::NEG_INFINITY);
            total.fill(0.0);
            self.query_terms(b, h, &queries, u);
            let value = shape.value_rows(b, h / shape.group());
            for keys in blocks(self.hull(b, queries.clone()), block) {
                let len = keys.len();
                let c = &mut c[..components * len];
                self.tiles(b, h, &queries, &keys, x, size);
                self.key_terms(b, h, &keys, c);
                self.weigh_tile((b, h), &queries, &keys, (x, size), (u, c), (best, total, sums));
                let v = Matrix::rows(&self.v[value.start(keys.start)..], value.stride);
                gemm::product((n, width, len), 1.0, Matrix::rows(x, len), v, Write::Add, sums, width);
            }
            let rows = shape.out_rows(b, h);
            for i in 0..n {
                // SAFETY: this row of this batch row and head belongs to this task alone.
                let row = unsafe { out.row(&rows, queries.start + i) };
                inverses[i] = if total[i] > 0.0 { 1.0 / total[i] } else { 0.0 };
                for (y, x) in row.iter_mut().zip(&sums[i * width..]) {
                    *y = x * inverses[i];
                }
                tops[i] = best[i];
                lse[i] = if total[i] > 0.0 { (best[i] + total[i].log2()) * LN_2 } else { f32::NEG_INFINITY };
            }
        });
    }

    /// Turns tiles of products into one of weights relative to each row's running maximum, in place of the first, and
    /// brings the sums so far to the new maximum.
    fn weigh_tile(
        &self,
        (b, h): (usize, usize),
        queries: &Range<usize>,
        keys: &Range<usize>,
        (x, size): (&mut [f32], usize),
        (u, c): (&[f32], &[f32]),
        (best, total, sums): (&mut [f32], &mut [f32], &mut [f32]),
    ) {
        let (n, len, width) = (queries.len(), keys.len(), self.shape.value_width);
        let components = self.components();
        let (first, others) = x.split_at_mut(size);
        simd::vectorize(
            #[inline(always)]
            || {
                for i in 0..n {
                    let query = queries.start + i;
                    let seen = self.seen(query, keys);
                    let row = &mut first[i * len..(i + 1) * len];
                    self.add_bias(h, query, keys, row);
                    row[..seen.start].fill(0.0);
                    row[seen.end..].fill(0.0);
                    let row = &mut row[seen.clone()];
                    let other = |r: usize| &others[(r - 1) * size + i * len..][seen.clone()];
                    let terms = |r: usize| &c[r * len..][seen.clone()];

                    let mut top = best[i].max(rows::max(row, terms(0), self.factor(0)) + u[i]);
                    for r in 1..components {
                        top = top.max(rows::max(other(r), terms(r), self.factor(r)) + u[r * n + i]);
                    }
                    if top == f32::NEG_INFINITY {
                        row.fill(0.0);
                        continue;
                    }
                    let sum = if self.hard {
                        rows::score(row, terms(0), self.factor(0), u[i] - top);
                        for r in 1..components {
                            rows::keep_best(row, other(r), terms(r), self.factor(r), u[r * n + i] - top);
                        }
                        rows::exp(row)
                    } else {
                        let mut sum = rows::exp_in_place(row, terms(0), self.factor(0), u[i] - top);
                        for r in 1..components {
                            sum += rows::exp_add(row, other(r), terms(r), self.factor(r), u[r * n + i] - top);
                        }
                        sum
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
                    if let Some(dropout) = self.dropout {
                        dropout.apply(self.row_number(b, h, query), keys.start + seen.start, row);
                    }
                }
            },
        );
    }
}
