//! Mixture of attention heads.

use std::{borrow::Cow, sync::Arc};

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::{
    Call, Decode, Error, Mask, Padding, Storage,
    random::substream,
    routing::{RouterStart, Routing, Sampling, router_losses},
};

use super::{AttentionConfig, DecodeState, KeyState, projection::Heads, record::AttentionPart};
use crate::{
    blocks::{Context, Init, Part, Place, Positions, RouterRecord},
    ops::{self, Inputs},
};

/// `sum_i w_i softmax(x W_q^i K^T / sqrt(D)) V W_o^i` over the `k` of `E` experts that a router chooses for each token;
/// keys `K = x W_k` and values `V = x W_v` are one head that all of them share (arXiv 2210.05144, section 3). No biases.
///
/// In training the gradient of the router's losses comes with that of the output, and noise and draws of experts act.
#[derive(Module, Debug)]
pub struct MixtureOfHeads {
    /// `[d,E]`.
    w_gate: Param<Tensor<2>>,
    /// `[E,d,D]`.
    w_query: Param<Tensor<3>>,
    w_key: Param<Tensor<2>>,
    w_value: Param<Tensor<2>>,
    /// `[E,D,d]`.
    w_out: Param<Tensor<3>>,
    #[module(skip)]
    heads: Heads,
}

/// Standard deviation of the initial router: logits of normalised tokens `[d]` then have one of 0.02 sqrt(d).
const ROUTER_DEVIATION: f64 = 0.02;

/// Separates draws of experts from noise on their logits.
const SAMPLING: u64 = 1;

impl MixtureOfHeads {
    pub(crate) fn new(heads: Heads, init: &Init) -> Result<Self, Error> {
        let (width, head_width) = (heads.width, heads.head_width);
        let moa = &heads.options.moa;
        let experts = moa.experts;
        Ok(Self {
            w_gate: match moa.router {
                RouterStart::Normal => init.normal("w_gate", [width, experts], ROUTER_DEVIATION),
                RouterStart::Released => init.constant([width, experts], 0.0),
            },
            w_query: init.projection("w_query", [experts, width, head_width], 1.0),
            w_key: init.projection("w_key", [width, head_width], 1.0),
            w_value: init.projection("w_value", [width, head_width], 1.0),
            w_out: init.projection("w_out", [experts, head_width, width], heads.gain),
            heads,
        })
    }

    pub(crate) fn project_keys(&self, keys: Tensor<3>, at: Positions) -> KeyState {
        let [k, v] = self.keys_and_values(keys, at);
        KeyState::Single { k: Some(k), v }
    }

    pub(crate) fn attend(
        &self,
        queries: Tensor<3>,
        keys: KeyState,
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> Tensor<3> {
        let moa = &self.heads.options.moa;
        let key = context.router_key(place);
        let mut logits = self.logits(queries.clone());
        if context.training && moa.noise > 0.0 {
            logits = ops::noisy_logits(logits, moa.noise, key);
        }
        let sampling = Sampling { slots: moa.sampled, key: substream(key, SAMPLING) };
        let sampling = (context.training && moa.sampled > 0).then_some(sampling);
        let (routing, values) = ops::route(&logits, moa.active, sampling, query_padding(mask, place));
        self.record(&routing, &values, context, place);
        if context.training {
            let coefficients = moa.coefficients(routing.real()).scaled(context.loss_scale);
            logits = ops::router_loss(logits, &routing, coefficients);
        }
        let (weights, q) = self.weights_and_queries(queries, logits, &routing, context.positions());
        let (k, v) = keys.single();
        let inputs = Inputs::new(q).with_some("k", k).with("v", v);
        // One head per slot, with the query of the expert in it.
        let part = AttentionPart::new(Cow::Owned(self.softmax_options()), &inputs).with_experts(routing.chosen());
        let [out] = self.heads.attend_parts([part], mask, context, place);
        context.record(Part::Heads, &out);
        ops::expert_outputs(out, weights, self.w_out.val(), &routing)
    }

    pub(crate) fn decode(&self, token: Tensor<3>, state: &mut DecodeState) -> Tensor<3> {
        let logits = self.logits(token.clone());
        let (routing, _) = ops::route(&logits, self.heads.options.moa.active, None, None);
        let at = Positions::From(state.position());
        let (weights, q) = self.weights_and_queries(token.clone(), logits, &routing, at);
        let [k, v] = self.keys_and_values(token, at);
        let out = state.step_heads(&Inputs::new(q).with("k", k).with("v", v));
        ops::expert_outputs(out, weights, self.w_out.val(), &routing)
    }

    /// The state for [`MixtureOfHeads::decode`]: keys and values, one head wide.
    pub(crate) fn decoder(&self, call: Call, storage: Storage) -> Result<Option<Box<dyn Decode>>, Error> {
        Ok(self.softmax_options().operator(call)?.decoder(storage))
    }

    /// In f32 whatever the tokens are in: which experts are best must not depend on rounding.
    fn logits(&self, x: Tensor<3>) -> Tensor<3> {
        ops::linear(ops::single(x), self.w_gate.val(), None)
    }

    /// Weights `[B,N,k]` of the chosen experts, and the queries `[B,N,k,D]` of their heads.
    fn weights_and_queries(
        &self,
        x: Tensor<3>,
        logits: Tensor<3>,
        routing: &Arc<Routing>,
        at: Positions,
    ) -> (Tensor<3>, Tensor<4>) {
        let weights = ops::gates(logits, routing, self.heads.options.moa.gates);
        (weights, self.heads.rotate(ops::expert_queries(x, self.w_query.val(), routing), at))
    }

    /// The one head of keys and values, `[B,S,1,D]`.
    fn keys_and_values(&self, keys: Tensor<3>, at: Positions) -> [Tensor<4>; 2] {
        let [batch, tokens, _] = keys.dims();
        let project = |weight: &Param<Tensor<2>>| {
            ops::linear(keys.clone(), weight.val(), None).reshape([batch, tokens, 1, self.heads.head_width])
        };
        [self.heads.rotate(project(&self.w_key), at), project(&self.w_value)]
    }

    /// Attention of the chosen heads to the one head of keys.
    fn softmax_options(&self) -> AttentionConfig {
        let heads = self.heads.options.moa.active;
        AttentionConfig { heads, key_value_heads: Some(1), ..AttentionConfig::default() }
    }

    /// Writes what the router did into the log of the pass, if there is one.
    fn record(&self, routing: &Routing, logits: &[f32], context: &Context, place: Place) {
        let Some(log) = &context.router else { return };
        let (stack, layer) = context.position();
        let losses = router_losses(routing, logits);
        log.push(RouterRecord {
            stack,
            layer,
            place,
            balance: losses.balance,
            z: losses.z,
            cv: losses.cv,
            entropy: losses.entropy,
            load: routing.load(),
            chosen: log.keeps_choices().then(|| routing.chosen().to_vec()),
            tokens: routing.real(),
        });
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.heads
    }
}

/// Which queries are real: in self-attention the same tokens as among the keys.
fn query_padding(mask: &Mask, place: Place) -> Option<Arc<Padding>> {
    match (&mask.query_valid, place) {
        (None, Place::CrossWeights) => None,
        (None, _) => mask.valid.clone(),
        (given, _) => given.clone(),
    }
}

#[cfg(test)]
mod tests;
