//! Fastformer's additive attention.

use burn::tensor::Tensor;
use regard_kernels::{AttentionOptions, Call, mechanism::AdditiveScores};

use super::{
    Operand, apply,
    composed::{Visible, head_first, real_keys, real_queries, uses_kernel},
};

/// Parameters of additive attention.
#[derive(Clone, Debug)]
pub struct AdditiveParameters {
    /// Score vectors of the queries, `[H,D]`, or `[H,H*D]` where every head's score sees all channels.
    pub score_q: Tensor<2>,
    /// Score vectors of the products with the global query, of the same shape.
    pub score_k: Tensor<2>,
    /// Output transform `[H*D,H*D]`.
    pub w_t: Tensor<2>,
}

/// `[g_k * v_i, heads concatenated] W_t + q_i` for `q k v [B,N,H,D]`, `v` absent where it is `q`: `[B,N,H*D]`
/// (arXiv 2108.09084, section 3).
///
/// # Panics
/// Shapes that do not fit each other, the options or the mask.
pub fn additive(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Option<Tensor<4>>,
    parameters: AdditiveParameters,
    options: &AttentionOptions,
    call: Call,
) -> Tensor<3> {
    if !uses_kernel(&q.device()) {
        return composed(q, k, v, parameters, options.fastformer.scores, call);
    }
    let AdditiveParameters { score_q, score_k, w_t } = parameters;
    let mut inputs: Vec<Operand> = vec![q.into(), k.into()];
    inputs.extend(v.map(Operand::from));
    inputs.extend([score_q.into(), score_k.into(), w_t.into()]);
    apply(options.operator(call).unwrap_or_else(|error| panic!("{error}")), &inputs)
}

fn composed(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Option<Tensor<4>>,
    parameters: AdditiveParameters,
    scores: AdditiveScores,
    call: Call,
) -> Tensor<3> {
    let device = q.device();
    let [batch, n, heads, width] = q.dims();
    let AdditiveParameters { score_q, score_k, w_t } = parameters;
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
