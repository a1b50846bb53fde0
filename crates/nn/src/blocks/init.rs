//! Initial values, drawn on the host from streams named after the parameters.
//!
//! A parameter's draw depends on the seed and on its own dotted name alone: models that share a part of their names start
//! from the same numbers there, on any device, whatever else they hold.

use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use regard_kernels::random::{self, substream};

/// Where in a model a part is being built.
#[derive(Clone, Debug)]
pub struct Init {
    seed: u64,
    path: String,
    device: Device,
    /// Everything is 0: for models whose parameters are loaded.
    blank: bool,
}

impl Init {
    /// The root of a model.
    pub fn new(seed: u64, device: &Device) -> Self {
        Self { seed, path: String::new(), device: device.clone(), blank: false }
    }

    /// The root of a model whose parameters will be loaded: they are 0, which costs no draws.
    pub fn blank(device: &Device) -> Self {
        Self { blank: true, ..Self::new(0, device) }
    }

    /// The part `name` of this one.
    #[must_use]
    pub fn part(&self, name: impl std::fmt::Display) -> Self {
        Self { path: self.name(name), ..self.clone() }
    }

    /// Device of the parameters.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// `N(0, deviation^2)`.
    pub fn normal<const D: usize>(&self, name: &str, shape: [usize; D], deviation: f64) -> Param<Tensor<D>> {
        let mut stream = self.stream(name);
        self.fill(shape, || deviation * normal(&mut stream))
    }

    /// Glorot's uniform distribution, of deviation `gain * sqrt(2 / (inputs + outputs))`, for the last two axes
    /// `[inputs, outputs]` (Glorot and Bengio 2010, equation 16).
    pub fn projection<const D: usize>(&self, name: &str, shape: [usize; D], gain: f64) -> Param<Tensor<D>> {
        let bound = gain * (6.0 / (shape[D - 2] + shape[D - 1]) as f64).sqrt();
        let mut stream = self.stream(name);
        self.fill(shape, || bound * (2.0 * uniform(&mut stream) - 1.0))
    }

    /// The same value everywhere.
    pub fn constant<const D: usize>(&self, shape: [usize; D], value: f64) -> Param<Tensor<D>> {
        self.fill(shape, || value)
    }

    /// Key of counter-based draws for `name`.
    pub fn key(&self, name: &str) -> u64 {
        substream(self.seed, fnv(&format!("draws/{}", self.name(name))))
    }

    fn fill<const D: usize>(&self, shape: [usize; D], mut draw: impl FnMut() -> f64) -> Param<Tensor<D>> {
        let count = shape.iter().product();
        let values = if self.blank { vec![0.0; count] } else { (0..count).map(|_| draw() as f32).collect() };
        Param::from_data(TensorData::new(values, shape), &self.device)
    }

    fn name(&self, part: impl std::fmt::Display) -> String {
        if self.path.is_empty() { part.to_string() } else { format!("{}.{part}", self.path) }
    }

    fn stream(&self, name: &str) -> ChaCha8Rng {
        let mut stream = ChaCha8Rng::seed_from_u64(self.seed);
        stream.set_stream(fnv(&format!("init/{}", self.name(name))));
        stream
    }
}

/// Uniform on `(0, 1]`.
fn uniform(stream: &mut impl RngCore) -> f64 {
    random::unit(stream.next_u64())
}

/// Standard normal.
fn normal(stream: &mut impl RngCore) -> f64 {
    random::normal(uniform(stream), uniform(stream))
}

/// FNV-1a, 64 bits: a number for the name of a stream.
fn fnv(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values<const D: usize>(param: Param<Tensor<D>>) -> Vec<f32> {
        param.val().into_data().try_to_vec().unwrap()
    }

    #[test]
    fn a_name_and_a_seed_give_the_same_numbers_on_any_device() {
        let draw = |seed, device: Device, part: &str| {
            values(Init::new(seed, &device).part("layers").part(part).normal("w", [3, 5], 1.0))
        };
        let first = draw(7, Device::flex(), "0");
        assert_eq!(first, draw(7, Device::flex().autodiff(), "0"));
        assert_ne!(first, draw(8, Device::flex(), "0"));
        assert_ne!(first, draw(7, Device::flex(), "1"));
    }

    #[test]
    fn draws_have_the_deviation_asked_for() {
        let init = Init::new(1, &Device::flex());
        let moments = |values: Vec<f32>| {
            let count = values.len() as f64;
            let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
            let square = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / count;
            (mean, (square - mean * mean).sqrt())
        };
        let (mean, deviation) = moments(values(init.normal("a", [200, 200], 0.02)));
        assert!(mean.abs() < 4e-4 && (deviation / 0.02 - 1.0).abs() < 0.02, "{mean} {deviation}");
        let (mean, deviation) = moments(values(init.projection("b", [100, 300], 0.5)));
        let want = 0.5 * (2.0f64 / 400.0).sqrt();
        assert!(mean.abs() < want / 40.0 && (deviation / want - 1.0).abs() < 0.02, "{mean} {deviation}");
    }
}
