//! Gradients of the causal form.

use std::ops::Range;

use super::{
    super::{
        blocks::CHUNK,
        gradients::{Gradients, KeyChunk, Shared},
        operands::{Operands, Output, add_rows, fill_rows},
    },
    Plan, SEGMENT, Triangle,
};
use crate::{
    gemm::{Matrix, Write, product, transpose},
    parallel::{Disjoint, Parts, for_each, runs, with_parts},
    simd,
};

/// Gradients over each span in reverse, with running gradients of the sums; `after` is that of the sums at the end, from
/// queries after this call, if any.
pub(in super::super) fn backward(
    operands: &Operands,
    output: Output,
    kept: &[f32],
    after: Option<&[f32]>,
    wanted: &[bool],
) -> Vec<Option<Vec<f32>>> {
    let (shape, plan, len) = (operands.shape, Plan::new(operands.shape), operands.sum_len());
    let spans = plan.spans.count;
    let mut gradients = Gradients::new(operands, spans, wanted);
    let shared = gradients.share(operands);
    let mut later = grad_sums(operands, &plan, output);
    if let Some(after) = after {
        later.resize(shape.batch * operands.sums() * spans * len, 0.0);
        for (sum, after) in later.chunks_exact_mut(spans * len).zip(after.chunks_exact(len)) {
            sum.chunks_exact_mut(len).for_each(|span| span.iter_mut().zip(after).for_each(|(s, a)| *s += a));
        }
    }
    for_each(shape.batch * shape.key_heads * spans, |task| {
        let (head, span) = (task / spans, task % spans);
        let (b, key_head) = (head / shape.key_heads, head % shape.key_heads);
        for s in key_head * operands.splits..(key_head + 1) * operands.splits {
            let sum = b * operands.sums() + s;
            let kept = &kept[sum * plan.segments * len..(sum + 1) * plan.segments * len];
            let later = later.get((sum * spans + span) * len..(sum * spans + span + 1) * len);
            if span == 0 {
                for h in operands.query_heads(s) {
                    // SAFETY: queries before position 0 belong to the first span.
                    unsafe { shared.clear_queries((b, h), 0..plan.first_query) };
                }
            }
            backward_span(operands, &plan, (b, s, span), output, kept, later, &shared);
        }
    });
    gradients.finish(operands, wanted.len())
}

/// Gradient of the sums before the first key, `[B, sums, D (Dv + 1)]`, from all queries of this call.
pub(in super::super) fn grad_of_start(operands: &Operands, output: Output) -> Vec<f32> {
    let (plan, len) = (Plan::new(operands.shape), operands.sum_len());
    let sums = operands.shape.batch * operands.sums();
    let mut total = vec![0.0f32; sums * len];
    let shared = Disjoint::new(&mut total);
    for_each(sums, |sum| {
        // SAFETY: each task has its own sum.
        let total = unsafe { shared.range(sum * len, len) };
        let queries = plan.queries(&(0..operands.shape.keys)).0;
        add_queries(operands, output, (sum / operands.sums(), sum % operands.sums()), queries, total);
    });
    total
}

/// Adds the gradient of a sum that `queries` read.
fn add_queries(operands: &Operands, output: Output, (b, s): (usize, usize), queries: Range<usize>, total: &mut [f32]) {
    let (width, value_width) = (operands.shape.head_width, operands.shape.value_width);
    with_parts!(features = CHUNK * width, grad_numerators = CHUNK * value_width, grad_denominators = CHUNK, {
        for h in operands.query_heads(s) {
            for queries in runs(queries.clone(), CHUNK) {
                let count = queries.len();
                let features = &mut features[..count * width];
                let grad_numerators = &mut grad_numerators[..count * value_width];
                operands.query_features(b, h, queries.clone(), features);
                operands.scaled_gradient(output, (b, h), queries, grad_numerators, grad_denominators);
                let right = Matrix::rows(grad_numerators, value_width);
                operands.accumulate(total, features, right, Some(&grad_denominators[..count]));
            }
        }
    });
}

/// Gradient of each span's last sum, from all queries after the span. Empty with one span.
fn grad_sums(operands: &Operands, plan: &Plan, output: Output) -> Vec<f32> {
    let (shape, len, spans) = (operands.shape, operands.sum_len(), plan.spans.count);
    if spans == 1 {
        return Vec::new();
    }
    let sums = shape.batch * operands.sums();
    let mut total = vec![0.0f32; sums * spans * len];
    let shared = Disjoint::new(&mut total);
    for_each(sums * (spans - 1), |task| {
        let (sum, span) = (task / (spans - 1), task % (spans - 1) + 1);
        // SAFETY: each task has its own sum, that of the span before.
        let total = unsafe { shared.range((sum * spans + span - 1) * len, len) };
        let queries = plan.queries(&plan.spans.range(span)).0;
        add_queries(operands, output, (sum / operands.sums(), sum % operands.sums()), queries, total);
    });
    for sum in total.chunks_exact_mut(spans * len) {
        for span in (0..spans - 1).rev() {
            let (earlier, later) = sum.split_at_mut((span + 1) * len);
            earlier[span * len..].iter_mut().zip(&later[..len]).for_each(|(e, l)| *e += l);
        }
    }
    total
}

/// Gradients at the positions of one span. `kept` holds the sums at the start of all segments, `later` the gradient of
/// the sum at the span's end, if any query follows.
fn backward_span(
    operands: &Operands,
    plan: &Plan,
    (b, s, span): (usize, usize, usize),
    output: Output,
    kept: &[f32],
    later: Option<&[f32]>,
    gradients: &Shared,
) {
    let (shape, len) = (operands.shape, operands.sum_len());
    let (width, value_width) = (shape.head_width, shape.value_width);
    let components_len = operands.components_len(CHUNK);
    let chunks = SEGMENT / CHUNK;
    let of_chunk = Parts::floats(|parts| ChunkScratch::lay_out(operands, parts));
    with_parts!(
        components = chunks * components_len,
        mixed = SEGMENT * width,
        buffers = SEGMENT * value_width,
        sums = chunks * len,
        grad_sum = len,
        chunk = of_chunk,
        {
            let mut chunk_scratch = ChunkScratch::lay_out(operands, &mut Parts::new(chunk));
            match later {
                Some(later) => grad_sum.copy_from_slice(later),
                None => grad_sum.fill(0.0),
            }
            for segment in runs(plan.spans.range(span), SEGMENT).rev() {
                let start = segment.start;
                let kept = &kept[start / SEGMENT * len..][..len];
                // Forward through the segment: features, values and the sum before each chunk, Z transposed.
                transpose(Matrix::rows(kept, value_width), (width, value_width), &mut sums[..width * value_width]);
                sums[width * value_width..len].copy_from_slice(&kept[width * value_width..]);
                let mut values = [Matrix::rows(&[], value_width); SEGMENT / CHUNK];
                for ((n, keys), buffer) in
                    runs(segment.clone(), CHUNK).enumerate().zip(buffers.chunks_exact_mut(CHUNK * value_width))
                {
                    let mixed = &mut mixed[n * CHUNK * width..][..keys.len() * width];
                    let components = &mut components[n * components_len..(n + 1) * components_len];
                    operands.key_features(b, s, keys.clone(), components, mixed);
                    values[n] = operands.values(b, s, keys.clone(), buffer);
                    if keys.end < segment.end && gradients.wants_queries() {
                        let (before, after) = sums.split_at_mut((n + 1) * len);
                        let next = &mut after[..len];
                        next.copy_from_slice(&before[n * len..]);
                        let (next, z) = next.split_at_mut(width * value_width);
                        product(
                            (value_width, width, keys.len()),
                            1.0,
                            values[n].transposed(),
                            Matrix::rows(mixed, width),
                            Write::Add,
                            next,
                            width,
                        );
                        add_rows(z, mixed, None);
                    }
                }
                for (n, keys) in runs(segment, CHUNK).enumerate().rev() {
                    let inputs = ChunkInputs {
                        components: &components[n * components_len..(n + 1) * components_len],
                        mixed: &mixed[n * CHUNK * width..][..keys.len() * width],
                        values: values[n],
                        sum: &sums[n * len..(n + 1) * len],
                    };
                    backward_chunk(
                        operands,
                        plan,
                        (b, s, span),
                        keys,
                        output,
                        &inputs,
                        grad_sum,
                        &mut chunk_scratch,
                        gradients,
                    );
                }
            }
        }
    );
}

/// Prepared data of a segment for one chunk.
struct ChunkInputs<'a> {
    components: &'a [f32],
    mixed: &'a [f32],
    values: Matrix<'a>,
    /// The sum before the chunk, `Z^T [Dv, D]` then `z [D]`.
    sum: &'a [f32],
}

/// Buffers of [`backward_chunk`].
struct ChunkScratch<'a> {
    features: &'a mut [f32],
    grad_features: &'a mut [f32],
    grad_numerators: &'a mut [f32],
    grad_denominators: &'a mut [f32],
    weights: &'a mut [f32],
    grad_weights: &'a mut [f32],
    grad_mixed: &'a mut [f32],
    grad_values: &'a mut [f32],
}

impl<'a> ChunkScratch<'a> {
    fn lay_out(operands: &Operands, parts: &mut Parts<'a>) -> Self {
        let (keys, values) = (CHUNK * operands.shape.head_width, CHUNK * operands.shape.value_width);
        Self {
            features: parts.take(keys),
            grad_features: parts.take(keys),
            grad_numerators: parts.take(values),
            grad_denominators: parts.take(CHUNK),
            weights: parts.take(CHUNK * CHUNK),
            grad_weights: parts.take(CHUNK * CHUNK),
            grad_mixed: parts.take(keys),
            grad_values: parts.take(values),
        }
    }
}

/// Gradients at the positions of one chunk; `grad_sum` is that of the sum after the chunk, then of the sum before it.
#[allow(clippy::too_many_arguments)]
fn backward_chunk(
    operands: &Operands,
    plan: &Plan,
    (b, s, span): (usize, usize, usize),
    keys: Range<usize>,
    output: Output,
    chunk: &ChunkInputs,
    grad_sum: &mut [f32],
    scratch: &mut ChunkScratch,
    gradients: &Shared,
) {
    let (width, value_width) = (operands.shape.head_width, operands.shape.value_width);
    let count = keys.len();
    let grad_mixed = &mut scratch.grad_mixed[..count * width];
    let grad_values = &mut scratch.grad_values[..count * value_width];
    if gradients.wants_keys() {
        let (grad_numerator_sum, grad_z) = grad_sum.split_at(width * value_width);
        fill_rows(grad_mixed, grad_z);
        let by_values = Matrix::rows(grad_numerator_sum, value_width);
        product((count, width, value_width), 1.0, chunk.values, by_values.transposed(), Write::Add, grad_mixed, width);
        product(
            (count, value_width, width),
            1.0,
            Matrix::rows(chunk.mixed, width),
            by_values,
            Write::Over,
            grad_values,
            value_width,
        );
    }

    let (queries, lead) = plan.queries(&keys);
    let triangle = Triangle { queries: queries.len(), lead };
    for h in operands.query_heads(s).filter(|_| !queries.is_empty()) {
        let features = &mut scratch.features[..queries.len() * width];
        let grad_numerators = &mut scratch.grad_numerators[..queries.len() * value_width];
        let grad_denominators = &mut scratch.grad_denominators[..queries.len()];
        operands.query_features(b, h, queries.clone(), features);
        operands.scaled_gradient(output, (b, h), queries.clone(), grad_numerators, grad_denominators);
        triangle.outer(grad_numerators, chunk.values, value_width, scratch.grad_weights);
        simd::vectorize(
            #[inline(always)]
            || {
                triangle.mask(
                    scratch.grad_weights,
                    #[inline(always)]
                    |t, seen| {
                        for x in seen {
                            *x += grad_denominators[t];
                        }
                    },
                );
            },
        );
        if gradients.wants_queries() {
            let grad_features = &mut scratch.grad_features[..queries.len() * width];
            let (sum, z) = chunk.sum.split_at(width * value_width);
            product(
                (queries.len(), width, value_width),
                1.0,
                Matrix::rows(grad_numerators, value_width),
                Matrix::rows(sum, width),
                Write::Over,
                grad_features,
                width,
            );
            triangle.times(scratch.grad_weights, Matrix::rows(chunk.mixed, width), width, grad_features);
            // SAFETY: these rows of this query head belong to this task.
            unsafe {
                gradients.write_queries((b, h), queries.clone(), features, grad_features, grad_denominators, z);
            }
        }
        if gradients.wants_keys() {
            triangle.transposed_times(scratch.grad_weights, features, width, grad_mixed);
            triangle.outer(features, Matrix::rows(chunk.mixed, width), width, scratch.weights);
            triangle.mask(scratch.weights, |_, _| {});
            triangle.transposed_times(scratch.weights, grad_numerators, value_width, grad_values);
            let right = Matrix::rows(grad_numerators, value_width);
            operands.accumulate(grad_sum, features, right, Some(grad_denominators));
        }
    }
    // SAFETY: this span of this key head belongs to this task.
    unsafe {
        let (components, mixed) = (chunk.components, chunk.mixed);
        gradients.write_keys((b, s, span), keys, &KeyChunk { components, mixed, grad_mixed, grad_values });
    }
}
