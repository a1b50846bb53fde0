//! Linear attention and the mixture of linear keys.

use burn::tensor::Tensor;
use regard_kernels::{Call, Mask};

use super::{
    Inputs,
    composed::{head_first, log_sum_exp, real_keys, real_queries, repeat_heads},
    features::{self, log_elu},
    gaussian_mixture::component_keys,
};

/// `phi(q_i) sum_j phi(k_j) v_j / phi(q_i) sum_j phi(k_j)` with `phi = elu + 1`, for `q [B,N,H,D]`, `v [B,S,Hk,Dv]`:
/// `[B,N,H,Dv]`. For a mixture, `phi(k_j)` becomes `sum_r exp(log_prior_r) phi(k_jr)` (arXiv 2110.08678, section 2.4).
pub(super) fn composed(inputs: &Inputs, call: Call) -> Tensor<4> {
    let [q, v] = ["q", "v"].map(|name| inputs.tensor::<4>(name));
    let heads = q.dims()[2];
    let q = log_elu(head_first(real_queries(q, &call.mask)));
    let k = mix(inputs, heads, &call.mask);
    let v = repeat_heads(head_first(real_keys(v, &call.mask)), heads);
    head_first(features::attend(q, k, v, &call.mask))
}

/// `ln sum_r exp(log_prior_r) phi(k_jr)`, `[B,H,S,D]`.
fn mix(inputs: &Inputs, heads: usize, mask: &Mask) -> Tensor<4> {
    let k = component_keys(inputs, mask);
    let components = k.dims()[2];
    let k = repeat_heads(log_elu(k.permute([0, 3, 2, 1, 4])), heads);
    let k = match inputs.get::<2>("log_prior") {
        Some(log_prior) => k + log_prior.reshape([1, heads, components, 1, 1]),
        None => k,
    };
    log_sum_exp(k).squeeze_dim(2)
}
