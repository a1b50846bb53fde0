//! Linear attention and the mixture of linear keys.
//!
//! `out_i = phi(q_i)^T Z / phi(q_i).z` with the sums `Z = sum_j f_j v_j^T` and `z = sum_j f_j` over the keys that query
//! `i` sees, `phi(x) = elu(x) + 1`, `f_j = phi(k_j)` or `sum_r exp(log_prior_r) phi(k_jr)`
//! (Katharopoulos et al. 2020; arXiv 2110.08678, section 2.4). Time and memory are linear in the length.

mod bidirectional;
mod blocks;
mod causal;
mod decode;
mod gradients;
mod operands;
mod through;

use std::{borrow::Cow, convert::Infallible};

use crate::{
    AttentionShape, Decode, Error, Layout, Mask, Operator, Reference, Saved, Storage, View, Weights,
    padding::{Inputs, Number},
    reference,
};
use decode::Sums;
use operands::Operands;

/// Inputs `q k v [log_prior] [shift]`: with `mixture`, `k [B,Hk,M,S,D]` (token first `[B,S,M,Hk,D]`) and `log_prior [H,M]`;
/// with `shifted`, `k [B,Hk,S,D]` and `shift [Hk,M,D]`.
#[derive(Clone, Debug, Default)]
pub struct Linear {
    /// Axis order.
    pub layout: Layout,
    /// Attention mask; a window is refused.
    pub mask: Mask,
    /// Keys are a mixture with a prior.
    pub mixture: bool,
    /// Keys are `k + shift_r`; only with `mixture`.
    pub shifted: bool,
}

impl Linear {
    /// Sizes of a call and its number of components.
    fn sizes(&self, shapes: &[&[usize]]) -> Result<(AttentionShape, usize), Error> {
        let names = self.inputs();
        if let Some(name) = names.get(shapes.len()) {
            return Err(Error::missing(*name, format!("linear attention takes {}", names.join(", "))));
        }
        let (q, k, v) = (shapes[0], shapes[1], shapes[2]);
        let shape = AttentionShape::from_tensors(q, k, v, self.layout, self.mixture && !self.shifted)?;
        let mut components = shape.components;
        if self.shifted {
            let shift = shapes[4];
            if shift.len() != 3 {
                return Err(Error::rank("shift", shift, 3));
            }
            components = shift[1].max(1);
            Error::check_shape("shift", shift, &[shape.key_heads, components, shape.head_width])?;
        }
        if self.mixture {
            Error::check_shape("log_prior", shapes[3], &[shape.heads, components])?;
        }
        Ok((shape, components))
    }

    fn read<'a, T: Number>(&self, inputs: &[View<'a, T>]) -> Inputs<'a, T> {
        Inputs::new(&self.inputs(), self.layout, &self.mask, inputs)
    }

    fn operands<'a>(&'a self, inputs: &[View<'a, f32>]) -> Operands<'a> {
        let shapes: Vec<&[usize]> = inputs.iter().map(|input| input.shape).collect();
        let (shape, components) = self.sizes(&shapes).expect("inputs that passed out_shape");
        Operands::new(shape, components, &self.mask, inputs)
    }
}

impl Operator for Linear {
    fn inputs(&self) -> Vec<&'static str> {
        let mut names = vec!["q", "k", "v"];
        if self.mixture {
            names.push("log_prior");
        }
        if self.mixture && self.shifted {
            names.push("shift");
        }
        names
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        if self.shifted && !self.mixture {
            return Err(Error::option("keys.design", "'shifted' without a mixture", "'projected', or a mixture"));
        }
        if let Some(window) = self.mask.window {
            return Err(Error::option("window", window, "no window: linear attention sums over all keys it sees"));
        }
        let (shape, _) = self.sizes(shapes)?;
        self.mask.check(&shape)?;
        self.mask.check_aligned()?;
        Ok(shape.out_shape())
    }

    /// Saves the denominators `[B,H,N]`, 0 where a query sees nothing, and the sums that the backward pass starts from.
    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let operands = self.operands(&inputs);
        match self.mask.causal {
            true => causal::forward(&operands, None, out),
            false => bidirectional::forward(&operands, bidirectional::sum_keys(&operands), out),
        }
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        out: &[f32],
        saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let operands = self.operands(&inputs);
        let output = operands::Output { out, denominators: &saved[0], grad: grad_out };
        if self.mask.causal {
            return causal::backward(&operands, output, &saved[1], None, wanted);
        }
        let grads: Result<_, Infallible> = bidirectional::backward(&operands, output, &saved[1], wanted, Ok);
        grads.unwrap_or_else(|never| match never {})
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        reference::linear::linear(self, &self.read(inputs).views(), grad_out)
    }

    fn silenced<'a>(&self, inputs: &[View<'a, f64>]) -> Vec<Cow<'a, [f64]>> {
        self.read(inputs).into_data()
    }

    fn weights<'a>(&'a self, inputs: &[View<'a, f64>], batch: usize, head: usize) -> Vec<Weights<'a>> {
        vec![reference::linear::weights(self, inputs, batch, head)]
    }

    fn decoder(&self, _: Storage) -> Option<Box<dyn Decode>> {
        let plain = self.mask.causal && self.mask.valid.is_none() && self.mask.window.is_none();
        plain.then(|| Box::new(Sums::new(self.clone())) as Box<dyn Decode>)
    }
}
