//! Cosine attention: softmax of cosine similarities, with a learned scale per head.

use std::borrow::Cow;

use crate::{
    Decode, Dropout, Error, Layout, Mask, Operator, Reference, Saved, Softmax, Storage, View, Weights,
    memory::arbitrary,
    padding::{Inputs, Number},
    parallel::{self, for_each_part},
    reference, simd,
};

/// Rows per task.
const ROWS: usize = 256;

/// Rows with a smaller norm are divided by this instead.
pub(crate) const SHORTEST: f64 = 1e-12;

/// `out = softmax_j(exp(log_scale_h) cos(q_i, k_j)) v`: inputs `q k v log_scale`, `log_scale [H]` (Henry et al. 2020, with one
/// scale for all heads; Liu et al. 2022).
///
/// Scores are bounded by the scale, whatever the norms of queries and keys.
#[derive(Clone, Debug, Default)]
pub struct Cosine {
    /// Axis order.
    pub layout: Layout,
    /// Attention mask.
    pub mask: Mask,
    /// Dropout on the weights.
    pub dropout: Option<Dropout>,
}

impl Cosine {
    /// The scale `exp(log_scale)` from which learning begins, as in Swin V2 (Liu et al. 2022).
    pub const FIRST_SCALE: f64 = 10.0;

    /// Softmax attention of directions.
    pub(crate) fn softmax(&self) -> Softmax {
        let Self { layout, mask, dropout } = self.clone();
        Softmax { layout, mask, dropout, scale: Some(1.0), ..Softmax::default() }
    }

    /// The head of row `row` in queries of this shape.
    pub(crate) fn head(&self, shape: &[usize], row: usize) -> usize {
        match self.layout {
            Layout::HeadFirst => row / shape[2] % shape[1],
            Layout::TokenFirst => row % shape[2],
        }
    }

    fn read<'a, T: Number>(&self, inputs: &[View<'a, T>]) -> Inputs<'a, T> {
        Inputs::new(&self.inputs(), self.layout, &self.mask, inputs)
    }

    /// Normalised queries, times the scales of their heads, and normalised keys.
    fn directions(&self, inputs: &[View<f32>]) -> [Vec<f32>; 2] {
        let (q, k, log_scale) = (inputs[0], inputs[1], inputs[3].data);
        let scale = |row: usize| log_scale[self.head(q.shape, row)].exp();
        [directions(&q, scale), directions(&k, |_| 1.0)]
    }
}

impl Operator for Cosine {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["q", "k", "v", "log_scale"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let shape = self.softmax().shape(shapes)?;
        Error::check_shape("log_scale", shapes[3], &[shape.heads])?;
        Ok(shape.out_shape())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let [q, k] = self.directions(&inputs);
        self.softmax().forward(&[View::new(&q, inputs[0].shape), View::new(&k, inputs[1].shape), inputs[2]], out)
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
        let (x_q, x_k, log_scale) = (inputs[0], inputs[1], inputs[3].data);
        let [q, k] = self.directions(&inputs);
        let directed = [View::new(&q, x_q.shape), View::new(&k, x_k.shape), inputs[2]];
        let asked = [wanted[0] || wanted[3], wanted[1], wanted[2]];
        let mut grads = self.softmax().backward(&directed, out, saved, grad_out, &asked);
        // The operand is scale times direction, so the gradient of log_scale is its product with its own gradient.
        let of_scale = wanted[3].then(|| {
            let mut sums = vec![0.0f64; log_scale.len()];
            let rows = products(&q, grads[0].as_ref().expect("asked for"), x_q.shape[3]);
            rows.into_iter().enumerate().for_each(|(row, product)| sums[self.head(x_q.shape, row)] += product);
            sums.into_iter().map(|sum| sum as f32).collect()
        });
        grads[0] = grads[0].take().filter(|_| wanted[0]);
        if let Some(grad) = &mut grads[0] {
            project(&x_q, grad, |row| log_scale[self.head(x_q.shape, row)].exp());
        }
        if let Some(grad) = &mut grads[1] {
            project(&x_k, grad, |_| 1.0);
        }
        grads.push(of_scale);
        grads
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        reference::cosine::cosine(self, &self.read(inputs).views(), grad_out)
    }

    fn silenced<'a>(&self, inputs: &[View<'a, f64>]) -> Vec<Cow<'a, [f64]>> {
        self.read(inputs).into_data()
    }

    fn weights<'a>(&'a self, inputs: &[View<'a, f64>], batch: usize, head: usize) -> Vec<Weights<'a>> {
        vec![reference::cosine::weights(self, inputs, batch, head)]
    }

    fn decoder(&self, storage: Storage) -> Option<Box<dyn Decode>> {
        let attention = self.softmax().decoder(storage)?;
        Some(Box::new(Directed { operator: self.clone(), attention }))
    }
}

/// Decodes with softmax attention on normalised inputs.
#[derive(Debug)]
struct Directed {
    operator: Cosine,
    attention: Box<dyn Decode>,
}

impl Decode for Directed {
    fn step(&mut self, inputs: &[View<f32>], out: &mut [f32]) {
        let [q, k] = self.operator.directions(inputs);
        self.attention.step(&[View::new(&q, inputs[0].shape), View::new(&k, inputs[1].shape), inputs[2]], out);
    }

    fn absorb(&mut self, inputs: &[View<f32>], out: &mut [f32]) {
        let [q, k] = self.operator.directions(inputs);
        self.attention.absorb(&[View::new(&q, inputs[0].shape), View::new(&k, inputs[1].shape), inputs[2]], out);
    }

    fn reorder(&mut self, rows: &[usize]) {
        self.attention.reorder(rows);
    }

    fn bytes(&self) -> usize {
        self.attention.bytes()
    }
}

/// The norm of a row; its square may overflow or underflow f32.
#[inline(always)]
fn length(row: &[f32]) -> f64 {
    product(row, row).sqrt().max(SHORTEST)
}

#[inline(always)]
fn product(a: &[f32], b: &[f32]) -> f64 {
    const LANES: usize = 8;
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0f64; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    sums.iter().sum::<f64>() + rest
}

/// The rows of `x`, each normalised and multiplied by the scale for its index.
fn directions(x: &View<f32>, scale: impl Fn(usize) -> f32 + Sync) -> Vec<f32> {
    let width = x.shape[x.shape.len() - 1];
    let mut out = arbitrary(x.data.len());
    each_row(&mut out, width, |row, out| {
        let x = &x.data[row * width..][..width];
        let factor = f64::from(scale(row)) / length(x);
        out.iter_mut().zip(x).for_each(|(out, x)| *out = (factor * f64::from(*x)) as f32);
    });
    out
}

/// Converts gradients of [`directions`] to those of the rows: the component along a row is projected out.
fn project(x: &View<f32>, grad: &mut [f32], scale: impl Fn(usize) -> f32 + Sync) {
    let width = x.shape[x.shape.len() - 1];
    each_row(grad, width, |row, grad| {
        let x = &x.data[row * width..][..width];
        let length = length(x);
        let factor = f64::from(scale(row)) / length;
        // Below the minimum norm the divisor is constant.
        let along = if length > SHORTEST { product(x, grad) / length / length } else { 0.0 };
        let projected = |grad: f32, x: f32| factor * (f64::from(grad) - along * f64::from(x));
        grad.iter_mut().zip(x).for_each(|(grad, x)| *grad = projected(*grad, *x) as f32);
    });
}

/// Row-wise dot products.
fn products(a: &[f32], b: &[f32], width: usize) -> Vec<f64> {
    let rows = |task: usize| {
        let (first, last) = (task * ROWS * width, ((task + 1) * ROWS * width).min(a.len()));
        let pairs = a[first..last].chunks_exact(width).zip(b[first..last].chunks_exact(width));
        simd::vectorize(
            #[inline(always)]
            || pairs.map(|(a, b)| product(a, b)).collect::<Vec<_>>(),
        )
    };
    parallel::map(a.len().div_ceil(ROWS * width), rows).concat()
}

/// Calls `change` with each row and its index.
fn each_row(rows: &mut [f32], width: usize, change: impl Fn(usize, &mut [f32]) + Sync) {
    for_each_part(rows, ROWS * width, |part, rows| {
        simd::vectorize(
            #[inline(always)]
            || rows.chunks_exact_mut(width).enumerate().for_each(|(i, row)| change(part * ROWS + i, row)),
        );
    });
}
