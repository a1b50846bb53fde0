//! Multi-head softmax attention of products or cosines, grouped and multi-query variants included.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::{Cosine, Mask, Mechanism};

use super::{
    DecodeState, KeyState,
    projection::{Heads, Projections},
};
use crate::{
    blocks::{Context, Init, Part, Place, Positions},
    ops::Inputs,
};

/// `softmax(q k^T / sqrt(D)) v` between projections (Vaswani et al. 2017, section 3.2), or cosines times a learned scale in place
/// of the scaled products (Henry et al. 2020).
#[derive(Module, Debug)]
pub struct MultiHead {
    projections: Projections<2, 1>,
    /// `[H]`, of cosines.
    log_scale: Option<Param<Tensor<1>>>,
}

impl MultiHead {
    pub(crate) fn new(heads: Heads, init: &Init) -> Self {
        let cosine = heads.options.mechanism == Mechanism::Cosine;
        let log_scale = cosine.then(|| init.constant([heads.options.heads], Cosine::FIRST_SCALE.ln()));
        Self { projections: Projections::<2, 1>::new(heads, true, init), log_scale }
    }

    pub(crate) fn project_keys(&self, keys: Tensor<3>, at: Positions) -> KeyState {
        KeyState::Single { k: self.projections.keys(keys.clone(), at), v: self.projections.values(keys) }
    }

    pub(crate) fn attend(
        &self,
        queries: Tensor<3>,
        keys: KeyState,
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> Tensor<3> {
        let out =
            context.tap(self.heads().attend(&self.inputs(queries, keys, context.positions()), mask, context, place));
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

    /// A layer of products around projections that were made before.
    pub(crate) fn of(projections: Projections<2, 1>) -> Self {
        Self { projections, log_scale: None }
    }

    pub(crate) fn into_projections(self) -> Projections<2, 1> {
        self.projections
    }

    fn inputs(&self, queries: Tensor<3>, keys: KeyState, at: Positions) -> Inputs {
        let (k, v) = keys.single();
        let inputs = Inputs::new(self.projections.queries(queries, at)).with_some("k", k).with("v", v);
        inputs.with_some("log_scale", self.log_scale.as_ref().map(Param::val))
    }

    /// Queries, keys and values `[B,N,heads,D]`, rotated where positions are rotary.
    pub fn project(&self, queries: Tensor<3>, keys: Tensor<3>, from: usize) -> [Tensor<4>; 3] {
        let at = Positions::From(from);
        let inputs = self.inputs(queries, self.project_keys(keys, at), at);
        ["q", "k", "v"].map(|name| inputs.tensor(name))
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.projections.heads
    }
}
