//! The Gaussian kernel and the mixture of Gaussian keys.

use crate::{Dropout, Error, Layout, Mask, Operator, Reference, Saved, View, mechanism::Score};

/// Inputs `q k v variance [log_prior] [shift]`: `k [B,Hk,M,S,D]` (token first `[B,S,M,Hk,D]`), or with `shifted`
/// `k [B,Hk,S,D]` and `shift [Hk,M,D]`; `variance [M]`; `log_prior [H,M]` or `[H,M,S]` unless `hard`.
#[derive(Clone, Debug, Default)]
pub struct GaussianMixture {
    /// Axis order.
    pub layout: Layout,
    /// Who sees whom.
    pub mask: Mask,
    /// The nearest component only, without a prior.
    pub hard: bool,
    /// Distance or product.
    pub score: Score,
    /// Keys are `k + shift_r`.
    pub shifted: bool,
    /// Dropout on the weights.
    pub dropout: Option<Dropout>,
}

impl Operator for GaussianMixture {
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
