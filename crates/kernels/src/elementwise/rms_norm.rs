//! Root-mean-square normalisation (Zhang and Sennrich 2019).

use super::{for_blocks, row_width, rows_per_block, sum_of_rows};
use crate::{
    Error, Operator, Reference, Saved, View,
    memory::arbitrary,
    simd::{sum_pairs, vectorize},
};

/// `out = x / sqrt(mean(x^2) + epsilon) * weight` over rows.
///
/// Inputs `x [.., width]`, `weight [width]`. Saves the scale factor of each row.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// Added to the mean square, so that rows of zeros never divide by zero.
    pub epsilon: f32,
}

impl Operator for RmsNorm {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["x", "weight"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let width = row_width("x", shapes[0])?;
        Error::check_shape("weight", shapes[1], &[width])?;
        Ok(shapes[0].to_vec())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let [x, weight] = [0, 1].map(|i| inputs[i].data);
        let width = weight.len();
        let rows = x.len() / width.max(1);
        let mut scales = arbitrary(rows);
        let tall = rows_per_block(width);
        for_blocks(rows.div_ceil(tall), [(out, tall * width), (&mut scales, tall)], |block, [out, scales]| {
            let x = &x[block * tall * width..][..out.len()];
            vectorize(
                #[inline(always)]
                move || {
                    // Fixes the length, so that the loops below need no bounds checks.
                    let weight = &weight[..width];
                    let rows = x.chunks_exact(width).zip(out.chunks_exact_mut(width));
                    for ((x, out), scale) in rows.zip(scales) {
                        let mean = sum_pairs(x, x, |x, _| x * x) / width as f32;
                        *scale = 1.0 / (mean + self.epsilon).sqrt();
                        for j in 0..width {
                            out[j] = x[j] * *scale * weight[j];
                        }
                    }
                },
            );
        });
        vec![scales].into()
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        _out: &[f32],
        saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let [x, weight] = [0, 1].map(|i| inputs[i].data);
        let scales = &saved[0];
        let width = weight.len();
        let tall = rows_per_block(width);
        let count = scales.len().div_ceil(tall);
        let mut x_grad = arbitrary(x.len());
        let mut sums = vec![0.0; count * width];
        for_blocks(count, [(&mut x_grad[..], tall * width), (&mut sums, width)], |block, [x_grad, sums]| {
            let x = &x[block * tall * width..][..x_grad.len()];
            let grad_out = &grad_out[block * tall * width..][..x_grad.len()];
            let scales = &scales[block * tall..];
            vectorize(
                #[inline(always)]
                move || {
                    let (weight, sums) = (&weight[..width], &mut sums[..width]);
                    let rows = x.chunks_exact(width).zip(grad_out.chunks_exact(width));
                    for ((x_grad, (x, grad)), &scale) in x_grad.chunks_exact_mut(width).zip(rows).zip(scales) {
                        for j in 0..width {
                            sums[j] += grad[j] * (x[j] * scale);
                            x_grad[j] = grad[j] * weight[j];
                        }
                        // The output is invariant to the norm of the row: project out that component.
                        let away = sum_pairs(x_grad, x, |grad, x| grad * (x * scale)) / width as f32;
                        for j in 0..width {
                            x_grad[j] = scale * (x_grad[j] - x[j] * scale * away);
                        }
                    }
                },
            );
        });
        vec![wanted[0].then_some(x_grad), wanted[1].then(|| sum_of_rows(&sums, width))]
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        let [x, weight] = [0, 1].map(|i| inputs[i].data);
        let width = weight.len();
        let mut out = Vec::with_capacity(x.len());
        let mut grads = vec![Vec::with_capacity(x.len()), vec![0.0; width]];
        for (row, x) in x.chunks_exact(width).enumerate() {
            let size = (x.iter().map(|x| x * x).sum::<f64>() / width as f64 + f64::from(self.epsilon)).sqrt();
            let normal: Vec<f64> = x.iter().map(|x| x / size).collect();
            out.extend((0..width).map(|j| normal[j] * weight[j]));
            let Some(grad_out) = grad_out else { continue };
            let grad = &grad_out[row * width..][..width];
            let away = (0..width).map(|j| grad[j] * weight[j] * normal[j]).sum::<f64>() / width as f64;
            for j in 0..width {
                grads[0].push((grad[j] * weight[j] - normal[j] * away) / size);
                grads[1][j] += grad[j] * normal[j];
            }
        }
        Reference { out, lse: None, grads: if grad_out.is_some() { grads } else { Vec::new() } }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn values_and_gradients_agree_with_the_twin() {
        for (shape, epsilon) in
            [(vec![5], 1e-6), (vec![3, 7], 1e-5), (vec![2, 150, 129], 1e-5), (vec![6, 64], 0.1), (vec![0, 4], 1e-5)]
        {
            let weight = check::draw(&[shape[shape.len() - 1]], 2.0, 2);
            check::all(&RmsNorm { epsilon }, &[check::draw(&shape, 1.5, 1), weight]);
        }
    }

    #[test]
    fn a_row_of_zeros_stays_one_and_a_weight_of_another_width_is_an_error() {
        let (norm, mut out) = (RmsNorm { epsilon: 1e-6 }, [f32::NAN; 4]);
        norm.forward(&[View::new(&[0.0; 4], &[1, 4]), View::new(&[2.0; 4], &[4])], &mut out);
        assert_eq!(out, [0.0; 4]);
        let error = norm.out_shape(&[&[4, 8], &[7]]).unwrap_err().to_string();
        assert!(error.contains("'weight' has shape [7], expected [8]"));
    }
}
