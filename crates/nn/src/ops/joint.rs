//! Additive attention that joins global vectors and token vectors by a sum or a matrix instead of a product, in tensor
//! operations.
//!
//! For comparison with the product: bidirectional only, on any backend. Time and memory are linear in the length: each
//! head has one row of weights over its tokens.

use burn::tensor::{Bool, Device, Tensor};
use regard_kernels::{Mask, mechanism::AdditiveScores};

use super::{
    Inputs,
    composed::{head_first, padded},
    features,
};

/// Matrices `[H,2D,D]`, or `[1,2D,D]` for all heads, that multiply a global vector and that of a token side by side:
/// `[g ; x] W`.
#[derive(Clone, Debug)]
pub struct Concatenation {
    /// For global query and keys.
    pub keys: Tensor<3>,
    /// For global key and values.
    pub values: Tensor<3>,
}

/// Which tokens of a batch are real.
#[derive(Clone)]
pub struct RealTokens {
    /// `[B,N,1]`, true at padding; absent where there is none.
    padded: Option<Tensor<3, Bool>>,
    mask: Mask,
}

impl RealTokens {
    /// Of the padding of `mask`, for `x [B,N,..]` of these first two sizes.
    pub fn new(mask: &Mask, [batch, tokens]: [usize; 2], device: &Device) -> Self {
        let padded = padded(mask, [batch, tokens, 1], device);
        Self { padded, mask: Mask::none().with_valid(mask.valid.clone()) }
    }

    /// `x [B,N,d]` with 0 at padding, whatever is there, and a gradient of 0.
    pub fn keep(&self, x: Tensor<3>) -> Tensor<3> {
        let dims = x.dims();
        match &self.padded {
            Some(padded) => x.mask_fill(padded.clone().expand(dims), 0.0),
            None => x,
        }
    }
}

/// `[u_i, heads concatenated] W_t + q_i` for `q k v [B,N,H,D]`, `v` absent where it is `q`: `[B,N,H*D]`, with
/// `p_i = join(g_q, k_i)`, `u_i = join(g_k, v_i)` and averages `g_q` of the queries and `g_k` of the `p_i`, weighted by a
/// softmax of their scores over real tokens (arXiv 2108.09084, section 3). They are joined by matrices, or summed where there
/// are none.
///
/// Inputs are those of [`attention`](super::attention) under Fastformer's options. Padding must hold finite numbers.
///
/// # Panics
/// Shapes that do not fit each other.
pub fn additive_joint(
    inputs: &Inputs,
    scores: AdditiveScores,
    matrices: Option<&Concatenation>,
    real: &RealTokens,
) -> Tensor<3> {
    let [q, k] = ["q", "k"].map(|name| inputs.tensor::<4>(name));
    let [score_q, score_k, w_t] = ["w_q", "w_k", "w_t"].map(|name| inputs.tensor::<2>(name));
    let v = inputs.get::<4>("v");
    let [batch, n, heads, width] = q.dims();
    let (queries, keys) = (head_first(q.clone()), head_first(k));
    let values = v.map_or_else(|| queries.clone(), head_first);
    // The average [B,H,1,D] of x [B,H,N,D].
    let average = |x: Tensor<4>, vectors: Tensor<2>| {
        let logits: Tensor<3> = match scores {
            AdditiveScores::Paper => x.clone().matmul(vectors.reshape([1, heads, width, 1])).squeeze_dim(3),
            AdditiveScores::Released => {
                let channels = head_first(x.clone()).reshape([batch, n, heads * width]);
                channels.matmul(vectors.transpose().unsqueeze_dim(0)).swap_dims(1, 2)
            }
        };
        features::averages(logits.div_scalar((width as f64).sqrt()), x, &real.mask)
    };
    let p = join(average(queries, score_q), keys, matrices.map(|matrices| &matrices.keys));
    let u = join(average(p.clone(), score_k), values, matrices.map(|matrices| &matrices.values));
    let out = head_first(u).reshape([batch, n, heads * width]).matmul(w_t.unsqueeze_dim(0));
    out + q.reshape([batch, n, heads * width])
}

/// `g [B,H,1,D]` joined with `x [B,H,N,D]`: their sum, or their concatenation times a matrix. The two halves of the matrix
/// are applied separately, so that the global vector is multiplied once, not once per token.
fn join(global: Tensor<4>, x: Tensor<4>, matrix: Option<&Tensor<3>>) -> Tensor<4> {
    let Some(matrix) = matrix else { return x + global };
    let width = x.dims()[3];
    let half = |from: usize| matrix.clone().narrow(1, from, width).unsqueeze_dim(0);
    x.matmul(half(width)) + global.matmul(half(0))
}
