//! A causal language model.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use regard_kernels::{Error, Storage};

use super::{Body, ModelConfig, Sizes, TokenBatch, head::Head};
use crate::{
    attention::{AttentionConfig, DecodeState},
    blocks::{Context, Init},
    ops,
};

/// Embeddings, causal blocks, and a head over the vocabulary.
///
/// Generation, one token at a time:
///
/// ```
/// use burn::tensor::Device;
/// use regard_kernels::Storage;
/// use regard_nn::{attention::AttentionConfig, models::{LanguageModel, ModelConfig}};
///
/// let (config, attention) = (ModelConfig::default(), AttentionConfig::default());
/// let (vocabulary, context, seed) = (10, 8, 1);
/// let model = LanguageModel::new(&config, &attention, vocabulary, context, seed, &Device::flex())?;
/// let mut state = model.decoder(1, Storage::F32)?;
/// for token in [3, 1, 4] {
///     let logits = model.step(&[token], &mut state)?;
///     assert_eq!(logits.dims(), [1, vocabulary]);
/// }
/// assert_eq!(state.position(), 3);
/// # Ok::<(), regard_kernels::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct LanguageModel {
    body: Body,
    output: Head,
}

/// State of a model that decodes token by token.
#[derive(Debug)]
pub struct LanguageState {
    layers: Vec<DecodeState>,
    batch: usize,
}

impl LanguageState {
    /// Tokens taken so far.
    pub fn position(&self) -> usize {
        self.layers[0].position()
    }

    /// Bytes that the state holds now.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(DecodeState::bytes).sum()
    }
}

impl LanguageModel {
    /// A model of sequences of at most `context` tokens below `vocabulary`. Its attention is causal whatever
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
        let attention = AttentionConfig { causal: true, ..attention.clone() };
        let sizes = config.sizes(&attention, vocabulary, vocabulary, context)?;
        let init = Init::new(seed, device);
        Ok(Self { body: Body::new(config, &attention, sizes, &init)?, output: Head::new(config, vocabulary, &init) })
    }

    /// Logits `[B,N,vocabulary]`: those at position `i` are of token `i + 1`.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub fn forward(&self, tokens: &TokenBatch, context: &Context) -> Tensor<3> {
        self.head(self.body.forward(tokens, context))
    }

    /// Mean cross entropy, `[1]`, in nats per token, of `targets [B,N]` over those that are not negative. `smoothing` is
    /// the share of the target's probability spread over all tokens.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses, or targets of another number.
    pub fn loss(&self, tokens: &TokenBatch, targets: Arc<[i32]>, smoothing: f32, context: &Context) -> Tensor<1> {
        let logits = self.forward(tokens, context);
        let [batch, length, vocabulary] = logits.dims();
        ops::cross_entropy(logits.reshape([batch * length, vocabulary]), targets, smoothing)
    }

    /// A fresh state for [`LanguageModel::step`] on `batch` rows, whose keys and values are kept as `storage` says.
    ///
    /// # Errors
    /// A mechanism without a decode state under its options.
    pub fn decoder(&self, batch: usize, storage: Storage) -> Result<LanguageState, Error> {
        if batch == 0 {
            return Err(Error::option("batch", 0, "at least one row"));
        }
        Ok(LanguageState { layers: self.body.decoder(storage)?, batch })
    }

    /// Logits `[B,vocabulary]` after one more token of every row. Meant for a model without autodiff
    /// ([`Module::valid`]): gradients do not flow through the state.
    ///
    /// # Errors
    /// A number of tokens other than the rows of the state, or a token or position that the model does not have.
    pub fn step(&self, tokens: &[i32], state: &mut LanguageState) -> Result<Tensor<2>, Error> {
        let Sizes { vocabulary, context, .. } = self.sizes();
        if tokens.len() != state.batch {
            return Err(Error::shape("tokens", &[tokens.len()], format!("{} rows", state.batch)));
        }
        if state.position() >= context {
            return Err(Error::option("position", state.position(), format!("below {context}, the model's context")));
        }
        TokenBatch::full(tokens, state.batch)?.check(vocabulary, context)?;
        let logits = self.head(self.body.decode(tokens, &mut state.layers));
        Ok(logits.reshape([state.batch, vocabulary]))
    }

    /// Queries, keys and values `[B,N,heads,D]` of every block, in evaluation; `None` unless attention is softmax.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub fn projections(&self, tokens: &TokenBatch) -> Option<Vec<[Tensor<4>; 3]>> {
        self.body.projections(tokens)
    }

    /// Sizes.
    pub fn sizes(&self) -> Sizes {
        self.body.sizes()
    }

    /// Options of the attention.
    pub fn attention(&self) -> &AttentionConfig {
        self.body.options()
    }

    fn head(&self, x: Tensor<3>) -> Tensor<3> {
        self.output.logits(x, self.body.token_embedding())
    }
}
