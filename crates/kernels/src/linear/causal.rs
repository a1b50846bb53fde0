//! Query `i` sees the real keys up to position `i + S - N`: running sums over chunks of positions, and within a chunk a
//! small masked product of its own queries and keys.
//!
//! Query and key at one position are walked together. The first `N - S` queries of a call with `N > S` lie before
//! position 0 and see nothing; with `N < S` the first positions have keys only.

use std::ops::Range;

use super::{
    blocks::{Blocks, CHUNK, Parts, runs, scratch_len, transpose},
    gradients::{Gradients, KeyChunk, Shared},
    operands::{Operands, Output, add_rows, fill_rows, inverse},
};
use crate::{
    AttentionShape, Saved,
    gemm::{Matrix, Write, product},
    parallel::{Disjoint, for_each, with_scratch},
    simd,
};

/// Positions between two sums that the forward pass keeps: the backward pass starts from them. Long enough for what is
/// kept to be a fraction of the keys, short enough for the sums of all chunks between to stay in the cache.
const SEGMENT: usize = 256;

/// Rows of a strip of the masked product: what a strip computes right of its diagonal is wasted, but short strips make
/// slow products.
const STRIP: usize = 32;

/// Where queries lie among the positions, and how positions are cut into spans that tasks own.
#[derive(Clone, Copy)]
struct Plan {
    /// Position of the first query that has one.
    first_position: usize,
    /// That query.
    first_query: usize,
    spans: Blocks,
    /// Sums that are kept, one a segment.
    segments: usize,
}

impl Plan {
    /// With fewer than 8 independent sequences of keys, each is cut into spans at the price of one more pass over it.
    fn new(shape: AttentionShape) -> Self {
        const ENOUGH: usize = 8;
        const TASKS: usize = 16;
        let streams = shape.batch * shape.key_heads;
        let spans = if streams >= ENOUGH { 1 } else { TASKS.div_ceil(streams) };
        Self {
            first_position: shape.keys.saturating_sub(shape.queries),
            first_query: shape.queries.saturating_sub(shape.keys),
            spans: Blocks::new(shape.keys, spans, SEGMENT),
            segments: shape.keys.div_ceil(SEGMENT),
        }
    }

    /// Queries at `positions`, and how many of the positions come before the first of them.
    fn queries(&self, positions: &Range<usize>) -> (Range<usize>, usize) {
        let start = positions.start.max(self.first_position).min(positions.end);
        let query = |position: usize| position - self.first_position + self.first_query;
        if start == positions.end { (0..0, 0) } else { (query(start)..query(positions.end), start - positions.start) }
    }
}

/// The masked product of one chunk, in strips of rows: query `t` of the chunk sees its keys up to `lead + t`.
#[derive(Clone, Copy)]
struct Triangle {
    queries: usize,
    lead: usize,
}

impl Triangle {
    /// Rows of each strip and the number of keys that its last row sees.
    fn strips(self) -> impl Iterator<Item = (Range<usize>, usize)> {
        runs(0..self.queries, STRIP).map(move |rows| {
            let seen = self.lead + rows.end;
            (rows, seen)
        })
    }

    /// `tile = left right^T` for `left [queries, width]`, `right [keys, width]`; what a query does not see is left open.
    fn outer(self, left: &[f32], right: Matrix, width: usize, tile: &mut [f32]) {
        for (rows, seen) in self.strips() {
            product(
                (rows.len(), seen, width),
                1.0,
                Matrix::rows(&left[rows.start * width..], width),
                right.transposed(),
                Write::Over,
                &mut tile[rows.start * CHUNK..],
                CHUNK,
            );
        }
    }

    /// `sum += tile right` for `right [keys, width]`, `sum [queries, width]`.
    fn times(self, tile: &[f32], right: Matrix, width: usize, sum: &mut [f32]) {
        for (rows, seen) in self.strips() {
            product(
                (rows.len(), width, seen),
                1.0,
                Matrix::rows(&tile[rows.start * CHUNK..], CHUNK),
                right,
                Write::Add,
                &mut sum[rows.start * width..],
                width,
            );
        }
    }

    /// `sum += tile^T left` for `left [queries, width]`, `sum [keys, width]`.
    fn transposed_times(self, tile: &[f32], left: &[f32], width: usize, sum: &mut [f32]) {
        for (rows, seen) in self.strips() {
            product(
                (seen, width, rows.len()),
                1.0,
                Matrix::rows(&tile[rows.start * CHUNK..], CHUNK).transposed(),
                Matrix::rows(&left[rows.start * width..], width),
                Write::Add,
                sum,
                width,
            );
        }
    }

    /// Clears what the queries do not see, and has `row(t, seen)` treat what they do.
    #[inline(always)]
    fn mask(self, tile: &mut [f32], mut row: impl FnMut(usize, &mut [f32])) {
        for (rows, end) in self.strips() {
            for t in rows {
                let (seen, unseen) = tile[t * CHUNK..t * CHUNK + end].split_at_mut(self.lead + t + 1);
                unseen.fill(0.0);
                row(t, seen);
            }
        }
    }
}

/// Running sums over each span. Saves the denominators and the sums at the start of every segment,
/// `[B, sums, segments, D (Dv + 1)]`.
pub(super) fn forward(operands: &Operands, out: &mut [f32]) -> Saved {
    let (shape, plan, len) = (operands.shape, Plan::new(operands.shape), operands.sum_len());
    let sums = shape.batch * operands.sums();
    let mut kept = vec![0.0f32; sums * plan.segments * len];
    if plan.spans.count > 1 {
        let segments = plan.spans.rows / SEGMENT;
        let shared = Disjoint::new(&mut kept);
        // The sum over a span goes where the next span starts.
        for_each(sums * (plan.spans.count - 1), |task| {
            let (sum, span) = (task / (plan.spans.count - 1), task % (plan.spans.count - 1));
            // SAFETY: each task has its own sum.
            let total = unsafe { shared.range((sum * plan.segments + (span + 1) * segments) * len, len) };
            sum_keys(operands, (sum / operands.sums(), sum % operands.sums()), plan.spans.range(span), total);
        });
        for sum in kept.chunks_exact_mut(plan.segments * len) {
            for span in 2..plan.spans.count {
                let (before, after) = sum.split_at_mut(span * segments * len);
                let previous = &before[(span - 1) * segments * len..][..len];
                after[..len].iter_mut().zip(previous).for_each(|(a, p)| *a += p);
            }
        }
    }

    let mut denominators = vec![0.0f32; shape.batch * shape.heads * shape.queries];
    let (shared_out, shared_denominators) = (Disjoint::new(out), Disjoint::new(&mut denominators));
    let shared_kept = Disjoint::new(&mut kept);
    for_each(sums * plan.spans.count, |task| {
        let (sum, span) = (task / plan.spans.count, task % plan.spans.count);
        let place = (sum / operands.sums(), sum % operands.sums());
        // SAFETY: the sums at the segments of a span are read and written by the task that owns it.
        let kept = unsafe {
            let first = plan.spans.range(span).start / SEGMENT;
            let count = plan.spans.range(span).len().div_ceil(SEGMENT);
            shared_kept.range((sum * plan.segments + first) * len, count * len)
        };
        if span == 0 {
            for h in operands.query_heads(place.1) {
                for i in 0..plan.first_query {
                    // SAFETY: queries before position 0 belong to the first span.
                    unsafe { shared_out.row(&shape.out_rows(place.0, h), i) }.fill(0.0);
                }
            }
        }
        forward_span(operands, &plan, place, plan.spans.range(span), kept, &shared_out, &shared_denominators);
    });
    vec![denominators, kept]
}

/// Adds the keys at `positions` to a sum.
fn sum_keys(operands: &Operands, (b, s): (usize, usize), positions: Range<usize>, total: &mut [f32]) {
    let (width, value_width) = (operands.shape.head_width, operands.shape.value_width);
    let sizes = [CHUNK * width, CHUNK * value_width];
    with_scratch(scratch_len(&sizes), |scratch| {
        let mut parts = Parts::new(scratch);
        let [features, values] = sizes.map(|size| parts.take(size));
        for keys in runs(positions, CHUNK) {
            let count = keys.len();
            operands.key_features(b, s, keys.clone(), &mut [], features);
            let values = operands.values(b, s, keys, values);
            operands.accumulate(total, &features[..count * width], values, None);
        }
    });
}

/// Outputs at the positions of one span, from the sum at its start, `kept[0]`; fills in the others.
fn forward_span(
    operands: &Operands,
    plan: &Plan,
    (b, s): (usize, usize),
    span: Range<usize>,
    kept: &mut [f32],
    out: &Disjoint<f32>,
    denominators: &Disjoint<f32>,
) {
    let (shape, len) = (operands.shape, operands.sum_len());
    let (width, value_width) = (shape.head_width, shape.value_width);
    let sizes = [CHUNK * width, CHUNK * value_width, CHUNK * width, CHUNK * value_width, CHUNK * CHUNK, len];
    with_scratch(scratch_len(&sizes), |scratch| {
        let mut parts = Parts::new(scratch);
        let [mixed, values, features, numerators, tile, sum] = sizes.map(|size| parts.take(size));
        sum.copy_from_slice(&kept[..len]);
        for positions in runs(span.clone(), CHUNK) {
            let offset = positions.start - span.start;
            if offset % SEGMENT == 0 {
                kept[offset / SEGMENT * len..][..len].copy_from_slice(sum);
            }
            let (queries, lead) = plan.queries(&positions);
            let mixed = &mut mixed[..positions.len() * width];
            operands.key_features(b, s, positions.clone(), &mut [], mixed);
            let values = operands.values(b, s, positions, values);
            let triangle = Triangle { queries: queries.len(), lead };
            for h in operands.query_heads(s).filter(|_| !queries.is_empty()) {
                let (numerator_sum, z) = sum.split_at(width * value_width);
                operands.query_features(b, h, queries.clone(), features);
                product(
                    (queries.len(), value_width, width),
                    1.0,
                    Matrix::rows(features, width),
                    Matrix::rows(numerator_sum, value_width),
                    Write::Over,
                    numerators,
                    value_width,
                );
                triangle.outer(features, Matrix::rows(mixed, width), width, tile);
                let first = (b * shape.heads + h) * shape.queries + queries.start;
                // SAFETY: the denominators of these queries are this task's.
                let denominators = unsafe { denominators.range(first, queries.len()) };
                simd::vectorize(
                    #[inline(always)]
                    || {
                        triangle.mask(tile, |t, seen| {
                            let near = simd::sum(seen.len(), |j| seen[j]);
                            denominators[t] = simd::dot(&features[t * width..(t + 1) * width], z) + near;
                        });
                    },
                );
                triangle.times(tile, values, value_width, numerators);
                let rows = shape.out_rows(b, h);
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for (t, &denominator) in denominators.iter().enumerate() {
                            // SAFETY: this row of this head is this task's.
                            let row = unsafe { out.row(&rows, queries.start + t) };
                            let scale = inverse(denominator);
                            for (y, &x) in row.iter_mut().zip(&numerators[t * value_width..]) {
                                *y = x * scale;
                            }
                        }
                    },
                );
            }
            operands.accumulate(sum, mixed, values, None);
        }
    });
}

/// Gradients over each span in reverse, with running gradients of the sums.
pub(super) fn backward(operands: &Operands, output: Output, kept: &[f32], wanted: &[bool]) -> Vec<Option<Vec<f32>>> {
    let (shape, plan, len) = (operands.shape, Plan::new(operands.shape), operands.sum_len());
    let spans = plan.spans.count;
    let mut gradients = Gradients::new(operands, spans, wanted);
    let shared = gradients.share(operands);
    let later = grad_sums(operands, &plan, output);
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
    // SAFETY: the spans hold every key and every query that has a position, and the first clears the others.
    unsafe { gradients.finish(operands, wanted.len()) }
}

/// Gradient of each span's last sum: what all queries after the span give. Empty with one span.
fn grad_sums(operands: &Operands, plan: &Plan, output: Output) -> Vec<f32> {
    let (shape, len, spans) = (operands.shape, operands.sum_len(), plan.spans.count);
    if spans == 1 {
        return Vec::new();
    }
    let (width, value_width) = (shape.head_width, shape.value_width);
    let sums = shape.batch * operands.sums();
    let mut total = vec![0.0f32; sums * spans * len];
    let shared = Disjoint::new(&mut total);
    let sizes = [CHUNK * width, CHUNK * value_width, CHUNK];
    for_each(sums * (spans - 1), |task| {
        let (sum, span) = (task / (spans - 1), task % (spans - 1) + 1);
        let (b, s) = (sum / operands.sums(), sum % operands.sums());
        // SAFETY: each task has its own sum, that of the span before.
        let total = unsafe { shared.range((sum * spans + span - 1) * len, len) };
        let queries = plan.queries(&plan.spans.range(span)).0;
        with_scratch(scratch_len(&sizes), |scratch| {
            let mut parts = Parts::new(scratch);
            let [features, grad_numerators, grad_denominators] = sizes.map(|size| parts.take(size));
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
/// the sum at the span's end, if any query comes after.
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
    let segment_sizes = [chunks * components_len, SEGMENT * width, SEGMENT * value_width, chunks * len, len];
    let sizes = ChunkScratch::sizes(operands);
    with_scratch(scratch_len(&segment_sizes) + scratch_len(&sizes), |scratch| {
        let mut parts = Parts::new(scratch);
        let [components, mixed, buffers, sums, grad_sum] = segment_sizes.map(|size| parts.take(size));
        let mut chunk_scratch = ChunkScratch::new(sizes.map(|size| parts.take(size)));
        match later {
            Some(later) => grad_sum.copy_from_slice(later),
            None => grad_sum.fill(0.0),
        }
        for segment in runs(plan.spans.range(span), SEGMENT).rev() {
            let start = segment.start;
            let kept = &kept[start / SEGMENT * len..][..len];
            // Forward through the segment: features, values and the sum before each chunk, Z transposed.
            transpose(&kept[..width * value_width], value_width, &mut sums[..width * value_width]);
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
    });
}

/// What the walk through a segment has prepared for one chunk.
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
    fn sizes(operands: &Operands) -> [usize; 8] {
        let (keys, values) = (CHUNK * operands.shape.head_width, CHUNK * operands.shape.value_width);
        [keys, keys, values, CHUNK, CHUNK * CHUNK, CHUNK * CHUNK, keys, values]
    }

    fn new(parts: [&'a mut [f32]; 8]) -> Self {
        let [
            features,
            grad_features,
            grad_numerators,
            grad_denominators,
            weights,
            grad_weights,
            grad_mixed,
            grad_values,
        ] = parts;
        Self {
            features,
            grad_features,
            grad_numerators,
            grad_denominators,
            weights,
            grad_weights,
            grad_mixed,
            grad_values,
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
                triangle.mask(scratch.grad_weights, |t, seen| {
                    seen.iter_mut().for_each(|x| *x += grad_denominators[t]);
                });
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
            // SAFETY: these rows of this query head are this task's.
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
    // SAFETY: this span of this key head is this task's.
    unsafe {
        let (components, mixed) = (chunk.components, chunk.mixed);
        gradients.write_keys((b, s, span), keys, &KeyChunk { components, mixed, grad_mixed, grad_values });
    }
}
