//! A model that gives the states of its tokens.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::Error;

use super::{Body, ModelConfig, Sizes, TokenBatch};
use crate::{
    attention::{AttentionConfig, HeadPlan},
    blocks::{Context, Init},
    ops::{self, Curve},
};

/// Embeddings and blocks: an encoder of sentences (Devlin et al. 2019), or a classifier of them where it has a head.
#[derive(Module, Debug)]
pub struct FeatureModel {
    body: Body,
    pooler: Option<Pooler>,
    /// `[d,classes]`
    head: Option<Param<Tensor<2>>>,
    b_head: Option<Param<Tensor<1>>>,
    #[module(skip)]
    last: bool,
}

/// A head over classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextHead {
    /// Classes.
    pub classes: usize,
    /// It reads the last token that is not padding, not the first one.
    pub last: bool,
    /// It has a bias.
    pub bias: bool,
}

/// `tanh(x w + b)` of the state of the first token.
#[derive(Module, Debug)]
pub struct Pooler {
    w: Param<Tensor<2>>,
    b: Param<Tensor<1>>,
}

impl Pooler {
    /// Of `width` channels.
    pub fn new(width: usize, init: &Init) -> Self {
        Self { w: init.projection("w", [width, width], 1.0), b: init.constant([width], 0.0) }
    }

    /// `x [..,d]` to the same shape.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        ops::activation(ops::linear(x, self.w.val(), None), Some(self.b.val()), Curve::Tanh)
    }
}

impl FeatureModel {
    /// A model of sequences of at most `context` tokens below `vocabulary`, with parameters by `init`.
    ///
    /// # Errors
    /// Sizes or options that do not fit each other.
    pub fn build(
        config: &ModelConfig,
        attention: &AttentionConfig,
        vocabulary: usize,
        context: usize,
        pooler: bool,
        head: Option<TextHead>,
        init: &Init,
    ) -> Result<Self, Error> {
        let width = config.width;
        let sizes = config.sizes(attention, vocabulary, head.map_or(width, |head| head.classes), context)?;
        Ok(Self {
            body: Body::new(config, attention, sizes, init)?,
            pooler: pooler.then(|| Pooler::new(width, &init.part("pooler"))),
            head: head.map(|head| init.projection("head", [width, head.classes], 1.0)),
            b_head: head.filter(|head| head.bias).map(|head| init.constant([head.classes], 0.0)),
            last: head.is_some_and(|head| head.last),
        })
    }

    /// States `[B,N,d]`.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub fn forward(&self, tokens: &TokenBatch, context: &Context) -> Tensor<3> {
        self.body.forward(tokens, context)
    }

    /// `[B,d]`, what the pooler makes of the first tokens of states `[B,N,d]`, where there is one.
    pub fn pooled(&self, states: Tensor<3>) -> Option<Tensor<2>> {
        self.pooler.as_ref().map(|pooler| pooler.forward(states.narrow(1, 0, 1).squeeze_dim::<2>(1)))
    }

    /// Logits `[B,classes]` of the states `[B,N,d]` of `tokens`, where there is a head.
    pub fn logits(&self, states: Tensor<3>, tokens: &TokenBatch) -> Option<Tensor<2>> {
        let head = self.head.as_ref()?;
        let [batch, length, width] = states.dims();
        let features = match (self.last, &self.pooler) {
            (false, Some(pooler)) => pooler.forward(states.narrow(1, 0, 1).reshape([batch, width])),
            (false, None) => states.narrow(1, 0, 1).reshape([batch, width]),
            (true, _) => {
                let real = |row: &[u8]| row.iter().rposition(|real| *real != 0).unwrap_or(0);
                let at = |b: usize| tokens.padding.as_ref().map_or(length - 1, |padding| real(padding.row(b)));
                let rows: Vec<i32> = (0..batch).map(|b| (b * length + at(b)) as i32).collect();
                ops::embedding(states.reshape([batch * length, width]), rows, [1, batch]).reshape([batch, width])
            }
        };
        Some(ops::linear(features, head.val(), self.b_head.as_ref().map(Param::val)))
    }

    /// The model with the heads of its layers changed; see [`LanguageModel::planned`](super::LanguageModel::planned).
    ///
    /// # Errors
    /// The same.
    pub fn planned(self, plan: &[Vec<HeadPlan>], seed: u64) -> Result<Self, Error> {
        Ok(Self { body: self.body.planned(plan, seed)?, ..self })
    }

    /// Whether there is a pooler.
    pub fn has_pooler(&self) -> bool {
        self.pooler.is_some()
    }

    /// Whether there is a head over classes.
    pub fn classifies(&self) -> bool {
        self.head.is_some()
    }

    /// Sizes.
    pub fn sizes(&self) -> Sizes {
        self.body.sizes()
    }

    /// Options of the attention.
    pub fn attention(&self) -> &AttentionConfig {
        self.body.options()
    }
}
