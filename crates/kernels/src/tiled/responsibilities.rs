//! The update of the prior in soft expectation-maximisation.

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
            let sizes = [components * size, components * n, components * len, components * len, len];
            parallel::with_scratch(sizes.iter().sum(), |scratch| {
                let [x, u, c, sums, pairs] = parallel::split(scratch, sizes);
                sums.fill(0.0);
                pairs.fill(0.0);
                for b in 0..shape.batch {
                    self.key_terms(b, h, &keys, c);
                    for queries in blocks(0..shape.queries, n) {
                        let u = &mut u[..components * queries.len()];
                        self.tiles(b, h, &queries, &keys, x, size);
                        self.query_terms(b, h, &queries, u);
                        let real = self.mask.query_row(b, shape.queries);
                        let valid = self.mask.valid_row(b);
                        for (i, query) in queries.clone().enumerate() {
                            if real.is_some_and(|real| real[query] == 0) {
                                continue;
                            }
                            let seen = self.seen(query, &keys);
                            let terms = (&*u, queries.len(), &*c);
                            self.add_responsibilities(x, (i, len, size), terms, seen, &keys, valid, sums, pairs);
                        }
                    }
                }
                for r in 0..components {
                    // SAFETY: this head's entries at these keys belong to this task alone.
                    let prior = unsafe { written.range((h * components + r) * shape.keys + start, len) };
                    for ((prior, sum), pairs) in prior.iter_mut().zip(&sums[r * len..]).zip(&*pairs) {
                        *prior = if *pairs > 0.0 { sum / pairs } else { *prior };
                    }
                }
            });
        });
        prior
    }

    /// Adds one query's responsibilities to the sums of the keys it sees, and counts the pairs.
    #[allow(clippy::too_many_arguments)]
    fn add_responsibilities(
        &self,
        x: &mut [f32],
        (i, len, size): (usize, usize, usize),
        (u, n, c): (&[f32], usize, &[f32]),
        seen: std::ops::Range<usize>,
        keys: &std::ops::Range<usize>,
        valid: Option<&[u8]>,
        sums: &mut [f32],
        pairs: &mut [f32],
    ) {
        let components = self.components();
        let factors = self.factors();
        simd::vectorize(
            #[inline(always)]
            || {
                let at = i * len + seen.start..i * len + seen.end;
                for r in 0..components {
                    let x = &mut x[r * size..][at.clone()];
                    rows::score(x, &c[r * len..][seen.clone()], factors[r], u[r * n + i]);
                }
                for (local, j) in seen.clone().zip(keys.start + seen.start..) {
                    if valid.is_some_and(|valid| valid[j] == 0) {
                        continue;
                    }
                    let score = |r: usize| x[r * size + i * len + local];
                    let top = (0..components).map(score).fold(f32::NEG_INFINITY, f32::max);
                    if top == f32::NEG_INFINITY {
                        continue;
                    }
                    let total: f32 = (0..components).map(|r| simd::exp2(score(r) - top)).sum();
                    for r in 0..components {
                        sums[r * len + local] += simd::exp2(score(r) - top) / total;
                    }
                    pairs[local] += 1.0;
                }
            },
        );
    }
}
