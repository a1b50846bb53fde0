//! `regard generate`

use std::path::PathBuf;

use clap::Args;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use regard_kernels::Storage;
use regard_nn::models::{LanguageModel, LanguageState};
use regard_tasks::{
    data::TextUnits,
    run::{Run, Which},
    train::Model,
};
use serde_json::json;

use super::{
    continuation,
    folder::{Loading, is_folder},
    trained,
};
use crate::{
    args::{CHECKPOINTS, Common, STORAGES},
    error::{Failure, Outcome},
    output, signal,
    values::{Real, choice, seed, size},
};

/// Default sampling temperature.
pub const TEMPERATURE: f64 = 0.8;

/// Default number of characters, bytes, subwords or words for a run's model.
const NEW_TOKENS: usize = 500;

#[derive(Debug, Args)]
pub struct Generate {
    /// Run directory or Hugging Face model folder of a language model.
    pub run: PathBuf,
    /// Text to continue; default: a newline for a run, the beginning-of-text token for a folder.
    #[arg(long, allow_hyphen_values = true, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Tokens (characters, for a model of characters) to generate; default: 500, for a folder its own setting or 200.
    #[arg(long, value_parser = size(0), value_name = "N")]
    pub tokens: Option<usize>,
    /// Sampling temperature, 0 for the most probable character or token; default: the folder's setting, or 0.8.
    #[arg(long, value_parser = Real, value_name = "NUMBER")]
    pub temperature: Option<f64>,
    /// Seed for all random draws.
    #[arg(long, value_parser = seed(), default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Storage format of keys and values.
    #[arg(long, value_parser = choice(&STORAGES), default_value = "f32")]
    pub kv_cache: Storage,
    /// Checkpoint of the run; default: the best.
    #[arg(long, value_parser = choice(&CHECKPOINTS))]
    pub checkpoint: Option<Which>,
    /// Folder: sample from this many of the most probable tokens.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub top_k: Option<usize>,
    /// Folder: sample from the smallest set of tokens with at least this total probability.
    #[arg(long, value_parser = Real, value_name = "SHARE")]
    pub top_p: Option<f64>,
    /// Folder: sample from tokens with at least this fraction of the highest probability.
    #[arg(long, value_parser = Real, value_name = "SHARE")]
    pub min_p: Option<f64>,
    /// Folder: divide positive logits of earlier tokens by this number, multiply negative ones.
    #[arg(long, value_parser = Real, value_name = "NUMBER")]
    pub repetition_penalty: Option<f64>,
    /// Folder: stop before this text; may be repeated.
    #[arg(long, allow_hyphen_values = true, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Folder: treat the prompt as a user message and answer it.
    #[arg(long, requires = "prompt")]
    pub chat: bool,
    /// Folder: system message of the conversation.
    #[arg(long, allow_hyphen_values = true, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    #[command(flatten)]
    pub loading: Loading,
}

impl Generate {
    /// The first given option that only applies to a folder.
    fn of_folder(&self) -> Option<&'static str> {
        let Loading { plan, context, stretch, allow } = &self.loading;
        let given = [
            ("--top-k", self.top_k.is_some()),
            ("--top-p", self.top_p.is_some()),
            ("--min-p", self.min_p.is_some()),
            ("--repetition-penalty", self.repetition_penalty.is_some()),
            ("--stop", !self.stop.is_empty()),
            ("--chat", self.chat),
            ("--plan", plan.is_some()),
            ("--context", context.is_some()),
            ("--stretch", *stretch),
            ("--allow", !allow.is_empty()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }
}

/// Generates text with a language model and its decode state: one token at a time, or a folder model's continuation.
///
/// # Errors
/// A run of another task, a character outside the vocabulary.
pub fn run(args: &Generate, common: &Common) -> Outcome {
    let temperature = args.temperature.unwrap_or(TEMPERATURE);
    if !(temperature >= 0.0 && temperature.is_finite()) {
        return Err(Failure::usage(format!("--temperature is {temperature}, expected a number from 0")));
    }
    if is_folder(&args.run) {
        if args.checkpoint.is_some() {
            let path = args.run.display();
            return Err(Failure::usage(format!(
                "--checkpoint is of a run, but {path} is a model folder; leave it out"
            )));
        }
        return continuation::run(args, common);
    }
    if let Some(option) = args.of_folder() {
        let path = args.run.display();
        return Err(Failure::usage(format!(
            "{option} is of a model folder, but {path} has no config.json; leave it out"
        )));
    }
    let Run { config, data, model, .. } = trained(&args.run, args.checkpoint.unwrap_or(Which::Best), None, common)?;
    let text = args.prompt.as_deref().unwrap_or("\n");
    let units = match (data.units(), data.characters()) {
        (Some(units), _) => Some(units.clone()),
        (None, characters) => characters.cloned().map(TextUnits::Characters),
    };
    let (Model::Language(model), Some(units)) = (&model, units) else {
        return Err(Failure::usage(format!(
            "{} holds a model of the task {}, expected a language model; train one with --preset char-lm",
            args.run.display(),
            config.task.name
        )));
    };
    let prompt = units.encode(text).map_err(|error| Failure::usage(format!("--prompt: {error}")))?;
    if prompt.is_empty() {
        return Err(Failure::usage(format!("--prompt is empty, expected at least one of {}", units.name())));
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
    let mut shown = Shown { units: &units, from: 0, to: prompt.len() };
    if !common.json {
        output::text(text)?;
    }
    for _ in 0..args.tokens.unwrap_or(NEW_TOKENS) {
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            output::line("")?;
            return Err(Failure::interrupted("stopped"));
        }
        // Padding and the like stand for nothing in a text.
        (0..).zip(&mut logits).filter(|(id, _)| !units.occurs(*id)).for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        let token = choose(&logits, temperature, stream.random());
        logits = writer.take(token)?;
        if !common.json {
            output::text(shown.next(&writer.text))?;
        }
    }
    if common.json {
        let text = units.decode(&writer.text);
        output::json(&json!({ "text": text, "state_bytes": writer.state.bytes() }))
    } else {
        output::line("")
    }
}

/// What of a growing text has been shown.
struct Shown<'a> {
    units: &'a TextUnits,
    /// A token before `to` from which on the text is decoded: spaces depend on what comes before.
    from: usize,
    /// The first token that has not been shown.
    to: usize,
}

impl Shown<'_> {
    /// The text of further tokens; none while the last character lacks bytes.
    fn next(&mut self, tokens: &[u32]) -> String {
        let before = self.units.decode(&tokens[self.from..self.to]);
        let after = self.units.decode(&tokens[self.from..]);
        match after.strip_prefix(&before) {
            Some(new) if !new.is_empty() && !new.ends_with(char::REPLACEMENT_CHARACTER) => {
                (self.from, self.to) = (self.to, tokens.len());
                new.into()
            }
            _ => String::new(),
        }
    }
}

/// A model during generation.
struct Writer<'a> {
    model: &'a LanguageModel,
    context: usize,
    storage: Storage,
    state: LanguageState,
    text: Vec<u32>,
}

impl Writer<'_> {
    /// Logits for the token after `token`.
    fn take(&mut self, token: u32) -> Outcome<Vec<f32>> {
        self.text.push(token);
        if self.state.position() < self.context {
            return self.step(token);
        }
        // The context is full: restart on its second half.
        self.state = self.model.decoder(1, self.storage)?;
        let kept = self.text[self.text.len() - (self.context / 2).max(1)..].to_vec();
        let mut logits = Vec::new();
        for token in kept {
            logits = self.step(token)?;
        }
        Ok(logits)
    }

    fn step(&mut self, token: u32) -> Outcome<Vec<f32>> {
        let logits = self.model.step(&[token as i32], &mut self.state)?;
        logits.into_data_as::<f32>().try_into_vec().map_err(|error| Failure::data(format!("{error:?}")))
    }
}

/// The token at quantile `draw` of `softmax(logits / temperature)`, or the most probable one at temperature 0.
fn choose(logits: &[f32], temperature: f64, draw: f64) -> u32 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let most = logits.iter().position(|logit| *logit == top).unwrap_or(0);
    if temperature == 0.0 {
        return most as u32;
    }
    let weights: Vec<f64> = logits.iter().map(|logit| (f64::from(logit - top) / temperature).exp()).collect();
    let mut left = draw * weights.iter().sum::<f64>();
    for (token, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return token as u32;
        }
    }
    most as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_once_and_characters_whole() {
        let units = TextUnits::Bytes;
        let mut shown = Shown { units: &units, from: 0, to: 1 };
        let tokens: Vec<u32> = "aö€b".bytes().map(u32::from).collect();
        let parts: Vec<String> = (2..=tokens.len()).map(|count| shown.next(&tokens[..count])).collect();
        assert_eq!(parts, ["", "ö", "", "", "€", "b"]);
    }

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
