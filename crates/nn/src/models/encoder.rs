//! A stack of blocks that reads one sequence.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use regard_kernels::{Error, Mask, Padding, Storage, random::substream};

use super::{ModelConfig, NormPlace, TokenBatch, embeddings::Embeddings};
use crate::{
    attention::{Attention, AttentionConfig, DecodeState, HeadPlan, shared_by_layers},
    blocks::{Block, Context, Init, Norm, Part, Place, Positions, drop_out, recomputed},
    ops::single,
};

/// Positions, blocks and the last norm: token numbers to states `[B,N,d]`.
#[derive(Module, Debug)]
pub(super) struct Encoder {
    embeddings: Embeddings,
    /// The one attention of all blocks, where they share it.
    attention: Option<Attention>,
    /// One block where all are the same.
    layers: Vec<Block>,
    norm_f: Option<Norm>,
    /// How often the blocks run.
    #[module(skip)]
    depth: usize,
    #[module(skip)]
    options: AttentionConfig,
    #[module(skip)]
    dropout: f32,
    #[module(skip)]
    checkpointing: bool,
}

impl Encoder {
    /// # Errors
    /// Sizes or options that do not fit each other.
    pub fn new(config: &ModelConfig, attention: &AttentionConfig, context: usize, init: &Init) -> Result<Self, Error> {
        let layer = |i| Block::new(config, attention, context, &init.part("layers").part(i));
        let own_blocks = if config.shared_blocks { 1 } else { config.layers };
        let shared = || Attention::new(config, attention, context, &init.part("attention"));
        Ok(Self {
            embeddings: Embeddings::new(config, attention.position, context, init),
            attention: shared_by_layers(attention).then(shared).transpose()?,
            layers: (0..own_blocks).map(layer).collect::<Result<_, _>>()?,
            norm_f: (config.norm == NormPlace::Pre).then(|| Norm::new(config, config.width, &init.part("norm_f"))),
            depth: config.layers,
            options: attention.clone(),
            dropout: config.rate(),
            checkpointing: config.checkpointing,
        })
    }

    /// States `[B,N,d]` of `tokens`, whose vectors are rows of `table`.
    pub fn forward(&self, table: Tensor<2>, tokens: &TokenBatch, context: &Context) -> Tensor<3> {
        let x = self.embeddings.embed(table, tokens, context.positions());
        self.forward_vectors(x, tokens.padding.clone(), context)
    }

    /// States `[B,N,d]` of tokens that are vectors `x [B,N,d]` already.
    pub fn forward_vectors(&self, x: Tensor<3>, padding: Option<Arc<Padding>>, context: &Context) -> Tensor<3> {
        let mask = self.mask(padding);
        let mut x = context.precision.of(drop_out(x, self.dropout, &context.at_layer(0), Place::Embedding));
        for (i, block) in self.blocks() {
            let context = context.at_layer(i + 1);
            x = match self.checkpointing && context.training {
                true => recomputed(block, self.attention.as_ref(), x, &mask, &context),
                false => block.forward(x, &mask, self.attention.as_ref(), &context),
            };
        }
        let states = single(self.last_norm(x));
        context.at_layer(self.depth).record(Part::States, &states);
        states
    }

    /// States `[B,N,d]` of the next tokens of every row.
    pub fn decode(&self, table: Tensor<2>, tokens: &TokenBatch, states: &mut [DecodeState]) -> Tensor<3> {
        let mut x = self.embeddings.embed(table, tokens, Positions::From(states[0].position()));
        for ((_, block), state) in self.blocks().zip(states) {
            x = block.decode(x, self.attention.as_ref(), state);
        }
        self.last_norm(x)
    }

    /// The stack with the heads of its layers changed, `plan` having an entry for each; see [`Attention::planned`]. Layers that
    /// share a block take the plan of the first of them.
    ///
    /// # Errors
    /// A plan for another number of layers; heads, mechanisms or options that cannot stand there.
    pub fn planned(mut self, plan: &[Vec<HeadPlan>], seed: u64) -> Result<Self, Error> {
        if plan.len() != self.layers.len() {
            return Err(Error::option("number of layers of a plan", plan.len(), self.layers.len().to_string()));
        }
        let layers = std::mem::take(&mut self.layers).into_iter().zip(plan).enumerate();
        let planned =
            |(i, (block, plan)): (usize, (Block, &Vec<HeadPlan>))| block.planned(plan, substream(seed, i as u64));
        self.layers = layers.map(planned).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Fresh states for [`Encoder::decode`], one per block.
    pub fn decoder(&self, storage: Storage) -> Result<Vec<DecodeState>, Error> {
        self.blocks().map(|(_, block)| block.decoder(self.attention.as_ref(), storage)).collect()
    }

    /// Options of the attention.
    pub fn options(&self) -> &AttentionConfig {
        &self.options
    }

    /// Blocks with their numbers from 0, in the order in which they run.
    fn blocks(&self) -> impl Iterator<Item = (usize, &Block)> {
        self.layers.iter().cycle().take(self.depth).enumerate()
    }

    fn mask(&self, valid: Option<Arc<Padding>>) -> Mask {
        self.options.mask().with_valid(valid)
    }

    fn last_norm(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.norm_f {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}
