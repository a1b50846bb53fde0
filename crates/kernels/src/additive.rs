//! Fastformer's additive attention.

use crate::{Error, Layout, Mask, Operator, Reference, Saved, View, mechanism::AdditiveScores};

/// Inputs `q k [v] w_q w_k w_t`, `v` absent where `shared_value`; `q k v [B,H,N,D]` (token first `[B,N,H,D]`),
/// `w_q w_k [H,D]` or `[H,H*D]`, `w_t [H*D,H*D]`; the output is `[B,N,H*D]` in either layout.
#[derive(Clone, Debug, Default)]
pub struct Additive {
    /// Axis order.
    pub layout: Layout,
    /// Causality and padding; a window is refused.
    pub mask: Mask,
    /// What a head's score vector sees.
    pub scores: AdditiveScores,
    /// `v = q`.
    pub shared_value: bool,
}

impl Operator for Additive {
    fn inputs(&self) -> Vec<&'static str> {
        todo!()
    }

    fn out_shape(&self, _shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        todo!()
    }

    fn forward(&self, _inputs: &[View<f32>], _out: &mut [f32]) -> Saved {
        todo!()
    }

    fn backward(
        &self,
        _inputs: &[View<f32>],
        _out: &[f32],
        _saved: &Saved,
        _grad_out: &[f32],
        _wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        todo!()
    }

    fn reference(&self, _inputs: &[View<f64>], _grad_out: Option<&[f64]>) -> Reference {
        todo!()
    }
}
