//! Exact softmax attention.

use burn::tensor::{Tensor, TensorData};
use regard_kernels::Call;

#[cfg(feature = "cube")]
use super::fused;
use super::{
    Inputs,
    composed::{
        Form, Rows, Visible, by_rows, distances, drop_weights, head_first, real_keys, real_queries, repeat_heads,
    },
};

/// `softmax(tau q k^T + bias) v` for `q [B,N,H,D]`, `k [B,S,Hk,D]`, `v [B,S,Hk,Dv]`, `bias [H,N,S]`: `[B,N,H,Dv]`.
pub(super) fn composed(inputs: &Inputs, call: Call) -> Tensor<4> {
    let [q, k, v] = ["q", "k", "v"].map(|name| inputs.tensor::<4>(name));
    let (q, k, v) = (real_queries(q, &call.mask), real_keys(k, &call.mask), real_keys(v, &call.mask));
    #[cfg(feature = "cube")]
    if let Some(out) = fused([&q, &k, &v], &call) {
        return out;
    }
    let silent = Inputs::new(q).with("k", k).with("v", v).with_some("bias", inputs.operand("bias").cloned());
    let mask = call.mask.clone();
    by_rows(Softmax { call }, &silent, &mask, 1)
}

/// The same by fused kernels, where the device has them and they take the call.
#[cfg(feature = "cube")]
fn fused([q, k, v]: [&Tensor<4>; 3], call: &Call) -> Option<Tensor<4>> {
    if call.bias || call.dropout.is_some() || !fused::is_for(&q.device()) {
        return None;
    }
    let scale = scale(call, q.dims()[3]) as f32;
    fused::attend(fused::Scored {
        q: q.clone(),
        k: k.clone().unsqueeze_dim(2),
        v: v.clone(),
        inverse: Tensor::from_floats([scale], &q.device()),
        log_prior: None,
        slopes: call.slopes.as_deref(),
        distances: false,
        mask: &call.mask,
    })
}

fn scale(call: &Call, width: usize) -> f64 {
    call.scale.unwrap_or((width as f64).sqrt().recip())
}

#[derive(Debug)]
struct Softmax {
    call: Call,
}

impl Form for Softmax {
    fn block(&self, inputs: &Inputs, rows: &Rows) -> Tensor<4> {
        let [q, k, v] = ["q", "k", "v"].map(|name| head_first(inputs.tensor::<4>(name)));
        let device = q.device();
        let [batch, heads, _, width] = q.dims();
        let (k, v) = (repeat_heads(k, heads), repeat_heads(v, heads));
        let mut scores = q.mul_scalar(scale(&self.call, width)).matmul(k.transpose());
        if let Some(bias) = inputs.get::<3>("bias") {
            scores = scores + bias.unsqueeze_dim(0);
        }
        if let Some(slopes) = &self.call.slopes {
            let slopes = TensorData::new(slopes.to_vec(), [1, heads, 1, 1]);
            scores = scores - distances(rows, &device).abs().float() * Tensor::<4>::from_data(slopes, &device);
        }
        let weights = Visible::new(&self.call.mask, batch, rows, &device).softmax(scores);
        head_first(drop_weights(weights, self.call.dropout, rows).matmul(v))
    }
}
