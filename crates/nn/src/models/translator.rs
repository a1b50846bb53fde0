//! A transformer that reads one sequence and writes another.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use regard_kernels::{Error, Padding};

use super::{
    ModelConfig, Sizes, TokenBatch,
    decoder::Decoder,
    embeddings::Embeddings,
    encoder::Encoder,
    head::{Head, counted},
};
use crate::{
    blocks::{BlockState, Context, Init, Memory},
    config::{Attentions, ENCODER, at_place},
    ops,
};

/// Encoder, decoder, and a head over the vocabulary without bias (Vaswani et al. 2017).
///
/// One vocabulary and one table of token vectors serve the source, the target and, where the head is tied, the logits. Both
/// stacks have `model.layers` blocks.
#[derive(Module, Debug)]
pub struct Translator {
    token_embedding: Param<Tensor<2>>,
    encoder: Encoder,
    decoder: Decoder,
    /// `[d,vocabulary]`; the token embedding where absent.
    output: Head,
    #[module(skip)]
    attentions: Attentions,
    #[module(skip)]
    sizes: Sizes,
}

/// State of a translator between generated tokens.
#[derive(Debug)]
pub struct TranslationState {
    layers: Vec<BlockState>,
    /// Padding of the memory, one row per row of the state.
    padding: Option<Arc<Padding>>,
    /// Row of the memory that each row reads.
    sources: Vec<usize>,
}

impl TranslationState {
    /// Rows that decode side by side.
    pub fn rows(&self) -> usize {
        self.sources.len()
    }

    /// Row of the memory given to [`Translator::start`] that each row reads.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// Tokens taken so far.
    pub fn position(&self) -> usize {
        self.layers[0].position()
    }

    /// Bytes that the state holds now.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(BlockState::bytes).sum()
    }

    /// Row `i` continues from the state of row `rows[i]`, with its source: rows may be reordered, repeated or dropped, as the
    /// hypotheses of a beam search are.
    ///
    /// # Panics
    /// If a row does not exist, or no row is left.
    pub fn reorder(&mut self, rows: &[usize]) {
        assert!(!rows.is_empty(), "a state has at least one row");
        let sources: Vec<usize> = rows.iter().map(|&row| self.sources[row]).collect();
        let same_memory = sources == self.sources;
        self.layers.iter_mut().for_each(|layer| layer.reorder(rows, same_memory));
        if let (Some(padding), false) = (&self.padding, same_memory) {
            let real = rows.iter().flat_map(|&row| padding.row(row).iter().copied()).collect();
            let selected = Padding::new(rows.len(), padding.length(), real).expect("a whole row each");
            self.padding = Some(Arc::new(selected));
        }
        self.sources = sources;
    }
}

impl Translator {
    /// A translator between sequences of at most `context` tokens below `vocabulary`. The same seed gives the same
    /// parameters on any device; a device with autodiff gives a model that trains. What each place of attention demands
    /// is set whatever `attentions` say.
    ///
    /// # Errors
    /// Sizes or options that do not fit each other, attention that its place does not allow, or a decoder's
    /// attention that cannot decode token by token; the error names the place.
    pub fn new(
        config: &ModelConfig,
        attentions: &Attentions,
        vocabulary: usize,
        context: usize,
        seed: u64,
        device: &Device,
    ) -> Result<Self, Error> {
        config.check_places(attentions)?;
        let attentions = attentions.clone().placed();
        let encoder = &attentions.encoder;
        let sizes = config.sizes(encoder, vocabulary, vocabulary, context)?;
        let init = Init::new(seed, device);
        Ok(Self {
            token_embedding: Embeddings::tokens(config, encoder.position, vocabulary, &init),
            encoder: Encoder::new(config, encoder, context, &init.part("encoder"))
                .map_err(|error| at_place(ENCODER, error))?,
            decoder: Decoder::new(config, &attentions, context, &init.part("decoder"))?,
            output: Head::new(config, vocabulary, &init),
            attentions,
            sizes,
        })
    }

    /// States `[B,S,d]` of a source: the memory that the decoder reads.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub fn encode(&self, source: &TokenBatch, context: &Context) -> Tensor<3> {
        self.encoder.forward(self.token_embedding.val(), source, context)
    }

    /// Logits `[B,N,vocabulary]`: those at position `i` are of the token after the first `i + 1` of `target`, whose rows
    /// start with [`BEGIN`](super::special::BEGIN).
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses, or two batches of different numbers of rows.
    pub fn forward(&self, source: &TokenBatch, target: &TokenBatch, context: &Context) -> Tensor<3> {
        self.logits(self.states(source, target, context))
    }

    /// As [`Translator::forward`], of the positions whose target is not negative alone: their logits
    /// `[counted,vocabulary]`, row by row, and targets. Where there are none, one row whose target does not count.
    ///
    /// # Panics
    /// As [`Translator::forward`], or if there is not one target for each position.
    pub fn forward_counted(
        &self,
        source: &TokenBatch,
        target: &TokenBatch,
        targets: &[i32],
        context: &Context,
    ) -> (Tensor<2>, Arc<[i32]>) {
        let (states, targets) = counted(self.states(source, target, context), targets);
        (self.logits(states), targets)
    }

    /// Mean cross entropy, `[1]`, in nats per token, of `targets [B,N]` over those that are not negative. `smoothing` is
    /// the share of the target's probability spread over all tokens.
    ///
    /// # Panics
    /// As [`Translator::forward_counted`].
    pub fn loss(
        &self,
        source: &TokenBatch,
        target: &TokenBatch,
        targets: Arc<[i32]>,
        smoothing: f32,
        context: &Context,
    ) -> Tensor<1> {
        let (logits, targets) = self.forward_counted(source, target, &targets, context);
        ops::cross_entropy(logits, targets, smoothing)
    }

    /// A state for [`Translator::step`] over the `memory [B,S,d]` that [`Translator::encode`] made of a source with this
    /// `padding`: one row per row of the source. The memory's keys and values are projected here, once.
    ///
    /// # Errors
    /// Padding of another batch or length.
    pub fn start(&self, memory: Tensor<3>, padding: Option<Arc<Padding>>) -> Result<TranslationState, Error> {
        let [batch, length, _] = memory.dims();
        if let Some(padding) = &padding {
            Error::check_shape("valid", &[padding.batch(), padding.length()], &[batch, length])?;
        }
        Ok(TranslationState { layers: self.decoder.start(&memory)?, padding, sources: (0..batch).collect() })
    }

    /// Logits `[rows,vocabulary]` of what follows one more token of every row, the first of which is
    /// [`BEGIN`](super::special::BEGIN). Meant for a model without autodiff ([`Module::valid`]): gradients do not flow
    /// through the state.
    ///
    /// # Errors
    /// A number of tokens other than the rows of the state, or a token or position that the model does not have.
    pub fn step(&self, tokens: &[i32], state: &mut TranslationState) -> Result<Tensor<2>, Error> {
        let Sizes { vocabulary, context, .. } = self.sizes;
        let rows = state.rows();
        if tokens.len() != rows {
            return Err(Error::shape("tokens", &[tokens.len()], format!("{rows} rows")));
        }
        if state.position() >= context {
            return Err(Error::option("position", state.position(), format!("below {context}, the model's context")));
        }
        let batch = TokenBatch::full(tokens, rows)?;
        batch.check(vocabulary, context)?;
        let TranslationState { layers, padding, .. } = state;
        let states = self.decoder.decode(self.token_embedding.val(), &batch, padding, layers);
        Ok(self.logits(states).reshape([rows, vocabulary]))
    }

    /// Sizes; heads are those of the encoder.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Options of the attentions, each with what its place demands.
    pub fn attentions(&self) -> &Attentions {
        &self.attentions
    }

    fn states(&self, source: &TokenBatch, target: &TokenBatch, context: &Context) -> Tensor<3> {
        let memory = Memory { states: self.encode(source, context), padding: source.padding.clone() };
        self.decoder.forward(self.token_embedding.val(), target, &memory, context)
    }

    fn logits<const D: usize>(&self, states: Tensor<D>) -> Tensor<D> {
        self.output.logits(states, self.token_embedding.val())
    }
}
