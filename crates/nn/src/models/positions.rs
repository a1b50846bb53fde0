//! Token numbers to vectors that know their place.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::mechanism::Position;

use crate::{
    blocks::{Init, sinusoidal},
    ops,
};

/// Deviation of initial token and position vectors (Radford et al. 2019).
const EMBEDDING_DEVIATION: f64 = 0.02;

/// What a stack of blocks adds to token vectors.
///
/// Sinusoidal positions have the scale of 1, so there token vectors are drawn with deviation `1/sqrt(d)` and scaled by
/// `sqrt(d)` (Vaswani et al. 2017, section 3.4).
#[derive(Module, Debug)]
pub(super) struct Positions {
    position_embedding: Option<Param<Tensor<2>>>,
    #[module(skip)]
    scheme: Position,
}

impl Positions {
    /// For sequences of at most `context` tokens of `width` channels.
    pub fn new(scheme: Position, context: usize, width: usize, init: &Init) -> Self {
        let learned = || init.normal("position_embedding", [context, width], EMBEDDING_DEVIATION);
        Self { position_embedding: (scheme == Position::Learned).then(learned), scheme }
    }

    /// Initial token vectors `[vocabulary,width]` that go with positions of this scheme.
    pub fn tokens(scheme: Position, vocabulary: usize, width: usize, init: &Init) -> Param<Tensor<2>> {
        let deviation = match scheme {
            Position::Sinusoidal => (width as f64).sqrt().recip(),
            _ => EMBEDDING_DEVIATION,
        };
        init.normal("token_embedding", [vocabulary, width], deviation)
    }

    /// Vectors `[batch,length,width]` of tokens at positions `from ..`; `table` is the token vectors.
    pub fn embed(&self, table: Tensor<2>, ids: Arc<[i32]>, [batch, length]: [usize; 2], from: usize) -> Tensor<3> {
        let x = ops::embedding(table, ids, [batch, length]);
        let width = x.dims()[2];
        match (&self.position_embedding, self.scheme) {
            (Some(positions), _) => x + positions.val().narrow(0, from, length).unsqueeze_dim(0),
            (None, Position::Sinusoidal) => {
                let positions = sinusoidal(from, length, width, &x.device());
                x.mul_scalar((width as f64).sqrt()) + positions.unsqueeze_dim(0)
            }
            _ => x,
        }
    }
}
