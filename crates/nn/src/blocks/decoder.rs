//! One block of a decoder that reads a second sequence.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use regard_kernels::{Error, Mask, Padding};

use super::{Context, FeedForward, Init, Norm, Place, block::residual_gain, drop_out};
use crate::{
    attention::{Attention, AttentionConfig, reads_second_sequence},
    models::{ModelConfig, NormPlace},
};

/// Causal self-attention, attention to a second sequence, feed-forward, each with its residual sum
/// (Vaswani et al. 2017, section 3.1).
#[derive(Module, Debug)]
pub struct DecoderBlock {
    norm_1: Norm,
    attention: Attention,
    norm_cross: Norm,
    cross_attention: Attention,
    norm_2: Norm,
    ff: FeedForward,
    #[module(skip)]
    norm: NormPlace,
    #[module(skip)]
    dropout: f32,
}

/// The sequence that a decoder reads.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Its states `[B,S,d]`.
    pub states: Tensor<3>,
    /// Which of them are real.
    pub padding: Option<Arc<Padding>>,
}

impl DecoderBlock {
    /// A block of a model of `config.layers` blocks; `context` is the length of its longest sequence. The self-attention
    /// is causal whatever `attention.causal` says.
    ///
    /// # Errors
    /// A mechanism that cannot read a second sequence, or options that do not fit the sizes.
    pub fn new(config: &ModelConfig, attention: &AttentionConfig, context: usize, init: &Init) -> Result<Self, Error> {
        if !reads_second_sequence(attention) {
            let expected = "a mechanism that can attend to a second sequence";
            return Err(Error::option("mechanism", attention.label(), expected));
        }
        let own = AttentionConfig { causal: true, ..attention.clone() };
        let cross = AttentionConfig { causal: false, window: None, ..attention.clone() };
        Ok(Self {
            norm_1: Norm::new(config.width, &init.part("norm_1")),
            attention: Attention::new(config, &own, context, &init.part("attention"))?,
            norm_cross: Norm::new(config.width, &init.part("norm_cross")),
            cross_attention: Attention::new(config, &cross, context, &init.part("cross_attention"))?,
            norm_2: Norm::new(config.width, &init.part("norm_2")),
            ff: FeedForward::new(config, residual_gain(config), &init.part("ff")),
            norm: config.norm,
            dropout: config.rate(),
        })
    }

    /// `x [B,N,d]` to the same shape; `padding` says which of its tokens are real.
    pub fn forward(
        &self,
        x: Tensor<3>,
        padding: Option<Arc<Padding>>,
        memory: &Memory,
        context: &Context,
    ) -> Tensor<3> {
        let own = self.attention.mask(padding.clone());
        let cross = Mask { query_valid: padding, ..Mask::none().with_valid(memory.padding.clone()) };
        let x = self.residual(x, &self.norm_1, |x| {
            let out = self.attention.forward(x.clone(), x, &own, context, Place::Weights);
            drop_out(out, self.dropout, context, Place::Attention)
        });
        let x = self.residual(x, &self.norm_cross, |x| {
            let out = self.cross_attention.forward(x, memory.states.clone(), &cross, context, Place::CrossWeights);
            drop_out(out, self.dropout, context, Place::CrossAttention)
        });
        self.residual(x, &self.norm_2, |x| {
            drop_out(self.ff.forward(x, context), self.dropout, context, Place::FeedForward)
        })
    }

    fn residual(&self, x: Tensor<3>, norm: &Norm, part: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
        match self.norm {
            NormPlace::Pre => x.clone() + part(norm.forward(x)),
            NormPlace::Post => norm.forward(x.clone() + part(x)),
        }
    }
}
