//! Decoding token by token: the running sums of the causal form are the whole state.

use super::{Linear, operands::inverse};
use crate::{Decode, View, operator::reorder_rows, parallel::with_parts, simd};

/// `Z [D,Dv]` and `z [D]` of every batch row and sum, of constant size, independent of the number of tokens.
#[derive(Debug)]
pub(super) struct Sums {
    operator: Linear,
    batch: usize,
    /// `[B, sums, D (Dv + 1)]`; empty before the first token.
    sums: Vec<f32>,
}

impl Sums {
    pub fn new(operator: Linear) -> Self {
        Self { operator, batch: 0, sums: Vec::new() }
    }
}

impl Decode for Sums {
    /// # Panics
    /// If the inputs do not hold one token per batch row, or their sizes differ from the first step.
    fn step(&mut self, inputs: &[View<f32>], out: &mut [f32]) {
        let operands = self.operator.operands(inputs);
        let shape = operands.shape;
        assert_eq!((shape.queries, shape.keys), (1, 1), "a decoder takes one token at a time");
        let (width, value_width, len) = (shape.head_width, shape.value_width, operands.sum_len());
        let all = shape.batch * operands.sums();
        if self.sums.is_empty() {
            self.sums = vec![0.0; all * len];
            self.batch = shape.batch;
        }
        assert_eq!(self.sums.len(), all * len, "sizes changed since the first token");

        with_parts!(features = width, values = value_width, {
            for (n, sum) in self.sums.chunks_exact_mut(len).enumerate() {
                let (b, s) = (n / operands.sums(), n % operands.sums());
                operands.key_features(b, s, 0..1, &mut [], features);
                let values = &operands.values(b, s, 0..1, values).data[..value_width];
                let (numerator_sum, z) = sum.split_at_mut(width * value_width);
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for ((row, z), &f) in
                            numerator_sum.chunks_exact_mut(value_width).zip(z.iter_mut()).zip(&*features)
                        {
                            simd::add_scaled(row, f, values);
                            *z += f;
                        }
                    },
                );
                for h in operands.query_heads(s) {
                    operands.query_features(b, h, 0..1, features);
                    let row = shape.out_rows(b, h).row_mut(out, 0);
                    simd::vectorize(
                        #[inline(always)]
                        || {
                            let scale = inverse(simd::dot(features, z));
                            row.fill(0.0);
                            for (numerators, &f) in numerator_sum.chunks_exact(value_width).zip(&*features) {
                                simd::add_scaled(row, f * scale, numerators);
                            }
                        },
                    );
                }
            }
        });
    }

    fn reorder(&mut self, rows: &[usize]) {
        reorder_rows(&mut self.sums, self.batch, rows);
        self.batch = if self.sums.is_empty() { 0 } else { rows.len() };
    }

    fn bytes(&self) -> usize {
        size_of_val(self.sums.as_slice())
    }
}
