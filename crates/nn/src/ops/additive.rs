//! Fastformer's additive attention.

use burn::tensor::{Bool, Tensor, TensorData};
use regard_kernels::{Call, Mask, mechanism::AdditiveScores};

use super::{
    Inputs,
    composed::{head_first, real_keys, real_queries},
    features,
};

/// `[g_k * v_i, heads concatenated] W_t + q_i` for `q k v [B,N,H,D]`, `v` absent where it is `q`: `[B,N,H*D]`
/// (arXiv 2108.09084, section 3). Score vectors `w_q` of the queries and `w_k` of the products with the global query are
/// `[H,D]`, or `[H,H*D]` where every head's score sees all channels; the output transform `w_t` is `[H*D,H*D]`.
pub(super) fn composed(inputs: &Inputs, scores: AdditiveScores, call: Call) -> Tensor<3> {
    let [q, k] = ["q", "k"].map(|name| inputs.tensor::<4>(name));
    let [score_q, score_k, w_t] = ["w_q", "w_k", "w_t"].map(|name| inputs.tensor::<2>(name));
    let v = inputs.get::<4>("v");
    let [batch, n, heads, width] = q.dims();
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
        head_first(features::averages(logits.swap_dims(1, 2), head_first(x), &call.mask))
    };
    let p = average(q.clone(), score_q) * k;
    let u = average(p, score_k) * v.unwrap_or_else(|| q.clone());
    let out = u.reshape([batch, n, heads * width]).matmul(w_t.unsqueeze_dim(0));
    let out = out + q.reshape([batch, n, heads * width]);
    // A position that sees no token outputs 0, the residual included.
    match blind(&call.mask, [batch, n]) {
        Some(blind) => {
            let blind = Tensor::<3, Bool>::from_data(TensorData::new(blind, [batch, n, 1]), &out.device());
            let dims = out.dims();
            out.mask_fill(blind.expand(dims), 0.0)
        }
        None => out,
    }
}

/// Positions `[B,N]` that see no token, where there is padding.
fn blind(mask: &Mask, [batch, n]: [usize; 2]) -> Option<Vec<bool>> {
    mask.valid.as_ref()?;
    let row = |b| {
        let real = mask.valid_row(b).expect("padding has all rows");
        let first = real.iter().position(|&real| real != 0).unwrap_or(n);
        (0..n).map(move |i| first >= if mask.causal { i + 1 } else { n })
    };
    Some((0..batch).flat_map(row).collect())
}
