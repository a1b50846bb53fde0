//! What the three kernels share.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::{Form, HIDDEN, UNSEEN};

/// Loads `rows` rows of `width` floats from `first` on into shared memory, a row each `width + 1` floats, so that threads that
/// read one channel of several rows read several banks. Rows from `end` on are 0.
#[cube]
pub(super) fn load<F: Float>(
    from: &Tensor<F>,
    base: usize,
    stride: usize,
    first: usize,
    end: usize,
    to: &mut Shared<[f32]>,
    #[comptime] rows: usize,
    #[comptime] width: usize,
) {
    let mut at = UNIT_POS as usize;
    while at < rows * width {
        let row = at / width;
        let channel = at % width;
        let mut value = 0.0f32;
        if first + row < end {
            value = f32::cast_from(from[base + (first + row) * stride + channel]);
        }
        to[row * (width + 1) + channel] = value;
        at += CUBE_DIM as usize;
    }
}

/// What the score of a key with one component has beside its product: its log prior, [`HIDDEN`] for padding and what is no key.
#[cube]
pub(super) fn load_terms(
    prior: &Tensor<f32>,
    valid: &Tensor<f32>,
    batch: usize,
    head_and_component: usize,
    first: usize,
    keys: usize,
    to: &mut Shared<[f32]>,
    #[comptime] count: usize,
    #[comptime] form: Form,
) {
    let mut at = UNIT_POS as usize;
    while at < count {
        let key = first + at;
        let mut term = f32::new(HIDDEN);
        if key < keys {
            let mut real = true;
            if comptime!(form.padded) {
                real = valid[batch * keys + key] != 0.0f32;
            }
            if real {
                term = 0.0f32;
                if comptime!(form.positions) {
                    term = prior[head_and_component * keys + key];
                } else if comptime!(form.prior) {
                    term = prior[head_and_component];
                }
            }
        }
        to[at] = term;
        at += CUBE_DIM as usize;
    }
}

/// Products of the rows and columns of this thread, or half their squared distances, negative: `[rows, columns]` from `start` on.
#[cube]
pub(super) fn products(
    rows: &Shared<[f32]>,
    columns: &Shared<[f32]>,
    to: &mut Array<f32>,
    #[comptime] start: usize,
    #[comptime] form: Form,
    #[comptime] width: usize,
    #[comptime] distances: bool,
) {
    let count = comptime!(form.tile.columns_each());
    let x = UNIT_POS_X as usize;
    let y = UNIT_POS_Y as usize;
    #[unroll]
    for at in 0..comptime!(form.tile.rows_each() * form.tile.columns_each()) {
        to[start + at] = 0.0f32;
    }
    for channel in 0..width {
        let mut values = Array::<f32>::new(count);
        #[unroll]
        for b in 0..count {
            values[b] = columns[(x + b * form.tile.across) * (width + 1) + channel];
        }
        #[unroll]
        for a in 0..comptime!(form.tile.rows_each()) {
            let row = rows[(y + a * form.tile.down) * (width + 1) + channel];
            #[unroll]
            for b in 0..count {
                if comptime!(distances) {
                    let apart = row - values[b];
                    to[start + a * count + b] -= 0.5f32 * apart * apart;
                } else {
                    to[start + a * count + b] += row * values[b];
                }
            }
        }
    }
}

/// Whether a query sees a key, padding aside. `reach` is the window, at most the sum of both lengths.
#[cube]
pub(super) fn sees(
    query: usize,
    key: usize,
    queries: usize,
    keys: usize,
    reach: usize,
    #[comptime] form: Form,
) -> bool {
    let mut seen = true;
    if comptime!(form.causal) {
        seen = key + queries <= query + keys;
    }
    if comptime!(form.window) {
        seen = seen && key + queries <= query + keys + reach && key + queries + reach >= query + keys;
    }
    seen
}

/// Distance of a key from the position of a query.
#[cube]
pub(super) fn distance(query: usize, key: usize, queries: usize, keys: usize) -> f32 {
    let mut apart = f32::cast_from(query + keys) - f32::cast_from(key + queries);
    if apart < 0.0f32 {
        apart = -apart;
    }
    apart
}

/// The weight of a pair, from its product, and the log-sum-exp of its query.
#[cube]
pub(super) fn weight(score: f32, log_sum_exp: f32, seen: bool) -> f32 {
    let mut weight = 0.0f32;
    if seen && log_sum_exp < UNSEEN {
        weight = (score - log_sum_exp).exp();
    }
    weight
}
