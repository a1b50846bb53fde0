//! How well a model finds tokens that are hidden from it.

use std::ops::ControlFlow;

use regard_kernels::Error;
use regard_nn::blocks::Context;
use serde::{Deserialize, Serialize};

use super::{Progress, batches, numbers};
use crate::{Encoded, Model, Pretrained, PretrainedError, Tokenizer};

/// Tokens of a text, and what some of them should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaskedTokens {
    /// What the model sees.
    pub seen: Encoded,
    /// The places of hidden tokens, and the tokens.
    pub hidden: Vec<(usize, u32)>,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaskedScore {
    /// Share of hidden tokens that the model finds the most probable.
    pub accuracy: f64,
    /// How many those are.
    pub correct: usize,
    /// Hidden tokens.
    pub hidden: usize,
    /// Mean negative log likelihood of a hidden token, in nats.
    pub nats: f64,
    /// Texts.
    pub texts: usize,
    /// Whether all texts were scored: the caller did not want to stop.
    pub complete: bool,
}

/// Hides every `every`th token of a text, counted without special ones, the first of them in the middle of the first `every`.
/// A shorter text loses its middle token.
///
/// # Errors
/// A tokenizer without a token that hides others.
pub fn hide(tokenizer: &Tokenizer, mut seen: Encoded, every: usize) -> Result<MaskedTokens, PretrainedError> {
    let mask = tokenizer.special().mask.ok_or_else(|| {
        Error::option("token that hides others", "missing", "a tokenizer with one, such as [MASK] of BERT")
    })?;
    let real: Vec<usize> = (0..seen.ids.len()).filter(|at| !tokenizer.is_special(seen.ids[*at])).collect();
    let first = every.min(real.len()) / 2;
    let hidden: Vec<(usize, u32)> =
        real.iter().skip(first).step_by(every.max(1)).map(|at| (*at, seen.ids[*at])).collect();
    hidden.iter().for_each(|(at, _)| seen.ids[*at] = mask);
    Ok(MaskedTokens { seen, hidden })
}

/// Scores the hidden tokens of texts; `padding` fills up rows, `progress` is asked after each batch whether to go on.
///
/// # Errors
/// A model of another kind, no hidden token, a token that the model does not have.
pub fn masked_accuracy(
    pretrained: &Pretrained,
    texts: &[MaskedTokens],
    padding: u32,
    batch: usize,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<MaskedScore, PretrainedError> {
    let Model::Masked(model) = &pretrained.model else {
        return Err(Error::option("model", pretrained.model.kind(), "one that predicts hidden tokens").into());
    };
    let vocabulary = model.sizes().vocabulary;
    let texts: Vec<&MaskedTokens> = texts.iter().filter(|text| !text.hidden.is_empty()).collect();
    if texts.is_empty() {
        return Err(Error::option("texts", "no hidden token", "at least one").into());
    }
    let known =
        |(at, token): &&(usize, u32), text: &MaskedTokens| (*token as usize) < vocabulary && *at < text.seen.ids.len();
    for text in &texts {
        if let Some((_, token)) = text.hidden.iter().find(|hidden| !known(hidden, text)) {
            let expected = format!("below the vocabulary ({vocabulary}), at a place of its text");
            return Err(Error::option("hidden token", token, expected).into());
        }
    }
    let rows: Vec<Encoded> = texts.iter().map(|text| text.seen.clone()).collect();
    let (mut correct, mut hidden, mut nats, mut done, mut complete) = (0, 0, 0.0, 0, true);
    for batch in batches(&rows, padding as i32, pretrained.config.token_types > 0, batch) {
        let (taken, tokens) = batch?;
        tokens.check(vocabulary, pretrained.context)?;
        let mut targets = vec![-1; tokens.batch * tokens.length];
        for (row, text) in taken.iter().enumerate() {
            texts[*text].hidden.iter().for_each(|(at, token)| targets[row * tokens.length + at] = *token as i32);
        }
        let (logits, targets) = model.forward_counted(&tokens, &targets, &Context::evaluation());
        for (logits, target) in numbers(logits)?.chunks_exact(vocabulary).zip(targets.iter()) {
            let wanted = logits[*target as usize];
            let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = logits.iter().map(|logit| f64::from(logit - top).exp()).sum();
            if !sum.is_finite() {
                let problem = "the scores of a hidden token are not finite";
                return Err(PretrainedError::Numbers(format!("{problem}; check the weights")));
            }
            correct += usize::from(wanted == top);
            nats += sum.ln() + f64::from(top - wanted);
            hidden += 1;
        }
        done += taken.len();
        if progress(Progress { done, total: texts.len() }).is_break() && done < texts.len() {
            complete = false;
            break;
        }
    }
    let count = hidden as f64;
    Ok(MaskedScore { accuracy: correct as f64 / count, correct, hidden, nats: nats / count, texts: done, complete })
}
