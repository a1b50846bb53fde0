//! `regard generate`

use std::path::PathBuf;

use clap::Args;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use regard_kernels::Storage;
use regard_nn::models::{LanguageModel, LanguageState};
use regard_tasks::{
    run::{Run, Which},
    train::Model,
};
use serde_json::json;

use super::trained;
use crate::{
    args::{CHECKPOINTS, Common, STORAGES},
    error::{Failure, Outcome},
    output, signal,
    values::{Real, choice, seed, size},
};

#[derive(Debug, Args)]
pub struct Generate {
    /// Directory of a run of a language model.
    pub run: PathBuf,
    /// Text to continue.
    #[arg(long, allow_hyphen_values = true, default_value = "\n", value_name = "TEXT")]
    pub prompt: String,
    /// Characters to print.
    #[arg(long, value_parser = size(0), default_value_t = 500, value_name = "N")]
    pub tokens: usize,
    /// Sampling temperature; 0 takes the most probable character.
    #[arg(long, value_parser = Real, default_value_t = 0.8, value_name = "NUMBER")]
    pub temperature: f64,
    /// Seed for all random draws.
    #[arg(long, value_parser = seed(), default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// How keys and values are stored.
    #[arg(long, value_parser = choice(&STORAGES), default_value = "f32")]
    pub kv_cache: Storage,
    /// Checkpoint of the run.
    #[arg(long, value_parser = choice(&CHECKPOINTS), default_value = "best")]
    pub checkpoint: Which,
}

/// Prints text from a language model, one character at a time, with the model's decode state.
///
/// # Errors
/// A run of another task, a character that the model does not know.
pub fn run(args: &Generate, common: &Common) -> Outcome {
    if !(args.temperature >= 0.0 && args.temperature.is_finite()) {
        return Err(Failure::usage(format!("--temperature is {}, expected a number from 0", args.temperature)));
    }
    let Run { data, model, .. } = trained(&args.run, args.checkpoint, None, common)?;
    let (Model::Language(model), Some(characters)) = (&model, data.characters()) else {
        return Err(Failure::usage(format!(
            "{} holds a classifier or a copier, expected a model of characters; train one with --preset char-lm",
            args.run.display()
        )));
    };
    let prompt = characters.encode(&args.prompt).map_err(|error| Failure::usage(format!("--prompt: {error}")))?;
    if prompt.is_empty() {
        return Err(Failure::usage("--prompt is empty, expected at least one character"));
    }
    let stop = signal::stop_flag();
    let storage = args.kv_cache;
    let state = model.decoder(1, storage)?;
    let mut writer = Writer { model, context: data.shape().max_length, storage, state, text: Vec::new() };
    let mut logits = Vec::new();
    for &token in &prompt {
        logits = writer.take(token)?;
    }
    let mut stream = ChaCha8Rng::seed_from_u64(args.seed);
    if !common.json {
        output::text(&args.prompt)?;
    }
    for _ in 0..args.tokens {
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            output::line("")?;
            return Err(Failure::interrupted("stopped"));
        }
        let token = choose(&logits, args.temperature, stream.random());
        if !common.json {
            output::text(characters.decode(&[token])?)?;
        }
        logits = writer.take(token)?;
    }
    if common.json {
        let text = characters.decode(&writer.text)?;
        output::json(&json!({ "text": text, "state_bytes": writer.state.bytes() }))
    } else {
        output::line("")
    }
}

/// A model in the middle of a text.
struct Writer<'a> {
    model: &'a LanguageModel,
    context: usize,
    storage: Storage,
    state: LanguageState,
    text: Vec<u16>,
}

impl Writer<'_> {
    /// Logits of what follows `token`.
    fn take(&mut self, token: u16) -> Outcome<Vec<f32>> {
        self.text.push(token);
        if self.state.position() < self.context {
            return self.step(token);
        }
        // The context is full: start over on the second half of what it held.
        self.state = self.model.decoder(1, self.storage)?;
        let kept = self.text[self.text.len() - (self.context / 2).max(1)..].to_vec();
        let mut logits = Vec::new();
        for token in kept {
            logits = self.step(token)?;
        }
        Ok(logits)
    }

    fn step(&mut self, token: u16) -> Outcome<Vec<f32>> {
        let logits = self.model.step(&[i32::from(token)], &mut self.state)?;
        logits.into_data_as::<f32>().try_into_vec().map_err(|error| Failure::data(format!("{error:?}")))
    }
}

/// The token at quantile `draw` of `softmax(logits / temperature)`, or the most probable one at temperature 0.
fn choose(logits: &[f32], temperature: f64, draw: f64) -> u16 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let most = logits.iter().position(|logit| *logit == top).unwrap_or(0);
    if temperature == 0.0 {
        return most as u16;
    }
    let weights: Vec<f64> = logits.iter().map(|logit| (f64::from(logit - top) / temperature).exp()).collect();
    let mut left = draw * weights.iter().sum::<f64>();
    for (token, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return token as u16;
        }
    }
    most as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_follow_the_distribution() {
        let logits = [0.0, 2f32.ln(), f32::NEG_INFINITY];
        assert_eq!(choose(&logits, 0.0, 0.9), 1);
        assert_eq!(choose(&logits, 1.0, 0.32), 0);
        assert_eq!(choose(&logits, 1.0, 0.34), 1);
        assert_eq!(choose(&logits, 1.0, 0.999_999), 1);
        assert_eq!(choose(&logits, 1e-6, 0.0001), 1);
    }
}
