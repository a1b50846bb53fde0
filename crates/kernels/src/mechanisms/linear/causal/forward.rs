//! Outputs of the causal form.

use std::ops::Range;

use super::{
    super::{
        blocks::CHUNK,
        operands::{Operands, inverse},
    },
    Plan, SEGMENT, Triangle,
};
use crate::{
    Saved,
    gemm::{Matrix, Write, product},
    parallel::{Disjoint, for_each, runs, with_parts},
    simd,
};

/// Running sums over each span, from the sums over the keys `before` this call, if any. Saves the denominators and the
/// sums at the start of every segment, `[B, sums, segments, D (Dv + 1)]`.
pub(in super::super) fn forward(operands: &Operands, before: Option<&[f32]>, out: &mut [f32]) -> Saved {
    let (shape, plan, len) = (operands.shape, Plan::new(operands.shape), operands.sum_len());
    let sums = shape.batch * operands.sums();
    let mut kept = vec![0.0f32; sums * plan.segments * len];
    if plan.spans.count > 1 {
        let segments = plan.spans.rows / SEGMENT;
        let shared = Disjoint::new(&mut kept);
        // The sum over a span is stored at the start of the next span.
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

    if let Some(before) = before {
        for (sum, before) in kept.chunks_exact_mut(plan.segments * len).zip(before.chunks_exact(len)) {
            for span in 0..plan.spans.count {
                let start = plan.spans.range(span).start / SEGMENT * len;
                sum[start..start + len].iter_mut().zip(before).for_each(|(s, b)| *s += b);
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
    vec![denominators, kept].into()
}

/// Adds the keys at `positions` to a sum.
fn sum_keys(operands: &Operands, (b, s): (usize, usize), positions: Range<usize>, total: &mut [f32]) {
    let (width, value_width) = (operands.shape.head_width, operands.shape.value_width);
    with_parts!(features = CHUNK * width, values = CHUNK * value_width, {
        for keys in runs(positions, CHUNK) {
            let count = keys.len();
            operands.key_features(b, s, keys.clone(), &mut [], features);
            let values = operands.values(b, s, keys, values);
            operands.accumulate(total, &features[..count * width], values, None);
        }
    });
}

/// Outputs at the positions of one span, from the sum at its start, `kept[0]`; fills the remaining sums.
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
    with_parts!(
        mixed = CHUNK * width,
        values = CHUNK * value_width,
        features = CHUNK * width,
        numerators = CHUNK * value_width,
        tile = CHUNK * CHUNK,
        sum = len,
        {
            sum.copy_from_slice(&kept[..len]);
            for positions in runs(span.clone(), CHUNK) {
                let offset = positions.start - span.start;
                if offset.is_multiple_of(SEGMENT) {
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
                    // SAFETY: the denominators of these queries belong to this task.
                    let denominators = unsafe { denominators.range(first, queries.len()) };
                    simd::vectorize(
                        #[inline(always)]
                        || {
                            triangle.mask(
                                tile,
                                #[inline(always)]
                                |t, seen| {
                                    let far = simd::dot(&features[t * width..(t + 1) * width], z);
                                    denominators[t] = far + simd::total(seen);
                                },
                            );
                        },
                    );
                    triangle.times(tile, values, value_width, numerators);
                    let rows = shape.out_rows(b, h);
                    simd::vectorize(
                        #[inline(always)]
                        || {
                            for (t, &denominator) in denominators.iter().enumerate() {
                                // SAFETY: this row of this head belongs to this task.
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
        }
    );
}
