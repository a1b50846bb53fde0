//! What models of one sequence share: token vectors and a stack of blocks.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::{Error, Storage};

use super::{ModelConfig, Sizes, TokenBatch, embeddings::Embeddings, encoder::Encoder};
use crate::{
    attention::{AttentionConfig, DecodeState, HeadPlan},
    blocks::{Context, Init},
};

/// Embeddings, blocks and the last norm: token numbers to states `[B,N,d]`.
#[derive(Module, Debug)]
pub struct Body {
    token_embedding: Param<Tensor<2>>,
    stack: Encoder,
    #[module(skip)]
    sizes: Sizes,
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
        Ok(Self {
            token_embedding: Embeddings::tokens(config, attention.position, sizes.vocabulary, init),
            stack: Encoder::new(config, attention, sizes.context, init)?,
            sizes,
        })
    }

    /// States `[B,N,d]` of `tokens`.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub(super) fn forward(&self, tokens: &TokenBatch, context: &Context) -> Tensor<3> {
        self.stack.forward(self.token_embedding(), tokens, context)
    }

    /// States `[B,N,d]` of the next tokens of every row.
    pub(super) fn decode(&self, tokens: &TokenBatch, states: &mut [DecodeState]) -> Tensor<3> {
        self.stack.decode(self.token_embedding(), tokens, states)
    }

    /// The same with the heads of its layers changed; see [`Encoder::planned`].
    pub(super) fn planned(self, plan: &[Vec<HeadPlan>], seed: u64) -> Result<Self, Error> {
        Ok(Self { stack: self.stack.planned(plan, seed)?, ..self })
    }

    /// Fresh states for [`Body::decode`], one per block.
    pub(super) fn decoder(&self, storage: Storage) -> Result<Vec<DecodeState>, Error> {
        self.stack.decoder(storage)
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
        self.stack.options()
    }
}
