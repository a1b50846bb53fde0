//! Gradients of keys, values, log priors and variances.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::{
    Form, HIDDEN, UNSEEN,
    parts::{distance, load, load_terms, products, sees, weight},
    ranges::{first_query, last_query, least},
};

/// A block of threads has one tile of keys of one head: all components in turn, for each the query heads that read it, for each
/// all queries that may see it.
///
/// Also writes, for each query head, component and key, the sum of the gradients of its scores, and for each block and component
/// the sum of these, each times its product.
#[cube(launch)]
pub(crate) fn key_gradients<F: Float>(
    q: &Tensor<F>,                      // [B,N,H,D]
    k: &Tensor<F>,                      // [B,S,M,Hk,D]
    v: &Tensor<F>,                      // [B,S,Hk,Dv]
    inverse: &Tensor<f32>,              // [M]
    prior: &Tensor<f32>,                // [H,M,S] or [H,M]
    valid: &Tensor<f32>,                // [B,S]
    slopes: &Tensor<f32>,               // [H]
    out_gradient: &Tensor<F>,           // [B,N,H,Dv]
    lse: &Tensor<f32>,                  // [B,H,N]
    along: &Tensor<f32>,                // [B,H,N]
    k_gradient: &mut Tensor<F>,         // [B,S,M,Hk,D]
    v_gradient: &mut Tensor<F>,         // [B,S,Hk,Dv]
    prior_gradient: &mut Tensor<f32>,   // [B,H,M,S]
    inverse_gradient: &mut Tensor<f32>, // [B,Hk,tiles,M]
    reach: u32,
    #[comptime] form: Form,
    #[define(F)] _dtype: ElemType,
) {
    let tile = comptime!(form.tile);
    let (width, value_width) = comptime!((form.width, form.value_width));
    let (rows_each, columns_each) = comptime!((tile.rows_each(), tile.columns_each()));
    let channels_each = comptime!(width.div_ceil(tile.across));
    let values_each = comptime!(value_width.div_ceil(tile.across));
    let pitch = comptime!(tile.columns + 1);
    let x = UNIT_POS_X as usize;
    let y = UNIT_POS_Y as usize;
    let first = CUBE_POS_X as usize * tile.rows;
    let key_head = CUBE_POS_Y as usize;
    let batch = CUBE_POS_Z as usize;
    let reach = reach as usize;
    let n = q.shape(1);
    let heads = q.shape(2);
    let s = k.shape(1);
    let key_heads = k.shape(3);
    let group = heads / key_heads;

    let mut rows = Shared::<[f32]>::new_slice(comptime!(tile.rows * (width + 1)));
    let mut row_values = Shared::<[f32]>::new_slice(comptime!(tile.rows * (value_width + 1)));
    let mut columns = Shared::<[f32]>::new_slice(comptime!(tile.columns * (width + 1)));
    let mut gradients = Shared::<[f32]>::new_slice(comptime!(tile.columns * (value_width + 1)));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(tile.rows * (tile.columns + 1)));
    let mut slopes_of = Shared::<[f32]>::new_slice(comptime!(tile.rows * (tile.columns + 1)));
    let mut terms = Shared::<[f32]>::new_slice(tile.rows);
    let mut logs = Shared::<[f32]>::new_slice(tile.columns);
    let mut shares = Shared::<[f32]>::new_slice(tile.columns);
    load::<F>(
        v,
        (batch * s * key_heads + key_head) * value_width,
        key_heads * value_width,
        first,
        s,
        &mut row_values,
        tile.rows,
        value_width,
    );

    let mut of_weights = Array::<f32>::new(comptime!(rows_each * columns_each));
    let mut scores = Array::<f32>::new(comptime!(rows_each * columns_each));
    let mut sums = Array::<f32>::new(comptime!(rows_each * channels_each));
    let mut value_sums = Array::<f32>::new(comptime!(rows_each * values_each));
    let mut total = Array::<f32>::new(rows_each);
    let mut of_head = Array::<f32>::new(rows_each);
    #[unroll]
    for at in 0..comptime!(rows_each * values_each) {
        value_sums[at] = 0.0f32;
    }

    let start = first_query(first, n, s, reach, form.causal, form.window) / tile.columns;
    let end = last_query(least(first + tile.rows, s), n, s, reach, form.window);

    for r in 0..comptime!(form.components) {
        let factor = inverse[r];
        let k_base = ((batch * s * form.components + r) * key_heads + key_head) * width;
        let k_stride = form.components * key_heads * width;
        sync_cube();
        load::<F>(k, k_base, k_stride, first, s, &mut rows, tile.rows, width);
        #[unroll]
        for a in 0..rows_each {
            total[a] = 0.0f32;
        }
        #[unroll]
        for at in 0..comptime!(rows_each * channels_each) {
            sums[at] = 0.0f32;
        }
        let mut of_factor = 0.0f32;
        for member in 0..group {
            let head = key_head * group + member;
            let mut decay = 0.0f32;
            if comptime!(form.slopes) {
                decay = slopes[head];
            }
            sync_cube();
            load_terms(prior, valid, batch, head * form.components + r, first, s, &mut terms, tile.rows, form);
            #[unroll]
            for a in 0..rows_each {
                of_head[a] = 0.0f32;
            }
            for step in start..end.div_ceil(tile.columns) {
                let from = step * tile.columns;
                sync_cube();
                load::<F>(
                    q,
                    (batch * n * heads + head) * width,
                    heads * width,
                    from,
                    n,
                    &mut columns,
                    tile.columns,
                    width,
                );
                load::<F>(
                    out_gradient,
                    (batch * n * heads + head) * value_width,
                    heads * value_width,
                    from,
                    n,
                    &mut gradients,
                    tile.columns,
                    value_width,
                );
                let mut at = UNIT_POS as usize;
                while at < tile.columns {
                    logs[at] = f32::new(UNSEEN);
                    shares[at] = 0.0f32;
                    if from + at < n {
                        logs[at] = lse[(batch * heads + head) * n + from + at];
                        shares[at] = along[(batch * heads + head) * n + from + at];
                    }
                    at += CUBE_DIM as usize;
                }
                sync_cube();
                products(&row_values, &gradients, &mut of_weights, 0usize, form, value_width, false);
                products(&rows, &columns, &mut scores, 0usize, form, width, form.distances);
                #[unroll]
                for a in 0..rows_each {
                    let row = y + a * tile.down;
                    let term = terms[row];
                    #[unroll]
                    for b in 0..columns_each {
                        let column = x + b * tile.across;
                        let at = comptime!(a * columns_each + b);
                        let mut score = scores[at] * factor + term;
                        if comptime!(form.slopes) {
                            score -= decay * distance(from + column, first + row, n, s);
                        }
                        let seen = term > HIDDEN && sees(from + column, first + row, n, s, reach, form);
                        let weight = weight(score, logs[column], seen);
                        let slope = weight * (of_weights[at] - shares[column]);
                        weights[row * pitch + column] = weight;
                        slopes_of[row * pitch + column] = slope;
                        of_factor += slope * scores[at];
                    }
                }
                sync_cube();
                for column in 0..tile.columns {
                    let mut channels = Array::<f32>::new(channels_each);
                    let mut out_channels = Array::<f32>::new(values_each);
                    #[unroll]
                    for c in 0..channels_each {
                        channels[c] = columns[column * (width + 1) + least(x + c * tile.across, width - 1)];
                    }
                    #[unroll]
                    for c in 0..values_each {
                        out_channels[c] =
                            gradients[column * (value_width + 1) + least(x + c * tile.across, value_width - 1)];
                    }
                    #[unroll]
                    for a in 0..rows_each {
                        let row = y + a * tile.down;
                        let slope = slopes_of[row * pitch + column];
                        let weight = weights[row * pitch + column];
                        of_head[a] += slope;
                        #[unroll]
                        for c in 0..channels_each {
                            sums[a * channels_each + c] += slope * channels[c];
                        }
                        #[unroll]
                        for c in 0..values_each {
                            value_sums[a * values_each + c] += weight * out_channels[c];
                        }
                    }
                }
            }
            #[unroll]
            for a in 0..rows_each {
                total[a] += of_head[a];
                let key = first + y + a * tile.down;
                if comptime!(form.prior) && x == 0 && key < s {
                    prior_gradient[((batch * heads + head) * form.components + r) * s + key] = of_head[a];
                }
            }
        }
        #[unroll]
        for a in 0..rows_each {
            let row = y + a * tile.down;
            if first + row < s {
                #[unroll]
                for c in 0..channels_each {
                    let channel = x + c * tile.across;
                    if channel < width {
                        let mut sum = sums[a * channels_each + c];
                        if comptime!(form.distances) {
                            sum -= total[a] * rows[row * (width + 1) + channel];
                        }
                        k_gradient[k_base + (first + row) * k_stride + channel] = F::cast_from(sum * factor);
                    }
                }
            }
        }
        // One number of each thread, added up in their order.
        sync_cube();
        weights[UNIT_POS as usize] = of_factor;
        sync_cube();
        if UNIT_POS == 0 {
            let mut sum = 0.0f32;
            for unit in 0..comptime!(tile.threads()) {
                sum += weights[unit];
            }
            let tiles = s.div_ceil(tile.rows);
            inverse_gradient[((batch * key_heads + key_head) * tiles + CUBE_POS_X as usize) * form.components + r] =
                sum;
        }
    }
    #[unroll]
    for a in 0..rows_each {
        let key = first + y + a * tile.down;
        if key < s {
            #[unroll]
            for c in 0..values_each {
                let channel = x + c * tile.across;
                if channel < value_width {
                    let at = ((batch * s + key) * key_heads + key_head) * value_width + channel;
                    v_gradient[at] = F::cast_from(value_sums[a * values_each + c]);
                }
            }
        }
    }
}
