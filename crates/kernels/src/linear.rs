//! Linear attention and the mixture of linear keys.

use crate::{Error, Layout, Mask, Operator, Reference, Saved, View};

/// Inputs `q k v [log_prior] [shift]`: with `mixture`, `k [B,Hk,M,S,D]` (token first `[B,S,M,Hk,D]`) and `log_prior [H,M]`;
/// with `shifted`, `k [B,Hk,S,D]` and `shift [Hk,M,D]`.
#[derive(Clone, Debug, Default)]
pub struct Linear {
    /// Axis order.
    pub layout: Layout,
    /// Who sees whom; a window is refused.
    pub mask: Mask,
    /// Keys are a mixture with a prior.
    pub mixture: bool,
    /// Keys are `k + shift_r`; only with `mixture`.
    pub shifted: bool,
}

impl Operator for Linear {
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
