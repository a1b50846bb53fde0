//! Linear attention and the mixture of linear keys.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::Mask;

use super::{
    AttentionCall, DecodeState, KeyState,
    projection::{Heads, Projections},
    state::Host,
};
use crate::{
    blocks::{Context, Init, Part, Place},
    ops::{self, LinearKeys},
};

/// Attention with features `elu + 1` (Katharopoulos et al. 2020), of one key per position or of a mixture of keys (MLK and
/// sMLK, arXiv 2110.08678, section 2.4).
#[derive(Module, Debug)]
pub struct LinearAttention {
    projections: Projections<3, 2>,
    log_prior: Option<Param<Tensor<2>>>,
    shift: Option<Param<Tensor<3>>>,
}

impl LinearAttention {
    pub(crate) fn new(heads: Heads, init: &Init) -> Self {
        let options = &heads.options;
        let components = options.components();
        let mixture = options.mechanism.is_mixture();
        Self {
            log_prior: mixture.then(|| init.constant([options.heads, components], -(components as f64).ln())),
            shift: options
                .shifted()
                .then(|| init.normal("shift", [options.key_heads(), components, heads.head_width], 1.0)),
            projections: Projections::components(heads, init),
        }
    }

    pub(crate) fn project_keys(&self, keys: Tensor<3>) -> KeyState {
        self.keys(keys, 0)
    }

    pub(crate) fn attend(
        &self,
        queries: Tensor<3>,
        keys: KeyState,
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> Tensor<3> {
        let q = self.projections.queries(queries, 0);
        let (keys, v) = self.linear_keys(keys);
        let call = self.heads().call(mask.clone(), context, place);
        let out = ops::linear_attention(q, keys, v, self.heads().kernel(), call);
        context.record(Part::Heads, &out);
        self.projections.join(out)
    }

    /// The call that [`Self::attend`] makes.
    pub(crate) fn calls(
        &self,
        queries: Tensor<3>,
        keys: KeyState,
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> Vec<AttentionCall> {
        let q = self.projections.queries(queries, 0);
        let (keys, v) = self.linear_keys(keys);
        vec![AttentionCall::new(self.heads().operator(mask, context, place), inputs(q, keys, v))]
    }

    pub(crate) fn decode(&self, token: Tensor<3>, state: &mut DecodeState) -> Tensor<3> {
        let q = self.projections.queries(token.clone(), state.position());
        let (keys, v) = self.linear_keys(self.keys(token, state.position()));
        let (shape, device) = (q.dims(), q.device());
        self.projections.join(state.step(&inputs(q, keys, v), shape, &device))
    }

    fn keys(&self, keys: Tensor<3>, from: usize) -> KeyState {
        let k = self.projections.keys(keys.clone(), self.shift.as_ref(), from);
        KeyState::Components { k, v: self.projections.values(keys) }
    }

    /// Projected keys and values with the parameters of the keys.
    fn linear_keys(&self, keys: KeyState) -> (LinearKeys, Tensor<4>) {
        let (k, v) = keys.components();
        let shift = self.projections.shift_left(self.shift.as_ref());
        (LinearKeys { k, shift, log_prior: self.log_prior.as_ref().map(Param::val) }, v)
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.projections.heads
    }
}

/// Inputs of the operator.
fn inputs(q: Tensor<4>, keys: LinearKeys, v: Tensor<4>) -> Vec<Host> {
    let k = match (&keys.shift, &keys.log_prior) {
        (None, Some(_)) => Host::from(keys.k),
        _ => keys.k.squeeze_dim::<4>(2).into(),
    };
    let mut inputs = vec![q.into(), k, v.into()];
    inputs.extend(keys.log_prior.map(Host::from));
    inputs.extend(keys.shift.map(Host::from));
    inputs
}
