//! Token numbers to vectors with positions.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::mechanism::Position;

use super::{ModelConfig, TokenBatch};
use crate::{
    blocks::{Init, Norm, Positions, sinusoidal},
    ops,
};

/// Deviation of initial token and position vectors (Radford et al. 2019).
const EMBEDDING_DEVIATION: f64 = 0.02;

/// What a stack of blocks does with token vectors before its first block: positions and types are added, then a norm and a
/// projection to the width of the blocks, where the model has them.
///
/// Sinusoidal positions have scale 1, so there token vectors are drawn with deviation `1/sqrt(d)` and scaled by
/// `sqrt(d)` (Vaswani et al. 2017, section 3.4).
#[derive(Module, Debug)]
pub(super) struct Embeddings {
    position_embedding: Option<Param<Tensor<2>>>,
    /// `[types,e]`
    token_type_embedding: Option<Param<Tensor<2>>>,
    norm_embedding: Option<Norm>,
    /// `[e,d]`
    w_embedding: Option<Param<Tensor<2>>>,
    b_embedding: Option<Param<Tensor<1>>>,
    #[module(skip)]
    scheme: Position,
}

impl Embeddings {
    /// For sequences of at most `context` tokens.
    pub fn new(config: &ModelConfig, scheme: Position, context: usize, init: &Init) -> Self {
        let width = config.embedding_width();
        let table = |name, rows| init.normal(name, [rows, width], EMBEDDING_DEVIATION);
        let projected = config.embedding_width.is_some();
        Self {
            position_embedding: (scheme == Position::Learned).then(|| table("position_embedding", context)),
            token_type_embedding: (config.token_types > 0).then(|| table("token_type_embedding", config.token_types)),
            norm_embedding: config.embedding_norm.then(|| Norm::new(config, width, &init.part("norm_embedding"))),
            w_embedding: projected.then(|| init.projection("w_embedding", [width, config.width], 1.0)),
            b_embedding: projected.then(|| init.constant([config.width], 0.0)),
            scheme,
        }
    }

    /// Initial token vectors `[vocabulary,e]` that go with positions of this scheme.
    pub fn tokens(config: &ModelConfig, scheme: Position, vocabulary: usize, init: &Init) -> Param<Tensor<2>> {
        let width = config.embedding_width();
        let deviation = match scheme {
            Position::Sinusoidal => (width as f64).sqrt().recip(),
            _ => EMBEDDING_DEVIATION,
        };
        init.normal("token_embedding", [vocabulary, width], deviation)
    }

    /// Vectors `[batch,length,d]` of tokens at these positions; `table` is the token vectors.
    pub fn embed(&self, table: Tensor<2>, tokens: &TokenBatch, at: Positions) -> Tensor<3> {
        let TokenBatch { batch, length, .. } = *tokens;
        let x = ops::embedding(table, tokens.ids.clone(), [batch, length]);
        let width = x.dims()[2];
        let x = match (&self.position_embedding, self.scheme) {
            (Some(positions), _) => x + at.of(positions.val(), 0, length).unsqueeze_dim(0),
            (None, Position::Sinusoidal) => {
                let positions = sinusoidal(at.iter(length), width, &x.device());
                x.mul_scalar((width as f64).sqrt()) + positions.unsqueeze_dim(0)
            }
            _ => x,
        };
        let x = match (&self.token_type_embedding, &tokens.types) {
            (Some(table), None) => x + table.val().narrow(0, 0, 1).unsqueeze_dim(0),
            (Some(table), Some(types)) => x + ops::embedding(table.val(), types.clone(), [batch, length]),
            (None, _) => x,
        };
        let x = match &self.norm_embedding {
            Some(norm) => norm.forward(x),
            None => x,
        };
        match &self.w_embedding {
            Some(weight) => ops::linear(x, weight.val(), self.b_embedding.as_ref().map(Param::val)),
            None => x,
        }
    }
}
