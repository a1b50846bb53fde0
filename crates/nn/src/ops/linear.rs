//! Linear attention and the mixture of linear keys.

use burn::tensor::{Bool, Tensor, TensorData};
use regard_kernels::{Call, Mask};

use super::{
    Inputs,
    composed::{Visible, head_first, real_keys, real_queries, repeat_heads},
    gaussian_mixture::component_keys,
};

/// `phi(q_i) sum_j phi(k_j) v_j / phi(q_i) sum_j phi(k_j)` with `phi = elu + 1`, for `q [B,N,H,D]`, `v [B,S,Hk,Dv]`:
/// `[B,N,H,Dv]`. For a mixture, `phi(k_j)` becomes `sum_r exp(log_prior_r) phi(k_jr)` (arXiv 2110.08678, section 2.4).
pub(super) fn composed(inputs: &Inputs, call: Call) -> Tensor<4> {
    let [q, v] = ["q", "v"].map(|name| inputs.tensor::<4>(name));
    let device = q.device();
    let [batch, n, heads, _] = q.dims();
    let s = v.dims()[1];
    let q = features(head_first(real_queries(q, &call.mask)));
    let k = mix(inputs, heads, &call.mask);
    let v = repeat_heads(head_first(real_keys(v, &call.mask)), heads);
    if call.mask.causal {
        let visible = Visible::new(&call.mask, batch, n, s, &device);
        return head_first(visible.normalize(q.matmul(k.transpose())).matmul(v));
    }
    // Without causality every query of a row sees the same keys, and the sums over keys come first.
    let (k, none) = match &call.mask.valid {
        None => (k, Tensor::<4>::zeros([1, 1, 1, 1], &device)),
        Some(padding) => {
            let padded: Vec<bool> = padding.as_slice().iter().map(|&real| real == 0).collect();
            let none: Vec<f32> =
                (0..batch).map(|b| f32::from(u8::from(padding.row(b).iter().all(|&real| real == 0)))).collect();
            let padded = Tensor::<4, Bool>::from_data(TensorData::new(padded, [batch, 1, s, 1]), &device);
            let dims = k.dims();
            (k.mask_fill(padded.expand(dims), 0.0), Tensor::from_data(TensorData::new(none, [batch, 1, 1, 1]), &device))
        }
    };
    let sum = k.clone().sum_dim(2).transpose();
    let numerator = q.clone().matmul(k.transpose().matmul(v));
    head_first(numerator / (q.matmul(sum) + none))
}

/// `sum_r exp(log_prior_r) phi(k_jr)`, `[B,H,S,D]`.
fn mix(inputs: &Inputs, heads: usize, mask: &Mask) -> Tensor<4> {
    let k = component_keys(inputs, mask);
    let components = k.dims()[2];
    let k = repeat_heads(features(k.permute([0, 3, 2, 1, 4])), heads);
    let k = match inputs.get::<2>("log_prior") {
        Some(log_prior) => k * log_prior.exp().reshape([1, heads, components, 1, 1]),
        None => k,
    };
    k.sum_dim(2).squeeze_dim(2)
}

/// `elu(x) + 1`: `x + 1` above 0, `exp(x)` below, without the cancellation of `exp(x) - 1 + 1`.
fn features<const R: usize>(x: Tensor<R>) -> Tensor<R> {
    x.clone().clamp_max(0.0).exp() + x.clamp_min(0.0)
}
