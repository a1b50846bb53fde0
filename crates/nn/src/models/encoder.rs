//! A stack of blocks that reads one sequence.

use burn::module::Module;
use burn::tensor::Tensor;
use regard_kernels::{Error, Mask, Storage};

use super::{ModelConfig, NormPlace, TokenBatch, positions::Positions};
use crate::{
    attention::{Attention, AttentionConfig, DecodeState, shared_by_layers},
    blocks::{Block, Context, Init, Norm, Part, Place, drop_out, recomputed},
};

/// Positions, blocks and the last norm: token numbers to states `[B,N,d]`.
#[derive(Module, Debug)]
pub(super) struct Encoder {
    positions: Positions,
    /// The one attention of all blocks, where they share it.
    attention: Option<Attention>,
    layers: Vec<Block>,
    norm_f: Option<Norm>,
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
        let shared = || Attention::new(config, attention, context, &init.part("attention"));
        Ok(Self {
            positions: Positions::new(attention.position, context, config.width, init),
            attention: shared_by_layers(attention).then(shared).transpose()?,
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            norm_f: (config.norm == NormPlace::Pre).then(|| Norm::new(config.width, &init.part("norm_f"))),
            options: attention.clone(),
            dropout: config.rate(),
            checkpointing: config.checkpointing,
        })
    }

    /// States `[B,N,d]` of `tokens`, whose vectors are rows of `table`.
    pub fn forward(&self, table: Tensor<2>, tokens: &TokenBatch, context: &Context) -> Tensor<3> {
        let mask = self.mask(tokens);
        let x = self.positions.embed(table, tokens.ids.clone(), [tokens.batch, tokens.length], 0);
        let mut x = drop_out(x, self.dropout, &context.at_layer(0), Place::Embedding);
        for (i, block) in self.layers.iter().enumerate() {
            let context = context.at_layer(i + 1);
            x = match self.checkpointing && context.training {
                true => recomputed(block, self.attention.as_ref(), x, &mask, &context),
                false => block.forward(x, &mask, self.attention.as_ref(), &context),
            };
        }
        let states = self.last_norm(x);
        context.at_layer(self.layers.len()).record(Part::States, &states);
        states
    }

    /// Queries, keys and values `[B,N,heads,D]` of every block in evaluation; `None` unless attention is softmax.
    pub fn projections(&self, table: Tensor<2>, tokens: &TokenBatch) -> Option<Vec<[Tensor<4>; 3]>> {
        let mask = self.mask(tokens);
        let context = Context::evaluation();
        let mut x = self.positions.embed(table, tokens.ids.clone(), [tokens.batch, tokens.length], 0);
        let mut all = Vec::new();
        for (i, block) in self.layers.iter().enumerate() {
            all.push(block.projections(x.clone(), self.attention.as_ref())?);
            x = block.forward(x, &mask, self.attention.as_ref(), &context.at_layer(i + 1));
        }
        Some(all)
    }

    /// States `[B,1,d]` of the next token of every row.
    pub fn decode(&self, table: Tensor<2>, tokens: &[i32], states: &mut [DecodeState]) -> Tensor<3> {
        let position = states[0].position();
        let mut x = self.positions.embed(table, tokens.into(), [tokens.len(), 1], position);
        for (block, state) in self.layers.iter().zip(states) {
            x = block.decode(x, self.attention.as_ref(), state);
        }
        self.last_norm(x)
    }

    /// Fresh states for [`Encoder::decode`], one per block.
    pub fn decoder(&self, storage: Storage) -> Result<Vec<DecodeState>, Error> {
        self.layers.iter().map(|block| block.decoder(self.attention.as_ref(), storage)).collect()
    }

    /// Options of the attention.
    pub fn options(&self) -> &AttentionConfig {
        &self.options
    }

    fn mask(&self, tokens: &TokenBatch) -> Mask {
        Mask {
            causal: self.options.causal,
            window: self.options.window,
            valid: tokens.padding.clone(),
            query_valid: None,
        }
    }

    fn last_norm(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.norm_f {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}
