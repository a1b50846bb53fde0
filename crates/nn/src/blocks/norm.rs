//! Normalisation of the channels of a token.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::Init;
use crate::{
    config::{ModelConfig, NormKind},
    ops,
};

/// Layer or root-mean-square norm, as `model.norm_kind` says.
#[derive(Module, Debug)]
pub struct Norm {
    weight: Param<Tensor<1>>,
    /// Absent in a root-mean-square norm.
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    epsilon: f32,
}

impl Norm {
    /// Of `width` channels; weight 1, bias 0.
    pub fn new(config: &ModelConfig, width: usize, init: &Init) -> Self {
        let bias = config.norm_kind == NormKind::Layer;
        Self {
            weight: init.constant([width], 1.0),
            bias: bias.then(|| init.constant([width], 0.0)),
            epsilon: config.norm_epsilon as f32,
        }
    }

    /// `x [B,N,d]`, normalised.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match &self.bias {
            Some(bias) => ops::layer_norm(x, self.weight.val(), bias.val(), self.epsilon),
            None => ops::rms_norm(x, self.weight.val(), self.epsilon),
        }
    }
}
