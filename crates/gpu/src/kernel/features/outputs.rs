//! Outputs, and logarithms of the sums of weights.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::{
    Form, LOWEST, THREADS, UNSEEN,
    parts::{add_chunk, add_segment, empty, hidden, load, load_last, pair_weights},
};
use crate::kernel::ranges::least;

/// A block of threads has a segment of a head.
#[cube(launch)]
pub(crate) fn outputs<F: Float>(
    q: &Tensor<F>,              // [B,H,N,m]
    k: &Tensor<F>,              // [B,H,N,m]
    v: &Tensor<F>,              // [B,H,N,Dv]
    sums: &Tensor<f32>,         // [B,H,segments,m,Dv+1]
    sum_scales: &Tensor<f32>,   // [B,H,segments,m]
    out: &mut Tensor<F>,        // [B,H,N,Dv]
    logs_out: &mut Tensor<f32>, // [B,H,N]
    chunks: u32,
    #[comptime] form: Form,
    #[define(F)] _dtype: ElemType,
) {
    let parts = comptime!(THREADS / form.chunk);
    let pitch = comptime!(form.features + 1);
    let channels = comptime!(form.width + 1);
    let segment = CUBE_POS_X as usize;
    let head = CUBE_POS_Y as usize;
    let n = q.shape(2);
    let length = chunks as usize * form.chunk;
    let mut queries = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.features + 1)));
    let mut keys = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.features + 1)));
    let mut values = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.width + 1)));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(form.chunk * form.chunk));
    let mut tops = Shared::<[f32]>::new_slice(form.chunk);
    let mut partial = Shared::<[f32]>::new_slice(THREADS);
    let mut totals = Shared::<[f32]>::new_slice(form.chunk);
    let mut state = Shared::<[f32]>::new_slice(comptime!(form.state()));
    let mut scales = Shared::<[f32]>::new_slice(form.features);
    let mut fades = Shared::<[f32]>::new_slice(comptime!(2 * form.features));
    empty(&mut state, &mut scales, form);
    let place = head * CUBE_COUNT_X as usize;
    for before in 0..segment {
        add_segment(sums, sum_scales, place + before, &mut state, &mut scales, &mut fades, form);
    }
    let end = least(n, (segment + 1) * length);
    for chunk in 0..(end - segment * length).div_ceil(form.chunk) {
        let first = segment * length + chunk * form.chunk;
        sync_cube();
        load::<F>(q, head, first, end, 0.0f32, &mut queries, form.features, form);
        load::<F>(k, head, first, end, hidden(), &mut keys, form.features, form);
        load::<F>(v, head, first, end, 0.0f32, &mut values, form.width, form);
        load_last(sums, 0, first, end, &mut values, true, form);
        sync_cube();
        // The largest exponent of each query, in parts of the features.
        let row = UNIT_POS as usize / parts;
        let part = UNIT_POS as usize % parts;
        let mut top = f32::new(LOWEST);
        let mut feature = part;
        while feature < form.features {
            let mut most = scales[feature];
            for key in 0..row + 1 {
                most = max(most, keys[key * pitch + feature]);
            }
            top = max(top, queries[row * pitch + feature] + most);
            feature += parts;
        }
        partial[UNIT_POS as usize] = top;
        sync_cube();
        if part == 0 {
            for other in 0..parts {
                top = max(top, partial[row * parts + other]);
            }
            tops[row] = top;
        }
        sync_cube();
        pair_weights(&queries, &keys, &tops, &mut weights, form);
        sync_cube();
        // Queries become features under the scales of the state.
        let mut at = UNIT_POS as usize;
        while at < comptime!(form.chunk * form.features) {
            let row = at / form.features;
            let feature = at % form.features;
            queries[row * pitch + feature] = (queries[row * pitch + feature] + scales[feature] - tops[row]).exp();
            at += CUBE_DIM as usize;
        }
        sync_cube();
        let mut row = UNIT_POS as usize;
        while row < form.chunk {
            let mut total = 0.0f32;
            for key in 0..form.chunk {
                total += weights[row * form.chunk + key];
            }
            for feature in 0..form.features {
                total += queries[row * pitch + feature] * state[feature * channels + form.width];
            }
            totals[row] = total;
            if first + row < end {
                let mut log = f32::new(UNSEEN);
                if total > 0.0f32 {
                    log = tops[row] + total.ln();
                }
                logs_out[head * n + first + row] = log;
            }
            row += CUBE_DIM as usize;
        }
        sync_cube();
        let mut at = UNIT_POS as usize;
        while at < comptime!(form.chunk * form.width) {
            let row = at / form.width;
            let channel = at % form.width;
            if first + row < end {
                let mut sum = 0.0f32;
                for key in 0..form.chunk {
                    sum += weights[row * form.chunk + key] * values[key * channels + channel];
                }
                for feature in 0..form.features {
                    sum += queries[row * pitch + feature] * state[feature * channels + channel];
                }
                let mut result = 0.0f32;
                if totals[row] > 0.0f32 {
                    result = sum / totals[row];
                }
                out[(head * n + first + row) * form.width + channel] = F::cast_from(result);
            }
            at += CUBE_DIM as usize;
        }
        add_chunk(&mut keys, &values, &mut state, &mut scales, &mut fades, form);
    }
}
