//! Gradients of the logarithms of the keys' features, and of the values.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::{
    Form, UNSEEN,
    parts::{add_chunk, add_segment, empty, hidden, load, load_last, load_numbers, pair_products, pair_weights},
};
use crate::kernel::ranges::{least, less};

/// A block of threads has a segment of a head, from its last chunk to its first. The state sums what later queries are to a key:
/// `sum_i exp(q_if - log_i - s_f) [g_i, -along_i]`.
#[cube(launch)]
pub(crate) fn key_gradients<F: Float>(
    q: &Tensor<F>,              // [B,H,N,m]
    k: &Tensor<F>,              // [B,H,N,m]
    v: &Tensor<F>,              // [B,H,N,Dv]
    sums: &Tensor<f32>,         // [B,H,segments,m,Dv+1]
    sum_scales: &Tensor<f32>,   // [B,H,segments,m]
    out_gradient: &Tensor<F>,   // [B,H,N,Dv]
    logs_in: &Tensor<f32>,      // [B,H,N]
    along: &Tensor<f32>,        // [B,H,N]
    k_gradient: &mut Tensor<F>, // [B,H,N,m]
    v_gradient: &mut Tensor<F>, // [B,H,N,Dv]
    chunks: u32,
    #[comptime] form: Form,
    #[define(F)] _dtype: ElemType,
) {
    let pitch = comptime!(form.features + 1);
    let channels = comptime!(form.width + 1);
    let segment = CUBE_POS_X as usize;
    let head = CUBE_POS_Y as usize;
    let n = q.shape(2);
    let length = chunks as usize * form.chunk;
    let mut queries = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.features + 1)));
    let mut keys = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.features + 1)));
    let mut values = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.width + 1)));
    let mut gradients = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.width + 1)));
    let mut products = Shared::<[f32]>::new_slice(comptime!(form.chunk * form.chunk));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(form.chunk * form.chunk));
    let mut logs = Shared::<[f32]>::new_slice(form.chunk);
    let mut state = Shared::<[f32]>::new_slice(comptime!(form.state()));
    let mut scales = Shared::<[f32]>::new_slice(form.features);
    let mut fades = Shared::<[f32]>::new_slice(comptime!(2 * form.features));
    empty(&mut state, &mut scales, form);
    let segments = CUBE_COUNT_X as usize;
    let place = head * segments;
    for behind in 0..less(segments, segment + 1) {
        add_segment(sums, sum_scales, place + segments - 1 - behind, &mut state, &mut scales, &mut fades, form);
    }
    let end = least(n, (segment + 1) * length);
    let count = (end - segment * length).div_ceil(form.chunk);
    for step in 0..count {
        let first = segment * length + (count - 1 - step) * form.chunk;
        sync_cube();
        load::<F>(q, head, first, end, hidden(), &mut queries, form.features, form);
        load::<F>(k, head, first, end, hidden(), &mut keys, form.features, form);
        load::<F>(v, head, first, end, 0.0f32, &mut values, form.width, form);
        load_last(along, 0, first, end, &mut values, true, form);
        load::<F>(out_gradient, head, first, end, 0.0f32, &mut gradients, form.width, form);
        load_last(along, head * n, first, end, &mut gradients, false, form);
        load_numbers(logs_in, head * n, first, end, f32::new(UNSEEN), &mut logs, form);
        sync_cube();
        pair_products(&gradients, &values, &mut products, form);
        pair_weights(&queries, &keys, &logs, &mut weights, form);
        sync_cube();
        let mut at = UNIT_POS as usize;
        while at < comptime!(form.chunk * form.features) {
            let row = at / form.features;
            let feature = at % form.features;
            if first + row < end {
                let own = keys[row * pitch + feature];
                let mut sum = 0.0f32;
                for query in row..form.chunk {
                    let log = queries[query * pitch + feature] - logs[query];
                    sum += products[query * form.chunk + row] * (own + log).exp();
                }
                let mut behind = 0.0f32;
                for channel in 0..channels {
                    behind += state[feature * channels + channel] * values[row * channels + channel];
                }
                sum += behind * (own + scales[feature]).exp();
                k_gradient[(head * n + first + row) * form.features + feature] = F::cast_from(sum);
            }
            at += CUBE_DIM as usize;
        }
        sync_cube();
        // Keys become features under the scales of the state, queries what the state sums.
        let mut at = UNIT_POS as usize;
        while at < comptime!(form.chunk * form.features) {
            let row = at / form.features;
            let feature = at % form.features;
            keys[row * pitch + feature] = (keys[row * pitch + feature] + scales[feature]).exp();
            if first + row < end {
                queries[row * pitch + feature] -= logs[row];
            }
            at += CUBE_DIM as usize;
        }
        sync_cube();
        let mut at = UNIT_POS as usize;
        while at < comptime!(form.chunk * form.width) {
            let row = at / form.width;
            let channel = at % form.width;
            if first + row < end {
                let mut sum = 0.0f32;
                for query in row..form.chunk {
                    sum += weights[query * form.chunk + row] * gradients[query * channels + channel];
                }
                for feature in 0..form.features {
                    sum += keys[row * pitch + feature] * state[feature * channels + channel];
                }
                v_gradient[(head * n + first + row) * form.width + channel] = F::cast_from(sum);
            }
            at += CUBE_DIM as usize;
        }
        add_chunk(&mut queries, &gradients, &mut state, &mut scales, &mut fades, form);
    }
}
