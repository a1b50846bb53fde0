//! The soft-EM update of the prior.

use super::{
    Scores, lanes,
    strip::{STRIP, Strip},
    tile::Tile,
};
use crate::{
    parallel::{self, Disjoint, with_parts},
    simd::{self, LANES},
};

impl Scores<'_> {
    /// Mean responsibility `rho_ijr = softmax_r l_ijr` over the visible pairs of real queries and real keys of all batch
    /// rows, `[H,M,S]`; a key without such a pair keeps `old`.
    pub fn responsibilities(&self, old: &[f32]) -> Vec<f32> {
        let shape = self.shape;
        let (components, width, block) = (self.components(), shape.head_width, self.key_block());
        let mut prior = old.to_vec();
        let written = Disjoint::new(&mut prior);
        let terms = self.key_terms();
        let segments = shape.keys.div_ceil(block);
        parallel::for_each(shape.heads * segments, |task| {
            let (h, start) = (task / segments, task % segments * block);
            let keys = start..(start + block).min(shape.keys);
            let (len, size) = (keys.len(), keys.len() * STRIP);
            with_parts!(
                q = width * STRIP,
                u = components * STRIP,
                x = components * size,
                counted = size,
                spare = self.spare() * size,
                k = self.copies() * len * width,
                sums = components * len * LANES,
                pairs = len * LANES,
                {
                    sums.fill(0.0);
                    pairs.fill(0.0);
                    for b in 0..shape.batch {
                        let k = self.keys((b, h), &keys, &terms, k);
                        let real = self.mask.query_row(b, shape.queries);
                        for strip in Strip::cut(0..shape.queries) {
                            let tile = Tile { b, h, strip: &strip, keys: keys.clone() };
                            strip.turn(self.q, &shape.query_rows(b, h), q);
                            self.query_terms(b, h, &strip, &mut u[..components * strip.lanes]);
                            self.score(&tile, q, k, (x, size), spare);
                            // 1 in lanes of real queries.
                            let mut asks = [0.0; STRIP];
                            for (asks, i) in asks.iter_mut().zip(strip.queries.clone()) {
                                *asks = if real.is_some_and(|real| real[i] == 0) { 0.0 } else { 1.0 };
                            }
                            self.share_out(&tile, u, &asks, (&mut *x, size), counted);
                            simd::vectorize(
                                #[inline(always)]
                                || {
                                    for r in 0..components {
                                        let rho = &x[r * size..][..tile.len()];
                                        lanes::add_columns(
                                            rho,
                                            strip.lanes,
                                            &mut sums[r * len * LANES..][..len * LANES],
                                        );
                                    }
                                    lanes::add_columns(&counted[..tile.len()], strip.lanes, pairs);
                                },
                            );
                        }
                    }
                    simd::vectorize(
                        #[inline(always)]
                        || {
                            lanes::settle(sums);
                            lanes::settle(pairs);
                        },
                    );
                    for r in 0..components {
                        // SAFETY: this head's entries at these keys belong to this task alone.
                        let prior = unsafe { written.range((h * components + r) * shape.keys + start, len) };
                        let (sums, pairs) =
                            (sums[r * len * LANES..].iter().step_by(LANES), pairs.iter().step_by(LANES));
                        for ((prior, sum), pairs) in prior.iter_mut().zip(sums).zip(pairs) {
                            *prior = if *pairs > 0.0 { sum / pairs } else { *prior };
                        }
                    }
                }
            );
        });
        prior
    }

    /// Converts scores to responsibilities, 0 for pairs that do not count, and marks those that do with 1.
    fn share_out(&self, tile: &Tile, u: &[f32], asks: &[f32], (x, size): (&mut [f32], usize), counted: &mut [f32]) {
        let (lanes, components) = (tile.strip.lanes, self.components());
        simd::vectorize(
            #[inline(always)]
            || {
                for (row, counted) in counted[..tile.len()].chunks_exact_mut(lanes).enumerate() {
                    for (v, counted) in counted.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                        let at = |r: usize| r * size + row * lanes + v * LANES;
                        let u = |r: usize| &u[r * lanes + v * LANES..][..LANES];
                        let asks = &asks[v * LANES..][..LANES];
                        let mut top = [f32::NEG_INFINITY; LANES];
                        for r in 0..components {
                            let (x, u) = (&mut x[at(r)..][..LANES], u(r));
                            for l in 0..LANES {
                                x[l] += u[l];
                                top[l] = if x[l] > top[l] { x[l] } else { top[l] };
                            }
                        }
                        let mut total = [0.0; LANES];
                        for r in 0..components {
                            let x = &mut x[at(r)..][..LANES];
                            for l in 0..LANES {
                                // Every score of a hidden key is negative infinity; it is excluded.
                                let hidden = top[l] == f32::NEG_INFINITY;
                                x[l] = if hidden { 0.0 } else { simd::exp2(x[l] - top[l]) };
                                total[l] += x[l];
                            }
                        }
                        for l in 0..LANES {
                            counted[l] = if total[l] > 0.0 { asks[l] } else { 0.0 };
                            total[l] = if total[l] > 0.0 { asks[l] / total[l] } else { 0.0 };
                        }
                        for r in 0..components {
                            for (x, inverse) in x[at(r)..][..LANES].iter_mut().zip(total) {
                                *x *= inverse;
                            }
                        }
                    }
                }
            },
        );
    }
}
