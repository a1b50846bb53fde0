//! Exact softmax attention.

use burn::tensor::{Tensor, TensorData};
use regard_kernels::Call;

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
    let silent = Inputs::new(q).with("k", k).with("v", v).with_some("bias", inputs.operand("bias").cloned());
    let mask = call.mask.clone();
    by_rows(Softmax { call }, &silent, &mask, 1)
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
        let scale = self.call.scale.unwrap_or((width as f64).sqrt().recip());
        let mut scores = q.mul_scalar(scale).matmul(k.transpose());
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
