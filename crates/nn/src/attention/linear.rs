//! Linear attention and the mixture of linear keys.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::Mask;

use super::{
    DecodeState,
    projection::{Heads, join, project, project_components},
    state::Host,
};
use crate::{
    blocks::{Context, Init, Place},
    ops::{self, LinearKeys},
};

/// Attention with features `elu + 1` (Katharopoulos et al. 2020), of one key a position or of a mixture of keys (MLK and
/// sMLK, arXiv 2110.08678, section 2.4).
#[derive(Module, Debug)]
pub struct LinearAttention {
    w_q: Param<Tensor<2>>,
    b_q: Option<Param<Tensor<1>>>,
    /// `[M,d,Hk*D]`, one component where keys are no mixture or shifted.
    w_k: Param<Tensor<3>>,
    b_k: Option<Param<Tensor<2>>>,
    w_v: Param<Tensor<2>>,
    b_v: Option<Param<Tensor<1>>>,
    w_o: Param<Tensor<2>>,
    b_o: Option<Param<Tensor<1>>>,
    log_prior: Option<Param<Tensor<2>>>,
    shift: Option<Param<Tensor<3>>>,
    #[module(skip)]
    heads: Heads,
}

impl LinearAttention {
    pub(crate) fn new(heads: Heads, init: &Init) -> Self {
        let (width, queries, keys) = (heads.width, heads.query_width(), heads.key_width());
        let options = &heads.options;
        let components = options.components();
        let projections = if options.shifted() { 1 } else { components };
        let mixture = options.mechanism.is_mixture();
        Self {
            w_q: init.projection("w_q", [width, queries], 1.0),
            b_q: heads.bias(init, [queries]),
            w_k: init.projection("w_k", [projections, width, keys], 1.0),
            b_k: heads.bias(init, [projections, keys]),
            w_v: init.projection("w_v", [width, keys], 1.0),
            b_v: heads.bias(init, [keys]),
            w_o: init.projection("w_o", [queries, width], heads.gain),
            b_o: heads.bias(init, [width]),
            log_prior: mixture.then(|| init.constant([options.heads, components], -(components as f64).ln())),
            shift: options
                .shifted()
                .then(|| init.normal("shift", [options.key_heads(), components, heads.head_width], 1.0)),
            heads,
        }
    }

    pub(crate) fn forward(
        &self,
        queries: Tensor<3>,
        keys: Tensor<3>,
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> Tensor<3> {
        let (q, k, v) = self.project(queries, keys, 0);
        let out = ops::linear_attention(q, k, v, self.heads.kernel(), self.heads.call(mask.clone(), context, place));
        join(out, &self.w_o, &self.b_o)
    }

    pub(crate) fn decode(&self, token: Tensor<3>, state: &mut DecodeState) -> Tensor<3> {
        let (q, keys, v) = self.project(token.clone(), token, state.position());
        let (shape, device) = (q.dims(), q.device());
        let k = match (&keys.shift, &keys.log_prior) {
            (None, Some(_)) => Host::from(keys.k),
            _ => keys.k.squeeze_dim::<4>(2).into(),
        };
        let mut inputs = vec![q.into(), k, v.into()];
        inputs.extend(keys.log_prior.map(Host::from));
        inputs.extend(keys.shift.map(Host::from));
        join(state.step(&inputs, shape, &device), &self.w_o, &self.b_o)
    }

    fn project(&self, queries: Tensor<3>, keys: Tensor<3>, from: usize) -> (Tensor<4>, LinearKeys, Tensor<4>) {
        let width = self.heads.head_width;
        let q = self.heads.turn(project(queries, &self.w_q, &self.b_q, width), from);
        let k = project_components(keys.clone(), &self.w_k, &self.b_k, width);
        let v = project(keys, &self.w_v, &self.b_v, width);
        let (k, shift) = self.heads.turn_components(k, self.shift.as_ref().map(Param::val), from);
        (q, LinearKeys { k, shift, log_prior: self.log_prior.as_ref().map(Param::val) }, v)
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.heads
    }
}
