//! Layer normalisation.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::Init;
use crate::ops;

/// Added to the variance before its root is taken.
pub const NORM_EPSILON: f32 = 1e-5;

/// `(x - mean) / sqrt(variance + 1e-5) * weight + bias` over the channels (Ba, Kiros and Hinton 2016).
#[derive(Module, Debug)]
pub struct Norm {
    weight: Param<Tensor<1>>,
    bias: Param<Tensor<1>>,
}

impl Norm {
    /// Weight 1, bias 0.
    pub fn new(width: usize, init: &Init) -> Self {
        Self { weight: init.constant([width], 1.0), bias: init.constant([width], 0.0) }
    }

    /// `x [B,N,d]`, normalised.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        ops::layer_norm(x, self.weight.val(), self.bias.val(), NORM_EPSILON)
    }
}
