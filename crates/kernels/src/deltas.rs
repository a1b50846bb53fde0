//! What the softmax of a row takes from its slopes in the backward pass.

use crate::{
    AttentionShape,
    memory::arbitrary,
    parallel::{self, Disjoint},
    simd,
};

/// `dO_i . O_i`, `[B,H,N]`.
pub(crate) fn deltas(shape: &AttentionShape, out: &[f32], grad_out: &[f32]) -> Vec<f32> {
    let mut deltas = arbitrary(shape.batch * shape.heads * shape.queries);
    let written = Disjoint::new(&mut deltas);
    parallel::for_each(shape.batch * shape.heads, |head| {
        let rows = shape.out_rows(head / shape.heads, head % shape.heads);
        // SAFETY: this head's numbers belong to this task alone.
        let deltas = unsafe { written.range(head * shape.queries, shape.queries) };
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
