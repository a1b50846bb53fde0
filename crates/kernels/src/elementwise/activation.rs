//! Element-wise non-linearities, with or without the bias before them.

use super::{Curve, add, curve::with_curve, for_blocks, row_width, rows_per_block, sum_of_rows};
use crate::{Error, Operator, Reference, Saved, View, memory::arbitrary, simd::vectorize};

/// `out = f(x + bias)`. Inputs `x [.., width]` and, with [`Activation::bias`], `bias [width]`.
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
        with_curve!(self.curve, |value, _| apply(x, bias, out, value));
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
        let (x_grad, bias_grad) = with_curve!(self.curve, |_, slope| pull_back(x, bias, grad_out, slope));
        let mut grads = vec![wanted[0].then_some(x_grad)];
        grads.extend(bias_grad.map(|grad| wanted[1].then_some(grad)));
        grads
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        let (x, bias) = (inputs[0].data, self.bias.then(|| inputs[1].data));
        let at = |i: usize| x[i] + bias.map_or(0.0, |bias| bias[i % bias.len()]);
        let out = (0..x.len()).map(|i| self.curve.value(at(i))).collect();
        let grads = grad_out.map_or_else(Vec::new, |grad_out| {
            let x_grad: Vec<f64> = (0..x.len()).map(|i| grad_out[i] * self.curve.slope(at(i))).collect();
            let mut grads = vec![x_grad];
            if let Some(bias) = bias {
                grads.push((0..bias.len()).map(|j| grads[0].iter().skip(j).step_by(bias.len()).sum()).collect());
            }
            grads
        });
        Reference { out, lse: None, grads }
    }
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

/// Gradients of `x` and of `bias`. The latter is summed per block; the block sums are added in order.
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

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn values_and_gradients_agree_with_the_twin() {
        for curve in Curve::ALL.iter().copied().filter(|curve| *curve != Curve::Relu) {
            for shape in [vec![7], vec![3, 5], vec![2, 700, 33]] {
                let x = check::draw(&shape, 3.0, 1);
                check::all(&Activation { curve, bias: false }, std::slice::from_ref(&x));
                let bias = check::draw(&shape[shape.len() - 1..], 1.0, 2);
                check::all(&Activation { curve, bias: true }, &[x, bias]);
            }
        }
    }

    #[test]
    fn relu_agrees_with_its_twin() {
        let (x, bias) = (check::draw(&[40, 600], 2.0, 3), check::draw(&[600], 1.0, 4));
        check::all(&Activation { curve: Curve::Relu, bias: true }, &[x.clone(), bias]);
        check::all(&Activation { curve: Curve::Relu, bias: false }, &[x]);
    }

    #[test]
    fn nan_and_infinity_pass_through_and_empty_tensors_stay_empty() {
        for &curve in Curve::ALL {
            let operator = Activation { curve, bias: false };
            let mut out = [0.0; 2];
            operator.forward(&[View::new(&[f32::NAN, f32::INFINITY], &[2])], &mut out);
            let most = if curve == Curve::Tanh { 1.0 } else { f32::INFINITY };
            assert!(out[0].is_nan() && out[1] == most, "{curve:?} gave {out:?}");
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
