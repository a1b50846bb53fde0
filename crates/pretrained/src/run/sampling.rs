//! The next token, by the scores of all tokens.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use regard_kernels::Error;
use serde::{Deserialize, Serialize};

use crate::{Generation, PretrainedError};

/// How the next token is chosen: the steps in the order of the fields, as in `transformers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// What scores of earlier tokens are divided by, those below 0 multiplied (Keskar et al. 2019, arXiv 1909.05858).
    pub repetition_penalty: f64,
    /// What scores are divided by; 0 takes the most probable token.
    pub temperature: f64,
    /// How many of the most probable tokens are drawn from.
    pub top_k: Option<usize>,
    /// The fewest most probable tokens that reach this probability together (Holtzman et al. 2020, arXiv 1904.09751).
    pub top_p: Option<f64>,
    /// The least probability of a token, as a share of the most probable one's (Nguyen et al. 2024, arXiv 2407.01082).
    pub min_p: Option<f64>,
    /// Seed of all draws.
    pub seed: u64,
}

impl Default for Sampling {
    /// The most probable token each time.
    fn default() -> Self {
        Self { repetition_penalty: 1.0, temperature: 0.0, top_k: None, top_p: None, min_p: None, seed: 0 }
    }
}

impl From<&Generation> for Sampling {
    fn from(generation: &Generation) -> Self {
        Self {
            repetition_penalty: generation.repetition_penalty,
            temperature: if generation.sample == Some(true) { generation.temperature } else { 0.0 },
            top_k: generation.top_k,
            top_p: generation.top_p,
            min_p: generation.min_p,
            ..Self::default()
        }
    }
}

impl Sampling {
    /// # Errors
    /// An option outside its range.
    pub fn check(&self) -> Result<(), Error> {
        let finite = |x: f64, least: f64| x.is_finite() && x >= least;
        let share = |x: f64| x > 0.0 && x <= 1.0;
        if !finite(self.temperature, 0.0) {
            return Err(Error::option("temperature", self.temperature, "a number from 0"));
        }
        if !(finite(self.repetition_penalty, 0.0) && self.repetition_penalty > 0.0) {
            return Err(Error::option("repetition penalty", self.repetition_penalty, "a number above 0"));
        }
        if self.top_k == Some(0) {
            return Err(Error::option("top-k", 0, "at least 1"));
        }
        for (name, value) in [("top-p", self.top_p), ("min-p", self.min_p)] {
            if let Some(value) = value.filter(|value| !share(*value)) {
                return Err(Error::option(name, value, "a number above 0, at most 1"));
            }
        }
        Ok(())
    }
}

/// Draws one token after the other. The same seed, options and scores give the same tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    draws: ChaCha8Rng,
}

impl Sampler {
    /// # Errors
    /// An option outside its range.
    pub fn new(sampling: Sampling) -> Result<Self, Error> {
        sampling.check()?;
        let draws = ChaCha8Rng::seed_from_u64(sampling.seed);
        Ok(Self { sampling, draws })
    }

    /// The token after `earlier`, by the `logits` of all tokens.
    ///
    /// # Errors
    /// Logits of which none is a finite number, or one is none at all.
    pub fn choose(&mut self, logits: &mut [f32], earlier: &[u32]) -> Result<u32, PretrainedError> {
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !top.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
            let shown = if logits.iter().any(|logit| logit.is_nan()) { f32::NAN } else { top };
            return Err(PretrainedError::Numbers(format!(
                "the scores of the next token are {shown}, expected finite numbers; check the weights"
            )));
        }
        self.penalize(logits, earlier);
        if self.sampling.temperature == 0.0 {
            return Ok(most_probable(logits));
        }
        let kept = self.candidates(logits);
        let mut left = self.draws.random::<f64>() * kept.iter().map(|(_, weight)| weight).sum::<f64>();
        for (token, weight) in &kept {
            left -= weight;
            if left < 0.0 {
                return Ok(*token);
            }
        }
        Ok(kept.last().expect("the most probable token is kept").0)
    }

    fn penalize(&self, logits: &mut [f32], earlier: &[u32]) {
        let penalty = self.sampling.repetition_penalty as f32;
        if penalty == 1.0 {
            return;
        }
        // Once for a token, however often it occurred.
        let mut earlier = earlier.to_vec();
        earlier.sort_unstable();
        earlier.dedup();
        for token in earlier {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
            }
        }
    }

    /// Tokens that are drawn from, each with its weight.
    fn candidates(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: f32| (f64::from(logit - top) / temperature).exp();
        let mut kept: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|logit| weight(*logit))).collect();
        // Of equal weights the first token comes first, so that nothing depends on how they are sorted.
        let falling = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if let Some(k) = top_k.filter(|k| *k < kept.len()) {
            kept.select_nth_unstable_by(k - 1, falling);
            kept.truncate(k);
        }
        if top_k.is_some() || top_p.is_some() {
            kept.sort_unstable_by(falling);
        }
        if let Some(p) = top_p {
            let enough = p * kept.iter().map(|(_, weight)| weight).sum::<f64>();
            let mut sum = 0.0;
            let reached = kept.iter().position(|(_, weight)| {
                sum += weight;
                sum >= enough
            });
            kept.truncate(reached.map_or(kept.len(), |last| last + 1));
        }
        if let Some(p) = min_p {
            // The largest weight is 1.
            kept.retain(|(_, weight)| *weight >= p);
        }
        kept
    }
}

/// The first of the largest logits.
fn most_probable(logits: &[f32]) -> u32 {
    let mut most = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[most] {
            most = token;
        }
    }
    most as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probabilities 0.4, 0.3, 0.2, 0.1 in another order.
    fn logits() -> Vec<f32> {
        [0.2f32, 0.4, 0.1, 0.3].iter().map(|p| p.ln()).collect()
    }

    fn kept(sampling: Sampling) -> Vec<(u32, f64)> {
        let sampling = Sampling { temperature: 1.0, ..sampling };
        let kept = Sampler::new(sampling).unwrap().candidates(&logits());
        let sum: f64 = kept.iter().map(|(_, weight)| weight).sum();
        kept.into_iter().map(|(token, weight)| (token, (1e6 * weight / sum).round() / 1e6)).collect()
    }

    #[test]
    fn each_filter_keeps_what_it_should() {
        let plain = Sampling::default;
        assert_eq!(kept(plain()), [(0, 0.2), (1, 0.4), (2, 0.1), (3, 0.3)]);
        assert_eq!(kept(Sampling { top_k: Some(2), ..plain() }), [(1, 0.571429), (3, 0.428571)]);
        assert_eq!(kept(Sampling { top_k: Some(9), ..plain() }).len(), 4);
        assert_eq!(kept(Sampling { top_p: Some(0.39), ..plain() }), [(1, 1.0)]);
        assert_eq!(kept(Sampling { top_p: Some(0.65), ..plain() }), [(1, 0.571429), (3, 0.428571)]);
        assert_eq!(kept(Sampling { top_p: Some(1.0), ..plain() }).len(), 4);
        assert_eq!(kept(Sampling { min_p: Some(0.6), ..plain() }), [(1, 0.571429), (3, 0.428571)]);
        // Of the two that top-k leaves, the first alone reaches half.
        assert_eq!(kept(Sampling { top_k: Some(2), top_p: Some(0.5), ..plain() }), [(1, 1.0)]);
    }

    #[test]
    fn temperature_sharpens_and_flattens() {
        let kept = |temperature| {
            let kept = Sampler::new(Sampling { temperature, ..Sampling::default() }).unwrap().candidates(&logits());
            kept[1].1 / kept[2].1
        };
        assert!((kept(1.0) - 4.0).abs() < 1e-6 && (kept(0.5) - 16.0).abs() < 1e-4 && (kept(2.0) - 2.0).abs() < 1e-6);
    }

    #[test]
    fn penalties_divide_what_is_positive_and_multiply_what_is_not() {
        let sampler = Sampler::new(Sampling { repetition_penalty: 2.0, ..Sampling::default() }).unwrap();
        let mut logits = [3.0, -1.0, 0.5, -2.0];
        sampler.penalize(&mut logits, &[1, 0, 0, 9]);
        assert_eq!(logits, [1.5, -2.0, 0.5, -2.0]);
        let mut sampler = sampler;
        assert_eq!(sampler.choose(&mut [1.0, 1.1, 1.1], &[]).unwrap(), 1, "the first of two");
        assert_eq!(sampler.choose(&mut [1.0, 1.1, 1.1], &[1, 2]).unwrap(), 0);
    }

    #[test]
    fn draws_follow_the_distribution_and_the_seed() {
        let draw = |seed| {
            let mut sampler = Sampler::new(Sampling { temperature: 1.0, seed, ..Sampling::default() }).unwrap();
            (0..4000).map(|_| sampler.choose(&mut logits(), &[]).unwrap()).collect::<Vec<_>>()
        };
        let tokens = draw(3);
        assert_eq!(tokens, draw(3));
        assert_ne!(tokens, draw(4));
        for (token, share) in [0.2, 0.4, 0.1, 0.3].into_iter().enumerate() {
            let seen = tokens.iter().filter(|drawn| **drawn == token as u32).count() as f64 / tokens.len() as f64;
            assert!((seen - share).abs() < 0.03, "{token}: {seen}");
        }
    }

    #[test]
    fn what_cannot_be_drawn_from_is_told() {
        let mut sampler = Sampler::new(Sampling::default()).unwrap();
        for logits in [[f32::NAN, 1.0], [f32::NEG_INFINITY; 2], [f32::INFINITY, 0.0]] {
            assert!(matches!(sampler.choose(&mut logits.clone(), &[]), Err(PretrainedError::Numbers(_))));
        }
        assert_eq!(sampler.choose(&mut [f32::NEG_INFINITY, -3.0], &[]).unwrap(), 1);
        for broken in [
            Sampling { temperature: -1.0, ..Sampling::default() },
            Sampling { temperature: f64::NAN, ..Sampling::default() },
            Sampling { top_k: Some(0), ..Sampling::default() },
            Sampling { top_p: Some(1.5), ..Sampling::default() },
            Sampling { min_p: Some(0.0), ..Sampling::default() },
            Sampling { repetition_penalty: 0.0, ..Sampling::default() },
        ] {
            assert!(Sampler::new(broken).is_err());
        }
    }
}
