//! The update of the prior in soft expectation-maximisation.

use std::ops::Range;

use super::{KEY_BLOCK, Scores, blocks, rows};
use crate::{
    parallel::{self, Disjoint},
    simd,
};

impl Scores<'_> {
    /// Mean responsibility `rho_ijr = softmax_r l_ijr` over the visible pairs of real queries and real keys of all batch
    /// rows, `[H,M,S]`; a key without such a pair keeps `old`.
    pub fn responsibilities(&self, old: &[f32]) -> Vec<f32> {
        let shape = self.shape;
        let components = self.components();
        let mut prior = old.to_vec();
        let written = Disjoint::new(&mut prior);
        let segments = shape.keys.div_ceil(KEY_BLOCK);
        parallel::for_each(shape.heads * segments, |task| {
            let (h, start) = (task / segments, task % segments * KEY_BLOCK);
            let keys = start..(start + KEY_BLOCK).min(shape.keys);
            let (n, len) = (self.query_block(), keys.len());
            let size = n * len;
            let sizes = [components * size, components * n, components * len, components * len, len, len, len];
            parallel::with_scratch(sizes.iter().sum(), |scratch| {
                let [x, u, c, sums, pairs, top, total] = parallel::split(scratch, sizes);
                sums.fill(0.0);
                pairs.fill(0.0);
                let mut s = Scratch { x, c, sums, pairs, top, total };
                for b in 0..shape.batch {
                    self.key_terms(b, h, &keys, s.c);
                    for queries in blocks(0..shape.queries, n) {
                        let u = &mut u[..components * queries.len()];
                        self.tiles(b, h, &queries, &keys, s.x, size);
                        self.query_terms(b, h, &queries, u);
                        let real = self.mask.query_row(b, shape.queries);
                        for (i, query) in queries.clone().enumerate() {
                            if real.is_some_and(|real| real[query] == 0) {
                                continue;
                            }
                            let seen = self.seen(query, &keys);
                            self.add_responsibilities((i, len, size), seen, (u, queries.len()), &mut s);
                        }
                    }
                }
                for r in 0..components {
                    // SAFETY: this head's entries at these keys belong to this task alone.
                    let prior = unsafe { written.range((h * components + r) * shape.keys + start, len) };
                    for ((prior, sum), pairs) in prior.iter_mut().zip(&s.sums[r * len..]).zip(&*s.pairs) {
                        *prior = if *pairs > 0.0 { sum / pairs } else { *prior };
                    }
                }
            });
        });
        prior
    }

    /// Adds one query's responsibilities to the sums of the keys it sees, and counts the pairs.
    fn add_responsibilities(
        &self,
        (i, len, size): (usize, usize, usize),
        seen: Range<usize>,
        (u, n): (&[f32], usize),
        s: &mut Scratch,
    ) {
        let components = self.components();
        simd::vectorize(
            #[inline(always)]
            || {
                let at = i * len + seen.start..i * len + seen.end;
                let (top, total) = (&mut s.top[seen.clone()], &mut s.total[seen.clone()]);
                top.fill(f32::NEG_INFINITY);
                for r in 0..components {
                    let x = &mut s.x[r * size..][at.clone()];
                    rows::score(x, &s.c[r * len..][seen.clone()], self.factor(r), u[r * n + i]);
                    for (top, x) in top.iter_mut().zip(&*x) {
                        *top = if *x > *top { *x } else { *top };
                    }
                }
                // Of a padded key every score is negative infinity; it takes no part.
                let power = |x: f32, top: f32| if top == f32::NEG_INFINITY { 0.0 } else { simd::exp2(x - top) };
                total.fill(0.0);
                for r in 0..components {
                    let x = &mut s.x[r * size..][at.clone()];
                    for ((x, top), total) in x.iter_mut().zip(&*top).zip(&mut *total) {
                        *x = power(*x, *top);
                        *total += *x;
                    }
                }
                for (pairs, total) in s.pairs[seen.clone()].iter_mut().zip(&mut *total) {
                    *pairs += if *total > 0.0 { 1.0 } else { 0.0 };
                    *total = if *total > 0.0 { 1.0 / *total } else { 0.0 };
                }
                for r in 0..components {
                    let sums = &mut s.sums[r * len..][seen.clone()];
                    for ((sum, x), inverse) in sums.iter_mut().zip(&s.x[r * size..][at.clone()]).zip(&*total) {
                        *sum += x * inverse;
                    }
                }
            },
        );
    }
}

/// One thread's memory for one task.
struct Scratch<'s> {
    /// Scores, then powers, of each component.
    x: &'s mut [f32],
    c: &'s mut [f32],
    sums: &'s mut [f32],
    pairs: &'s mut [f32],
    top: &'s mut [f32],
    total: &'s mut [f32],
}
