//! Likelihood of a head's queries under its keys.

use std::f64::consts::PI;

use serde::Serialize;

use super::attended::{Attended, Keys, log_sum_exp};
use crate::moments::Moments;

/// Negative log-likelihood of the queries of one head, in nats per channel, under three densities.
///
/// With `S_i` the keys visible to query `i`:
/// - mixture: `p(q_i) = 1/|S_i| sum_j sum_r pi_jr N(q_i; k_jr, s_r I)`, the density whose posterior over keys is the row of
///   attention (arXiv 2110.08678, equations 7 to 9);
/// - one Gaussian per key: each key's components merged into one Gaussian with the same mean and mean variance;
/// - one Gaussian: all of them merged.
///
/// The first two are equal if keys have one component.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Likelihood {
    /// Under the model's own mixture.
    pub mixture: Moments,
    /// Under one Gaussian per key.
    pub per_key: Moments,
    /// Under one Gaussian.
    pub single: Moments,
}

impl Likelihood {
    /// Adds the result of [`negative_logs`].
    pub(super) fn add(&mut self, [mixture, per_key, single]: [f64; 3]) {
        self.mixture.add(mixture);
        self.per_key.add(per_key);
        self.single.add(single);
    }
}

/// The keys of a head with each key's components merged.
pub(super) struct Densities {
    keys: Keys,
    means: Vec<Vec<f64>>,
    variances: Vec<f64>,
}

impl Densities {
    /// Densities of head `h`; none if there are no query-key scores.
    pub fn new(attended: &Attended, h: usize) -> Option<Self> {
        attended.keys(h).map(Self::of)
    }

    fn of(keys: Keys) -> Self {
        let positions = keys.components[0].len();
        let (means, variances) = (0..positions).map(|j| joined(&keys, j..j + 1)).unzip();
        Self { keys, means, variances }
    }

    /// Negative log-likelihood per channel of a query that sees these keys: under the mixture, one Gaussian per key, and one.
    pub fn negative_logs(&self, query: &[f64], seen: std::ops::Range<usize>) -> [f64; 3] {
        if seen.is_empty() {
            return [f64::NAN; 3];
        }
        let even = (seen.len() as f64).ln();
        let components = self.keys.components.iter().zip(&self.keys.log_priors).zip(&self.keys.variances);
        let parts: Vec<f64> = components
            .flat_map(|((keys, priors), s)| {
                seen.clone().map(|j| priors[j] + log_density(query, &keys[j], *s)).collect::<Vec<_>>()
            })
            .collect();
        let per_key: Vec<f64> = seen.clone().map(|j| log_density(query, &self.means[j], self.variances[j])).collect();
        let (mean, variance) = joined(&self.keys, seen);
        let channels = query.len() as f64;
        [log_sum_exp(&parts) - even, log_sum_exp(&per_key) - even, log_density(query, &mean, variance)]
            .map(|log| -log / channels)
    }
}

/// Mean and mean variance per channel of the mixture over these keys: `m = mean_j sum_r pi_jr k_jr`,
/// `s = mean_j sum_r pi_jr (s_r + |k_jr - m|^2 / D)`.
fn joined(keys: &Keys, seen: std::ops::Range<usize>) -> (Vec<f64>, f64) {
    let width = keys.components[0][0].len();
    let count = seen.len() as f64;
    let mut mean = vec![0.0; width];
    let each = || keys.components.iter().zip(&keys.log_priors).zip(&keys.variances);
    for ((own, priors), _) in each() {
        for j in seen.clone() {
            let share = priors[j].exp() / count;
            mean.iter_mut().zip(&own[j]).for_each(|(mean, x)| *mean += share * x);
        }
    }
    let mut variance = 0.0;
    for ((own, priors), s) in each() {
        for j in seen.clone() {
            variance += priors[j].exp() / count * (s + squared_distance(&own[j], &mean) / width as f64);
        }
    }
    (mean, variance)
}

/// `ln N(x; mean, s I)`.
fn log_density(x: &[f64], mean: &[f64], s: f64) -> f64 {
    -squared_distance(x, mean) / (2.0 * s) - x.len() as f64 / 2.0 * (2.0 * PI * s).ln()
}

fn squared_distance(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(a, b)| (a - b) * (a - b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys {
            components: vec![
                vec![vec![0.0, 1.0], vec![2.0, -1.0], vec![0.5, 0.5]],
                vec![vec![1.0, 1.0], vec![0.0, 0.0], vec![-3.0, 2.0]],
            ],
            log_priors: vec![vec![0.25f64.ln(); 3], vec![0.75f64.ln(); 3]],
            variances: vec![1.5, 0.5],
        }
    }

    fn density(x: &[f64], mean: &[f64], s: f64) -> f64 {
        let one = |x: f64, m: f64| (-(x - m) * (x - m) / (2.0 * s)).exp() / (2.0 * PI * s).sqrt();
        one(x[0], mean[0]) * one(x[1], mean[1])
    }

    #[test]
    fn densities_by_hand() {
        let (query, keys) = ([0.3, -0.2], keys());
        let mixture: f64 = (0..2)
            .map(|j| {
                let [a, b] = [0, 1].map(|r| density(&query, &keys.components[r][j], keys.variances[r]));
                (0.25 * a + 0.75 * b) / 2.0
            })
            .sum();
        // Means of the first two keys: (0.75, 1), (0.5, -0.25); variances from the definition.
        let spread = |a: [f64; 2], m: [f64; 2]| ((a[0] - m[0]).powi(2) + (a[1] - m[1]).powi(2)) / 2.0;
        let first = 0.25 * (1.5 + spread([0.0, 1.0], [0.75, 1.0])) + 0.75 * (0.5 + spread([1.0, 1.0], [0.75, 1.0]));
        let second = 0.25 * (1.5 + spread([2.0, -1.0], [0.5, -0.25])) + 0.75 * (0.5 + spread([0.0, 0.0], [0.5, -0.25]));
        let per_key = (density(&query, &[0.75, 1.0], first) + density(&query, &[0.5, -0.25], second)) / 2.0;
        let mean = [0.625, 0.375];
        let all = [(0.25, [0.0, 1.0], 1.5), (0.25, [2.0, -1.0], 1.5), (0.75, [1.0, 1.0], 0.5), (0.75, [0.0, 0.0], 0.5)];
        let variance: f64 = all.iter().map(|(p, k, s)| p / 2.0 * (s + spread(*k, mean))).sum();
        let expected = [mixture, per_key, density(&query, &mean, variance)].map(|p| -p.ln() / 2.0);
        let seen = Densities::of(keys).negative_logs(&query, 0..2);
        assert!(seen.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-14), "{seen:?}, expected {expected:?}");
    }

    #[test]
    fn one_component_is_one_gaussian_a_key() {
        let one = Keys {
            components: vec![keys().components.swap_remove(0)],
            log_priors: vec![vec![0.0; 3]],
            variances: vec![2.0],
        };
        let [mixture, per_key, single] = Densities::of(one).negative_logs(&[1.0, 2.0], 0..3);
        assert!((mixture - per_key).abs() < 1e-15 && (mixture - single).abs() > 1e-3);
        assert!(Densities::of(keys()).negative_logs(&[1.0, 2.0], 1..1)[0].is_nan());
    }
}
