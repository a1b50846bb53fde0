//! Exact softmax attention.

use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::Call;

use super::{
    Inputs,
    composed::{Visible, drop_weights, head_first, real_keys, real_queries, repeat_heads},
};

/// `softmax(tau q k^T + bias) v` for `q [B,N,H,D]`, `k [B,S,Hk,D]`, `v [B,S,Hk,Dv]`, `bias [H,N,S]`: `[B,N,H,Dv]`.
pub(super) fn composed(inputs: &Inputs, call: Call) -> Tensor<4> {
    let [q, k, v] = ["q", "k", "v"].map(|name| inputs.tensor::<4>(name));
    let device = q.device();
    let [batch, n, heads, width] = q.dims();
    let s = k.dims()[1];
    let (q, k, v) = (real_queries(q, &call.mask), real_keys(k, &call.mask), real_keys(v, &call.mask));
    let (q, k, v) = (head_first(q), repeat_heads(head_first(k), heads), repeat_heads(head_first(v), heads));
    let scale = call.scale.unwrap_or((width as f64).sqrt().recip());
    let mut scores = q.matmul(k.transpose()).mul_scalar(scale);
    if let Some(bias) = inputs.get::<3>("bias") {
        scores = scores + bias.unsqueeze_dim(0);
    }
    if let Some(slopes) = &call.slopes {
        scores = scores - penalty(slopes, n, s, &device);
    }
    let weights = Visible::new(&call.mask, batch, n, s, &device).softmax(scores);
    head_first(drop_weights(weights, call.dropout).matmul(v))
}

/// `slopes[h] |j - (i + S - N)|`, `[1,H,N,S]`.
fn penalty(slopes: &[f32], n: usize, s: usize, device: &Device) -> Tensor<4> {
    let distance = |i: usize, j: usize| (j as f32 - (i + s) as f32 + n as f32).abs();
    let values: Vec<f32> =
        slopes.iter().flat_map(|slope| (0..n).flat_map(move |i| (0..s).map(move |j| slope * distance(i, j)))).collect();
    Tensor::from_data(TensorData::new(values, [1, slopes.len(), n, s]), device)
}
