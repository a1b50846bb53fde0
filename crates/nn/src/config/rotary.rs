//! Rotary positions and how they are stretched to longer sequences.

use regard_kernels::Error;
use serde::{Deserialize, Serialize};

/// `model.rotary`: angles of rotary positions (Su et al. 2021).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RotaryConfig {
    /// Base of the wavelengths: channel pair `i` of `D` rotates by `base^(-2 i / D)` radians per position.
    pub base: f64,
    /// Share of a head's channels that are rotated, the first ones; in (0, 1].
    pub share: f64,
    /// How angles change so that sequences longer than the original ones can be read.
    pub scaling: RotaryScaling,
    /// Length of the longest sequences, as a multiple of the original ones.
    pub factor: f64,
    /// Length of the original sequences; 0 for the context of the model.
    pub original_context: usize,
    /// `llama3`: wavelengths of more than `original_context / low` are scaled in full ...
    pub low: f64,
    /// ... and those of less than `original_context / high` not at all.
    pub high: f64,
    /// `yarn`: pairs with more rotations than this over the original context keep their angles ...
    pub fast: f64,
    /// ... and those with fewer than this are scaled in full.
    pub slow: f64,
    /// `yarn`: whether both bounds are rounded to whole pairs, away from each other.
    pub truncate: bool,
    /// `yarn`: what rotated queries and keys are multiplied by; 0 for `0.1 ln(factor) + 1`.
    pub magnitude: f64,
}

/// `model.rotary.scaling`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RotaryScaling {
    /// Angles as they are.
    #[default]
    None,
    /// Positions are divided by the factor (Chen et al. 2023).
    Linear,
    /// The base grows with the context of the model, where that is longer than the original one.
    Dynamic,
    /// Long wavelengths are scaled, short ones not (Llama 3.1).
    Llama3,
    /// The same by the number of rotations, with a magnitude (Peng et al. 2023).
    Yarn,
}

impl Default for RotaryConfig {
    fn default() -> Self {
        Self {
            base: 10_000.0,
            share: 1.0,
            scaling: RotaryScaling::None,
            factor: 1.0,
            original_context: 0,
            low: 1.0,
            high: 4.0,
            fast: 32.0,
            slow: 1.0,
            truncate: true,
            magnitude: 0.0,
        }
    }
}

impl RotaryConfig {
    /// # Errors
    /// A number out of its range.
    pub fn check(&self) -> Result<(), Error> {
        let positive = [
            ("base", self.base),
            ("factor", self.factor),
            ("low", self.low),
            ("high", self.high),
            ("fast", self.fast),
            ("slow", self.slow),
        ];
        for (name, number) in positive {
            if !(number > 0.0 && number.is_finite()) {
                return Err(Error::option(format!("model.rotary.{name}"), number, "a positive number"));
            }
        }
        if !(self.share > 0.0 && self.share <= 1.0) {
            return Err(Error::option("model.rotary.share", self.share, "more than 0, at most 1"));
        }
        if !(self.magnitude >= 0.0 && self.magnitude.is_finite()) {
            return Err(Error::option(
                "model.rotary.magnitude",
                self.magnitude,
                "a positive number, or 0 for the default",
            ));
        }
        if self.scaling == RotaryScaling::Llama3 && self.low >= self.high {
            return Err(Error::option("model.rotary.low", self.low, format!("less than high ({})", self.high)));
        }
        Ok(())
    }

    /// Pairs of channels that are rotated in heads of `head_width`.
    ///
    /// # Errors
    /// Channels that are not pairs.
    pub fn pairs(&self, head_width: usize) -> Result<usize, Error> {
        let rotated = (head_width as f64 * self.share) as usize;
        if rotated == 0 || !rotated.is_multiple_of(2) {
            let seen = match self.share {
                1.0 => format!("'rotary' with heads of {head_width} channels"),
                share => format!("'rotary' with a share of {share} of heads of {head_width} channels"),
            };
            return Err(Error::option(
                "position",
                seen,
                "an even number of channels per head, which are rotated in pairs",
            ));
        }
        Ok(rotated / 2)
    }

    /// Angle per position of every pair, in a model whose longest sequence has `context` tokens.
    pub fn frequencies(&self, pairs: usize, context: usize) -> Vec<f64> {
        let width = (2 * pairs) as f64;
        let power = |base: f64, pair: usize| base.powf(-((2 * pair) as f64) / width);
        let original = if self.original_context == 0 { context } else { self.original_context } as f64;
        let plain = |pair| power(self.base, pair);
        let turns = |frequency: f64| original * frequency / std::f64::consts::TAU;
        let frequency = |pair: usize| match self.scaling {
            RotaryScaling::None => plain(pair),
            RotaryScaling::Linear => plain(pair) / self.factor,
            RotaryScaling::Dynamic => {
                let stretch = (self.factor * context as f64 / original - (self.factor - 1.0)).max(1.0);
                power(self.base * stretch.powf(width / (width - 2.0).max(1.0)), pair)
            }
            RotaryScaling::Llama3 => {
                let kept = ((turns(plain(pair)) - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
                plain(pair) * (kept + (1.0 - kept) / self.factor)
            }
            RotaryScaling::Yarn => {
                // The fractional number of the pair with so many rotations over the original context.
                let at =
                    |turns: f64| width * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * self.base.ln());
                let (first, last) = (at(self.fast), at(self.slow));
                let (first, last) = if self.truncate { (first.floor(), last.ceil()) } else { (first, last) };
                let (first, mut last) = (first.max(0.0), last.min(width - 1.0));
                if first == last {
                    last += 1e-3; // As transformers does.
                }
                let scaled = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
                plain(pair) * ((1.0 - scaled) + scaled / self.factor)
            }
        };
        (0..pairs).map(frequency).collect()
    }

    /// What rotated channels are multiplied by.
    pub fn magnitude(&self) -> f64 {
        match (self.scaling, self.magnitude) {
            (RotaryScaling::Yarn, 0.0) if self.factor > 1.0 => 0.1 * self.factor.ln() + 1.0,
            (RotaryScaling::Yarn, magnitude) if magnitude > 0.0 => magnitude,
            _ => 1.0,
        }
    }
}
