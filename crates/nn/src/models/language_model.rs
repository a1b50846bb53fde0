//! A causal language model.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use regard_kernels::{Error, Storage};

use super::{
    Body, HELD_LOGITS, ModelConfig, Sizes, TokenBatch,
    head::{Head, counted},
};
use crate::{
    attention::{AttentionConfig, DecodeState, HeadPlan},
    blocks::{Context, Init},
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
        Self::build(config, attention, vocabulary, context, &Init::new(seed, device))
    }

    /// The same with parameters by `init`.
    ///
    /// # Errors
    /// As [`LanguageModel::new`].
    pub fn build(
        config: &ModelConfig,
        attention: &AttentionConfig,
        vocabulary: usize,
        context: usize,
        init: &Init,
    ) -> Result<Self, Error> {
        let attention = AttentionConfig { causal: true, ..attention.clone() };
        let sizes = config.sizes(&attention, vocabulary, vocabulary, context)?;
        Ok(Self { body: Body::new(config, &attention, sizes, init)?, output: Head::new(config, vocabulary, init) })
    }

    /// Logits `[B,N,vocabulary]`: those at position `i` are of token `i + 1`. Those of an adaptive softmax are log
    /// probabilities.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub fn forward(&self, tokens: &TokenBatch, context: &Context) -> Tensor<3> {
        self.logits(self.states(tokens, context))
    }

    /// States `[B,N,d]` before the head, of which [`LanguageModel::logits`] can be asked for some.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub fn states(&self, tokens: &TokenBatch, context: &Context) -> Tensor<3> {
        self.body.forward(tokens, context)
    }

    /// Logits `[..,vocabulary]` of states `[..,d]`.
    pub fn logits<const D: usize>(&self, states: Tensor<D>) -> Tensor<D> {
        self.output.logits(states, self.body.token_embedding())
    }

    /// The model with the heads of its layers changed, `plan` having an entry for each layer; `seed` draws what mechanisms draw.
    ///
    /// # Errors
    /// A plan for another number of layers; heads, mechanisms or options that cannot stand there.
    pub fn planned(self, plan: &[Vec<HeadPlan>], seed: u64) -> Result<Self, Error> {
        Ok(Self { body: self.body.planned(plan, seed)?, ..self })
    }

    /// Mean cross entropy, `[1]`, in nats per token, of `targets [B,N]` over those that are not negative. `smoothing` is
    /// the share of the target's probability spread over all tokens. Of more than [`HELD_LOGITS`] logits only a part is in
    /// memory at once.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses, or targets of another number.
    pub fn loss(&self, tokens: &TokenBatch, targets: Arc<[i32]>, smoothing: f32, context: &Context) -> Tensor<1> {
        let states = self.states(tokens, context).flatten(0, 1);
        self.output.loss(states, self.body.token_embedding(), targets, smoothing, HELD_LOGITS)
    }

    /// Negative log probability, in nats, of each of `targets [B,N]` that is not negative, in order. The head sees their
    /// positions alone.
    ///
    /// # Panics
    /// As [`LanguageModel::loss`].
    pub fn nats(&self, tokens: &TokenBatch, targets: &[i32], context: &Context) -> Vec<f64> {
        if targets.iter().all(|target| *target < 0) {
            return Vec::new();
        }
        let (states, targets) = counted(self.states(tokens, context), targets);
        self.output.nats(states, self.body.token_embedding(), &targets)
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
        if tokens.len() != state.batch {
            return Err(Error::shape("tokens", &[tokens.len()], format!("{} rows", state.batch)));
        }
        self.extend(tokens, state)
    }

    /// The same after the next tokens of every row, row by row: a prompt. Those of a fresh state go through the model at once.
    ///
    /// # Errors
    /// Tokens that are not whole rows, or a token or position that the model does not have.
    pub fn extend(&self, tokens: &[i32], state: &mut LanguageState) -> Result<Tensor<2>, Error> {
        let Sizes { vocabulary, context, .. } = self.sizes();
        let batch = TokenBatch::full(tokens, state.batch)?;
        let end = state.position() + batch.length;
        if end > context {
            return Err(Error::option("position", end - 1, format!("below {context}, the model's context")));
        }
        batch.check(vocabulary, context)?;
        let states = self.body.decode(&batch, &mut state.layers);
        let logits = self.logits(states.narrow(1, batch.length - 1, 1));
        Ok(logits.reshape([state.batch, vocabulary]))
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
