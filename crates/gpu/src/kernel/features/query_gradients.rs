//! Gradients of the logarithms of the queries' features.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::{
    Form, UNSEEN,
    parts::{add_chunk, add_segment, empty, hidden, load, load_last, load_numbers, pair_products},
};
use crate::kernel::ranges::least;

/// A block of threads has a segment of a head. Also writes the product of each output with its gradient.
#[cube(launch)]
pub(crate) fn query_gradients<F: Float>(
    q: &Tensor<F>,              // [B,H,N,m]
    k: &Tensor<F>,              // [B,H,N,m]
    v: &Tensor<F>,              // [B,H,N,Dv]
    sums: &Tensor<f32>,         // [B,H,segments,m,Dv+1]
    sum_scales: &Tensor<f32>,   // [B,H,segments,m]
    out: &Tensor<F>,            // [B,H,N,Dv]
    out_gradient: &Tensor<F>,   // [B,H,N,Dv]
    logs_in: &Tensor<f32>,      // [B,H,N]
    along: &mut Tensor<f32>,    // [B,H,N]
    q_gradient: &mut Tensor<F>, // [B,H,N,m]
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
    let mut logs = Shared::<[f32]>::new_slice(form.chunk);
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
        load_last(logs_in, 0, first, end, &mut values, true, form);
        load::<F>(out_gradient, head, first, end, 0.0f32, &mut gradients, form.width, form);
        load_numbers(logs_in, head * n, first, end, f32::new(UNSEEN), &mut logs, form);
        sync_cube();
        let mut row = UNIT_POS as usize;
        while row < form.chunk {
            let mut share = 0.0f32;
            if first + row < end {
                for channel in 0..form.width {
                    let own = f32::cast_from(out[(head * n + first + row) * form.width + channel]);
                    share += own * gradients[row * channels + channel];
                }
                along[head * n + first + row] = share;
            }
            gradients[row * channels + form.width] = -share;
            row += CUBE_DIM as usize;
        }
        sync_cube();
        pair_products(&gradients, &values, &mut products, form);
        sync_cube();
        let mut at = UNIT_POS as usize;
        while at < comptime!(form.chunk * form.features) {
            let row = at / form.features;
            let feature = at % form.features;
            if first + row < end {
                let own = queries[row * pitch + feature] - logs[row];
                let mut sum = 0.0f32;
                for key in 0..row + 1 {
                    sum += products[row * form.chunk + key] * (own + keys[key * pitch + feature]).exp();
                }
                let mut before = 0.0f32;
                for channel in 0..channels {
                    before += state[feature * channels + channel] * gradients[row * channels + channel];
                }
                sum += before * (own + scales[feature]).exp();
                q_gradient[(head * n + first + row) * form.features + feature] = F::cast_from(sum);
            }
            at += CUBE_DIM as usize;
        }
        add_chunk(&mut keys, &values, &mut state, &mut scales, &mut fades, form);
    }
}
