//! Softmax of cosines.

use burn::tensor::Tensor;
use regard_kernels::Call;

use super::{
    Inputs,
    composed::{real_keys, real_queries},
    softmax,
};

/// Rows shorter than this are divided by it instead of their length, as in the kernel.
const SHORTEST: f64 = 1e-12;

/// `softmax(e^log_scale cos(q, k)) v` for `q [B,N,H,D]`, `k [B,S,Hk,D]`, `v [B,S,Hk,Dv]`, `log_scale [H]`: `[B,N,H,Dv]`.
pub(super) fn composed(inputs: &Inputs, call: Call) -> Tensor<4> {
    let [q, k, v] = ["q", "k", "v"].map(|name| inputs.tensor::<4>(name));
    let scale = inputs.tensor::<1>("log_scale").exp();
    let heads = scale.dims()[0];
    let q = directions(real_queries(q, &call.mask)) * scale.reshape([1, 1, heads, 1]);
    let inputs = Inputs::new(q).with("k", directions(real_keys(k, &call.mask))).with("v", v);
    softmax::composed(&inputs, Call { scale: Some(1.0), ..call })
}

/// Rows over their lengths. First over their largest numbers, which changes nothing, so that no square is out of range.
fn directions(x: Tensor<4>) -> Tensor<4> {
    let largest = x.clone().detach().abs().max_dim(3).clamp_min(SHORTEST);
    let x = x / largest;
    // Only shorter rows come below 1.
    let length = x.clone().powi_scalar(2).sum_dim(3).clamp_min(1.0 - 1e-6).sqrt();
    x / length
}
