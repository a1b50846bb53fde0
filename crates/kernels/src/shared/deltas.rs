//! Row-wise `dO . O` of the softmax backward pass.

use crate::{AttentionShape, memory::arbitrary, parallel, simd};

/// `dO_i . O_i`, `[B,H,N]`.
pub(crate) fn deltas(shape: &AttentionShape, out: &[f32], grad_out: &[f32]) -> Vec<f32> {
    let mut deltas = arbitrary(shape.batch * shape.heads * shape.queries);
    parallel::for_each_part(&mut deltas, shape.queries, |head, deltas| {
        let rows = shape.out_rows(head / shape.heads, head % shape.heads);
        simd::vectorize(
            #[inline(always)]
            || {
                for (i, delta) in deltas.iter_mut().enumerate() {
                    *delta = simd::dot(rows.row(out, i), rows.row(grad_out, i));
                }
            },
        );
    });
    deltas
}
