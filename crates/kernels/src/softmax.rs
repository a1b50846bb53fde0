//! Exact scaled dot-product attention.

use crate::{Error, Layout, Mask, Operator, Reference, Saved, View};
use std::sync::Arc;

/// Dropout on normalised attention weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability that a weight becomes 0, in `[0, 1)`; the others grow by `1 / (1 - rate)`.
    pub rate: f32,
    /// Names the draw: the same key gives the same weights.
    pub key: u64,
}

/// Inputs `q k v [bias]`; `bias [H,N,S]`.
#[derive(Clone, Debug, Default)]
pub struct Softmax {
    /// Axis order.
    pub layout: Layout,
    /// Who sees whom.
    pub mask: Mask,
    /// Score scale `tau` in place of `1/sqrt(D)`.
    pub scale: Option<f64>,
    /// ALiBi: `slopes[h] * |j - (i + S - N)|` is taken from each score.
    pub slopes: Option<Arc<[f32]>>,
    /// Whether the inputs end with an additive bias.
    pub bias: bool,
    /// Dropout on the weights.
    pub dropout: Option<Dropout>,
}

impl Operator for Softmax {
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
