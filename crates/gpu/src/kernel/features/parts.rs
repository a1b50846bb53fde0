//! What these kernels share.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::{Form, HIDDEN, LOWEST};

/// Loads `width` channels of a chunk of tokens from `first` on into rows of `width + 1`, and `fill` where there are none.
#[cube]
pub(super) fn load<F: Float>(
    from: &Tensor<F>,
    head: usize,
    first: usize,
    end: usize,
    fill: f32,
    to: &mut Shared<[f32]>,
    #[comptime] width: usize,
    #[comptime] form: Form,
) {
    let heads = from.shape(1);
    let base = head / heads * from.stride(0) + head % heads * from.stride(1);
    let mut at = UNIT_POS as usize;
    while at < form.chunk * width {
        let row = at / width;
        let channel = at % width;
        let mut value = fill;
        if first + row < end {
            value = f32::cast_from(from[base + (first + row) * from.stride(2) + channel]);
        }
        to[row * (width + 1) + channel] = value;
        at += CUBE_DIM as usize;
    }
}

/// Sets the last of each row of values to 1, or to the negative of a number of its token.
#[cube]
pub(super) fn load_last(
    numbers: &Tensor<f32>,
    base: usize,
    first: usize,
    end: usize,
    to: &mut Shared<[f32]>,
    #[comptime] ones: bool,
    #[comptime] form: Form,
) {
    let mut row = UNIT_POS as usize;
    while row < form.chunk {
        let mut last = 1.0f32;
        if comptime!(!ones) {
            last = 0.0f32;
            if first + row < end {
                last = -numbers[base + first + row];
            }
        }
        to[row * (form.width + 1) + form.width] = last;
        row += CUBE_DIM as usize;
    }
}

/// Numbers of a chunk of tokens, and `fill` where there are none.
#[cube]
pub(super) fn load_numbers(
    from: &Tensor<f32>,
    base: usize,
    first: usize,
    end: usize,
    fill: f32,
    to: &mut Shared<[f32]>,
    #[comptime] form: Form,
) {
    let mut row = UNIT_POS as usize;
    while row < form.chunk {
        let mut value = fill;
        if first + row < end {
            value = from[base + first + row];
        }
        to[row] = value;
        row += CUBE_DIM as usize;
    }
}

/// A state of no tokens.
#[cube]
pub(super) fn empty(state: &mut Shared<[f32]>, scales: &mut Shared<[f32]>, #[comptime] form: Form) {
    let mut at = UNIT_POS as usize;
    while at < comptime!(form.state()) {
        state[at] = 0.0f32;
        at += CUBE_DIM as usize;
    }
    let mut feature = UNIT_POS as usize;
    while feature < form.features {
        scales[feature] = f32::new(LOWEST);
        feature += CUBE_DIM as usize;
    }
}

/// Adds the sums of a segment to the state.
#[cube]
pub(super) fn add_segment(
    sums: &Tensor<f32>,
    sum_scales: &Tensor<f32>,
    segment: usize,
    state: &mut Shared<[f32]>,
    scales: &mut Shared<[f32]>,
    fades: &mut Shared<[f32]>,
    #[comptime] form: Form,
) {
    sync_cube();
    let mut feature = UNIT_POS as usize;
    while feature < form.features {
        let before = scales[feature];
        let other = sum_scales[segment * form.features + feature];
        let now = max(before, other);
        fades[feature] = (before - now).exp();
        fades[form.features + feature] = (other - now).exp();
        scales[feature] = now;
        feature += CUBE_DIM as usize;
    }
    sync_cube();
    let mut at = UNIT_POS as usize;
    while at < comptime!(form.state()) {
        let feature = at / comptime!(form.width + 1);
        state[at] =
            state[at] * fades[feature] + sums[segment * comptime!(form.state()) + at] * fades[form.features + feature];
        at += CUBE_DIM as usize;
    }
}

/// Adds the tokens of a chunk to the state. Their features, logarithms before, are exponentials under the new scales afterwards.
#[cube]
pub(super) fn add_chunk(
    features: &mut Shared<[f32]>,
    values: &Shared<[f32]>,
    state: &mut Shared<[f32]>,
    scales: &mut Shared<[f32]>,
    fades: &mut Shared<[f32]>,
    #[comptime] form: Form,
) {
    let pitch = comptime!(form.features + 1);
    let channels = comptime!(form.width + 1);
    sync_cube();
    let mut feature = UNIT_POS as usize;
    while feature < form.features {
        let before = scales[feature];
        let mut now = before;
        for row in 0..form.chunk {
            now = max(now, features[row * pitch + feature]);
        }
        for row in 0..form.chunk {
            features[row * pitch + feature] = (features[row * pitch + feature] - now).exp();
        }
        fades[feature] = (before - now).exp();
        scales[feature] = now;
        feature += CUBE_DIM as usize;
    }
    sync_cube();
    let mut at = UNIT_POS as usize;
    while at < comptime!(form.state()) {
        let feature = at / channels;
        let channel = at % channels;
        let mut sum = state[at] * fades[feature];
        for row in 0..form.chunk {
            sum += features[row * pitch + feature] * values[row * channels + channel];
        }
        state[at] = sum;
        at += CUBE_DIM as usize;
    }
}

/// `sum_c g_ic v_jc` over all channels and the last number, for pairs of a chunk with `j <= i`, and 0 for others: `[i,j]`.
#[cube]
pub(super) fn pair_products(
    gradients: &Shared<[f32]>,
    values: &Shared<[f32]>,
    to: &mut Shared<[f32]>,
    #[comptime] form: Form,
) {
    let channels = comptime!(form.width + 1);
    let mut pair = UNIT_POS as usize;
    while pair < comptime!(form.chunk * form.chunk) {
        let query = pair / form.chunk;
        let key = pair % form.chunk;
        let mut sum = 0.0f32;
        if key <= query {
            for channel in 0..channels {
                sum += gradients[query * channels + channel] * values[key * channels + channel];
            }
        }
        to[pair] = sum;
        pair += CUBE_DIM as usize;
    }
}

/// `sum_f exp(q_if + k_jf - log_i)` for pairs of a chunk with `j <= i`, and 0 for others: `[i,j]`.
#[cube]
pub(super) fn pair_weights(
    queries: &Shared<[f32]>,
    keys: &Shared<[f32]>,
    logs: &Shared<[f32]>,
    to: &mut Shared<[f32]>,
    #[comptime] form: Form,
) {
    let pitch = comptime!(form.features + 1);
    let mut pair = UNIT_POS as usize;
    while pair < comptime!(form.chunk * form.chunk) {
        let query = pair / form.chunk;
        let key = pair % form.chunk;
        let mut sum = 0.0f32;
        if key <= query {
            for feature in 0..form.features {
                sum += (queries[query * pitch + feature] + keys[key * pitch + feature] - logs[query]).exp();
            }
        }
        to[pair] = sum;
        pair += CUBE_DIM as usize;
    }
}

/// What [`load`] puts where there are no features.
#[cube]
pub(super) fn hidden() -> f32 {
    f32::new(HIDDEN)
}
