//! Layer normalisation (Ba, Kiros and Hinton 2016).

use super::{for_blocks, row_width, rows_per_block, sum_of_rows};
use crate::{
    Error, Operator, Reference, Saved, View,
    memory::arbitrary,
    simd::{sum_pairs, vectorize},
};

/// `out = (x - mean) / sqrt(variance + epsilon) * weight + bias` over rows, with the biased variance.
///
/// Inputs `x [.., width]`, `weight [width]`, `bias [width]`. Saves mean and reciprocal standard deviation of each row.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    /// Added to the variance, so that constant rows never divide by zero.
    pub epsilon: f32,
}

impl Operator for LayerNorm {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["x", "weight", "bias"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let width = row_width("x", shapes[0])?;
        Error::check_shape("weight", shapes[1], &[width])?;
        Error::check_shape("bias", shapes[2], &[width])?;
        Ok(shapes[0].to_vec())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let [x, weight, bias] = [0, 1, 2].map(|i| inputs[i].data);
        let width = weight.len();
        let rows = x.len() / width.max(1);
        let (mut means, mut scales) = (arbitrary(rows), arbitrary(rows));
        let tall = rows_per_block(width);
        let buffers = [(out, tall * width), (&mut means, tall), (&mut scales, tall)];
        for_blocks(rows.div_ceil(tall), buffers, |block, [out, means, scales]| {
            let x = &x[block * tall * width..][..out.len()];
            vectorize(
                #[inline(always)]
                move || {
                    // Fixes the lengths, so that the loops below need no bounds checks.
                    let (weight, bias) = (&weight[..width], &bias[..width]);
                    for (row, (x, out)) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)).enumerate() {
                        let (mean, scale) = moments(x, self.epsilon);
                        (means[row], scales[row]) = (mean, scale);
                        for j in 0..width {
                            out[j] = (x[j] - mean) * scale * weight[j] + bias[j];
                        }
                    }
                },
            );
        });
        vec![means, scales].into()
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
        let (means, scales) = (&saved[0], &saved[1]);
        let width = weight.len();
        let tall = rows_per_block(width);
        let count = means.len().div_ceil(tall);
        let mut x_grad = arbitrary(x.len());
        let (mut weight_sums, mut bias_sums) = (vec![0.0; count * width], vec![0.0; count * width]);
        let buffers = [(&mut x_grad[..], tall * width), (&mut weight_sums, width), (&mut bias_sums, width)];
        for_blocks(count, buffers, |block, [x_grad, weight_sums, bias_sums]| {
            let x = &x[block * tall * width..][..x_grad.len()];
            let grad_out = &grad_out[block * tall * width..][..x_grad.len()];
            let (means, scales) = (&means[block * tall..], &scales[block * tall..]);
            vectorize(
                #[inline(always)]
                move || {
                    let weight = &weight[..width];
                    let (weight_sums, bias_sums) = (&mut weight_sums[..width], &mut bias_sums[..width]);
                    let rows = x.chunks_exact(width).zip(grad_out.chunks_exact(width));
                    for (row, (x_grad, (x, grad))) in x_grad.chunks_exact_mut(width).zip(rows).enumerate() {
                        let (mean, scale) = (means[row], scales[row]);
                        for j in 0..width {
                            weight_sums[j] += grad[j] * ((x[j] - mean) * scale);
                            bias_sums[j] += grad[j];
                            x_grad[j] = grad[j] * weight[j];
                        }
                        // The output is invariant to shifting and scaling x: project out those two components.
                        let along = sum_pairs(x_grad, x_grad, |grad, _| grad) / width as f32;
                        let away = sum_pairs(x_grad, x, |grad, x| grad * ((x - mean) * scale)) / width as f32;
                        for j in 0..width {
                            x_grad[j] = scale * (x_grad[j] - along - (x[j] - mean) * scale * away);
                        }
                    }
                },
            );
        });
        vec![
            wanted[0].then_some(x_grad),
            wanted[1].then(|| sum_of_rows(&weight_sums, width)),
            wanted[2].then(|| sum_of_rows(&bias_sums, width)),
        ]
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        let [x, weight, bias] = [0, 1, 2].map(|i| inputs[i].data);
        let width = weight.len();
        let mut out = Vec::with_capacity(x.len());
        let mut grads = vec![Vec::with_capacity(x.len()), vec![0.0; width], vec![0.0; width]];
        for (row, x) in x.chunks_exact(width).enumerate() {
            let mean = x.iter().sum::<f64>() / width as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            let deviation = (variance + f64::from(self.epsilon)).sqrt();
            let normal: Vec<f64> = x.iter().map(|x| (x - mean) / deviation).collect();
            out.extend((0..width).map(|j| normal[j] * weight[j] + bias[j]));
            let Some(grad_out) = grad_out else { continue };
            let grad = &grad_out[row * width..][..width];
            let along = (0..width).map(|j| grad[j] * weight[j]).sum::<f64>() / width as f64;
            let away = (0..width).map(|j| grad[j] * weight[j] * normal[j]).sum::<f64>() / width as f64;
            for j in 0..width {
                grads[0].push((grad[j] * weight[j] - along - normal[j] * away) / deviation);
                grads[1][j] += grad[j] * normal[j];
                grads[2][j] += grad[j];
            }
        }
        Reference { out, lse: None, grads: if grad_out.is_some() { grads } else { Vec::new() } }
    }
}

/// Mean and reciprocal standard deviation of a row, in two passes: a single pass would cancel for a large mean.
#[inline(always)]
fn moments(x: &[f32], epsilon: f32) -> (f32, f32) {
    let mean = sum_pairs(x, x, |x, _| x) / x.len() as f32;
    let variance = sum_pairs(x, x, |x, _| (x - mean) * (x - mean)) / x.len() as f32;
    (mean, 1.0 / (variance + epsilon).sqrt())
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    const NORM: LayerNorm = LayerNorm { epsilon: 1e-5 };

    #[test]
    fn values_and_gradients_agree_with_the_twin() {
        for shape in [vec![5], vec![3, 7], vec![2, 150, 129], vec![6, 64]] {
            let width = shape[shape.len() - 1];
            let parameters = [check::draw(&[width], 2.0, 2), check::draw(&[width], 1.0, 3)];
            let [weight, bias] = parameters;
            check::all(&NORM, &[check::draw(&shape, 1.5, 1), weight, bias]);
        }
    }

    #[test]
    fn a_far_mean_and_a_constant_row_stay_accurate() {
        const WIDTH: usize = 96;
        let mut x = check::draw(&[3, WIDTH], 1.0, 4).data;
        x[..WIDTH].iter_mut().for_each(|x| *x += 1000.0);
        x[WIDTH..2 * WIDTH].fill(3.0);
        let mut out = vec![f32::NAN; x.len()];
        let parameters = [View::new(&[1.0; WIDTH], &[WIDTH]), View::new(&[0.25; WIDTH], &[WIDTH])];
        NORM.forward(&[View::new(&x, &[3, WIDTH]), parameters[0], parameters[1]], &mut out);

        let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let parameters = [View::new(&[1.0; WIDTH], &[WIDTH]), View::new(&[0.25; WIDTH], &[WIDTH])];
        let want = NORM.reference(&[View::new(&wide, &[3, WIDTH]), parameters[0], parameters[1]], None).out;
        for (&got, want) in out.iter().zip(want) {
            assert!((f64::from(got) - want).abs() < 2e-4, "{got}, expected {want}");
        }
        assert!(out[WIDTH..2 * WIDTH].iter().all(|&out| out == 0.25));
    }

    #[test]
    fn parameters_of_another_width_are_errors() {
        let error = NORM.out_shape(&[&[4, 8], &[8], &[7]]).unwrap_err().to_string();
        assert!(error.contains("'bias' has shape [7], expected [8]"));
        assert!(NORM.out_shape(&[&[], &[8], &[8]]).is_err());
    }
}
