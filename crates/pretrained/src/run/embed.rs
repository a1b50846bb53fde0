//! Texts as vectors.

use std::ops::ControlFlow;

use regard_kernels::Error;
use regard_nn::{blocks::Context, models::TokenBatch};
use serde::{Deserialize, Serialize};

use super::{Progress, batches, numbers};
use crate::{Encoded, Model, Pretrained, PretrainedError, Tokenizer};

/// What of the states of a text is its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The mean over its tokens, special ones included (Reimers and Gurevych 2019, arXiv 1908.10084).
    Mean,
    /// The state of the first token.
    Class,
    /// What the pooler makes of it.
    Pooler,
}

/// How texts become vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbedOptions {
    /// What of the states counts.
    pub pooling: Pooling,
    /// Whether vectors are given the length 1.
    pub normalize: bool,
    /// Most texts that go through the model at once.
    pub batch: usize,
}

impl Default for EmbedOptions {
    /// Means of length 1, as sentence encoders are used.
    fn default() -> Self {
        Self { pooling: Pooling::Mean, normalize: true, batch: 64 }
    }
}

/// The vectors of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    /// Rows of `width`, one for each text.
    pub values: Vec<f32>,
    /// Features.
    pub width: usize,
    /// Tokens, special ones included, that went through the model.
    pub tokens: usize,
    /// Texts that were longer than the model takes.
    pub truncated: usize,
    /// Tokens of theirs that were left out.
    pub dropped: usize,
    /// Whether there is one for every text: the caller did not want to stop.
    pub complete: bool,
}

impl Embeddings {
    /// The vector of a text.
    pub fn row(&self, text: usize) -> &[f32] {
        &self.values[text * self.width..][..self.width]
    }

    /// Takes the vectors from text `from` on out of these.
    #[must_use]
    pub fn split_off(&mut self, from: usize) -> Self {
        let values = self.values.split_off(from * self.width);
        Self { values, ..*self }
    }

    /// Cosine of the angle between the vectors of two texts; 0 where one has no direction.
    pub fn cosine(&self, a: usize, b: usize) -> f64 {
        cosine(self.row(a), self.row(b))
    }
}

pub(super) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { dot(a, b) / lengths } else { 0.0 }
}

/// The vectors of texts; `progress` is asked after each batch whether to go on.
///
/// Texts of similar length share a batch. Those longer than the model takes are cut at their end, which is counted.
///
/// # Errors
/// A model that predicts the next token, or images; a pooler that the model lacks; a text without tokens; a vector that is no
/// number.
pub fn embed<T: AsRef<str>>(
    pretrained: &Pretrained,
    tokenizer: &Tokenizer,
    texts: &[T],
    options: EmbedOptions,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<Embeddings, PretrainedError> {
    check(pretrained, options)?;
    let rows = pretrained.encode_all(tokenizer, texts)?;
    let width = pretrained.config.width;
    let mut embeddings = Embeddings {
        values: vec![0.0; texts.len() * width],
        width,
        tokens: rows.iter().map(|row| row.ids.len()).sum(),
        truncated: rows.iter().filter(|row| row.dropped > 0).count(),
        dropped: rows.iter().map(|row| row.dropped).sum(),
        complete: true,
    };
    let (padding, typed) = (padding(tokenizer), pretrained.config.token_types > 0);
    let mut done = 0;
    for batch in batches(&rows, padding, typed, options.batch) {
        let (taken, tokens) = batch?;
        let vectors = pool(pretrained, &tokens, options.pooling, |row| rows[taken[row]].ids.len())?;
        for (vector, text) in vectors.chunks_exact(width).zip(&taken) {
            let out = &mut embeddings.values[text * width..][..width];
            out.copy_from_slice(vector);
            let square: f64 = vector.iter().map(|x| f64::from(*x).powi(2)).sum();
            if !square.is_finite() {
                let problem = format!("the vector of text {} has numbers that are not finite", text + 1);
                return Err(PretrainedError::Numbers(format!("{problem}; check the weights")));
            }
            if options.normalize && square > 0.0 {
                out.iter_mut().for_each(|x| *x = (f64::from(*x) / square.sqrt()) as f32);
            }
        }
        done += taken.len();
        if progress(Progress { done, total: texts.len() }).is_break() && done < texts.len() {
            embeddings.complete = false;
            break;
        }
    }
    Ok(embeddings)
}

/// The token that fills up rows: any, since it is not seen.
pub(super) fn padding(tokenizer: &Tokenizer) -> i32 {
    tokenizer.special().padding.unwrap_or(0) as i32
}

impl Pretrained {
    /// Texts as the model takes them.
    ///
    /// # Errors
    /// A text without tokens.
    pub(super) fn encode_all<T: AsRef<str>>(
        &self,
        tokenizer: &Tokenizer,
        texts: &[T],
    ) -> Result<Vec<Encoded>, PretrainedError> {
        let limit = tokenizer.length().map_or(self.context, |length| length.min(self.context));
        let rows = texts.iter().enumerate().map(|(i, text)| {
            let row = tokenizer.encode(text.as_ref(), true, Some(limit))?;
            if row.ids.is_empty() {
                return Err(Error::option(format!("text {}", i + 1), "empty", "at least one token").into());
            }
            Ok(row)
        });
        rows.collect()
    }
}

fn check(pretrained: &Pretrained, options: EmbedOptions) -> Result<(), Error> {
    match &pretrained.model {
        model @ (Model::Language(_) | Model::Image(_)) => {
            return Err(Error::option("model", model.kind(), "an encoder of texts, such as BERT"));
        }
        Model::Features(model) if options.pooling == Pooling::Pooler && !model.has_pooler() => {}
        Model::Masked(_) if options.pooling == Pooling::Pooler => {}
        Model::Masked(_) | Model::Features(_) => return Ok(()),
    }
    Err(Error::option("pooling", "pooler, which the model lacks", "mean or class"))
}

/// Vectors `[batch,width]` of a batch whose rows have so many tokens.
fn pool(
    pretrained: &Pretrained,
    tokens: &TokenBatch,
    pooling: Pooling,
    length: impl Fn(usize) -> usize,
) -> Result<Vec<f32>, PretrainedError> {
    let states = pretrained.states(tokens, &Context::evaluation())?;
    let [batch, most, width] = states.dims();
    match (pooling, &pretrained.model) {
        (Pooling::Pooler, Model::Features(model)) => numbers(model.pooled(states).expect("a pooler, as checked")),
        (Pooling::Class, _) => numbers(states.narrow(1, 0, 1)),
        _ => {
            let states = numbers(states)?;
            let mut means = Vec::with_capacity(batch * width);
            for (row, states) in states.chunks_exact(most * width).enumerate() {
                let count = length(row);
                let mut sums = vec![0.0f64; width];
                for state in states.chunks_exact(width).take(count) {
                    sums.iter_mut().zip(state).for_each(|(sum, x)| *sum += f64::from(*x));
                }
                means.extend(sums.iter().map(|sum| (sum / count as f64) as f32));
            }
            Ok(means)
        }
    }
}
