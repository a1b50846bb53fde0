//! What every model shares: embeddings and a stack of blocks.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::{Error, Mask, mechanism::Position};

use super::{ModelConfig, NormPlace, TokenBatch};
use crate::{
    attention::{Attention, AttentionConfig, DecodeState, shared_by_layers},
    blocks::{Block, Context, Init, Norm, Place, drop_out, recomputed, sinusoidal},
    ops,
};

/// Deviation of initial token and position vectors (Radford et al. 2019).
const EMBEDDING_DEVIATION: f64 = 0.02;

/// Embeddings, blocks and the last norm: token numbers to states `[B,N,d]`.
///
/// Sinusoidal positions have the scale of 1, so there token vectors are drawn with deviation `1/sqrt(d)` and scaled by
/// `sqrt(d)` (Vaswani et al. 2017, section 3.4).
#[derive(Module, Debug)]
pub struct Body {
    token_embedding: Param<Tensor<2>>,
    position_embedding: Option<Param<Tensor<2>>>,
    /// The one attention of all blocks, where they share it.
    attention: Option<Attention>,
    layers: Vec<Block>,
    norm_f: Option<Norm>,
    #[module(skip)]
    sizes: Sizes,
    #[module(skip)]
    options: AttentionConfig,
    #[module(skip)]
    dropout: f32,
    #[module(skip)]
    checkpointing: bool,
}

/// Sizes of a model, for checks and for a cost model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Token numbers.
    pub vocabulary: usize,
    /// Longest sequence.
    pub context: usize,
    /// Channels of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub key_heads: usize,
    /// Channels of one head.
    pub head_width: usize,
    /// Hidden channels of the feed-forward part.
    pub feed_forward: usize,
    /// Classes, or the vocabulary for a language model.
    pub outputs: usize,
}

impl Body {
    /// # Errors
    /// Sizes or options that do not fit each other.
    pub(super) fn new(
        config: &ModelConfig,
        attention: &AttentionConfig,
        sizes: Sizes,
        init: &Init,
    ) -> Result<Self, Error> {
        let Sizes { vocabulary, context, width, .. } = sizes;
        let position = attention.position;
        let deviation = match position {
            Position::Sinusoidal => (width as f64).sqrt().recip(),
            _ => EMBEDDING_DEVIATION,
        };
        let layer = |i| Block::new(config, attention, context, &init.part("layers").part(i));
        let shared = || Attention::new(config, attention, context, &init.part("attention"));
        Ok(Self {
            token_embedding: init.normal("token_embedding", [vocabulary, width], deviation),
            position_embedding: (position == Position::Learned)
                .then(|| init.normal("position_embedding", [context, width], EMBEDDING_DEVIATION)),
            attention: shared_by_layers(attention).then(shared).transpose()?,
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            norm_f: (config.norm == NormPlace::Pre).then(|| Norm::new(width, &init.part("norm_f"))),
            sizes,
            options: attention.clone(),
            dropout: config.rate(),
            checkpointing: config.checkpointing,
        })
    }

    /// States `[B,N,d]` of `tokens`.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub(super) fn forward(&self, tokens: &TokenBatch, context: &Context) -> Tensor<3> {
        let mask = Mask {
            causal: self.options.causal,
            window: self.options.window,
            valid: tokens.padding.clone(),
            query_valid: None,
        };
        let x = self.embed(tokens.ids.clone(), tokens.batch, tokens.length, 0);
        let mut x = drop_out(x, self.dropout, &context.at_layer(0), Place::Embedding);
        for (i, block) in self.layers.iter().enumerate() {
            let context = context.at_layer(i + 1);
            x = match self.checkpointing && context.training {
                true => recomputed(block, self.attention.as_ref(), x, &mask, &context),
                false => block.forward(x, &mask, self.attention.as_ref(), &context),
            };
        }
        self.last_norm(x)
    }

    /// Queries, keys and values `[B,N,heads,D]` of every block in evaluation; `None` unless attention is softmax.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub(super) fn projections(&self, tokens: &TokenBatch) -> Option<Vec<[Tensor<4>; 3]>> {
        let mask = Mask {
            causal: self.options.causal,
            window: self.options.window,
            valid: tokens.padding.clone(),
            query_valid: None,
        };
        let context = Context::evaluation();
        let mut x = self.embed(tokens.ids.clone(), tokens.batch, tokens.length, 0);
        let mut all = Vec::new();
        for (i, block) in self.layers.iter().enumerate() {
            all.push(block.projections(x.clone(), self.attention.as_ref())?);
            x = block.forward(x, &mask, self.attention.as_ref(), &context.at_layer(i + 1));
        }
        Some(all)
    }

    /// States `[B,1,d]` of the next token of every row.
    pub(super) fn decode(&self, tokens: &[i32], states: &mut [DecodeState]) -> Tensor<3> {
        let position = states[0].position();
        let mut x = self.embed(tokens.into(), tokens.len(), 1, position);
        for (block, state) in self.layers.iter().zip(states) {
            x = block.decode(x, self.attention.as_ref(), state);
        }
        self.last_norm(x)
    }

    /// Fresh states for [`Body::decode`], one a block.
    pub(super) fn decoder(&self) -> Result<Vec<DecodeState>, Error> {
        self.layers.iter().map(|block| block.decoder(self.attention.as_ref())).collect()
    }

    /// The token vectors `[vocabulary,d]`.
    pub(super) fn token_embedding(&self) -> Tensor<2> {
        self.token_embedding.val()
    }

    /// Sizes.
    pub(super) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Options of the attention.
    pub(super) fn options(&self) -> &AttentionConfig {
        &self.options
    }

    fn embed(&self, ids: std::sync::Arc<[i32]>, batch: usize, length: usize, from: usize) -> Tensor<3> {
        let width = self.sizes.width;
        let x = ops::embedding(self.token_embedding.val(), ids, [batch, length]);
        match (&self.position_embedding, self.options.position) {
            (Some(positions), _) => x + positions.val().narrow(0, from, length).unsqueeze_dim(0),
            (None, Position::Sinusoidal) => {
                let positions = sinusoidal(from, length, width, &x.device());
                x.mul_scalar((width as f64).sqrt()) + positions.unsqueeze_dim(0)
            }
            _ => x,
        }
    }

    fn last_norm(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.norm_f {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}
