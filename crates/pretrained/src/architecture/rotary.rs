//! Frequencies of rotary positions, and how they are changed for longer texts.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

use crate::{ConfigProblem, keys::Keys};

/// How frequencies of rotary positions are changed, by the names of `transformers`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum RotaryScaling {
    /// Not at all.
    None,
    /// All of them are divided.
    Linear {
        /// By this.
        factor: f64,
    },
    /// The base grows with a text that is longer than the context.
    Dynamic {
        /// How much.
        factor: f64,
        /// Tokens that need no change.
        context: usize,
    },
    /// Low frequencies are divided, high ones stay, those between are mixed.
    Llama3 {
        /// The divisor.
        factor: f64,
        /// Turns in `context` below which a frequency is low.
        low: f64,
        /// Turns in `context` above which a frequency is high.
        high: f64,
        /// Tokens of the first training.
        context: usize,
    },
    /// The same by the number of the feature, with a factor on cosine and sine (arXiv 2309.00071).
    Yarn {
        /// The divisor.
        factor: f64,
        /// Turns in `context` of the last frequency that stays.
        fast: f64,
        /// Turns in `context` of the first frequency that is divided.
        slow: f64,
        /// Whether the borders are whole features.
        truncate: bool,
        /// What cosine and sine are multiplied by.
        attention: f64,
        /// Tokens of the first training.
        context: usize,
    },
}

impl RotaryScaling {
    /// `context` is that of the model.
    pub(super) fn read(keys: &Keys<'_>, context: usize) -> Result<Self, ConfigProblem> {
        let key = if keys.get("rope_type").is_some() { "rope_type" } else { "type" };
        let original = || match keys.optional_size("original_max_position_embeddings")? {
            Some(original) => Ok(original),
            None => Err(keys.problem("original_max_position_embeddings", "the tokens of the first training")),
        };
        Ok(match keys.optional_text(key)? {
            None | Some("default") => Self::None,
            Some("linear") => Self::Linear { factor: keys.positive("factor")? },
            Some("dynamic") => {
                let factor = keys.positive("factor")?;
                if factor < 1.0 {
                    return Err(keys.problem("factor", "a number of at least 1"));
                }
                Self::Dynamic { factor, context }
            }
            Some("llama3") => {
                let (low, high) = (keys.positive("low_freq_factor")?, keys.positive("high_freq_factor")?);
                if low >= high {
                    return Err(keys.problem("high_freq_factor", format!("more than low_freq_factor = {low}")));
                }
                Self::Llama3 { factor: keys.positive("factor")?, low, high, context: original()? }
            }
            Some("yarn") => {
                let original = match keys.optional_size("original_max_position_embeddings")? {
                    Some(original) => original,
                    None => context,
                };
                let factor = keys.optional_positive("factor")?.unwrap_or(context as f64 / original as f64);
                Self::Yarn {
                    factor,
                    fast: keys.optional_positive("beta_fast")?.unwrap_or(32.0),
                    slow: keys.optional_positive("beta_slow")?.unwrap_or(1.0),
                    truncate: keys.flag("truncate", true)?,
                    attention: attention(keys, factor)?,
                    context: original,
                }
            }
            Some(_) => {
                return Err(keys.problem(key, "\"default\", \"linear\", \"dynamic\", \"llama3\" or \"yarn\""));
            }
        })
    }

    /// What cosine and sine are multiplied by.
    pub fn attention_factor(&self) -> f64 {
        if let Self::Yarn { attention, .. } = self { *attention } else { 1.0 }
    }

    /// Radians per token of the `rotated / 2` pairs of features, for texts of up to `length` tokens.
    ///
    /// # Panics
    /// With an odd `rotated`.
    pub fn frequencies(&self, base: f64, rotated: usize, length: usize) -> Vec<f64> {
        assert!(rotated.is_multiple_of(2), "features are turned in pairs");
        let plain = |base: f64| (0..rotated / 2).map(move |i| base.powf(-2.0 * i as f64 / rotated as f64));
        match *self {
            Self::None => plain(base).collect(),
            Self::Linear { factor } => plain(base).map(|f| f / factor).collect(),
            Self::Dynamic { factor, context } => {
                let longer = length.max(context) as f64 / context as f64;
                let power = rotated as f64 / (rotated as f64 - 2.0);
                // With one pair there is nothing to stretch: its frequency is 1.
                let base = if rotated > 2 { base * (factor * longer - (factor - 1.0)).powf(power) } else { base };
                plain(base).collect()
            }
            Self::Llama3 { factor, low, high, context } => {
                let changed = |f: f64| {
                    let turns = context as f64 * f / TAU;
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - kept) * f / factor + kept * f
                };
                plain(base).map(changed).collect()
            }
            Self::Yarn { factor, fast, slow, truncate, context, .. } => {
                let width = rotated as f64;
                let place = |turns: f64| width * (context as f64 / (turns * TAU)).ln() / (2.0 * base.ln());
                let (first, last) = (place(fast), place(slow));
                let (first, last) = if truncate { (first.floor(), last.ceil()) } else { (first, last) };
                let (first, mut last) = (first.max(0.0), last.min(width - 1.0));
                if first == last {
                    last += 0.001;
                }
                let changed = |(i, f): (usize, f64)| {
                    let divided = ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
                    divided * f / factor + (1.0 - divided) * f
                };
                plain(base).enumerate().map(changed).collect()
            }
        }
    }
}

/// `attention_factor`, or what is made of `mscale` and `mscale_all_dim`, or what the paper says.
fn attention(keys: &Keys<'_>, factor: f64) -> Result<f64, ConfigProblem> {
    let scale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    if let Some(given) = keys.optional_positive("attention_factor")? {
        return Ok(given);
    }
    Ok(match (keys.optional_number("mscale")?, keys.optional_number("mscale_all_dim")?) {
        (Some(one), Some(all)) if one > 0.0 && all > 0.0 => scale(one) / scale(all),
        _ => scale(1.0),
    })
}
