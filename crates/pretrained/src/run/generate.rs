//! Texts continued.

use std::{ops::ControlFlow, time::Instant};

use regard_kernels::{Error, Storage};
use regard_nn::models::LanguageModel;
use serde::{Deserialize, Serialize};

use super::{Sampler, Sampling, numbers};
use crate::{PretrainedError, Tokenizer};

/// Tokens of the prompt that a decoder sees before the first new one: some write a word otherwise where a text begins.
const LEAD: usize = 16;

/// How a text is continued.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most new tokens.
    pub new_tokens: usize,
    /// Texts that end the continuation; they and what comes after them are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end it.
    pub end: Vec<u32>,
    /// How keys and values are kept.
    pub storage: Storage,
}

impl Default for GenerateOptions {
    /// A hundred most probable tokens.
    fn default() -> Self {
        let (sampling, storage) = (Sampling::default(), Storage::F32);
        Self { sampling, new_tokens: 100, stop: Vec::new(), end: Vec::new(), storage }
    }
}

/// Why a continuation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// A token that ends texts.
    End,
    /// A text that was to end it.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The model takes no more tokens.
    Context,
    /// The caller wanted no more.
    Interrupted,
}

/// A continuation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generated {
    /// Its text.
    pub text: String,
    /// Its tokens, those that ended it included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Seconds until the prompt was read.
    pub prefill_seconds: f64,
    /// Tokens that were read one by one, each for the scores of the next.
    pub decoded_tokens: usize,
    /// Seconds that they took, with the choice of tokens.
    pub decode_seconds: f64,
    /// Bytes of keys and values, or what stands for them, at the end.
    pub state_bytes: usize,
}

impl Generated {
    /// Tokens of the prompt in a second.
    pub fn prefill_speed(&self) -> f64 {
        self.prompt_tokens as f64 / self.prefill_seconds.max(f64::MIN_POSITIVE)
    }

    /// New tokens in a second.
    pub fn decode_speed(&self) -> f64 {
        self.decoded_tokens as f64 / self.decode_seconds.max(f64::MIN_POSITIVE)
    }
}

/// Continues `prompt`; `show` gets the text bit by bit and says whether to go on.
///
/// # Errors
/// A prompt that is empty or longer than the model takes, options outside their range, a mechanism that cannot decode.
pub fn generate(
    model: &LanguageModel,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: &GenerateOptions,
    mut show: impl FnMut(&str) -> ControlFlow<()>,
) -> Result<Generated, PretrainedError> {
    let context = model.sizes().context;
    if prompt.is_empty() {
        return Err(Error::option("prompt", "empty", "at least one token").into());
    }
    if prompt.len() > context {
        let expected =
            format!("at most {context}, which the model takes; shorten it, or give the model a longer context");
        return Err(Error::option("prompt", format!("{} tokens long", prompt.len()), expected).into());
    }
    let mut sampler = Sampler::new(options.sampling.clone())?;
    let mut writer = Writer::new(tokenizer, &options.stop, &prompt[prompt.len().saturating_sub(LEAD)..])?;
    let mut state = model.decoder(1, options.storage)?;
    let mut all = prompt.to_vec();
    let ids: Vec<i32> = prompt.iter().map(|id| *id as i32).collect();

    let start = Instant::now();
    let mut logits = numbers(model.extend(&ids, &mut state)?)?;
    let prefill_seconds = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let mut decoded = 0;
    let finish = loop {
        if all.len() == prompt.len() + options.new_tokens {
            break Finish::Length;
        }
        // A token that was chosen need not be read, so that the last one may stand beyond the context.
        if all.len() > context {
            break Finish::Context;
        }
        if all.len() > prompt.len() {
            logits = numbers(model.step(&[all[all.len() - 1] as i32], &mut state)?)?;
            decoded += 1;
        }
        // Rows of the table of tokens that stand for none are never chosen.
        logits.truncate(tokenizer.size().max(1));
        let token = sampler.choose(&mut logits, &all)?;
        all.push(token);
        if options.end.contains(&token) {
            break Finish::End;
        }
        let (text, stopped) = writer.push(token)?;
        if !text.is_empty() && show(&text).is_break() {
            break Finish::Interrupted;
        }
        if stopped {
            break Finish::Stop;
        }
    };
    let decode_seconds = start.elapsed().as_secs_f64();
    let rest = writer.finish(finish == Finish::Stop)?;
    if !rest.is_empty() && finish != Finish::Interrupted {
        let _ = show(&rest);
    }
    Ok(Generated {
        text: writer.text,
        tokens: all.split_off(prompt.len()),
        finish,
        prompt_tokens: prompt.len(),
        prefill_seconds,
        decoded_tokens: decoded,
        decode_seconds,
        state_bytes: state.bytes(),
    })
}

/// Tokens to text, up to the first text that ends it.
struct Writer<'a> {
    stream: Option<crate::TokenStream<'a>>,
    stop: &'a [String],
    /// What was given.
    text: String,
    /// What may be the beginning of a text that ends it all.
    held: String,
}

impl<'a> Writer<'a> {
    fn new(tokenizer: &'a Tokenizer, stop: &'a [String], lead: &[u32]) -> Result<Self, PretrainedError> {
        let mut stream = tokenizer.stream();
        for id in lead {
            stream.push(*id)?;
        }
        Ok(Self { stream: Some(stream), stop, text: String::new(), held: String::new() })
    }

    /// Text that is certain with one more token, and whether a text that ends it has come.
    fn push(&mut self, token: u32) -> Result<(String, bool), PretrainedError> {
        let new = self.stream.as_mut().expect("not finished").push(token)?;
        Ok(self.take(&new))
    }

    fn take(&mut self, new: &str) -> (String, bool) {
        self.held.push_str(new);
        let stop = self.stop.iter().filter(|stop| !stop.is_empty());
        if let Some(at) = stop.clone().filter_map(|stop| self.held.find(stop)).min() {
            self.held.truncate(at);
            return (self.give(at), true);
        }
        let begins = |rest: &str| stop.clone().any(|stop| stop.starts_with(rest));
        let held = self.held.char_indices().map(|(at, _)| at).find(|at| begins(&self.held[*at..]));
        (self.give(held.unwrap_or(self.held.len())), false)
    }

    /// The first bytes of what was held.
    fn give(&mut self, bytes: usize) -> String {
        let given: String = self.held.drain(..bytes).collect();
        self.text.push_str(&given);
        given
    }

    /// What is left when no more tokens come: nothing behind a text that ended it.
    fn finish(&mut self, stopped: bool) -> Result<String, PretrainedError> {
        let rest = self.stream.take().expect("not finished").finish()?;
        if stopped {
            return Ok(String::new());
        }
        let (mut given, stopped) = self.take(&rest);
        if !stopped {
            given.push_str(&self.give(self.held.len()));
        }
        Ok(given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(stop: &[&str], pieces: &[&str]) -> (Vec<String>, bool, String) {
        let stop: Vec<String> = stop.iter().map(|stop| stop.to_string()).collect();
        let mut writer = Writer { stream: None, stop: &stop, text: String::new(), held: String::new() };
        let mut given = Vec::new();
        for piece in pieces {
            let (text, stopped) = writer.take(piece);
            given.push(text);
            if stopped {
                return (given, true, writer.text);
            }
        }
        (given, false, writer.text)
    }

    #[test]
    fn texts_that_end_it_may_span_tokens() {
        let (given, stopped, text) = shown(&["\n\nEnd"], &["a\n", "\nE", "xy\n", "\nEn", "d of it"]);
        assert_eq!(given, ["a", "", "\n\nExy", "", ""]);
        assert!(stopped);
        assert_eq!(text, "a\n\nExy");
    }

    #[test]
    fn the_first_of_several_counts_and_nothing_is_held_without_one() {
        assert_eq!(shown(&["z", "cd", "bcde"], &["abcdez"]), (vec!["a".into()], true, "a".into()));
        assert_eq!(shown(&[], &["a", "ß"]).0, ["a", "ß"]);
        assert_eq!(shown(&["", "xx"], &["aßx", "x"]), (vec!["aß".into(), String::new()], true, "aß".into()));
    }
}
