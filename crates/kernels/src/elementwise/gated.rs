//! Gated activations (Shazeer 2020, "GLU variants improve transformer").

use super::{BLOCK, Curve, curve::with_curve, for_blocks, row_width};
use crate::{Error, Operator, Reference, Saved, View, memory::arbitrary, simd::vectorize};

/// `out = f(gate) * up`: SwiGLU with [`Curve::Silu`], GeGLU with [`Curve::Gelu`]. Inputs `gate` and `up`, both `[.., width]`.
#[derive(Clone, Copy, Debug)]
pub struct Gated {
    /// `f`.
    pub curve: Curve,
}

impl Operator for Gated {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["gate", "up"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        row_width("gate", shapes[0])?;
        Error::check_shape("up", shapes[1], shapes[0])?;
        Ok(shapes[0].to_vec())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let [gate, up] = [0, 1].map(|i| inputs[i].data);
        with_curve!(self.curve, |value, _| apply(gate, up, out, value));
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
        let [gate, up] = [0, 1].map(|i| inputs[i].data);
        let [mut gate_grad, mut up_grad] = [(); 2].map(|()| arbitrary(gate.len()));
        let grads = [&mut gate_grad[..], &mut up_grad];
        with_curve!(self.curve, |value, slope| pull_back(gate, up, grad_out, grads, value, slope));
        vec![wanted[0].then_some(gate_grad), wanted[1].then_some(up_grad)]
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        let [gate, up] = [0, 1].map(|i| inputs[i].data);
        let out = gate.iter().zip(up).map(|(&gate, up)| self.curve.value(gate) * up).collect();
        let grads = grad_out.map_or_else(Vec::new, |grad_out| {
            let grad = |of: &dyn Fn(usize) -> f64| (0..gate.len()).map(|i| grad_out[i] * of(i)).collect();
            vec![grad(&|i| self.curve.slope(gate[i]) * up[i]), grad(&|i| self.curve.value(gate[i]))]
        });
        Reference { out, lse: None, grads }
    }
}

fn apply(gate: &[f32], up: &[f32], out: &mut [f32], value: impl Fn(f32) -> f32 + Copy + Sync + Send) {
    for_blocks(gate.len().div_ceil(BLOCK), [(out, BLOCK)], |block, [out]| {
        let [gate, up] = [gate, up].map(|x| &x[block * BLOCK..][..out.len()]);
        vectorize(
            #[inline(always)]
            || {
                for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
                    *out = value(gate) * up;
                }
            },
        );
    });
}

/// Both gradients in one pass: value and derivative share their exponential.
fn pull_back(
    gate: &[f32],
    up: &[f32],
    grad_out: &[f32],
    grads: [&mut [f32]; 2],
    value: impl Fn(f32) -> f32 + Copy + Sync + Send,
    slope: impl Fn(f32) -> f32 + Copy + Sync + Send,
) {
    for_blocks(gate.len().div_ceil(BLOCK), grads.map(|grad| (grad, BLOCK)), |block, [gate_grad, up_grad]| {
        let [gate, up, grad_out] = [gate, up, grad_out].map(|x| &x[block * BLOCK..][..gate_grad.len()]);
        vectorize(
            #[inline(always)]
            || {
                let inputs = gate.iter().zip(up).zip(grad_out);
                for ((gate_grad, up_grad), ((&gate, &up), &grad_out)) in gate_grad.iter_mut().zip(up_grad).zip(inputs) {
                    *gate_grad = grad_out * up * slope(gate);
                    *up_grad = grad_out * value(gate);
                }
            },
        );
    });
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn values_and_gradients_agree_with_the_twin() {
        for &curve in Curve::ALL {
            for shape in [vec![7], vec![3, 5], vec![2, 700, 33], vec![0, 4]] {
                check::all(&Gated { curve }, &[check::draw(&shape, 3.0, 1), check::draw(&shape, 1.0, 2)]);
            }
        }
    }

    #[test]
    fn a_gate_of_another_shape_is_an_error() {
        let error = Gated { curve: Curve::Silu }.out_shape(&[&[4, 8], &[8, 4]]).unwrap_err().to_string();
        assert!(error.contains("'up' has shape [8, 4], expected [4, 8]"));
    }
}
