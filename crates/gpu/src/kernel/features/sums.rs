//! Sums over the tokens of each segment.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::{
    Form,
    parts::{add_chunk, empty, hidden, load, load_last},
};
use crate::kernel::ranges::least;

/// A block of threads has a segment of a head: `sum exp(f - s) [v, 1]` of its features and values, and the scales `s`; for the
/// backward pass, with `backward`, `sum exp(f - log - s) [v, -last]`.
#[cube(launch)]
pub(crate) fn sums<F: Float>(
    features: &Tensor<F>,         // [B,H,N,m]
    values: &Tensor<F>,           // [B,H,N,Dv]
    logs: &Tensor<f32>,           // [B,H,N]
    lasts: &Tensor<f32>,          // [B,H,N]
    sums: &mut Tensor<f32>,       // [B,H,segments,m,Dv+1]
    scales_out: &mut Tensor<f32>, // [B,H,segments,m]
    chunks: u32,
    #[comptime] backward: bool,
    #[comptime] form: Form,
    #[define(F)] _dtype: ElemType,
) {
    let segment = CUBE_POS_X as usize;
    let head = CUBE_POS_Y as usize;
    let n = features.shape(2);
    let length = chunks as usize * form.chunk;
    let pitch = comptime!(form.features + 1);
    let mut rows = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.features + 1)));
    let mut row_values = Shared::<[f32]>::new_slice(comptime!(form.chunk * (form.width + 1)));
    let mut state = Shared::<[f32]>::new_slice(comptime!(form.state()));
    let mut scales = Shared::<[f32]>::new_slice(form.features);
    let mut fades = Shared::<[f32]>::new_slice(form.features);
    empty(&mut state, &mut scales, form);
    let end = least(n, (segment + 1) * length);
    for chunk in 0..(end - segment * length).div_ceil(form.chunk) {
        let first = segment * length + chunk * form.chunk;
        sync_cube();
        load::<F>(features, head, first, end, hidden(), &mut rows, form.features, form);
        load::<F>(values, head, first, end, 0.0f32, &mut row_values, form.width, form);
        load_last(lasts, head * n, first, end, &mut row_values, !backward, form);
        if comptime!(backward) {
            sync_cube();
            let mut at = UNIT_POS as usize;
            while at < comptime!(form.chunk * form.features) {
                let row = at / form.features;
                if first + row < end {
                    rows[row * pitch + at % form.features] -= logs[head * n + first + row];
                }
                at += CUBE_DIM as usize;
            }
        }
        add_chunk(&mut rows, &row_values, &mut state, &mut scales, &mut fades, form);
    }
    sync_cube();
    let place = head * CUBE_COUNT_X as usize + segment;
    let mut at = UNIT_POS as usize;
    while at < comptime!(form.state()) {
        sums[place * comptime!(form.state()) + at] = state[at];
        at += CUBE_DIM as usize;
    }
    let mut feature = UNIT_POS as usize;
    while feature < form.features {
        scales_out[place * form.features + feature] = scales[feature];
        feature += CUBE_DIM as usize;
    }
}
