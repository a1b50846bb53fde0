//! Sparse and low-rank attention, separately and combined (Scatterbrain, arXiv 2110.15343).
//!
//! `A~_ij = exp(tau q_i.k_j)` if key `j` is in the support of query `i`, `phi(q_i).phi(k_j)` otherwise, and the output
//! is `A~ V` with rows divided by their sums. Without features it is softmax on the support, without a support
//! Performer.

mod band;
mod far;
mod feature_map;
mod gathered;

use std::{borrow::Cow, sync::Arc};

use crate::{
    AttentionShape, Decode, Error, Layout, Mask, Operator, Reference, Saved, Softmax, Storage, View, Weights,
    cache::Cache,
    features::FeatureKind,
    padding::{Inputs, Number},
    reference,
    support::{SupportKind, SupportOptions},
};
pub(crate) use feature_map::{FeatureMap, log_product};

/// Inputs `q k v [projection] [directions | rotations]`, the last two without gradient: `projection [R,D]` with
/// features other than `elu`, `directions [rounds,D+2]` with SMYRF, `rotations [rounds,D,hash_values/2]` with LSH,
/// which has no `k`: its keys are the normalised queries.
#[derive(Clone, Debug, Default)]
pub struct Scatterbrain {
    /// Axis order.
    pub layout: Layout,
    /// Attention mask; a window is refused.
    pub mask: Mask,
    /// Score scale `tau` instead of `1/sqrt(D)`.
    pub scale: Option<f64>,
    /// Pairs with exact weights; `None` is Performer.
    pub support: Option<SupportOptions>,
    /// Features of the pairs off the support; `None` leaves them out.
    pub features: Option<FeatureKind>,
    /// Whether features are summed over the support too, which counts its pairs twice: the paper's baseline.
    pub naive: bool,
}

impl Scatterbrain {
    /// The kind of support.
    pub fn kind(&self) -> SupportKind {
        self.support.as_ref().map_or(SupportKind::Empty, |support| support.kind)
    }

    /// Sizes of a call.
    ///
    /// # Errors
    /// Shapes or options that do not fit together.
    pub fn shape(&self, shapes: &[&[usize]]) -> Result<AttentionShape, Error> {
        let names = self.inputs();
        if let Some(name) = names.get(shapes.len()) {
            return Err(Error::missing(*name, format!("it takes {}", names.join(", "))));
        }
        let lsh = self.kind() == SupportKind::Lsh;
        let (q, k, v) = if lsh { (shapes[0], shapes[0], shapes[1]) } else { (shapes[0], shapes[1], shapes[2]) };
        let shape = AttentionShape::from_tensors(q, k, v, self.layout, false)?;
        self.mask.check(&shape)?;
        if !matches!(self.kind(), SupportKind::Local | SupportKind::Empty | SupportKind::Full) {
            self.mask.check_aligned()?;
        }
        if let Some(window) = self.mask.window {
            return Err(Error::option("window", window, "no window: support.kind = \"local\" has a radius"));
        }
        if let Some(scale) = self.scale
            && !(scale.is_finite() && scale > 0.0)
        {
            return Err(Error::option("scale", scale, "a positive number"));
        }
        for (name, seen) in names.iter().zip(shapes) {
            let rounds = self.support.as_ref().map_or(0, |support| support.rounds);
            match *name {
                "projection" if seen.len() != 2 || seen[0] == 0 || seen[1] != shape.head_width => {
                    return Err(Error::shape("projection", seen, format!("[rows, {}]", shape.head_width)));
                }
                "directions" => Error::check_shape("directions", seen, &[rounds, shape.head_width + 2])?,
                "rotations" if seen.len() != 3 || seen[2] == 0 || seen[..2] != [rounds, shape.head_width] => {
                    let expected = format!("[{rounds}, {}, hash values / 2]", shape.head_width);
                    return Err(Error::shape("rotations", seen, expected));
                }
                _ => {}
            }
        }
        if let Some(support) = self.support.as_ref().filter(|support| support.kind == SupportKind::Block) {
            let blocks = support.blocks()?;
            let needed = [shape.queries.div_ceil(support.block), shape.keys.div_ceil(support.block)];
            let seen = [blocks.len(), blocks[0].len()];
            // The last tokens of a sequence are not in the first rows of its layout.
            if self.mask.causal && shape.queries != shape.keys {
                Error::check_shape("layout", &seen, &needed)?;
            }
            if seen[0] < needed[0] || seen[1] < needed[1] {
                return Err(Error::shape("layout", &seen, format!("at least {needed:?}")));
            }
        }
        Ok(shape)
    }

    fn read<'a, T: Number>(&self, inputs: &[View<'a, T>]) -> Inputs<'a, T> {
        Inputs::new(&self.inputs(), self.layout, &self.mask, inputs)
    }

    /// Score scale for heads of `width`.
    pub fn scale(&self, width: usize) -> f64 {
        self.scale.unwrap_or(1.0 / (width as f64).sqrt())
    }
}

/// One call: sizes and tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Problem<'a> {
    pub shape: AttentionShape,
    pub mask: &'a Mask,
    /// Score scale `tau`.
    pub scale: f32,
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub features: Option<FeatureMap<'a>>,
    /// Features are summed over the support too.
    pub naive: bool,
}

/// Denominators of all rows, `[B,H,N]` each. A weight is `2^(l - top) * |inverse|` for a logit `l` in base 2. A row
/// that sees nothing has inverse 0; an inverse is negative if the row has to be computed weight by weight, because the
/// feature sums underflow f32.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowScales<'s> {
    /// Natural log of the denominator; negative infinity if no key is visible.
    pub lse: Vec<f32>,
    pub tops: Vec<f32>,
    pub inverses: Vec<f32>,
    /// Sums of features around the spans of queries, which the backward pass needs again; empty without features.
    pub surroundings: Cow<'s, [f32]>,
}

/// Gradients of `q`, `k` and `v`, in the layout of the call.
#[derive(Clone, Debug)]
pub(crate) struct Grads {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

impl Operator for Scatterbrain {
    fn inputs(&self) -> Vec<&'static str> {
        let mut names = if self.kind() == SupportKind::Lsh { vec!["q", "v"] } else { vec!["q", "k", "v"] };
        if self.features.is_some_and(|kind| kind != FeatureKind::Elu) {
            names.push("projection");
        }
        match self.kind() {
            SupportKind::Smyrf => names.push("directions"),
            SupportKind::Lsh => names.push("rotations"),
            _ => {}
        }
        names
    }

    fn constants(&self) -> &'static [&'static str] {
        &["projection", "directions", "rotations"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        Ok(self.shape(shapes)?.out_shape())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let inputs = self.read(inputs);
        let inputs = &inputs.views();
        let scales = match self.kind() {
            SupportKind::Local | SupportKind::Empty | SupportKind::Full => {
                self.problem(inputs).forward_band(self.radius(), out)
            }
            _ => gathered::forward(self, inputs, out),
        };
        Saved::with_lse(scales.lse, [scales.tops, scales.inverses, scales.surroundings.into_owned()])
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
        let inputs = &inputs.views();
        let [lse, tops, inverses] = [0, 1, 2].map(|n| saved[n].to_vec());
        let scales = RowScales { lse, tops, inverses, surroundings: Cow::Borrowed(&saved[3]) };
        let grads = match self.kind() {
            SupportKind::Local | SupportKind::Empty | SupportKind::Full => {
                let Grads { q, k, v } = self.problem(inputs).backward_band(self.radius(), out, &scales, grad_out);
                vec![q, k, v]
            }
            _ => gathered::backward(self, inputs, out, &scales, grad_out),
        };
        let mut grads: Vec<_> = grads.into_iter().zip(wanted).map(|(grad, wanted)| wanted.then_some(grad)).collect();
        grads.resize(inputs.len(), None);
        grads
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        reference::scatterbrain::scatterbrain(self, &self.read(inputs).views(), grad_out)
    }

    fn silenced<'a>(&self, inputs: &[View<'a, f64>]) -> Vec<Cow<'a, [f64]>> {
        self.read(inputs).into_data()
    }

    fn weights<'a>(&'a self, inputs: &[View<'a, f64>], batch: usize, head: usize) -> Vec<Weights<'a>> {
        vec![reference::scatterbrain::weights(self, inputs, batch, head)]
    }

    fn decoder(&self, storage: Storage) -> Option<Box<dyn Decode>> {
        if !self.mask.causal || self.mask.valid.is_some() {
            return None;
        }
        match self.kind() {
            SupportKind::Full if !self.naive => {
                let mask = self.mask.clone();
                Softmax { layout: self.layout, mask, scale: self.scale, ..Softmax::default() }.decoder(storage)
            }
            // Without features, tokens between the first and the last ones have no effect.
            SupportKind::Local | SupportKind::Longformer if self.features.is_none() => {
                let support = self.support.as_ref()?;
                let globals = if self.kind() == SupportKind::Longformer { support.globals } else { 0 };
                let (layout, mask, scale) = (self.layout, Mask { causal: true, ..Mask::none() }, self.scale);
                let exact = Softmax { layout: Layout::TokenFirst, mask, scale, ..Softmax::default() };
                Some(Box::new(Cache::sliding(Arc::new(exact), layout, [globals, support.radius + 1], storage)))
            }
            SupportKind::Local | SupportKind::Empty => Some(Box::new(band::Ring::new(self.clone(), self.radius(), 0))),
            SupportKind::Longformer => {
                let support = self.support.as_ref()?;
                Some(Box::new(band::Ring::new(self.clone(), Some(support.radius), support.globals)))
            }
            SupportKind::Block => Some(Box::new(gathered::BlockCache::new(self, storage)?)),
            // BigBird draws its blocks among those of the whole sequence, hashes sort all of its tokens: both change with
            // tokens still to come.
            SupportKind::Full | SupportKind::Bigbird | SupportKind::Smyrf | SupportKind::Lsh => None,
        }
    }
}

impl Scatterbrain {
    /// Radius of a band; unbounded with full support.
    fn radius(&self) -> Option<usize> {
        match (self.kind(), &self.support) {
            (SupportKind::Full, _) => Some(usize::MAX / 4),
            (SupportKind::Local, Some(support)) => Some(support.radius),
            _ => None,
        }
    }

    /// The call with its tensors; not for LSH, whose keys are not an input.
    fn problem<'a>(&'a self, inputs: &[View<'a, f32>]) -> Problem<'a> {
        let shapes: Vec<_> = inputs.iter().map(|input| input.shape).collect();
        let shape = self.shape(&shapes).expect("inputs that passed out_shape");
        let scale = self.scale(shape.head_width) as f32;
        let projection = self.inputs().iter().position(|name| *name == "projection");
        let projection = projection.map_or(&[][..], |at| inputs[at].data);
        Problem {
            shape,
            mask: &self.mask,
            scale,
            q: inputs[0].data,
            k: inputs[1].data,
            v: inputs[2].data,
            features: self.features.map(|kind| FeatureMap::new(kind, projection, shape.head_width, scale)),
            naive: self.naive,
        }
    }
}
