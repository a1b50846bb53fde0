//! Multi-head softmax attention, grouped and multi-query variants included.

use burn::module::Module;
use burn::tensor::Tensor;
use regard_kernels::Mask;

use super::{
    AttentionCall, DecodeState, KeyState,
    projection::{Heads, Projections},
};
use crate::{
    blocks::{Context, Init, Part, Place},
    ops,
};

/// `softmax(q k^T / sqrt(D)) v` between projections (Vaswani et al. 2017, section 3.2).
#[derive(Module, Debug)]
pub struct MultiHead {
    projections: Projections<2, 1>,
}

impl MultiHead {
    pub(crate) fn new(heads: Heads, init: &Init) -> Self {
        Self { projections: Projections::<2, 1>::new(heads, true, init) }
    }

    pub(crate) fn project_keys(&self, keys: Tensor<3>) -> KeyState {
        KeyState::Single { k: self.projections.keys(keys.clone(), 0), v: self.projections.values(keys) }
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
        let (k, v) = keys.single();
        let (k, heads) = (k.expect("softmax has keys"), self.heads());
        let out = ops::softmax(q, k, v, None, heads.kernel(), heads.call(mask.clone(), context, place));
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
        let (k, v) = keys.single();
        let k = k.expect("softmax has keys");
        let inputs = vec![self.projections.queries(queries, 0).into(), k.into(), v.into()];
        vec![AttentionCall::new(self.heads().operator(mask, context, place), inputs)]
    }

    pub(crate) fn decode(&self, token: Tensor<3>, state: &mut DecodeState) -> Tensor<3> {
        let [q, k, v] = self.project(token.clone(), token, state.position());
        let (shape, device) = (q.dims(), q.device());
        self.projections.join(state.step(&[q.into(), k.into(), v.into()], shape, &device))
    }

    /// Queries, keys and values `[B,N,heads,D]`, rotated where positions are rotary.
    pub fn project(&self, queries: Tensor<3>, keys: Tensor<3>, from: usize) -> [Tensor<4>; 3] {
        let k = self.projections.keys(keys.clone(), from).expect("softmax has keys");
        [self.projections.queries(queries, from), k, self.projections.values(keys)]
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.projections.heads
    }
}
