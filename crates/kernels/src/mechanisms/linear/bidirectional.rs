//! Bidirectional form: every query sees every real key, so one sum over all keys serves all queries.

use super::{
    blocks::{Blocks, CHUNK},
    gradients::{Gradients, KeyChunk, Shared},
    operands::{Operands, Output, fill_rows, inverse},
};
use crate::{
    Saved,
    gemm::{Matrix, Write, product, transpose},
    memory::arbitrary,
    parallel::{Disjoint, for_each, for_each_part, runs, with_parts},
    simd,
};

/// Outputs over blocks of queries, from the sums over all keys. Saves the denominators and the sums.
pub(super) fn forward(operands: &Operands, sums: Vec<f32>, out: &mut [f32]) -> Saved {
    let shape = operands.shape;
    let (width, value_width) = (shape.head_width, shape.value_width);
    let blocks = Blocks::spread(shape.queries, shape.batch * shape.heads);
    let mut denominators = arbitrary(shape.batch * shape.heads * shape.queries);
    let (shared_out, shared_denominators) = (Disjoint::new(out), Disjoint::new(&mut denominators));

    for_each(shape.batch * shape.heads * blocks.count, |task| {
        let (b, block, h) = blocks.task(task, shape.heads);
        let head = b * shape.heads + h;
        let sum = &sums[(b * operands.sums() + h / operands.shares) * operands.sum_len()..][..operands.sum_len()];
        let (numerator_sum, z) = sum.split_at(width * value_width);
        let rows = shape.out_rows(b, h);
        with_parts!(features = CHUNK * width, numerators = CHUNK * value_width, {
            for queries in runs(blocks.range(block), CHUNK) {
                let count = queries.len();
                operands.query_features(b, h, queries.clone(), features);
                product(
                    (count, value_width, width),
                    1.0,
                    Matrix::rows(features, width),
                    Matrix::rows(numerator_sum, value_width),
                    Write::Over,
                    numerators,
                    value_width,
                );
                // SAFETY: the denominators of these queries belong to this task.
                let denominators = unsafe { shared_denominators.range(head * shape.queries + queries.start, count) };
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for (t, denominator) in denominators.iter_mut().enumerate() {
                            *denominator = simd::dot(&features[t * width..(t + 1) * width], z);
                            // SAFETY: this row of this head belongs to this task.
                            let row = unsafe { shared_out.row(&rows, queries.start + t) };
                            let scale = inverse(*denominator);
                            for (y, &x) in row.iter_mut().zip(&numerators[t * value_width..]) {
                                *y = x * scale;
                            }
                        }
                    },
                );
            }
        });
    });
    vec![denominators, sums].into()
}

/// `Z` and `z` of every batch row and sum, `[B, sums, D (Dv + 1)]`: sums over blocks of keys.
pub(super) fn sum_keys(operands: &Operands) -> Vec<f32> {
    let shape = operands.shape;
    let (width, value_width, len) = (shape.head_width, shape.value_width, operands.sum_len());
    let sums = shape.batch * operands.sums();
    let blocks = Blocks::spread(shape.keys, sums);
    let mut partial = vec![0.0f32; sums * blocks.count * len];
    let shared = Disjoint::new(&mut partial);

    for_each(sums * blocks.count, |task| {
        let (b, block, s) = blocks.task(task, operands.sums());
        // SAFETY: each task has its own sum.
        let total = unsafe { shared.range(((b * operands.sums() + s) * blocks.count + block) * len, len) };
        with_parts!(features = CHUNK * width, values = CHUNK * value_width, {
            for keys in runs(blocks.range(block), CHUNK) {
                let count = keys.len();
                operands.key_features(b, s, keys.clone(), &mut [], features);
                let values = operands.values(b, s, keys, values);
                operands.accumulate(total, &features[..count * width], values, None);
            }
        });
    });
    fold(partial, blocks.count, len)
}

/// Adds up the `blocks` consecutive parts of each sum.
fn fold(partial: Vec<f32>, blocks: usize, len: usize) -> Vec<f32> {
    if blocks == 1 {
        return partial;
    }
    let sums = partial.len() / (blocks * len);
    let mut total = vec![0.0f32; sums * len];
    for_each_part(&mut total, len, |sum, total| {
        for block in partial[sum * blocks * len..(sum + 1) * blocks * len].chunks_exact(len) {
            total.iter_mut().zip(block).for_each(|(t, p)| *t += p);
        }
    });
    total
}

/// Gradients of queries and, along the way, of the sums, then gradients of keys from what `exchange` makes of the latter.
pub(super) fn backward<E>(
    operands: &Operands,
    output: Output,
    sums: &[f32],
    wanted: &[bool],
    exchange: impl FnOnce(Vec<f32>) -> Result<Vec<f32>, E>,
) -> Result<Vec<Option<Vec<f32>>>, E> {
    let shape = operands.shape;
    let key_heads = shape.batch * shape.key_heads;
    let blocks = Blocks::spread(shape.keys, key_heads);
    let mut gradients = Gradients::new(operands, blocks.count, wanted);
    let shared = gradients.share(operands);
    let grad_sums = exchange(backward_queries(operands, output, sums, &shared))?;
    if shared.wants_keys() {
        for_each(key_heads * blocks.count, |task| {
            let (b, block, key_head) = blocks.task(task, shape.key_heads);
            for s in key_head * operands.splits..(key_head + 1) * operands.splits {
                let sum = b * operands.sums() + s;
                let grad_sum = &grad_sums[sum * operands.sum_len()..(sum + 1) * operands.sum_len()];
                backward_keys(operands, (b, s, block), &blocks, grad_sum, &shared);
            }
        });
    }
    Ok(gradients.finish(operands, wanted.len()))
}

/// Writes the gradient of `q`; returns the gradients of the sums, shaped like them.
fn backward_queries(operands: &Operands, output: Output, sums: &[f32], gradients: &Shared) -> Vec<f32> {
    let shape = operands.shape;
    let (width, value_width, len) = (shape.head_width, shape.value_width, operands.sum_len());
    let all = shape.batch * operands.sums();
    let blocks = Blocks::spread(shape.queries, all);
    let mut partial = vec![0.0f32; all * blocks.count * len];
    let shared = Disjoint::new(&mut partial);

    for_each(all * blocks.count, |task| {
        let (b, block, s) = blocks.task(task, operands.sums());
        let sum = b * operands.sums() + s;
        let (numerator_sum, z) = sums[sum * len..(sum + 1) * len].split_at(width * value_width);
        // SAFETY: each task has its own sum.
        let total = unsafe { shared.range((sum * blocks.count + block) * len, len) };
        with_parts!(
            features = CHUNK * width,
            grad_numerators = CHUNK * value_width,
            grad_denominators = CHUNK,
            grad_features = CHUNK * width,
            transposed = width * value_width,
            {
                transpose(Matrix::rows(numerator_sum, value_width), (width, value_width), transposed);
                for h in operands.query_heads(s) {
                    for queries in runs(blocks.range(block), CHUNK) {
                        let count = queries.len();
                        let features = &mut features[..count * width];
                        let grad_numerators = &mut grad_numerators[..count * value_width];
                        let grad_denominators = &mut grad_denominators[..count];
                        operands.query_features(b, h, queries.clone(), features);
                        operands.scaled_gradient(output, (b, h), queries.clone(), grad_numerators, grad_denominators);
                        if gradients.wants_queries() {
                            product(
                                (count, width, value_width),
                                1.0,
                                Matrix::rows(grad_numerators, value_width),
                                Matrix::rows(transposed, width),
                                Write::Over,
                                grad_features,
                                width,
                            );
                            // SAFETY: these rows of this query head belong to this task.
                            unsafe {
                                gradients.write_queries((b, h), queries, features, grad_features, grad_denominators, z);
                            }
                        }
                        if gradients.wants_keys() {
                            let right = Matrix::rows(grad_numerators, value_width);
                            operands.accumulate(total, features, right, Some(grad_denominators));
                        }
                    }
                }
            }
        );
    });
    fold(partial, blocks.count, len)
}

/// Adds the contribution of one sum to the gradients of one block of keys.
fn backward_keys(
    operands: &Operands,
    (b, s, block): (usize, usize, usize),
    blocks: &Blocks,
    grad_sum: &[f32],
    gradients: &Shared,
) {
    let shape = operands.shape;
    let (width, value_width) = (shape.head_width, shape.value_width);
    let (grad_numerator_sum, grad_z) = grad_sum.split_at(width * value_width);
    with_parts!(
        components = operands.components_len(CHUNK),
        mixed = CHUNK * width,
        values = CHUNK * value_width,
        grad_mixed = CHUNK * width,
        grad_values = CHUNK * value_width,
        transposed = width * value_width,
        {
            transpose(Matrix::rows(grad_numerator_sum, value_width), (width, value_width), transposed);
            for keys in runs(blocks.range(block), CHUNK) {
                let count = keys.len();
                operands.key_features(b, s, keys.clone(), components, mixed);
                if gradients.wants_features() {
                    let values = operands.values(b, s, keys.clone(), values);
                    fill_rows(&mut grad_mixed[..count * width], grad_z);
                    product(
                        (count, width, value_width),
                        1.0,
                        values,
                        Matrix::rows(transposed, width),
                        Write::Add,
                        grad_mixed,
                        width,
                    );
                }
                product(
                    (count, value_width, width),
                    1.0,
                    Matrix::rows(mixed, width),
                    Matrix::rows(grad_numerator_sum, value_width),
                    Write::Over,
                    grad_values,
                    value_width,
                );
                // SAFETY: this block of this key head belongs to this task.
                unsafe {
                    gradients.write_keys((b, s, block), keys, &KeyChunk { components, mixed, grad_mixed, grad_values })
                };
            }
        }
    );
}
