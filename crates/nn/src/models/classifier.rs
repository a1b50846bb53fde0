//! A classifier of sequences or of pairs of them.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use regard_kernels::Error;

use super::{Body, ModelConfig, Pooling, Sizes, TokenBatch, pooling::pooled};
use crate::{
    attention::AttentionConfig,
    blocks::{Context, Init},
    ops,
};

/// Embeddings, blocks, one vector per sequence, and a linear head over classes: of each sequence, or of each pair.
///
/// The head of pairs reads `[a, b, a * b, a - b]` of the vectors of both sequences, which the same blocks make.
///
/// A training step:
///
/// ```
/// use burn::{optim::{AdamWConfig, GradientsParams}, tensor::Device};
/// use regard_nn::{
///     attention::AttentionConfig,
///     blocks::Context,
///     models::{Classifier, ModelConfig, TokenBatch},
///     ops::cross_entropy,
/// };
///
/// let (config, attention) = (ModelConfig::default(), AttentionConfig::default());
/// let (vocabulary, classes, length, seed) = (10, 2, 4, 1);
/// let model = Classifier::new(&config, &attention, vocabulary, classes, length, seed, &Device::flex().autodiff())?;
///
/// let tokens = TokenBatch::full([1, 2, 3, 4, 5, 6, 7, 8], 2)?;
/// let logits = model.forward(&tokens, &Context::training(seed, 0));
/// let loss = cross_entropy(logits, [0, 1], 0.0);
/// let gradients = GradientsParams::from_grads(loss.backward(), &model);
/// let model = AdamWConfig::new().init().step(1e-3, model, gradients);
/// assert_eq!(model.sizes().outputs, classes);
/// # Ok::<(), regard_kernels::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Classifier {
    body: Body,
    /// Scores of attention pooling, `[d,1]`.
    pool: Option<Param<Tensor<2>>>,
    head: Param<Tensor<2>>,
    b_head: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pooling: Pooling,
    #[module(skip)]
    pairs: bool,
}

impl Classifier {
    /// A classifier of sequences of at most `context` tokens below `vocabulary`. The same seed gives the same
    /// parameters on any device; a device with autodiff gives a model that trains.
    ///
    /// # Errors
    /// Sizes or options that do not fit each other.
    pub fn new(
        config: &ModelConfig,
        attention: &AttentionConfig,
        vocabulary: usize,
        classes: usize,
        context: usize,
        seed: u64,
        device: &Device,
    ) -> Result<Self, Error> {
        Self::build(config, attention, vocabulary, classes, context, &Init::new(seed, device), false)
    }

    /// A classifier of pairs of sequences; arguments as for [`Classifier::new`].
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use regard_nn::{
    ///     attention::AttentionConfig,
    ///     blocks::Context,
    ///     models::{Classifier, ModelConfig, TokenBatch},
    /// };
    ///
    /// let (config, attention) = (ModelConfig::default(), AttentionConfig::default());
    /// let model = Classifier::of_pairs(&config, &attention, 10, 2, 4, 1, &Device::flex())?;
    /// // Two pairs: rows 0 and 1, rows 2 and 3.
    /// let tokens = TokenBatch::full([1, 2, 3, 4, 5, 6, 7, 8], 4)?;
    /// assert_eq!(model.forward(&tokens, &Context::evaluation()).dims(), [2, 2]);
    /// # Ok::<(), regard_kernels::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Classifier::new`].
    pub fn of_pairs(
        config: &ModelConfig,
        attention: &AttentionConfig,
        vocabulary: usize,
        classes: usize,
        context: usize,
        seed: u64,
        device: &Device,
    ) -> Result<Self, Error> {
        Self::build(config, attention, vocabulary, classes, context, &Init::new(seed, device), true)
    }

    fn build(
        config: &ModelConfig,
        attention: &AttentionConfig,
        vocabulary: usize,
        classes: usize,
        context: usize,
        init: &Init,
        pairs: bool,
    ) -> Result<Self, Error> {
        let sizes = config.sizes(attention, vocabulary, classes, context)?;
        let width = config.width;
        let features = if pairs { 4 * width } else { width };
        Ok(Self {
            body: Body::new(config, attention, sizes, init)?,
            pool: (config.pooling == Pooling::Attention).then(|| init.projection("pool", [width, 1], 1.0)),
            head: init.projection("head", [features, classes], 1.0),
            b_head: config.bias.then(|| init.constant([classes], 0.0)),
            pooling: config.pooling,
            pairs,
        })
    }

    /// Logits `[B,classes]`; of pairs, whose sequences are rows `2 i` and `2 i + 1`, `[B/2,classes]`.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses, or an odd number of rows of pairs.
    pub fn forward(&self, tokens: &TokenBatch, context: &Context) -> Tensor<2> {
        let mut features = self.vectors(tokens, context);
        if self.pairs {
            let [rows, _, width] = features.dims();
            assert!(rows % 2 == 0, "two rows a pair, not {rows} in all");
            let both = features.reshape([rows / 2, 2, width]);
            let [a, b] = [0, 1].map(|place| both.clone().narrow(1, place, 1));
            features = Tensor::cat(vec![a.clone(), b.clone(), a.clone() * b.clone(), a - b], 2);
        }
        let [batch, _, classes] = [features.dims()[0], 1, self.body.sizes().outputs];
        ops::linear(features, self.head.val(), self.b_head.as_ref().map(Param::val)).reshape([batch, classes])
    }

    /// One vector per sequence, `[B,1,d]`, of any number of sequences.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub fn vectors(&self, tokens: &TokenBatch, context: &Context) -> Tensor<3> {
        let states = self.body.forward(tokens, context);
        pooled(states, self.pool.as_ref().map(Param::val), self.pooling, tokens.padding.as_deref(), context)
    }

    /// The token vectors `[vocabulary,d]`.
    pub fn token_embedding(&self) -> Tensor<2> {
        self.body.token_embedding()
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
