//! Multi-head softmax attention, grouped and multi-query variants included.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::Mask;

use super::{
    DecodeState,
    projection::{Heads, join, project},
};
use crate::{
    blocks::{Context, Init, Place},
    ops,
};

/// `softmax(q k^T / sqrt(D)) v` between projections (Vaswani et al. 2017, section 3.2).
#[derive(Module, Debug)]
pub struct MultiHead {
    w_q: Param<Tensor<2>>,
    b_q: Option<Param<Tensor<1>>>,
    w_k: Param<Tensor<2>>,
    b_k: Option<Param<Tensor<1>>>,
    w_v: Param<Tensor<2>>,
    b_v: Option<Param<Tensor<1>>>,
    w_o: Param<Tensor<2>>,
    b_o: Option<Param<Tensor<1>>>,
    #[module(skip)]
    heads: Heads,
}

impl MultiHead {
    pub(crate) fn new(heads: Heads, init: &Init) -> Self {
        let (width, queries, keys) = (heads.width, heads.query_width(), heads.key_width());
        Self {
            w_q: init.projection("w_q", [width, queries], 1.0),
            b_q: heads.bias(init, [queries]),
            w_k: init.projection("w_k", [width, keys], 1.0),
            b_k: heads.bias(init, [keys]),
            w_v: init.projection("w_v", [width, keys], 1.0),
            b_v: heads.bias(init, [keys]),
            w_o: init.projection("w_o", [queries, width], heads.gain),
            b_o: heads.bias(init, [width]),
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
        let [q, k, v] = self.project(queries, keys, 0);
        let out = ops::softmax(q, k, v, None, self.heads.kernel(), self.heads.call(mask.clone(), context, place));
        join(out, &self.w_o, &self.b_o)
    }

    pub(crate) fn decode(&self, token: Tensor<3>, state: &mut DecodeState) -> Tensor<3> {
        let [q, k, v] = self.project(token.clone(), token, state.position());
        let (shape, device) = (q.dims(), q.device());
        join(state.step(&[q.into(), k.into(), v.into()], shape, &device), &self.w_o, &self.b_o)
    }

    /// Queries, keys and values `[B,N,heads,D]`, turned where positions are rotary.
    pub(crate) fn project(&self, queries: Tensor<3>, keys: Tensor<3>, from: usize) -> [Tensor<4>; 3] {
        let width = self.heads.head_width;
        [
            self.heads.turn(project(queries, &self.w_q, &self.b_q, width), from),
            self.heads.turn(project(keys.clone(), &self.w_k, &self.b_k, width), from),
            project(keys, &self.w_v, &self.b_v, width),
        ]
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.heads
    }
}
