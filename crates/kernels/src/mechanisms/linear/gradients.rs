//! Gradients of the inputs, written by tasks that each own their rows.

use std::ops::Range;

use super::operands::{Operands, slope};
use crate::{memory::arbitrary, parallel::Disjoint, simd};

/// Gradient buffers of one backward pass, `None` where not wanted.
///
/// Prior and shift collect a contribution from every key: each block of keys has its own sums, added at the end in a
/// fixed order.
pub(super) struct Gradients {
    q: Option<Vec<f32>>,
    k: Option<Vec<f32>>,
    v: Option<Vec<f32>>,
    /// `[B, sums, blocks, M]`, in double precision: the terms of different keys cancel.
    log_prior: Option<Vec<f64>>,
    /// `[B, Hk, blocks, M, D]`.
    shift: Option<Vec<f32>>,
    blocks: usize,
}

/// Gradient buffers shared between tasks.
pub(super) struct Shared<'a> {
    operands: &'a Operands<'a>,
    q: Option<Disjoint<'a, f32>>,
    k: Option<Disjoint<'a, f32>>,
    v: Option<Disjoint<'a, f32>>,
    log_prior: Option<Disjoint<'a, f64>>,
    shift: Option<Disjoint<'a, f32>>,
    blocks: usize,
}

/// Results for a chunk of keys, one dense row per key.
pub(super) struct KeyChunk<'a> {
    /// `phi(k_jr)` `[M, keys, D]`, empty with one component.
    pub components: &'a [f32],
    /// `f_j`.
    pub mixed: &'a [f32],
    /// Gradient of `f_j`.
    pub grad_mixed: &'a [f32],
    /// Gradient of `v_j`.
    pub grad_values: &'a [f32],
}

impl Gradients {
    /// Buffers for the `wanted` inputs, with keys in `blocks` blocks.
    pub fn new(operands: &Operands, blocks: usize, wanted: &[bool]) -> Self {
        let shape = operands.shape;
        let [q, k, v, log_prior, shift] = [0, 1, 2, 3, 4].map(|i| wanted.get(i).copied().unwrap_or(false));
        let tokens = shape.batch * shape.key_heads;
        let keys = if operands.shifted() { 1 } else { operands.components };
        let sums = shape.batch * operands.sums();
        Self {
            q: q.then(|| arbitrary(shape.batch * shape.heads * shape.queries * shape.head_width)),
            k: k.then(|| arbitrary(tokens * keys * shape.keys * shape.head_width)),
            v: v.then(|| arbitrary(tokens * shape.keys * shape.value_width)),
            log_prior: log_prior.then(|| vec![0.0; sums * blocks * operands.components]),
            shift: shift.then(|| vec![0.0; tokens * blocks * operands.components * shape.head_width]),
            blocks,
        }
    }

    pub fn share<'a>(&'a mut self, operands: &'a Operands<'a>) -> Shared<'a> {
        Shared {
            operands,
            q: self.q.as_deref_mut().map(Disjoint::new),
            k: self.k.as_deref_mut().map(Disjoint::new),
            v: self.v.as_deref_mut().map(Disjoint::new),
            log_prior: self.log_prior.as_deref_mut().map(Disjoint::new),
            shift: self.shift.as_deref_mut().map(Disjoint::new),
            blocks: self.blocks,
        }
    }

    /// The gradients in the order of the inputs, of which there are `inputs`. Every query must have been passed to
    /// [`Shared::write_queries`] or [`Shared::clear_queries`], and every key through [`Shared::write_keys`].
    pub fn finish(self, operands: &Operands, inputs: usize) -> Vec<Option<Vec<f32>>> {
        let (shape, components) = (operands.shape, operands.components);
        let log_prior = self.log_prior.map(|partial| {
            // With one component the prior cancels; with more, a sum belongs to one query head.
            let mut total = vec![0.0f64; shape.heads * components];
            if components > 1 {
                for (s, sum) in partial.chunks_exact(self.blocks * components).enumerate() {
                    let head = &mut total[s % shape.heads * components..][..components];
                    for block in sum.chunks_exact(components) {
                        head.iter_mut().zip(block).for_each(|(t, p)| *t += p);
                    }
                }
                // The gradient should sum to 0, as do its centred terms: the remainder is rounding error, which is
                // subtracted in proportion to the weights.
                for (h, head) in total.chunks_exact_mut(components).enumerate() {
                    let rounding: f64 = head.iter().sum();
                    for (r, t) in head.iter_mut().enumerate() {
                        *t -= f64::from(operands.prior(h, r)) * rounding;
                    }
                }
            }
            total.into_iter().map(|t| t as f32).collect()
        });
        let shift = self.shift.map(|partial| {
            let len = components * shape.head_width;
            let mut total = vec![0.0f32; shape.key_heads * len];
            for (s, sum) in partial.chunks_exact(self.blocks * len).enumerate() {
                let head = &mut total[s % shape.key_heads * len..][..len];
                for block in sum.chunks_exact(len) {
                    head.iter_mut().zip(block).for_each(|(t, p)| *t += p);
                }
            }
            total
        });
        let mut all = vec![self.q, self.k, self.v, log_prior, shift];
        all.truncate(inputs);
        all
    }
}

impl Shared<'_> {
    /// Whether anything but the gradient of `q` is wanted.
    pub fn wants_keys(&self) -> bool {
        self.wants_features() || self.v.is_some()
    }

    /// Whether the gradient of `f_j` is needed.
    pub fn wants_features(&self) -> bool {
        self.k.is_some() || self.log_prior.is_some() || self.shift.is_some()
    }

    /// Whether the gradient of `q` is wanted.
    pub fn wants_queries(&self) -> bool {
        self.q.is_some()
    }

    /// `dq_i = phi'(q_i) (d phi_i + dden_i z)`, `grad` holding the first term and `z` the sum of visible key features so
    /// far.
    ///
    /// # Safety
    /// No other task may hold these rows of `q`'s gradient.
    pub unsafe fn write_queries(
        &self,
        (b, h): (usize, usize),
        queries: Range<usize>,
        features: &[f32],
        grad: &[f32],
        grad_denominators: &[f32],
        z: &[f32],
    ) {
        let Some(q) = &self.q else { return };
        let rows = self.operands.shape.query_rows(b, h);
        simd::vectorize(
            #[inline(always)]
            || {
                let chunk = features.chunks_exact(rows.width).zip(grad.chunks_exact(rows.width));
                for (((features, grad), &grad_denominator), i) in chunk.zip(grad_denominators).zip(queries) {
                    // SAFETY: guaranteed by the caller.
                    let row = unsafe { q.row(&rows, i) };
                    for (((y, &f), &g), &z) in row.iter_mut().zip(features).zip(grad).zip(z) {
                        *y = slope(f) * (g + grad_denominator * z);
                    }
                }
            },
        );
    }

    /// Zeroes the gradient of queries that see nothing.
    ///
    /// # Safety
    /// No other task may hold these rows of `q`'s gradient.
    pub unsafe fn clear_queries(&self, (b, h): (usize, usize), queries: Range<usize>) {
        let Some(q) = &self.q else { return };
        for i in queries {
            // SAFETY: guaranteed by the caller.
            unsafe { q.row(&self.operands.shape.query_rows(b, h), i) }.fill(0.0);
        }
    }

    /// Propagates the gradient of sum `s` of batch row `b` to keys, values, prior and shift through the keys of
    /// `block`: writes for the first sum of a key head, adds for later ones.
    ///
    /// # Safety
    /// No other task may work on this block of this key head, and the sums of a key head must come in ascending order.
    pub unsafe fn write_keys(&self, (b, s, block): (usize, usize, usize), keys: Range<usize>, chunk: &KeyChunk) {
        let operands = self.operands;
        let (shape, width, key_head) = (operands.shape, operands.shape.head_width, s / operands.splits);
        let first = s.is_multiple_of(operands.splits);
        for r in 0..operands.components {
            let sum = (b * operands.sums() + s) * self.blocks + block;
            // SAFETY: the sums of a block belong to the task that owns it.
            let log_prior =
                self.log_prior.as_ref().map(|p| unsafe { &mut p.range(sum * operands.components + r, 1)[0] });
            let sum = (b * shape.key_heads + key_head) * self.blocks + block;
            // SAFETY: as above.
            let shift = self.shift.as_ref().map(|p| unsafe { p.range((sum * operands.components + r) * width, width) });
            let written = !first || (r > 0 && operands.shifted());
            // An earlier sum has written the rows, or for shifted keys an earlier component.
            // SAFETY: guaranteed by the caller.
            unsafe { self.write_component((b, s, r), keys.clone(), chunk, written, log_prior, shift) };
        }
        let (Some(v), rows) = (&self.v, shape.value_rows(b, key_head)) else { return };
        simd::vectorize(
            #[inline(always)]
            || {
                for (grad, j) in chunk.grad_values.chunks_exact(rows.width).zip(keys) {
                    // SAFETY: guaranteed by the caller.
                    let row = unsafe { v.row(&rows, j) };
                    for (y, &x) in row.iter_mut().zip(grad) {
                        *y = if first { x } else { *y + x };
                    }
                }
            },
        );
    }

    /// [`Shared::write_keys`] for one component.
    ///
    /// # Safety
    /// As for [`Shared::write_keys`].
    unsafe fn write_component(
        &self,
        (b, s, r): (usize, usize, usize),
        keys: Range<usize>,
        chunk: &KeyChunk,
        written: bool,
        log_prior: Option<&mut f64>,
        mut shift: Option<&mut [f32]>,
    ) {
        let operands = self.operands;
        let (count, width, prior) = (keys.len(), operands.shape.head_width, operands.prior(s, r));
        let (rows, real) = (operands.key_rows(b, s, r), operands.mask.valid_row(b));
        let features = if operands.components > 1 {
            &chunk.components[r * count * width..(r + 1) * count * width]
        } else {
            &chunk.mixed[..count * width]
        };
        let mut share = 0.0f64;
        simd::vectorize(
            #[inline(always)]
            || {
                let mixed = chunk.mixed.chunks_exact(width);
                let chunk = features.chunks_exact(width).zip(mixed).zip(chunk.grad_mixed.chunks_exact(width));
                for (((features, mixed), grad), j) in chunk.zip(keys) {
                    let padded = real.is_some_and(|real| real[j] == 0);
                    if let Some(k) = &self.k {
                        // SAFETY: guaranteed by the caller.
                        let row = unsafe { k.row(&rows, j) };
                        if padded && !written {
                            row.fill(0.0);
                        } else if !padded {
                            put_key(row, features, grad, prior, written);
                        }
                    }
                    if padded {
                        continue;
                    }
                    if log_prior.is_some() {
                        // The scale of a head's prior cancels in the output, so `sum_j f_j.df_j` is 0 and subtracting `f_j`
                        // changes no gradient of the prior. It changes the rounding: components that differ little, as
                        // shifted keys do, leave a small difference of products that are each much larger, and here the
                        // difference comes first.
                        share += f64::from(simd::dot_difference(features, mixed, grad));
                    }
                    if let Some(shift) = &mut shift {
                        for ((y, &f), &g) in shift.iter_mut().zip(features).zip(grad) {
                            *y += prior * slope(f) * g;
                        }
                    }
                }
            },
        );
        if let Some(log_prior) = log_prior {
            *log_prior += f64::from(prior) * share;
        }
    }
}

/// `y (=|+=) prior phi'(k) grad`.
#[inline(always)]
fn put_key(row: &mut [f32], features: &[f32], grad: &[f32], prior: f32, written: bool) {
    for ((y, &f), &g) in row.iter_mut().zip(features).zip(grad) {
        let old = if written { *y } else { 0.0 };
        *y = old + prior * slope(f) * g;
    }
}
