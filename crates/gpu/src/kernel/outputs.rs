//! Outputs and log-sum-exp.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::{
    Form, HIDDEN, UNSEEN,
    parts::{distance, load, load_terms, products, sees},
    ranges::{first_key, last_key, least},
};

/// A block of threads has one tile of queries of one head; tiles of keys pass by, each component once, then their values.
#[cube(launch)]
pub(crate) fn outputs<F: Float>(
    q: &Tensor<F>,         // [B,N,H,D]
    k: &Tensor<F>,         // [B,S,M,Hk,D]
    v: &Tensor<F>,         // [B,S,Hk,Dv]
    inverse: &Tensor<f32>, // [M]
    prior: &Tensor<f32>,   // [H,M,S] or [H,M]
    valid: &Tensor<f32>,   // [B,S]
    slopes: &Tensor<f32>,  // [H]
    out: &mut Tensor<F>,   // [B,N,H,Dv]
    lse: &mut Tensor<f32>, // [B,H,N]
    reach: u32,
    #[comptime] form: Form,
    #[define(F)] _dtype: ElemType,
) {
    let tile = comptime!(form.tile);
    let (width, value_width) = comptime!((form.width, form.value_width));
    let (rows_each, columns_each) = comptime!((tile.rows_each(), tile.columns_each()));
    let channels_each = comptime!(value_width.div_ceil(tile.across));
    let x = UNIT_POS_X as usize;
    let y = UNIT_POS_Y as usize;
    let first = CUBE_POS_X as usize * tile.rows;
    let head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let reach = reach as usize;
    let n = q.shape(1);
    let heads = q.shape(2);
    let s = k.shape(1);
    let key_heads = k.shape(3);
    let key_head = head / (heads / key_heads);

    let mut rows = Shared::<[f32]>::new_slice(comptime!(tile.rows * (width + 1)));
    let mut columns = Shared::<[f32]>::new_slice(comptime!(tile.columns * (width + 1)));
    let mut values = Shared::<[f32]>::new_slice(comptime!(tile.columns * (value_width + 1)));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(tile.rows * (tile.columns + 1)));
    let mut largest = Shared::<[f32]>::new_slice(comptime!(tile.rows * tile.across));
    let mut terms = Shared::<[f32]>::new_slice(tile.columns);
    load::<F>(q, (batch * n * heads + head) * width, heads * width, first, n, &mut rows, tile.rows, width);

    let mut scores = Array::<f32>::new(comptime!(form.components * rows_each * columns_each));
    let mut sums = Array::<f32>::new(comptime!(rows_each * channels_each));
    let mut most = Array::<f32>::new(rows_each);
    let mut total = Array::<f32>::new(rows_each);
    #[unroll]
    for a in 0..rows_each {
        most[a] = f32::new(HIDDEN);
        total[a] = 0.0f32;
    }
    #[unroll]
    for at in 0..comptime!(rows_each * channels_each) {
        sums[at] = 0.0f32;
    }

    let start = first_key(first, n, s, reach, form.window) / tile.columns;
    let end = last_key(least(first + tile.rows, n), n, s, reach, form.causal, form.window);
    let mut decay = 0.0f32;
    if comptime!(form.slopes) {
        decay = slopes[head];
    }
    for step in start..end.div_ceil(tile.columns) {
        let from = step * tile.columns;
        sync_cube();
        load::<F>(
            v,
            (batch * s * key_heads + key_head) * value_width,
            key_heads * value_width,
            from,
            s,
            &mut values,
            tile.columns,
            value_width,
        );
        #[unroll]
        for r in 0..comptime!(form.components) {
            if comptime!(r > 0) {
                sync_cube();
            }
            load::<F>(
                k,
                ((batch * s * form.components + r) * key_heads + key_head) * width,
                form.components * key_heads * width,
                from,
                s,
                &mut columns,
                tile.columns,
                width,
            );
            load_terms(prior, valid, batch, head * form.components + r, from, s, &mut terms, tile.columns, form);
            sync_cube();
            let at = comptime!(r * rows_each * columns_each);
            products(&rows, &columns, &mut scores, at, form, width, form.distances);
            let factor = inverse[r];
            #[unroll]
            for a in 0..rows_each {
                #[unroll]
                for b in 0..columns_each {
                    let query = first + y + a * tile.down;
                    let key = from + x + b * tile.across;
                    let term = terms[x + b * tile.across];
                    let mut score = scores[at + a * columns_each + b] * factor + term;
                    if comptime!(form.slopes) {
                        score -= decay * distance(query, key, n, s);
                    }
                    if term <= HIDDEN || !sees(query, key, n, s, reach, form) {
                        score = f32::new(HIDDEN);
                    }
                    scores[at + a * columns_each + b] = score;
                }
            }
        }
        #[unroll]
        for a in 0..rows_each {
            let mut own = f32::new(HIDDEN);
            #[unroll]
            for r in 0..comptime!(form.components) {
                #[unroll]
                for b in 0..columns_each {
                    own = max(own, scores[(r * rows_each + a) * columns_each + b]);
                }
            }
            largest[(y + a * tile.down) * tile.across + x] = own;
        }
        sync_cube();
        #[unroll]
        for a in 0..rows_each {
            let row = y + a * tile.down;
            let mut now = most[a];
            for other in 0..tile.across {
                now = max(now, largest[row * tile.across + other]);
            }
            let fade = (most[a] - now).exp();
            most[a] = now;
            total[a] *= fade;
            #[unroll]
            for c in 0..channels_each {
                sums[a * channels_each + c] *= fade;
            }
            #[unroll]
            for b in 0..columns_each {
                let mut weight = 0.0f32;
                #[unroll]
                for r in 0..comptime!(form.components) {
                    let score = scores[(r * rows_each + a) * columns_each + b];
                    if score > HIDDEN {
                        weight += (score - now).exp();
                    }
                }
                weights[row * (tile.columns + 1) + x + b * tile.across] = weight;
            }
        }
        sync_cube();
        for column in 0..tile.columns {
            let mut channels = Array::<f32>::new(channels_each);
            #[unroll]
            for c in 0..channels_each {
                channels[c] = values[column * (value_width + 1) + least(x + c * tile.across, value_width - 1)];
            }
            #[unroll]
            for a in 0..rows_each {
                let weight = weights[(y + a * tile.down) * (tile.columns + 1) + column];
                total[a] += weight;
                #[unroll]
                for c in 0..channels_each {
                    sums[a * channels_each + c] += weight * channels[c];
                }
            }
        }
    }
    #[unroll]
    for a in 0..rows_each {
        let query = first + y + a * tile.down;
        if query < n {
            let seen = total[a] > 0.0f32;
            let mut by = 0.0f32;
            let mut log = f32::new(UNSEEN);
            if seen {
                by = 1.0f32 / total[a];
                log = most[a] + total[a].ln();
            }
            #[unroll]
            for c in 0..channels_each {
                let channel = x + c * tile.across;
                if channel < value_width {
                    let at = ((batch * n + query) * heads + head) * value_width + channel;
                    out[at] = F::cast_from(sums[a * channels_each + c] * by);
                }
            }
            if x == 0 {
                lse[(batch * heads + head) * n + query] = log;
            }
        }
    }
}
