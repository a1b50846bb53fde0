//! The Gaussian kernel and the mixture of Gaussian keys (Transformer-MGK, arXiv 2110.08678).

use std::{borrow::Cow, sync::Arc};

use crate::{
    AttentionShape, Decode, Dropout, Error, Layout, Mask, Operator, Reference, Saved, Storage, View, Weights,
    cache::{Cache, Scored},
    centred::centred,
    mechanism::Score,
    padding::{Inputs, Number},
    reference,
    tiled::Scores,
};

/// `score_ij = log sum_r exp(log_prior_r - |q_i - k_jr|^2 / (2 s_r))`, `out = softmax_j(score) v`.
///
/// Inputs `q k v variance [log_prior] [shift]`: `k [B,Hk,M,S,D]` (token first `[B,S,M,Hk,D]`), or with `shifted`
/// `k [B,Hk,S,D]` and `shift [Hk,M,D]`; `variance [M]`; `log_prior [H,M]` or `[H,M,S]` unless `hard`.
#[derive(Clone, Debug, Default)]
pub struct GaussianMixture {
    /// Axis order.
    pub layout: Layout,
    /// Attention mask.
    pub mask: Mask,
    /// Use only the nearest component, without a prior.
    pub hard: bool,
    /// Distance, or dot product with the same scale (`q.k / s_r`).
    pub score: Score,
    /// Keys are `k + shift_r`.
    pub shifted: bool,
    /// Dropout on the weights.
    pub dropout: Option<Dropout>,
}

impl GaussianMixture {
    /// Sizes of a call.
    ///
    /// # Errors
    /// Shapes that do not fit together.
    pub fn shape(&self, shapes: &[&[usize]]) -> Result<AttentionShape, Error> {
        let shape = AttentionShape::from_tensors(shapes[0], shapes[1], shapes[2], self.layout, !self.shifted)?;
        self.mask.check(&shape)?;
        let variance = shapes[3];
        if variance.len() != 1 || variance[0] == 0 {
            return Err(Error::shape("variance", variance, "one variance a component"));
        }
        let components = variance[0];
        if !self.shifted && shape.components != components {
            return Err(Error::shape("variance", variance, format!("[{}], one a component", shape.components)));
        }
        if !self.hard {
            let (tied, whole) = ([shape.heads, components], [shape.heads, components, shape.keys]);
            if shapes[4] != tied && shapes[4] != whole {
                return Err(Error::shape("log_prior", shapes[4], format!("{tied:?} or {whole:?}")));
            }
        }
        if self.shifted {
            Error::check_shape("shift", shapes[shapes.len() - 1], &[shape.key_heads, components, shape.head_width])?;
        }
        Ok(shape)
    }

    fn read<'a, T: Number>(&self, inputs: &[View<'a, T>]) -> Inputs<'a, T> {
        Inputs::new(&self.inputs(), self.layout, &self.mask, inputs)
    }

    /// What `pass` makes of the scores, measured from where the keys lie.
    fn scored<T>(&self, inputs: &[View<f32>], pass: impl FnOnce(Scores) -> T) -> T {
        let inputs = self.read(inputs);
        let mut views = inputs.views();
        let shapes: Vec<_> = views.iter().map(|view| view.shape).collect();
        let shape = self.shape(&shapes).expect("shapes were checked");
        let moved = (self.score == Score::Gaussian).then(|| centred(&shape, &self.mask, views[0].data, views[1].data));
        if let Some([q, k]) = &moved {
            (views[0].data, views[1].data) = (q, k);
        }
        pass(self.scores(&views))
    }

    /// The prior of soft-EM after one step, `[H,M,S]`: the mean responsibility of each component for each key over the
    /// visible pairs of real tokens of the whole batch (section 2.3 of the paper).
    ///
    /// `inputs` are the operator's; the prior among them is `[H,M,S]` and is unchanged at keys that no query sees.
    ///
    /// # Panics
    /// If the operator is `hard` or the prior is tied over positions.
    pub fn responsibilities(&self, inputs: &[View<f32>]) -> Vec<f32> {
        assert!(!self.hard && inputs[4].shape.len() == 3, "soft-EM needs a prior a position");
        let old: Vec<f32> = inputs[4].data.iter().map(|log| log.exp()).collect();
        self.scored(inputs, |scores| scores.responsibilities(&old))
    }
}

impl Scored for GaussianMixture {
    fn scores<'a>(&'a self, inputs: &[View<'a, f32>]) -> Scores<'a> {
        let shapes: Vec<_> = inputs.iter().map(|x| x.shape).collect();
        let shape = self.shape(&shapes).expect("shapes were checked");
        Scores {
            shape,
            mask: &self.mask,
            q: inputs[0].data,
            k: inputs[1].data,
            v: inputs[2].data,
            gains: inputs[3].data.iter().map(|s| 1.0 / s).collect(),
            gaussian: self.score == Score::Gaussian,
            hard: self.hard,
            prior: (!self.hard).then(|| inputs[4].data),
            shift: self.shifted.then(|| inputs[inputs.len() - 1].data),
            bias: None,
            slopes: None,
            dropout: self.dropout,
        }
    }
}

impl Operator for GaussianMixture {
    fn inputs(&self) -> Vec<&'static str> {
        let mut names = vec!["q", "k", "v", "variance"];
        names.extend((!self.hard).then_some("log_prior"));
        names.extend(self.shifted.then_some("shift"));
        names
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        Ok(self.shape(shapes)?.out_shape())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        self.scored(inputs, |scores| scores.forward(out))
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        out: &[f32],
        saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let grads = self.scored(inputs, |scores| scores.backward(out, saved, grad_out, wanted[3], false));
        let mut all = vec![Some(grads.q), Some(grads.k), Some(grads.v), grads.variance];
        all.extend((!self.hard).then_some(grads.prior));
        all.extend(self.shifted.then_some(grads.shift));
        all.into_iter().zip(wanted).map(|(grad, wanted)| grad.filter(|_| *wanted)).collect()
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        reference::gaussian_mixture::gaussian_mixture(self, &self.read(inputs).views(), grad_out)
    }

    fn silenced<'a>(&self, inputs: &[View<'a, f64>]) -> Vec<Cow<'a, [f64]>> {
        self.read(inputs).into_data()
    }

    fn weights<'a>(&'a self, inputs: &[View<'a, f64>], batch: usize, head: usize) -> Vec<Weights<'a>> {
        vec![reference::gaussian_mixture::weights(self, inputs, batch, head)]
    }

    fn decoder(&self, storage: Storage) -> Option<Box<dyn Decode>> {
        let decodes = self.mask.causal && self.mask.valid.is_none();
        decodes.then(|| {
            let operator = Self { layout: Layout::TokenFirst, dropout: None, ..self.clone() };
            Box::new(Cache::new(Arc::new(operator), self.layout, self.mask.window, storage)) as Box<dyn Decode>
        })
    }
}
