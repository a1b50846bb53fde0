//! A stack of blocks that writes one sequence and reads another.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use regard_kernels::{Error, Padding};

use super::{ModelConfig, NormPlace, TokenBatch, embeddings::Embeddings};
use crate::{
    attention::Attention,
    blocks::{
        BlockState, Context, DecoderBlock, Init, Memory, Norm, Place, Positions, Stack, drop_out, recomputed_decoder,
    },
    config::{Attentions, DECODER, at_place, shared_by_layers},
    ops::single,
};

/// Positions, blocks and the last norm: token numbers and a memory to states `[B,N,d]`.
#[derive(Module, Debug)]
pub(super) struct Decoder {
    embeddings: Embeddings,
    /// The one self-attention of all blocks, where they share it.
    attention: Option<Attention>,
    layers: Vec<DecoderBlock>,
    norm_f: Option<Norm>,
    #[module(skip)]
    dropout: f32,
    #[module(skip)]
    checkpointing: bool,
}

impl Decoder {
    /// `attentions` have been placed.
    ///
    /// # Errors
    /// Sizes or options that do not fit each other, or self-attention that cannot decode token by token.
    pub fn new(config: &ModelConfig, attentions: &Attentions, context: usize, init: &Init) -> Result<Self, Error> {
        let own = &attentions.decoder;
        let layer = |i| DecoderBlock::new(config, attentions, context, &init.part("layers").part(i));
        let shared = || Attention::new(config, own, context, &init.part("attention"));
        let decoder = Self {
            embeddings: Embeddings::new(config, own.position, context, init),
            attention: shared_by_layers(own).then(shared).transpose().map_err(|error| at_place(DECODER, error))?,
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            norm_f: (config.norm == NormPlace::Pre).then(|| Norm::new(config, config.width, &init.part("norm_f"))),
            dropout: config.rate(),
            checkpointing: config.checkpointing,
        };
        // Without a decode state a decoder can be trained but never translates: better an error before training.
        decoder.layers.iter().try_for_each(|block| block.own_decoder(decoder.attention.as_ref()).map(drop))?;
        Ok(decoder)
    }

    /// States `[B,N,d]` of `tokens`, whose vectors are rows of `table`.
    pub fn forward(&self, table: Tensor<2>, tokens: &TokenBatch, memory: &Memory, context: &Context) -> Tensor<3> {
        let context = context.in_stack(Stack::Decoder);
        let x = self.embeddings.embed(table, tokens, Positions::START);
        let mut x = context.precision.of(drop_out(x, self.dropout, &context.at_layer(0), Place::Embedding));
        let memory = &Memory { states: context.precision.of(memory.states.clone()), ..memory.clone() };
        for (i, block) in self.layers.iter().enumerate() {
            let context = context.at_layer(i + 1);
            let (shared, padding) = (self.attention.as_ref(), tokens.padding.clone());
            x = match self.checkpointing && context.training {
                true => recomputed_decoder(block, shared, x, padding, memory, &context),
                false => block.forward(x, padding, memory, shared, &context),
            };
        }
        single(self.last_norm(x))
    }

    /// States `[B,1,d]` of the next token of every row; `padding` is the memory's.
    pub fn decode(
        &self,
        table: Tensor<2>,
        tokens: &TokenBatch,
        padding: &Option<Arc<Padding>>,
        states: &mut [BlockState],
    ) -> Tensor<3> {
        let mut x = self.embeddings.embed(table, tokens, Positions::From(states[0].position()));
        for (block, state) in self.layers.iter().zip(states) {
            x = block.decode(x, padding.clone(), self.attention.as_ref(), state);
        }
        self.last_norm(x)
    }

    /// Fresh states for [`Decoder::decode`] over memory states `[B,S,d]`, one per block.
    pub fn start(&self, memory: &Tensor<3>) -> Result<Vec<BlockState>, Error> {
        self.layers.iter().map(|block| block.decoder(memory.clone(), self.attention.as_ref())).collect()
    }

    fn last_norm(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.norm_f {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}
