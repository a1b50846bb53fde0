//! Rotary positions of a `config.json`.

use regard_nn::blocks::{RotaryConfig, RotaryScaling};

use crate::{ConfigProblem, keys::Keys};

/// `plain` with the scaling that `keys` describe, by the names of `transformers`; `context` is that of the model.
pub(super) fn scaled(plain: RotaryConfig, keys: &Keys<'_>, context: usize) -> Result<RotaryConfig, ConfigProblem> {
    let key = if keys.get("rope_type").is_some() { "rope_type" } else { "type" };
    let original = || match keys.optional_size("original_max_position_embeddings")? {
        Some(original) => Ok(original),
        None => Err(keys.problem("original_max_position_embeddings", "the tokens of the first training")),
    };
    Ok(match keys.optional_text(key)? {
        None | Some("default") => plain,
        Some("linear") => RotaryConfig { scaling: RotaryScaling::Linear, factor: keys.positive("factor")?, ..plain },
        Some("dynamic") => {
            let factor = keys.positive("factor")?;
            if factor < 1.0 {
                return Err(keys.problem("factor", "a number of at least 1"));
            }
            RotaryConfig { scaling: RotaryScaling::Dynamic, factor, original_context: context, ..plain }
        }
        Some("llama3") => {
            let (low, high) = (keys.positive("low_freq_factor")?, keys.positive("high_freq_factor")?);
            if low >= high {
                return Err(keys.problem("high_freq_factor", format!("more than low_freq_factor = {low}")));
            }
            let factor = keys.positive("factor")?;
            RotaryConfig { scaling: RotaryScaling::Llama3, factor, low, high, original_context: original()?, ..plain }
        }
        Some("yarn") => {
            let original = match keys.optional_size("original_max_position_embeddings")? {
                Some(original) => original,
                None => context,
            };
            let factor = keys.optional_positive("factor")?.unwrap_or(context as f64 / original as f64);
            RotaryConfig {
                scaling: RotaryScaling::Yarn,
                factor,
                fast: keys.optional_positive("beta_fast")?.unwrap_or(32.0),
                slow: keys.optional_positive("beta_slow")?.unwrap_or(1.0),
                truncate: keys.flag("truncate", true)?,
                magnitude: attention(keys, factor)?,
                original_context: original,
                ..plain
            }
        }
        Some(_) => {
            return Err(keys.problem(key, "\"default\", \"linear\", \"dynamic\", \"llama3\" or \"yarn\""));
        }
    })
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
