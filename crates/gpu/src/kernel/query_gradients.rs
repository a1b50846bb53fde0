//! Gradients of the queries.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::{
    Form, HIDDEN, UNSEEN,
    parts::{distance, load, load_terms, products, sees, weight},
    ranges::{first_key, last_key, least},
};

/// A block of threads has one tile of queries of one head, as in the forward pass. Also writes, for each query, the product of its
/// output with the gradient of that.
#[cube(launch)]
pub(crate) fn query_gradients<F: Float>(
    q: &Tensor<F>,              // [B,N,H,D]
    k: &Tensor<F>,              // [B,S,M,Hk,D]
    v: &Tensor<F>,              // [B,S,Hk,Dv]
    inverse: &Tensor<f32>,      // [M]
    prior: &Tensor<f32>,        // [H,M,S] or [H,M]
    valid: &Tensor<f32>,        // [B,S]
    slopes: &Tensor<f32>,       // [H]
    out: &Tensor<F>,            // [B,N,H,Dv]
    out_gradient: &Tensor<F>,   // [B,N,H,Dv]
    lse: &Tensor<f32>,          // [B,H,N]
    along: &mut Tensor<f32>,    // [B,H,N]
    q_gradient: &mut Tensor<F>, // [B,N,H,D]
    reach: u32,
    #[comptime] form: Form,
    #[define(F)] _dtype: ElemType,
) {
    let tile = comptime!(form.tile);
    let (width, value_width) = comptime!((form.width, form.value_width));
    let (rows_each, columns_each) = comptime!((tile.rows_each(), tile.columns_each()));
    let channels_each = comptime!(width.div_ceil(tile.across));
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
    let mut gradients = Shared::<[f32]>::new_slice(comptime!(tile.rows * (value_width + 1)));
    let mut columns = Shared::<[f32]>::new_slice(comptime!(tile.columns * (width + 1)));
    let mut values = Shared::<[f32]>::new_slice(comptime!(tile.columns * (value_width + 1)));
    let mut slopes_of = Shared::<[f32]>::new_slice(comptime!(tile.rows * (tile.columns + 1)));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(tile.rows * tile.across));
    let mut terms = Shared::<[f32]>::new_slice(tile.columns);
    load::<F>(q, (batch * n * heads + head) * width, heads * width, first, n, &mut rows, tile.rows, width);
    let out_base = (batch * n * heads + head) * value_width;
    load::<F>(out_gradient, out_base, heads * value_width, first, n, &mut gradients, tile.rows, value_width);
    sync_cube();

    let mut log = Array::<f32>::new(rows_each);
    let mut share = Array::<f32>::new(rows_each);
    #[unroll]
    for a in 0..rows_each {
        let row = y + a * tile.down;
        let query = first + row;
        log[a] = f32::new(UNSEEN);
        let mut sum = 0.0f32;
        if query < n {
            log[a] = lse[(batch * heads + head) * n + query];
            #[unroll]
            for c in 0..comptime!(value_width.div_ceil(tile.across)) {
                let channel = x + c * tile.across;
                if channel < value_width {
                    let own = f32::cast_from(out[out_base + query * heads * value_width + channel]);
                    sum += own * gradients[row * (value_width + 1) + channel];
                }
            }
        }
        partial[row * tile.across + x] = sum;
    }
    sync_cube();
    #[unroll]
    for a in 0..rows_each {
        let row = y + a * tile.down;
        share[a] = 0.0f32;
        for other in 0..tile.across {
            share[a] += partial[row * tile.across + other];
        }
        if x == 0 && first + row < n {
            along[(batch * heads + head) * n + first + row] = share[a];
        }
    }

    let mut of_weights = Array::<f32>::new(comptime!(rows_each * columns_each));
    let mut scores = Array::<f32>::new(comptime!(rows_each * columns_each));
    let mut sums = Array::<f32>::new(comptime!(rows_each * channels_each));
    let mut total = Array::<f32>::new(rows_each);
    #[unroll]
    for a in 0..rows_each {
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
            if comptime!(r == 0) {
                products(&gradients, &values, &mut of_weights, 0usize, form, value_width, false);
            }
            products(&rows, &columns, &mut scores, 0usize, form, width, form.distances);
            let factor = inverse[r];
            #[unroll]
            for a in 0..rows_each {
                let row = y + a * tile.down;
                #[unroll]
                for b in 0..columns_each {
                    let key = from + x + b * tile.across;
                    let term = terms[x + b * tile.across];
                    let at = comptime!(a * columns_each + b);
                    let mut score = scores[at] * factor + term;
                    if comptime!(form.slopes) {
                        score -= decay * distance(first + row, key, n, s);
                    }
                    let seen = term > HIDDEN && sees(first + row, key, n, s, reach, form);
                    let slope = weight(score, log[a], seen) * (of_weights[at] - share[a]) * factor;
                    slopes_of[row * (tile.columns + 1) + x + b * tile.across] = slope;
                }
            }
            sync_cube();
            for column in 0..tile.columns {
                let mut channels = Array::<f32>::new(channels_each);
                #[unroll]
                for c in 0..channels_each {
                    channels[c] = columns[column * (width + 1) + least(x + c * tile.across, width - 1)];
                }
                #[unroll]
                for a in 0..rows_each {
                    let slope = slopes_of[(y + a * tile.down) * (tile.columns + 1) + column];
                    total[a] += slope;
                    #[unroll]
                    for c in 0..channels_each {
                        sums[a * channels_each + c] += slope * channels[c];
                    }
                }
            }
        }
    }
    #[unroll]
    for a in 0..rows_each {
        let row = y + a * tile.down;
        if first + row < n {
            #[unroll]
            for c in 0..channels_each {
                let channel = x + c * tile.across;
                if channel < width {
                    let mut sum = sums[a * channels_each + c];
                    if comptime!(form.distances) {
                        sum -= total[a] * rows[row * (width + 1) + channel];
                    }
                    let at = ((batch * n + first + row) * heads + head) * width + channel;
                    q_gradient[at] = F::cast_from(sum);
                }
            }
        }
    }
}
