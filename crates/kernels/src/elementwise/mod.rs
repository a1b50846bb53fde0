//! Row-wise and element-wise operators: what a transformer does between its attention layers and matrix products.
//!
//! One pass over memory each, vectorised, parallel over blocks of fixed size, each with its float64 twin. None of them
//! reads its output in the backward pass.

mod activation;
mod affine;
mod cross_entropy;
mod curve;
mod dropout;
mod embedding;
mod gated;
mod layer_norm;
mod rms_norm;
mod rotate;

#[cfg(test)]
mod check;

pub use activation::Activation;
pub use affine::Affine;
pub use cross_entropy::{CrossEntropy, IGNORE};
pub use curve::Curve;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use gated::Gated;
pub use layer_norm::LayerNorm;
pub use rms_norm::RmsNorm;
pub use rotate::Rotate;

use crate::{
    Error,
    parallel::{Disjoint, for_each},
    simd::vectorize,
};

/// Elements per block: 64 KiB, so that a block's input and output fit in the L2 cache together, and enough work (a few
/// microseconds) to amortise handing it to a thread.
const BLOCK: usize = 1 << 14;

/// Full rows per block.
fn rows_per_block(width: usize) -> usize {
    (BLOCK / width.max(1)).max(1)
}

/// Cuts each buffer into blocks of its size; the blocks with the same index form a task.
fn for_blocks<const K: usize>(
    count: usize,
    buffers: [(&mut [f32], usize); K],
    task: impl Fn(usize, [&mut [f32]; K]) + Sync + Send,
) {
    let buffers = buffers.map(|(data, size)| {
        assert!(data.len() <= count * size, "blocks do not cover the buffer");
        (data.len(), size, Disjoint::new(data))
    });
    for_each(count, |block| {
        let parts = buffers.each_ref().map(|(len, size, data)| {
            let start = (block * size).min(*len);
            // SAFETY: blocks of one buffer do not overlap, and each task takes only those of its own index.
            unsafe { data.range(start, (*size).min(len - start)) }
        });
        task(block, parts);
    });
}

/// Column sums of `rows` of `width`, in row order.
fn sum_of_rows(rows: &[f32], width: usize) -> Vec<f32> {
    let mut sum = vec![0.0; width];
    vectorize(
        #[inline(always)]
        || rows.chunks_exact(width.max(1)).for_each(|row| add(&mut sum, row)),
    );
    sum
}

/// `y += x`.
#[inline(always)]
fn add(y: &mut [f32], x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, &x)| *y += x);
}

/// Size of the last axis, on which a row-wise operator works.
fn row_width(tensor: &str, shape: &[usize]) -> Result<usize, Error> {
    shape.last().copied().ok_or_else(|| Error::shape(tensor, shape, "at least 1 axis"))
}
