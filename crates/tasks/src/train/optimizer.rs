//! AdamW on the device of the parameters.
//!
//! The CPU makes one pass over parameter, gradient and both moments: Burn's optimizer makes about a dozen, each with a new
//! buffer. Other devices compose tensor operations.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::{
    parallel::{Disjoint, for_each},
    simd::vectorize,
};
use regard_nn::ops::{runs_kernels, with_elements, with_elements_mut};

use super::OptimizerConfig;

/// Elements of a task: four buffers of this size stay within a second-level cache.
const CHUNK: usize = 1 << 15;

/// Running means of one parameter's gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// Of the gradient.
    pub first: Vec<f32>,
    /// Of its square.
    pub second: Vec<f32>,
}

/// AdamW (Loshchilov and Hutter 2019) with decay of every parameter:
///
/// ```text
/// p <- p (1 - lr wd)
/// m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
/// p <- p - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon)
/// ```
///
/// The moments stay on the device of their parameter.
#[derive(Clone, Debug)]
pub struct AdamW {
    config: OptimizerConfig,
    /// The first and the second of each parameter.
    moments: BTreeMap<String, [Tensor<1>; 2]>,
}

impl AdamW {
    /// Moments start at 0.
    pub fn new(config: OptimizerConfig) -> Self {
        Self { config, moments: BTreeMap::new() }
    }

    /// Continues on `device` from saved moments, by parameter name.
    pub fn with_moments(config: OptimizerConfig, moments: BTreeMap<String, Moments>, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        let tensor = |values: Vec<f32>| {
            let size = [values.len()];
            Tensor::from_data(TensorData::new(values, size), &device)
        };
        let moments = moments.into_iter().map(|(name, Moments { first, second })| (name, [first, second].map(tensor)));
        Self { config, moments: moments.collect() }
    }

    /// A copy of the moments by parameter name.
    pub fn moments(&self) -> BTreeMap<String, Moments> {
        let copy = |tensor: &Tensor<1>| with_elements(tensor, <[f32]>::to_vec);
        let moments = self.moments.iter();
        moments
            .map(|(name, [first, second])| (name.clone(), Moments { first: copy(first), second: copy(second) }))
            .collect()
    }

    /// Update `t` (counted from 1) of the parameter `name`, which has no autodiff, with its gradient, flat, times `scale`.
    ///
    /// On the CPU, buffers of the parameter and the moments are changed in place where nothing else holds them.
    ///
    /// # Panics
    /// If the gradient, or the moments of an earlier update, are not as long as the parameter.
    #[must_use]
    pub fn update<const D: usize>(
        &mut self,
        name: &str,
        t: usize,
        rate: f64,
        scale: f32,
        parameter: Tensor<D>,
        gradient: &Tensor<1>,
    ) -> Tensor<D> {
        let (shape, device) = (parameter.shape(), parameter.device());
        let size = shape.num_elements();
        let (name, [first, second]) = self
            .moments
            .remove_entry(name)
            .unwrap_or_else(|| (name.into(), [(); 2].map(|()| Tensor::zeros([size], &device))));
        assert_eq!([gradient.dims(), first.dims(), second.dims()], [[size]; 3], "sizes of '{name}'");
        let step = Step::new(&self.config, t, rate, scale);
        let form = if runs_kernels(&device) { Step::fused } else { Step::composed };
        let [parameter, first, second] = form(&step, [parameter.flatten(0, D - 1), first, second], gradient);
        self.moments.insert(name, [first, second]);
        parameter.reshape(shape)
    }
}

/// Factors of one update.
struct Step {
    shrink: f32,
    beta1: f32,
    beta2: f32,
    /// Learning rate over the first bias correction.
    rate: f32,
    /// One over the root of the second.
    correction: f32,
    epsilon: f32,
    scale: f32,
}

impl Step {
    fn new(config: &OptimizerConfig, t: usize, rate: f64, scale: f32) -> Self {
        let exponent = i32::try_from(t).unwrap_or(i32::MAX);
        let correction = |beta: f64| 1.0 - beta.powi(exponent);
        Self {
            shrink: (1.0 - rate * config.weight_decay) as f32,
            beta1: config.beta1 as f32,
            beta2: config.beta2 as f32,
            rate: (rate / correction(config.beta1)) as f32,
            correction: (1.0 / correction(config.beta2).sqrt()) as f32,
            epsilon: config.epsilon as f32,
            scale,
        }
    }

    /// Parameter and moments after the update, changed in place in one pass.
    fn fused(&self, tensors: [Tensor<1>; 3], gradient: &Tensor<1>) -> [Tensor<1>; 3] {
        with_elements(gradient, |gradient| {
            with_elements_mut(tensors, |buffers| {
                let size = gradient.len();
                let buffers = buffers.map(Disjoint::new);
                for_each(size.div_ceil(CHUNK), |chunk| {
                    let start = chunk * CHUNK;
                    let len = CHUNK.min(size - start);
                    // SAFETY: chunks do not overlap.
                    let [p, m, v] = buffers.each_ref().map(|buffer| unsafe { buffer.range(start, len) });
                    vectorize(
                        #[inline(always)]
                        || self.apply(p, m, v, &gradient[start..start + len]),
                    );
                });
            })
        })
    }

    /// The same in tensor operations, for devices without kernels.
    fn composed(&self, [p, m, v]: [Tensor<1>; 3], gradient: &Tensor<1>) -> [Tensor<1>; 3] {
        let g = gradient.clone() * self.scale;
        let m = m * self.beta1 + g.clone() * (1.0 - self.beta1);
        let v = v * self.beta2 + g.clone() * g * (1.0 - self.beta2);
        let change = m.clone() * self.rate / (v.clone().sqrt() * self.correction + self.epsilon);
        [p * self.shrink - change, m, v]
    }

    #[inline(always)]
    fn apply(&self, p: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32]) {
        let (gain1, gain2) = (1.0 - self.beta1, 1.0 - self.beta2);
        for (((p, m), v), g) in p.iter_mut().zip(m).zip(v).zip(g) {
            let g = g * self.scale;
            *m = self.beta1 * *m + gain1 * g;
            *v = self.beta2 * *v + gain2 * (g * g);
            *p = *p * self.shrink - self.rate * *m / (v.sqrt() * self.correction + self.epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: Vec<f32>) -> Tensor<1> {
        Tensor::from_data(values.as_slice(), &Device::flex())
    }

    fn numbers(tensor: &Tensor<1>) -> Vec<f32> {
        with_elements(tensor, <[f32]>::to_vec)
    }

    /// One pass on the CPU and what other devices do, both against the formula and each other.
    #[test]
    fn ten_updates_of_both_forms_equal_the_formula_in_double_precision() {
        let config = OptimizerConfig { learning_rate: 0.02, beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.1 };
        // Over the bounds of a chunk.
        let size = CHUNK + 5;
        let start = |i: usize| ((i % 17) as f64 - 8.0) * 0.1;
        let gradient = |i: usize, t: usize| ((i * 7 + t * 3) % 11) as f64 * 0.25 - 1.0;
        let results = [Step::fused, Step::composed].map(|form| {
            let begin = tensor((0..size).map(|i| start(i) as f32).collect());
            (1..=10).fold([begin, tensor(vec![0.0; size]), tensor(vec![0.0; size])], |tensors, t| {
                let step = Step::new(&config, t, config.learning_rate / t as f64, 0.5);
                form(&step, tensors, &tensor((0..size).map(|i| gradient(i, t) as f32).collect()))
            })
        });
        let [fused, composed] = results.map(|tensors| tensors.map(|tensor| numbers(&tensor)));
        for i in (0..300).chain(CHUNK - 3..size) {
            let (mut p, mut m, mut v) = (f64::from(start(i) as f32), 0.0, 0.0);
            for t in 1..=10 {
                let g = 0.5 * gradient(i, t);
                let rate = config.learning_rate / t as f64;
                p *= 1.0 - rate * config.weight_decay;
                m = config.beta1 * m + (1.0 - config.beta1) * g;
                v = config.beta2 * v + (1.0 - config.beta2) * g * g;
                let m_hat = m / (1.0 - config.beta1.powi(t as i32));
                let v_hat = v / (1.0 - config.beta2.powi(t as i32));
                p -= rate * m_hat / (v_hat.sqrt() + config.epsilon);
            }
            for form in [&fused, &composed] {
                for (seen, want) in form.iter().zip([p, m, v]) {
                    assert!((f64::from(seen[i]) - want).abs() < 2e-6, "element {i}: {} against {want}", seen[i]);
                }
            }
        }
        for (fused, composed) in fused.iter().zip(&composed) {
            assert!(fused.iter().zip(composed).all(|(a, b)| (a - b).abs() < 1e-6));
        }
    }

    #[test]
    fn a_parameter_without_gradient_only_decays() {
        let config = OptimizerConfig { weight_decay: 0.5, ..OptimizerConfig::default() };
        let parameter = tensor(vec![2.0, -4.0]).reshape([2, 1]);
        let updated = AdamW::new(config).update("p", 1, 0.1, 1.0, parameter, &tensor(vec![0.0, 0.0]));
        assert_eq!(updated.dims(), [2, 1]);
        assert_eq!(numbers(&updated.flatten(0, 1)), [1.9, -3.8]);
    }

    #[test]
    fn an_update_writes_into_the_buffers_it_was_given() {
        let mut adam = AdamW::new(OptimizerConfig::default());
        let address = |tensor: &Tensor<1>| with_elements(tensor, |elements| elements.as_ptr());
        let mut parameter = adam.update("p", 1, 0.1, 1.0, tensor(vec![1.0; 8]), &tensor(vec![0.5; 8]));
        let before = [address(&parameter), address(&adam.moments["p"][0]), address(&adam.moments["p"][1])];
        parameter = adam.update("p", 2, 0.1, 1.0, parameter, &tensor(vec![0.5; 8]));
        assert_eq!([address(&parameter), address(&adam.moments["p"][0]), address(&adam.moments["p"][1])], before);
    }

    #[test]
    fn an_optimizer_goes_on_from_saved_moments() {
        let gradient = tensor(vec![0.3, -0.2]);
        let mut whole = AdamW::new(OptimizerConfig::default());
        let parameter = whole.update("p", 1, 0.1, 1.0, tensor(vec![1.0, 2.0]), &gradient);
        let mut resumed = AdamW::with_moments(OptimizerConfig::default(), whole.moments(), &Device::flex().autodiff());
        let [a, b] = [&mut whole, &mut resumed].map(|adam| adam.update("p", 2, 0.1, 1.0, parameter.clone(), &gradient));
        assert_eq!(numbers(&a), numbers(&b));
        assert_eq!(whole.moments(), resumed.moments());
    }
}
