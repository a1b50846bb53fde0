//! Row-wise `dO . O` of the softmax backward pass.
//!
//! A row that sees one key, or attends to one alone, has that key's value as its output, and no gradient: `dO . V - dO . O` is
//! 0. It is 0 to the bit if both are summed in the same order.

use crate::{
    AttentionShape,
    memory::arbitrary,
    parallel,
    simd::{self, MultiplyAdd},
};

/// Rows summed at a time: their sums do not wait for each other.
const ROWS: usize = 8;

/// The order of a sum over channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// One after the other, as a tile of a matrix product has it.
    Product,
    /// As [`simd::dot`] has it.
    Dot,
}

/// `dO_i . O_i`, `[B,H,N]`, in the order in which `dO_i . v_j` is summed.
pub(crate) fn deltas(shape: &AttentionShape, out: &[f32], grad_out: &[f32], order: Order) -> Vec<f32> {
    let mut deltas = arbitrary(shape.batch * shape.heads * shape.queries);
    parallel::for_each_part(&mut deltas, shape.queries, |head, deltas| {
        let rows = shape.out_rows(head / shape.heads, head % shape.heads);
        simd::vectorize(
            #[inline(always)]
            || {
                if order == Order::Dot {
                    for (i, delta) in deltas.iter_mut().enumerate() {
                        *delta = simd::dot(rows.row(out, i), rows.row(grad_out, i));
                    }
                    return;
                }
                for (n, deltas) in deltas.chunks_mut(ROWS).enumerate() {
                    let of = |data, t: usize| rows.row(data, n * ROWS + t.min(deltas.len() - 1));
                    let (out, grad): ([&[f32]; ROWS], [&[f32]; ROWS]) =
                        (std::array::from_fn(|t| of(out, t)), std::array::from_fn(|t| of(grad_out, t)));
                    let mut sums = [0.0f32; ROWS];
                    for c in 0..rows.width {
                        for (t, sum) in sums.iter_mut().enumerate() {
                            *sum = out[t][c].multiply_add(grad[t][c], *sum);
                        }
                    }
                    deltas.copy_from_slice(&sums[..deltas.len()]);
                }
            },
        );
    });
    deltas
}
