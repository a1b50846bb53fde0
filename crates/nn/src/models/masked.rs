//! A model that predicts masked tokens.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use regard_kernels::Error;

use super::{
    Body, ModelConfig, Sizes, TokenBatch,
    head::{Head, counted},
};
use crate::{
    attention::{AttentionConfig, HeadPlan},
    blocks::{Context, Init},
    ops,
};

/// Embeddings, bidirectional blocks, and a head over the vocabulary (Devlin et al. 2019, section 3.1).
#[derive(Module, Debug)]
pub struct MaskedModel {
    body: Body,
    output: Head,
}

impl MaskedModel {
    /// A model of sequences of at most `context` tokens below `vocabulary`. Its attention is not causal whatever
    /// `attention.causal` says. The same seed gives the same parameters on any device; a device with autodiff gives a
    /// model that trains.
    ///
    /// # Errors
    /// Sizes or options that do not fit each other.
    pub fn new(
        config: &ModelConfig,
        attention: &AttentionConfig,
        vocabulary: usize,
        context: usize,
        seed: u64,
        device: &Device,
    ) -> Result<Self, Error> {
        Self::build(config, attention, vocabulary, context, &Init::new(seed, device))
    }

    /// The same with parameters by `init`.
    ///
    /// # Errors
    /// As [`MaskedModel::new`].
    pub fn build(
        config: &ModelConfig,
        attention: &AttentionConfig,
        vocabulary: usize,
        context: usize,
        init: &Init,
    ) -> Result<Self, Error> {
        let attention = AttentionConfig { causal: false, ..attention.clone() };
        let sizes = config.sizes(&attention, vocabulary, vocabulary, context)?;
        Ok(Self { body: Body::new(config, &attention, sizes, init)?, output: Head::new(config, vocabulary, init) })
    }

    /// Logits `[B,N,vocabulary]` of every token, masked or not.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub fn forward(&self, tokens: &TokenBatch, context: &Context) -> Tensor<3> {
        self.logits(self.states(tokens, context))
    }

    /// States `[B,N,d]` before the head.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub fn states(&self, tokens: &TokenBatch, context: &Context) -> Tensor<3> {
        self.body.forward(tokens, context)
    }

    /// As [`MaskedModel::forward`], of the positions whose target is not negative alone: their logits
    /// `[counted,vocabulary]`, row by row, and targets. Where there are none, one row whose target does not count. The
    /// head sees those positions only, about one in seven.
    ///
    /// # Panics
    /// As [`MaskedModel::forward`], or if there is not one target for each position.
    pub fn forward_counted(&self, tokens: &TokenBatch, targets: &[i32], context: &Context) -> (Tensor<2>, Arc<[i32]>) {
        let (states, targets) = counted(self.body.forward(tokens, context), targets);
        (self.logits(states), targets)
    }

    /// Mean cross entropy, `[1]`, in nats per token, of `targets [B,N]` over those that are not negative: the masked ones.
    /// `smoothing` is the share of the target's probability spread over all tokens.
    ///
    /// # Panics
    /// As [`MaskedModel::forward_counted`].
    pub fn loss(&self, tokens: &TokenBatch, targets: Arc<[i32]>, smoothing: f32, context: &Context) -> Tensor<1> {
        let (logits, targets) = self.forward_counted(tokens, &targets, context);
        ops::cross_entropy(logits, targets, smoothing)
    }

    /// The model with the heads of its layers changed; see [`LanguageModel::planned`](super::LanguageModel::planned).
    ///
    /// # Errors
    /// The same.
    pub fn planned(self, plan: &[Vec<HeadPlan>], seed: u64) -> Result<Self, Error> {
        Ok(Self { body: self.body.planned(plan, seed)?, ..self })
    }

    /// Sizes.
    pub fn sizes(&self) -> Sizes {
        self.body.sizes()
    }

    /// Options of the attention.
    pub fn attention(&self) -> &AttentionConfig {
        self.body.options()
    }

    /// Logits `[..,vocabulary]` of states `[..,d]`.
    pub fn logits<const D: usize>(&self, states: Tensor<D>) -> Tensor<D> {
        self.output.logits(states, self.body.token_embedding())
    }
}
