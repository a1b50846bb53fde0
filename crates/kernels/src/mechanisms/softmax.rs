//! Exact scaled dot-product attention.

use std::{borrow::Cow, sync::Arc};

use crate::{
    AttentionShape, Decode, Dropout, Error, Layout, Mask, Operator, Reference, Saved, Storage, View, Weights,
    cache::{Cache, Scored},
    padding::{Inputs, Number},
    reference,
    tiled::Scores,
};

/// `out = softmax_j(tau q_i.k_j + bias_ij) v`: inputs `q k v [bias]`, `bias [H,N,S]`.
#[derive(Clone, Debug, Default)]
pub struct Softmax {
    /// Axis order.
    pub layout: Layout,
    /// Attention mask.
    pub mask: Mask,
    /// Score scale `tau` instead of `1/sqrt(D)`.
    pub scale: Option<f64>,
    /// ALiBi (Press et al. 2022): `slopes[h] * |j - (i + S - N)|` is subtracted from each score.
    pub slopes: Option<Arc<[f32]>>,
    /// Whether the inputs end with an additive bias.
    pub bias: bool,
    /// Dropout on the weights.
    pub dropout: Option<Dropout>,
}

impl Softmax {
    /// Sizes of a call.
    ///
    /// # Errors
    /// Shapes that do not fit together.
    pub fn shape(&self, shapes: &[&[usize]]) -> Result<AttentionShape, Error> {
        let shape = AttentionShape::from_tensors(shapes[0], shapes[1], shapes[2], self.layout, false)?;
        self.mask.check(&shape)?;
        if self.bias {
            Error::check_shape("bias", shapes[3], &[shape.heads, shape.queries, shape.keys])?;
        }
        if let Some(slopes) = &self.slopes {
            Error::check_shape("slopes", &[slopes.len()], &[shape.heads])?;
        }
        if let Some(scale) = self.scale
            && !(scale.is_finite() && scale > 0.0)
        {
            return Err(Error::option("scale", scale, "a positive number"));
        }
        Ok(shape)
    }

    fn read<'a, T: Number>(&self, inputs: &[View<'a, T>]) -> Inputs<'a, T> {
        Inputs::new(&self.inputs(), self.layout, &self.mask, inputs)
    }
}

impl Scored for Softmax {
    fn scores<'a>(&'a self, inputs: &[View<'a, f32>]) -> Scores<'a> {
        let shapes: Vec<_> = inputs.iter().map(|x| x.shape).collect();
        let shape = self.shape(&shapes).expect("shapes were checked");
        let scale = self.scale.unwrap_or(1.0 / (shape.head_width as f64).sqrt());
        Scores {
            shape,
            mask: &self.mask,
            q: inputs[0].data,
            k: inputs[1].data,
            v: inputs[2].data,
            gains: vec![scale as f32],
            gaussian: false,
            hard: false,
            prior: None,
            shift: None,
            bias: self.bias.then(|| inputs[3].data),
            slopes: self.slopes.as_deref(),
            dropout: self.dropout,
        }
    }
}

impl Operator for Softmax {
    fn inputs(&self) -> Vec<&'static str> {
        if self.bias { vec!["q", "k", "v", "bias"] } else { vec!["q", "k", "v"] }
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        Ok(self.shape(shapes)?.out_shape())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let inputs = self.read(inputs);
        self.scores(&inputs.views()).forward(out)
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        out: &[f32],
        saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let bias = self.bias && wanted[3];
        let inputs = self.read(inputs);
        let grads = self.scores(&inputs.views()).backward(out, saved, grad_out, false, bias);
        let all = [Some(grads.q), Some(grads.k), Some(grads.v), grads.bias];
        all.into_iter().zip(wanted).map(|(grad, wanted)| grad.filter(|_| *wanted)).collect()
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        reference::softmax::softmax(self, &self.read(inputs).views(), grad_out)
    }

    fn silenced<'a>(&self, inputs: &[View<'a, f64>]) -> Vec<Cow<'a, [f64]>> {
        self.read(inputs).into_data()
    }

    fn weights<'a>(&'a self, inputs: &[View<'a, f64>], batch: usize, head: usize) -> Vec<Weights<'a>> {
        vec![reference::softmax::weights(self, inputs, batch, head)]
    }

    fn decoder(&self, storage: Storage) -> Option<Box<dyn Decode>> {
        let decodes = self.mask.causal && self.mask.valid.is_none() && !self.bias;
        decodes.then(|| {
            let operator = Self { layout: Layout::TokenFirst, dropout: None, ..self.clone() };
            Box::new(Cache::new(Arc::new(operator), self.layout, self.mask.window, storage)) as Box<dyn Decode>
        })
    }
}
