//! Linear attention and the mixture of linear keys.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::Mask;

use super::{
    DecodeState, KeyState,
    projection::{Heads, Projections},
};
use crate::{
    blocks::{Context, Init, Part, Place, Positions},
    ops::Inputs,
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
        Self::around(Projections::components(heads, init), init)
    }

    /// A layer around projections that were made before.
    pub(crate) fn around(projections: Projections<3, 2>, init: &Init) -> Self {
        let heads = &projections.heads;
        let options = &heads.options;
        let components = options.components();
        let mixture = options.mechanism.is_mixture();
        Self {
            log_prior: mixture.then(|| init.constant([options.heads, components], -(components as f64).ln())),
            shift: options
                .shifted()
                .then(|| init.normal("shift", [options.key_heads(), components, heads.head_width], 1.0)),
            projections,
        }
    }

    /// The same with other shifts, `[Hk,M,D]`.
    pub(crate) fn with_shift(self, shift: Option<Tensor<3>>) -> Self {
        Self { shift: shift.map(Param::from_tensor), ..self }
    }

    pub(crate) fn project_keys(&self, keys: Tensor<3>, at: Positions) -> KeyState {
        let k = self.projections.keys(keys.clone(), self.shift.as_ref(), at);
        KeyState::Components { k, v: self.projections.values(keys) }
    }

    pub(crate) fn attend(
        &self,
        queries: Tensor<3>,
        keys: KeyState,
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> Tensor<3> {
        let out = self.heads().attend(&self.inputs(queries, keys, context.positions()), mask, context, place);
        context.record(Part::Heads, &out);
        self.projections.join(out)
    }

    pub(crate) fn decode(&self, tokens: Tensor<3>, state: &mut DecodeState) -> Tensor<3> {
        let at = Positions::From(state.position());
        let inputs = self.inputs(tokens.clone(), self.project_keys(tokens, at), at);
        let heads = self.heads();
        let out = state.advance(&inputs, &heads.options.mask(), |mask, context| {
            heads.attend(&inputs, mask, context, Place::Weights)
        });
        self.projections.join(out)
    }

    fn inputs(&self, queries: Tensor<3>, keys: KeyState, at: Positions) -> Inputs {
        let (k, v) = keys.components();
        let shift = self.projections.shift_left(self.shift.as_ref());
        let inputs = Inputs::new(self.projections.queries(queries, at));
        // A key per position where a shift makes the components, or where there is one.
        let inputs = match shift.is_none() && self.log_prior.is_some() {
            true => inputs.with("k", k),
            false => inputs.with("k", k.squeeze_dim::<4>(2)),
        };
        inputs.with("v", v).with_some("log_prior", self.log_prior.as_ref().map(Param::val)).with_some("shift", shift)
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.projections.heads
    }
}
