//! Element-wise non-linearities, with or without the bias before them.

use super::{add, for_blocks, row_width, rows_per_block, sum_of_rows};
use crate::{
    Error, Operator, Reference, Saved, View,
    memory::arbitrary,
    simd::{gelu, gelu_slope, vectorize},
};

/// The function that an [`Activation`] applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// `x Phi(x)`, exact (Hendrycks and Gimpel 2016).
    Gelu,
    /// `max(x, 0)`, with slope 0 at 0.
    Relu,
}

/// `out = f(x + bias)`. Inputs `x [.., width]` and, where [`Activation::bias`] says so, `bias [width]`.
#[derive(Clone, Copy, Debug)]
pub struct Activation {
    /// `f`.
    pub curve: Curve,
    /// Whether there is a bias.
    pub bias: bool,
}

impl Operator for Activation {
    fn inputs(&self) -> Vec<&'static str> {
        if self.bias { vec!["x", "bias"] } else { vec!["x"] }
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let width = row_width("x", shapes[0])?;
        if self.bias {
            Error::check_shape("bias", shapes[1], &[width])?;
        }
        Ok(shapes[0].to_vec())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let (x, bias) = (inputs[0].data, self.bias.then(|| inputs[1].data));
        match self.curve {
            Curve::Gelu => apply(x, bias, out, gelu),
            Curve::Relu => apply(x, bias, out, relu),
        }
        Saved::new()
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        _out: &[f32],
        _saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let (x, bias) = (inputs[0].data, self.bias.then(|| inputs[1].data));
        let (x_grad, bias_grad) = match self.curve {
            Curve::Gelu => pull_back(x, bias, grad_out, gelu_slope),
            Curve::Relu => pull_back(x, bias, grad_out, relu_slope),
        };
        let mut grads = vec![wanted[0].then_some(x_grad)];
        grads.extend(bias_grad.map(|grad| wanted[1].then_some(grad)));
        grads
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        let (x, bias) = (inputs[0].data, self.bias.then(|| inputs[1].data));
        let at = |i: usize| x[i] + bias.map_or(0.0, |bias| bias[i % bias.len()]);
        let value = |x: f64| match self.curve {
            Curve::Gelu => x * normal_cdf(x),
            Curve::Relu => x.max(0.0),
        };
        let slope = |x: f64| match self.curve {
            Curve::Gelu => normal_cdf(x) + x * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt(),
            Curve::Relu => f64::from(u8::from(x > 0.0)),
        };
        let out = (0..x.len()).map(|i| value(at(i))).collect();
        let grads = grad_out.map_or_else(Vec::new, |grad_out| {
            let x_grad: Vec<f64> = (0..x.len()).map(|i| grad_out[i] * slope(at(i))).collect();
            let mut grads = vec![x_grad];
            if let Some(bias) = bias {
                grads.push((0..bias.len()).map(|j| grads[0].iter().skip(j).step_by(bias.len()).sum()).collect());
            }
            grads
        });
        Reference { out, lse: None, grads }
    }
}

#[inline(always)]
fn relu(x: f32) -> f32 {
    // Written so that NaN stays NaN.
    if x < 0.0 { 0.0 } else { x }
}

#[inline(always)]
fn relu_slope(x: f32) -> f32 {
    if x > 0.0 { 1.0 } else { 0.0 }
}

fn apply(x: &[f32], bias: Option<&[f32]>, out: &mut [f32], curve: impl Fn(f32) -> f32 + Copy + Sync + Send) {
    let width = bias.map_or(1, <[f32]>::len);
    let block = rows_per_block(width) * width;
    for_blocks(x.len().div_ceil(block.max(1)), [(out, block)], |index, [out]| {
        let x = &x[index * block..][..out.len()];
        vectorize(
            #[inline(always)]
            || match bias {
                None => out.iter_mut().zip(x).for_each(|(out, &x)| *out = curve(x)),
                Some(bias) => {
                    for (out, x) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                        for ((out, &x), &bias) in out.iter_mut().zip(x).zip(bias) {
                            *out = curve(x + bias);
                        }
                    }
                }
            },
        );
    });
}

/// Gradients of `x` and of `bias`. Each block sums its rows of the latter; the sums of the blocks are added in order.
fn pull_back(
    x: &[f32],
    bias: Option<&[f32]>,
    grad_out: &[f32],
    slope: impl Fn(f32) -> f32 + Copy + Sync + Send,
) -> (Vec<f32>, Option<Vec<f32>>) {
    let width = bias.map_or(1, <[f32]>::len);
    let block = rows_per_block(width) * width;
    let count = x.len().div_ceil(block.max(1));
    let mut x_grad = arbitrary(x.len());
    let mut sums = vec![0.0; if bias.is_some() { count * width } else { 0 }];
    for_blocks(count, [(&mut x_grad, block), (&mut sums, width)], |index, [x_grad, sums]| {
        let x = &x[index * block..][..x_grad.len()];
        let grad_out = &grad_out[index * block..][..x_grad.len()];
        vectorize(
            #[inline(always)]
            || match bias {
                None => {
                    for ((x_grad, &x), &grad_out) in x_grad.iter_mut().zip(x).zip(grad_out) {
                        *x_grad = grad_out * slope(x);
                    }
                }
                Some(bias) => {
                    let rows = x.chunks_exact(width).zip(grad_out.chunks_exact(width));
                    for (x_grad, (x, grad_out)) in x_grad.chunks_exact_mut(width).zip(rows) {
                        for (((x_grad, &x), &bias), &grad_out) in x_grad.iter_mut().zip(x).zip(bias).zip(grad_out) {
                            *x_grad = grad_out * slope(x + bias);
                        }
                        add(sums, x_grad);
                    }
                }
            },
        );
    });
    let bias_grad = bias.map(|_| sum_of_rows(&sums, width));
    (x_grad, bias_grad)
}

/// Distribution function of the standard normal, by `erf z = 2 / sqrt(pi) e^{-z^2} sum_n 2^n z^{2n+1} / (2n+1)!!`, whose
/// terms are all of one sign.
fn normal_cdf(x: f64) -> f64 {
    let z = x * std::f64::consts::FRAC_1_SQRT_2;
    if z.abs() > 6.0 {
        return if z > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut odd) = (z, z, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        odd += 2.0;
        term *= 2.0 * z * z / odd;
        sum += term;
    }
    0.5 * (1.0 + std::f64::consts::FRAC_2_SQRT_PI * (-z * z).exp() * sum)
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn gelu_agrees_with_its_twin() {
        for shape in [vec![7], vec![3, 5], vec![2, 700, 33]] {
            let x = check::draw(&shape, 3.0, 1);
            check::all(&Activation { curve: Curve::Gelu, bias: false }, std::slice::from_ref(&x));
            let bias = check::draw(&shape[shape.len() - 1..], 1.0, 2);
            check::all(&Activation { curve: Curve::Gelu, bias: true }, &[x, bias]);
        }
    }

    #[test]
    fn relu_agrees_with_its_twin() {
        let (x, bias) = (check::draw(&[40, 600], 2.0, 3), check::draw(&[600], 1.0, 4));
        check::all(&Activation { curve: Curve::Relu, bias: true }, &[x.clone(), bias]);
        check::all(&Activation { curve: Curve::Relu, bias: false }, &[x]);
    }

    #[test]
    fn the_twin_knows_the_normal_distribution() {
        for (x, want) in [(0.0, 0.5), (1.0, 0.841_344_746_068_542_9), (-2.0, 0.022_750_131_948_179_21), (9.0, 1.0)] {
            assert!((normal_cdf(x) - want).abs() < 1e-15, "Phi({x})");
        }
    }

    #[test]
    fn nan_and_infinity_pass_through_and_empty_tensors_stay_empty() {
        for curve in [Curve::Gelu, Curve::Relu] {
            let operator = Activation { curve, bias: false };
            let mut out = [0.0; 2];
            operator.forward(&[View::new(&[f32::NAN, f32::INFINITY], &[2])], &mut out);
            assert!(out[0].is_nan() && out[1] == f32::INFINITY, "{curve:?} gave {out:?}");
            let operator = Activation { curve, bias: true };
            for shape in [[0, 3], [3, 0]] {
                let bias = vec![1.0; shape[1]];
                let inputs = [View::new(&[], &shape), View::new(&bias, &shape[1..])];
                operator.forward(&inputs, &mut []);
                let grads = operator.backward(&inputs, &[], &Saved::new(), &[], &[true, true]);
                assert_eq!(grads, [Some(vec![]), Some(vec![0.0; shape[1]])]);
            }
        }
    }
}
