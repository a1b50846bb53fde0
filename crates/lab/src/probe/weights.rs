//! Weight distributions.

use std::{fmt, str::FromStr};

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use regard_kernels::{
    Error,
    random::{self, substream},
};
use serde::Serialize;

/// Numbers per stream.
const CHUNK: usize = 1 << 14;

/// A distribution with mean 0 and standard deviation 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Distribution {
    /// Normal, as in the lemmas.
    #[default]
    Normal,
    /// Uniform on `(-sqrt 3, sqrt 3)`.
    Uniform,
    /// -1 or 1.
    Sign,
    /// Laplace: heavier tails than normal, fourth moment 6 instead of 3.
    Laplace,
}

impl Distribution {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Normal, Self::Uniform, Self::Sign, Self::Laplace];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Uniform => "uniform",
            Self::Sign => "sign",
            Self::Laplace => "laplace",
        }
    }

    /// `count` numbers of the stream `key`, times `deviation`. The same for any number of threads.
    pub fn draw(self, key: u64, count: usize, deviation: f64) -> Vec<f32> {
        let mut values = vec![0.0; count];
        values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
            let mut stream = ChaCha8Rng::seed_from_u64(substream(key, chunk as u64));
            values.iter_mut().for_each(|value| *value = (deviation * self.one(&mut stream)) as f32);
        });
        values
    }

    fn one(self, stream: &mut ChaCha8Rng) -> f64 {
        match self {
            Self::Normal => random::normal(uniform(stream), uniform(stream)),
            Self::Uniform => 3f64.sqrt() * (2.0 * uniform(stream) - 1.0),
            Self::Sign if stream.next_u32() & 1 == 0 => -1.0,
            Self::Sign => 1.0,
            // A difference of two exponentials of mean 1 has variance 2.
            Self::Laplace => (uniform(stream) / uniform(stream)).ln() * 0.5f64.sqrt(),
        }
    }
}

/// Uniform on `(0, 1]`.
fn uniform(stream: &mut ChaCha8Rng) -> f64 {
    random::unit(stream.next_u64())
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Distribution {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let known = Self::ALL.into_iter().find(|distribution| distribution.name() == name);
        known.ok_or_else(|| Error::option("weights", format!("'{name}'"), "one of normal, uniform, sign, laplace"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::Moments;

    #[test]
    fn all_have_mean_0_and_the_deviation_asked_for() {
        for (distribution, fourth) in Distribution::ALL.into_iter().zip([3.0, 1.8, 1.0, 6.0]) {
            let values = distribution.draw(5, 100_000, 0.5);
            let moments = Moments::of(&values);
            let squares: Vec<f64> = values.iter().map(|x| (2.0 * f64::from(*x)).powi(4)).collect();
            let kurtosis = Moments::of(&squares).mean;
            assert!(moments.mean.abs() < 0.006, "{distribution}: {moments:?}");
            assert!((moments.variance() / 0.25 - 1.0).abs() < 0.03, "{distribution}: {moments:?}");
            assert!((kurtosis / fourth - 1.0).abs() < 0.1, "{distribution}: {kurtosis}");
            assert_eq!(distribution.name().parse(), Ok(distribution));
        }
        assert_ne!(Distribution::Normal.draw(1, 4, 1.0), Distribution::Normal.draw(2, 4, 1.0));
        assert!("cauchy".parse::<Distribution>().is_err());
    }
}
