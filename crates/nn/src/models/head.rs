//! States to logits over the vocabulary.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::{Activation, ModelConfig, adaptive_softmax::AdaptiveSoftmax, head_loss};
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
    /// In place of all others.
    adaptive_softmax: Option<AdaptiveSoftmax>,
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
            head: (!config.tied_head && !config.adaptive_softmax.is_used())
                .then(|| init.projection("head", [inputs, vocabulary], 1.0)),
            b_head: config.head_bias.then(|| init.constant([vocabulary], 0.0)),
            adaptive_softmax: config.adaptive_softmax.is_used().then(|| {
                AdaptiveSoftmax::new(&config.adaptive_softmax, config.width, vocabulary, &init.part("adaptive_softmax"))
            }),
        }
    }

    /// Logits `[..,vocabulary]` of states `x [..,d]`; `tokens [vocabulary,e]` is the token vectors. Those of an adaptive
    /// softmax are log probabilities.
    pub fn logits<const D: usize>(&self, x: Tensor<D>, tokens: Tensor<2>) -> Tensor<D> {
        if let Some(softmax) = &self.adaptive_softmax {
            return softmax.log_probabilities(x);
        }
        let x = self.inputs(x);
        ops::linear(x, self.weight(tokens), self.b_head.as_ref().map(Param::val))
    }

    /// Mean cross entropy, `[1]`, of states `x [rows,d]` over the targets that are not negative, with at most `held` logits
    /// in memory at once; `smoothing` as in [`ops::cross_entropy`]. An adaptive softmax with smoothing holds them all.
    pub fn loss(&self, x: Tensor<2>, tokens: Tensor<2>, targets: Arc<[i32]>, smoothing: f32, held: usize) -> Tensor<1> {
        match &self.adaptive_softmax {
            Some(softmax) if smoothing == 0.0 => softmax.loss(x, &targets, held),
            Some(softmax) => ops::cross_entropy(softmax.log_probabilities(x), targets, smoothing),
            None => {
                let bias = self.b_head.as_ref().map(Param::val);
                head_loss::projected(self.inputs(x), self.weight(tokens), bias, targets, smoothing, held)
            }
        }
    }

    /// Negative log probability, in nats, of the target of each state `x [rows,d]`.
    pub fn nats(&self, x: Tensor<2>, tokens: Tensor<2>, targets: &[i32]) -> Vec<f64> {
        match &self.adaptive_softmax {
            Some(softmax) => softmax.nats(&x, targets),
            None => {
                let bias = self.b_head.as_ref().map(Param::val);
                head_loss::nats(&self.inputs(x), &self.weight(tokens), bias.as_ref(), targets)
            }
        }
    }

    /// What the matrix sees of states.
    fn inputs<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match (&self.transform, &self.norm_transform) {
            (Some(Transform { w, b, activation }), Some(norm)) => {
                norm.forward(ops::activation(ops::linear(x, w.val(), None), Some(b.val()), activation.curve()))
            }
            _ => x,
        }
    }

    /// The matrix `[e,vocabulary]`.
    fn weight(&self, tokens: Tensor<2>) -> Tensor<2> {
        match &self.head {
            Some(head) => head.val(),
            None => tokens.transpose(),
        }
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
