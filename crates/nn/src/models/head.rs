//! States to logits over the vocabulary.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::{Activation, ModelConfig};
use crate::{
    blocks::{Init, Norm},
    ops::{self, elementwise::IGNORE},
};

/// The head of a model. The part adds nothing to the names of its parameters
/// ([`ParameterPath`](super::ParameterPath)).
#[derive(Module, Debug)]
pub(super) struct Head {
    transform: Option<Transform>,
    norm_transform: Option<Norm>,
    /// `[d,vocabulary]`, or `[e,vocabulary]` behind a transform; the token embedding where absent.
    head: Option<Param<Tensor<2>>>,
    b_head: Option<Param<Tensor<1>>>,
}

/// What a masked model does before the norm of its head: `activation(x w + b)`.
#[derive(Module, Debug)]
struct Transform {
    /// `[d,e]`
    w: Param<Tensor<2>>,
    b: Param<Tensor<1>>,
    #[module(skip)]
    activation: Activation,
}

impl Head {
    pub fn new(config: &ModelConfig, vocabulary: usize, init: &Init) -> Self {
        let inputs = if config.head_transform { config.embedding_width() } else { config.width };
        let transform = |init: Init| Transform {
            w: init.projection("w", [config.width, inputs], 1.0),
            b: init.constant([inputs], 0.0),
            activation: config.activation,
        };
        Self {
            transform: config.head_transform.then(|| transform(init.part("transform"))),
            norm_transform: config.head_transform.then(|| Norm::new(config, inputs, &init.part("norm_transform"))),
            head: (!config.tied_head).then(|| init.projection("head", [inputs, vocabulary], 1.0)),
            b_head: config.head_bias.then(|| init.constant([vocabulary], 0.0)),
        }
    }

    /// Logits `[..,vocabulary]` of states `x [..,d]`; `tokens [vocabulary,e]` is the token vectors.
    pub fn logits<const D: usize>(&self, x: Tensor<D>, tokens: Tensor<2>) -> Tensor<D> {
        let x = match (&self.transform, &self.norm_transform) {
            (Some(Transform { w, b, activation }), Some(norm)) => {
                norm.forward(ops::activation(ops::linear(x, w.val(), None), Some(b.val()), activation.curve()))
            }
            _ => x,
        };
        let weight = match &self.head {
            Some(head) => head.val(),
            None => tokens.transpose(),
        };
        ops::linear(x, weight, self.b_head.as_ref().map(Param::val))
    }
}

/// The states `[counted,d]` of `x [B,N,d]` whose target is not negative, with those targets: a head need not see the
/// others. Where none counts, the first state with a target that does not count.
///
/// # Panics
/// If there are not `B N` targets.
pub(super) fn counted(x: Tensor<3>, targets: &[i32]) -> (Tensor<2>, Arc<[i32]>) {
    let [batch, length, width] = x.dims();
    assert_eq!(targets.len(), batch * length, "one target a token, of {batch} rows of {length}");
    let mut rows: Vec<i32> = (0..targets.len()).filter(|&i| targets[i] >= 0).map(|i| i as i32).collect();
    if rows.is_empty() {
        rows.push(0);
    }
    let kept = rows.iter().map(|&row| targets[row as usize].max(IGNORE)).collect();
    let count = rows.len();
    let x = ops::embedding(x.reshape([batch * length, width]), rows, [1, count]);
    (x.reshape([count, width]), kept)
}
