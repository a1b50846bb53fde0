//! AdamW on plain slices.
//!
//! One pass over parameter, gradient and both moments: Burn's optimizer makes about a dozen, each with a new buffer.

use std::collections::BTreeMap;

use regard_kernels::{
    parallel::{Disjoint, for_each},
    simd::vectorize,
};

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
#[derive(Clone, Debug)]
pub struct AdamW {
    config: OptimizerConfig,
    moments: BTreeMap<String, Moments>,
}

impl AdamW {
    /// Moments start at 0.
    pub fn new(config: OptimizerConfig) -> Self {
        Self { config, moments: BTreeMap::new() }
    }

    /// Continues from saved moments, by parameter name.
    pub fn with_moments(config: OptimizerConfig, moments: BTreeMap<String, Moments>) -> Self {
        Self { config, moments }
    }

    /// Moments by parameter name.
    pub fn moments(&self) -> &BTreeMap<String, Moments> {
        &self.moments
    }

    /// Update `t` (counted from 1) of the parameter `name` with its gradient times `scale`.
    ///
    /// # Panics
    /// If the gradient, or the moments of an earlier update, are not as long as the parameter.
    pub fn update(&mut self, name: &str, t: usize, rate: f64, scale: f32, parameter: &mut [f32], gradient: &[f32]) {
        let size = parameter.len();
        if !self.moments.contains_key(name) {
            self.moments.insert(name.into(), Moments { first: vec![0.0; size], second: vec![0.0; size] });
        }
        let moments = self.moments.get_mut(name).expect("just inserted");
        assert_eq!([gradient.len(), moments.first.len(), moments.second.len()], [size; 3], "sizes of '{name}'");
        let step = Step::new(&self.config, t, rate, scale);
        let buffers = [&mut *parameter, &mut moments.first, &mut moments.second].map(Disjoint::new);
        for_each(size.div_ceil(CHUNK), |chunk| {
            let start = chunk * CHUNK;
            let len = CHUNK.min(size - start);
            // SAFETY: chunks do not overlap.
            let [p, m, v] = buffers.each_ref().map(|buffer| unsafe { buffer.range(start, len) });
            vectorize(
                #[inline(always)]
                || step.apply(p, m, v, &gradient[start..start + len]),
            );
        });
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

    #[test]
    fn ten_updates_equal_the_formula_in_double_precision() {
        let config = OptimizerConfig { learning_rate: 0.02, beta1: 0.9, beta2: 0.99, epsilon: 1e-6, weight_decay: 0.1 };
        // Over the bounds of a chunk.
        let size = CHUNK + 5;
        let start = |i: usize| ((i % 17) as f64 - 8.0) * 0.1;
        let gradient = |i: usize, t: usize| ((i * 7 + t * 3) % 11) as f64 * 0.25 - 1.0;
        let mut parameter: Vec<f32> = (0..size).map(|i| start(i) as f32).collect();
        let mut adam = AdamW::new(config.clone());
        for t in 1..=10 {
            let gradient: Vec<f32> = (0..size).map(|i| gradient(i, t) as f32).collect();
            adam.update("p", t, config.learning_rate / t as f64, 0.5, &mut parameter, &gradient);
        }
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
            assert!((f64::from(parameter[i]) - p).abs() < 2e-6, "element {i}: {} against {p}", parameter[i]);
        }
    }

    #[test]
    fn a_parameter_without_gradient_only_decays() {
        let config = OptimizerConfig { weight_decay: 0.5, ..OptimizerConfig::default() };
        let mut parameter = [2.0f32, -4.0];
        AdamW::new(config).update("p", 1, 0.1, 1.0, &mut parameter, &[0.0, 0.0]);
        assert_eq!(parameter, [1.9, -3.8]);
    }
}
