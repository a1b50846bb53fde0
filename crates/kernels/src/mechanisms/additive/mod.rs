//! Fastformer's additive attention (arXiv 2108.09084, section 3).
//!
//! Per head, with `s = 1/sqrt(D)`: `g_q = sum_i alpha_i q_i`, `alpha = softmax_i(s w_q.q_i)`; `p_i = g_q * k_i`;
//! `g_k = sum_i beta_i p_i`, `beta = softmax_i(s w_k.p_i)`; `u_i = g_k * v_i`; the output is `[u heads] W_t + q`. In
//! the causal form both averages run over the prefix of each row. Neither form uses memory of size `N x N`.

mod backward;
mod decode;
mod forward;
mod plan;
#[cfg(test)]
mod tests;
mod through;

use std::borrow::Cow;

use crate::{
    AttentionShape, Decode, Error, Layout, Mask, Operator, Reference, Saved, Storage, View, Weights,
    mechanism::AdditiveScores,
    padding::{Inputs, Number},
    reference::additive::{additive, weights},
};
use plan::Plan;

/// Inputs `q k [v] w_q w_k w_t`, without `v` if `shared_value`; `q k v [B,H,N,D]` (token first `[B,N,H,D]`),
/// `w_q w_k [H,D]` or `[H,H*D]`, `w_t [H*D,H*D]`; the output is `[B,N,H*D]` in either layout.
///
/// Only real tokens enter the two averages. A row that sees no real token outputs 0, the residual included, and passes
/// no gradient; any other padded row is computed as usual.
#[derive(Clone, Debug, Default)]
pub struct Additive {
    /// Axis order.
    pub layout: Layout,
    /// Causality and padding; a window is refused.
    pub mask: Mask,
    /// The channels that a head's score vector covers.
    pub scores: AdditiveScores,
    /// `v = q`.
    pub shared_value: bool,
}

impl Additive {
    fn read<'a, T: Number>(&self, inputs: &[View<'a, T>]) -> Inputs<'a, T> {
        Inputs::new(&self.inputs(), self.layout, &self.mask, inputs)
    }

    /// Checked sizes of the call.
    fn shape(&self, shapes: &[&[usize]]) -> Result<AttentionShape, Error> {
        let names = self.inputs();
        if shapes.len() != names.len() {
            return Err(Error::option(
                "number of input tensors",
                shapes.len(),
                format!("{}: {}", names.len(), names.join(", ")),
            ));
        }
        let (q, k) = (shapes[0], shapes[1]);
        // Without values use the keys' shape, so that no error mentions a tensor that was not given.
        let v = if self.shared_value { k } else { shapes[2] };
        let shape = AttentionShape::from_tensors(q, k, v, self.layout, false)?;
        if k != q {
            return Err(Error::shape(
                "k",
                k,
                format!("{q:?} as q: additive attention reads queries and keys of the same tokens and heads"),
            ));
        }
        if v != q {
            return Err(Error::shape("v", v, format!("{q:?} as q: values meet the global key channel by channel")));
        }
        if let Some(window) = self.mask.window {
            return Err(Error::option("window", window, "none: additive attention sums over all tokens it sees"));
        }
        self.mask.check(&shape)?;
        self.mask.check_aligned()?;
        if self.mask.query_valid.is_some() && self.mask.query_valid != self.mask.valid {
            return Err(Error::option(
                "query_valid",
                "another padding than valid",
                "the same or none: queries and keys are the same tokens here",
            ));
        }
        let (heads, width) = (shape.heads, shape.heads * shape.head_width);
        let seen = match self.scores {
            AdditiveScores::Paper => shape.head_width,
            AdditiveScores::Released => width,
        };
        let rest = &shapes[shapes.len() - 3..];
        Error::check_shape("w_q", rest[0], &[heads, seen])?;
        Error::check_shape("w_k", rest[1], &[heads, seen])?;
        Error::check_shape("w_t", rest[2], &[width, width])?;
        Ok(shape)
    }
}

impl Operator for Additive {
    fn inputs(&self) -> Vec<&'static str> {
        match self.shared_value {
            true => vec!["q", "k", "w_q", "w_k", "w_t"],
            false => vec!["q", "k", "v", "w_q", "w_k", "w_t"],
        }
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let shape = self.shape(shapes)?;
        Ok(vec![shape.batch, shape.queries, shape.heads * shape.head_width])
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let inputs = self.read(inputs);
        Plan::new(self, &inputs.views()).forward(out)
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        _out: &[f32],
        saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let plan = Plan::new(self, &inputs);
        let gradients = plan.backward(saved.buffers(), grad_out, wanted[wanted.len() - 1]);
        gradients.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect()
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        let shapes: Vec<_> = inputs.iter().map(|view| view.shape).collect();
        let shape = self.shape(&shapes).expect("inputs checked by out_shape");
        additive(&shape, &self.mask, self.scores, &self.read(inputs).views(), grad_out)
    }

    fn silenced<'a>(&self, inputs: &[View<'a, f64>]) -> Vec<Cow<'a, [f64]>> {
        self.read(inputs).into_data()
    }

    fn weights<'a>(&'a self, inputs: &[View<'a, f64>], batch: usize, head: usize) -> Vec<Weights<'a>> {
        let shapes: Vec<_> = inputs.iter().map(|view| view.shape).collect();
        let shape = self.shape(&shapes).expect("inputs checked by out_shape");
        weights(shape, &self.mask, self.scores, inputs, batch, head).into()
    }

    fn decoder(&self, _: Storage) -> Option<Box<dyn Decode>> {
        self.mask.causal.then(|| decode::decoder(self))
    }
}
