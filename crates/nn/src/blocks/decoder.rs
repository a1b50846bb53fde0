//! One block of a decoder that reads a second sequence.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use regard_kernels::{Error, Mask, Padding, Storage};

use super::{
    Context, FeedForward, Init, Norm, Place, Positions,
    block::{residual, residual_gain},
    drop_out,
};
use crate::{
    attention::{Attention, DecodeState, KeyState},
    config::{Attentions, DECODER, ModelConfig, NormPlace, at_place, shared_by_layers},
};

/// Causal self-attention, attention to a second sequence, feed-forward, each with its residual sum
/// (Vaswani et al. 2017, section 3.1), normalised where a [`Block`](super::Block) is.
#[derive(Module, Debug)]
pub struct DecoderBlock {
    norm_1: Norm,
    /// Absent where all blocks of a model share one.
    attention: Option<Attention>,
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

/// State of a block between decoded tokens.
#[derive(Debug)]
pub struct BlockState {
    /// Of the previous tokens.
    own: DecodeState,
    /// The memory's keys and values, projected once.
    keys: KeyState,
}

impl BlockState {
    /// Tokens taken so far.
    pub fn position(&self) -> usize {
        self.own.position()
    }

    /// Bytes that the state holds now.
    pub fn bytes(&self) -> usize {
        self.own.bytes() + self.keys.bytes()
    }

    /// Batch row `i` continues from the state of row `rows[i]`. `same_memory`: every row still reads the same memory.
    pub(crate) fn reorder(&mut self, rows: &[usize], same_memory: bool) {
        self.own.reorder(rows);
        if !same_memory {
            self.keys = self.keys.clone().select(rows);
        }
    }
}

impl DecoderBlock {
    /// A block of a model of `config.layers` blocks; `context` is the length of its longest sequence.
    ///
    /// # Errors
    /// Options that [`Attentions::check`] refuses, or that do not fit the sizes.
    pub fn new(config: &ModelConfig, attentions: &Attentions, context: usize, init: &Init) -> Result<Self, Error> {
        attentions.check()?;
        let placed = attentions.clone().placed();
        let [_, own, cross] = placed.named().map(|(place, options)| {
            move |init: Init| Attention::new(config, options, context, &init).map_err(|error| at_place(place, error))
        });
        let has_own = !shared_by_layers(&placed.decoder);
        Ok(Self {
            norm_1: Norm::new(config, config.width, &init.part("norm_1")),
            attention: has_own.then(|| own(init.part("attention"))).transpose()?,
            norm_cross: Norm::new(config, config.width, &init.part("norm_cross")),
            cross_attention: cross(init.part("cross_attention"))?,
            norm_2: Norm::new(config, config.width, &init.part("norm_2")),
            ff: FeedForward::new(config, residual_gain(config), &init.part("ff")),
            norm: config.norm,
            dropout: config.rate(),
        })
    }

    /// `x [B,N,d]` to the same shape; `padding` says which of its tokens are real. `shared` is the self-attention of a
    /// model whose blocks share one.
    pub fn forward(
        &self,
        x: Tensor<3>,
        padding: Option<Arc<Padding>>,
        memory: &Memory,
        shared: Option<&Attention>,
        context: &Context,
    ) -> Tensor<3> {
        let attention = self.attention_or(shared);
        let own = attention.mask(padding.clone());
        let [batch, tokens, _] = x.dims();
        // Explicit: where both sequences have the same length, a mask without it takes the keys' padding for the queries'.
        let query_valid = padding.unwrap_or_else(|| Arc::new(Padding::from_lengths(&vec![tokens; batch], tokens)));
        let cross = Mask { query_valid: Some(query_valid), ..Mask::none().with_valid(memory.padding.clone()) };
        let attend = |x: Tensor<3>| {
            let out = attention.forward(x.clone(), x, &own, context, Place::Weights);
            drop_out(out, self.dropout, context, Place::Attention)
        };
        let read = |x: Tensor<3>| {
            let out = self.cross_attention.forward(x, memory.states.clone(), &cross, context, Place::CrossWeights);
            drop_out(out, self.dropout, context, Place::CrossAttention)
        };
        let feed = |x| drop_out(self.ff.forward(x, context), self.dropout, context, Place::FeedForward);
        self.residuals(x, attend, read, feed)
    }

    /// A fresh state for [`DecoderBlock::decode`] over memory states `[B,S,d]`.
    ///
    /// # Errors
    /// Self-attention that cannot decode token by token.
    pub fn decoder(&self, memory: Tensor<3>, shared: Option<&Attention>) -> Result<BlockState, Error> {
        Ok(BlockState {
            own: self.own_decoder(shared)?,
            keys: self.cross_attention.project_keys(memory, Positions::START),
        })
    }

    pub(crate) fn own_decoder(&self, shared: Option<&Attention>) -> Result<DecodeState, Error> {
        self.attention_or(shared).decoder(Storage::F32).map_err(|error| at_place(DECODER, error))
    }

    /// The next token `x [B,1,d]` of every row; `padding` is the memory's.
    pub fn decode(
        &self,
        x: Tensor<3>,
        padding: Option<Arc<Padding>>,
        shared: Option<&Attention>,
        state: &mut BlockState,
    ) -> Tensor<3> {
        let BlockState { own, keys } = state;
        let context = Context::evaluation();
        let cross = Mask::none().with_valid(padding);
        let attend = |x| self.attention_or(shared).decode(x, own);
        let read = |x| self.cross_attention.attend(x, keys.clone(), &cross, &context, Place::CrossWeights);
        self.residuals(x, attend, read, |x| self.ff.forward(x, &context))
    }

    /// Takes over the buffers of `other`, a copy of this block that saw one more batch.
    pub(crate) fn adopt_buffers(&self, other: &Self) {
        if let (Some(own), Some(other)) = (&self.attention, &other.attention) {
            own.adopt_buffers(other);
        }
        self.cross_attention.adopt_buffers(&other.cross_attention);
    }

    fn attention_or<'a>(&'a self, shared: Option<&'a Attention>) -> &'a Attention {
        self.attention.as_ref().or(shared).expect("a model without shared attention gives every block its own")
    }

    fn residuals(
        &self,
        x: Tensor<3>,
        attend: impl FnOnce(Tensor<3>) -> Tensor<3>,
        read: impl FnOnce(Tensor<3>) -> Tensor<3>,
        feed: impl FnOnce(Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let x = residual(self.norm, x, &self.norm_1, attend);
        let x = residual(self.norm, x, &self.norm_cross, read);
        residual(self.norm, x, &self.norm_2, feed)
    }
}
