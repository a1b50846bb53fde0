//! How a model continues texts, by `generation_config.json`.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ConfigProblem, PretrainedError,
    folder::CONFIG,
    keys::{self, Keys},
    shards::read_optional_json,
};

/// Settings of a continuation. Tokens that `generation_config.json` leaves out are those of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// Tokens that end one.
    pub eos: Vec<u32>,
    /// The token that fills up rows.
    pub padding: Option<u32>,
    /// Whether the next token is drawn rather than the most likely one; absent where the folder does not say.
    pub sample: Option<bool>,
    /// What scores are divided by before one is drawn.
    pub temperature: f64,
    /// How many of the most likely tokens are drawn from.
    pub top_k: Option<usize>,
    /// The probability that those drawn from reach together.
    pub top_p: Option<f64>,
    /// The share of the most likely token's probability that those drawn from have at least.
    pub min_p: Option<f64>,
    /// What scores of earlier tokens are divided by (multiplied, where negative).
    pub repetition_penalty: f64,
    /// Tokens of a continuation.
    pub new_tokens: Option<usize>,
    /// Tokens of text and continuation.
    pub length: Option<usize>,
}

impl Generation {
    pub(crate) fn of_folder(folder: &Path, config: &Value) -> Result<Self, PretrainedError> {
        let base = folder.join(CONFIG);
        let empty = Value::Object(serde_json::Map::new());
        let own = read_optional_json(folder.join("generation_config.json"))?;
        let (path, own) = own.as_ref().map_or((base.as_path(), &empty), |(path, value)| (path, value));
        let own = Keys::of(own).map_err(PretrainedError::config(path))?;
        let config = Keys::of(config).map_err(PretrainedError::config(&base))?;
        let generation = Self::read(&own).map_err(PretrainedError::config(path))?;
        generation.or(&config).map_err(PretrainedError::config(&base))
    }

    fn read(keys: &Keys<'_>) -> Result<Self, ConfigProblem> {
        let top_p = keys.optional_positive("top_p")?;
        if top_p.is_some_and(|p| p > 1.0) {
            return Err(keys.problem("top_p", "a number above 0, at most 1"));
        }
        let temperature = keys.optional_number("temperature")?.unwrap_or(1.0);
        Ok(Self {
            bos: keys.optional_id("bos_token_id")?,
            eos: ids(keys, "eos_token_id")?,
            padding: keys.optional_id("pad_token_id")?,
            // Cold is the most likely token.
            sample: match keys.get("do_sample") {
                _ if temperature <= 0.0 => Some(false),
                Some(_) => Some(keys.flag("do_sample", false)?),
                None => None,
            },
            temperature: if temperature > 0.0 { temperature } else { 1.0 },
            top_k: keys.optional_index("top_k")?.filter(|k| *k > 0),
            top_p,
            min_p: keys.optional_number("min_p")?.filter(|p| *p > 0.0),
            repetition_penalty: keys.optional_positive("repetition_penalty")?.unwrap_or(1.0),
            new_tokens: keys.optional_index("max_new_tokens")?,
            length: keys.optional_index("max_length")?,
        })
    }

    /// The same, with tokens of `config.json` where it has none.
    fn or(self, config: &Keys<'_>) -> Result<Self, ConfigProblem> {
        Ok(Self {
            bos: self.bos.map_or_else(|| config.optional_id("bos_token_id"), |id| Ok(Some(id)))?,
            eos: if self.eos.is_empty() { ids(config, "eos_token_id")? } else { self.eos },
            padding: self.padding.map_or_else(|| config.optional_id("pad_token_id"), |id| Ok(Some(id)))?,
            ..self
        })
    }
}

/// A token, or a list of them.
fn ids(keys: &Keys<'_>, key: &str) -> Result<Vec<u32>, ConfigProblem> {
    match keys.get(key) {
        Some(Value::Array(list)) => {
            let ids: Option<Vec<u32>> = list.iter().map(keys::id).collect();
            ids.ok_or_else(|| keys.problem(key, "the number of a token, or a list of them"))
        }
        _ => Ok(keys.optional_id(key)?.into_iter().collect()),
    }
}
