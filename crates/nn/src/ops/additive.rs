//! Fastformer's additive attention.

use burn::tensor::Tensor;
use regard_kernels::{Call, mechanism::AdditiveScores};

use super::{
    Inputs,
    composed::{Visible, head_first, real_keys, real_queries},
};

/// `[g_k * v_i, heads concatenated] W_t + q_i` for `q k v [B,N,H,D]`, `v` absent where it is `q`: `[B,N,H*D]`
/// (arXiv 2108.09084, section 3). Score vectors `w_q` of the queries and `w_k` of the products with the global query are
/// `[H,D]`, or `[H,H*D]` where every head's score sees all channels; the output transform `w_t` is `[H*D,H*D]`.
pub(super) fn composed(inputs: &Inputs, scores: AdditiveScores, call: Call) -> Tensor<3> {
    let [q, k] = ["q", "k"].map(|name| inputs.tensor::<4>(name));
    let [score_q, score_k, w_t] = ["w_q", "w_k", "w_t"].map(|name| inputs.tensor::<2>(name));
    let v = inputs.get::<4>("v");
    let device = q.device();
    let [batch, n, heads, width] = q.dims();
    let visible = Visible::new(&call.mask, batch, n, n, &device);
    let (q, k) = (real_queries(q, &call.mask), real_keys(k, &call.mask));
    let v = v.map(|v| real_keys(v, &call.mask));
    // Averages of x [B,N,H,D] over the tokens that each position sees, weighted by a softmax of its scores.
    let average = |x: Tensor<4>, vectors: Tensor<2>| {
        let logits = match scores {
            AdditiveScores::Paper => (x.clone() * vectors.reshape([1, 1, heads, width])).sum_dim(3).squeeze_dim(3),
            AdditiveScores::Released => {
                x.clone().reshape([batch, n, heads * width]).matmul(vectors.transpose().unsqueeze_dim(0))
            }
        };
        let logits: Tensor<3> = logits.div_scalar((width as f64).sqrt());
        let logits = logits.swap_dims(1, 2).unsqueeze_dim::<4>(2).expand([batch, heads, n, n]);
        head_first(visible.softmax(logits).matmul(head_first(x)))
    };
    let p = average(q.clone(), score_q) * k;
    let u = average(p, score_k) * v.unwrap_or_else(|| q.clone());
    let out = u.reshape([batch, n, heads * width]).matmul(w_t.unsqueeze_dim(0));
    let out = out + q.reshape([batch, n, heads * width]);
    // A position that sees no token outputs 0, the residual included.
    out * visible.any().squeeze_dim::<3>(1)
}
