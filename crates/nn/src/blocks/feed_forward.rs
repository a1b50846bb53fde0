//! The part of a block that treats each token separately.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::{Context, Init, Place, drop_out};
use crate::{
    config::{Activation, ModelConfig},
    ops,
};

/// `activation(x w_1 + b_1) w_2 + b_2`, or gated `(activation(x w_gate + b_gate) * (x w_1 + b_1)) w_2 + b_2`.
#[derive(Module, Debug)]
pub struct FeedForward {
    w_1: Param<Tensor<2>>,
    b_1: Option<Param<Tensor<1>>>,
    /// Absent without gating.
    w_gate: Option<Param<Tensor<2>>>,
    b_gate: Option<Param<Tensor<1>>>,
    w_2: Param<Tensor<2>>,
    b_2: Option<Param<Tensor<1>>>,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    dropout: f32,
}

impl FeedForward {
    /// Parameters by [`Init::projection`], the second scaled by `gain`; biases 0.
    pub fn new(config: &ModelConfig, gain: f64, init: &Init) -> Self {
        let (width, hidden) = (config.width, config.feed_forward);
        let bias = config.feed_forward_bias.unwrap_or(config.bias);
        Self {
            w_1: init.projection("w_1", [width, hidden], 1.0),
            b_1: bias.then(|| init.constant([hidden], 0.0)),
            w_gate: config.gated.then(|| init.projection("w_gate", [width, hidden], 1.0)),
            b_gate: (config.gated && bias).then(|| init.constant([hidden], 0.0)),
            w_2: init.projection("w_2", [hidden, width], gain),
            b_2: bias.then(|| init.constant([width], 0.0)),
            activation: config.activation,
            dropout: config.rate(),
        }
    }

    /// `x [B,N,d]` to the same shape.
    pub fn forward(&self, x: Tensor<3>, context: &Context) -> Tensor<3> {
        let (curve, b_1) = (self.activation.curve(), self.b_1.as_ref().map(Param::val));
        let hidden = match &self.w_gate {
            None => ops::activation(ops::linear(x, self.w_1.val(), None), b_1, curve),
            Some(w_gate) => {
                let gate = ops::linear(x.clone(), w_gate.val(), self.b_gate.as_ref().map(Param::val));
                ops::gated(gate, ops::linear(x, self.w_1.val(), b_1), curve)
            }
        };
        let hidden = drop_out(hidden, self.dropout, context, Place::Hidden);
        ops::linear(hidden, self.w_2.val(), self.b_2.as_ref().map(Param::val))
    }
}
