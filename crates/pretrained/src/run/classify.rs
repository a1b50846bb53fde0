//! Classes of texts and images.

use std::ops::ControlFlow;

use regard_kernels::Error;
use regard_nn::blocks::Context;
use serde::{Deserialize, Serialize};

use super::{Progress, batches, embed::padding, numbers};
use crate::{Architecture, Model, Pretrained, PretrainedError, Tokenizer};

/// Images that go through a model at once.
const IMAGES: usize = 8;

/// A class and how probable it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Its number.
    pub class: usize,
    /// Its name in `config.json`, else `LABEL_` and its number.
    pub label: String,
    /// Its probability.
    pub probability: f64,
}

/// Probabilities of all classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    /// Rows of `classes`, one for each text or image.
    pub probabilities: Vec<f32>,
    /// Classes.
    pub classes: usize,
    /// Texts that were longer than the model takes.
    pub truncated: usize,
    /// Tokens of theirs that were left out.
    pub dropped: usize,
    /// Whether there is a row for everything: the caller did not want to stop.
    pub complete: bool,
}

impl Predictions {
    fn new(count: usize, classes: usize) -> Self {
        Self { probabilities: vec![0.0; count * classes], classes, truncated: 0, dropped: 0, complete: true }
    }

    /// The `most` most probable classes of a text or image, the most probable first, with their names.
    pub fn top(&self, row: usize, most: usize, architecture: &Architecture) -> Vec<Class> {
        let row = &self.probabilities[row * self.classes..][..self.classes];
        let mut order: Vec<usize> = (0..self.classes).collect();
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
        let named = |class: usize| architecture.labels.get(&class).cloned().unwrap_or_else(|| format!("LABEL_{class}"));
        let class = |class| Class { class, label: named(class), probability: f64::from(row[class]) };
        order.into_iter().take(most).map(class).collect()
    }

    /// The softmax of logits as a row.
    fn set(&mut self, row: usize, logits: &[f32]) -> Result<(), PretrainedError> {
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> = logits.iter().map(|logit| f64::from(logit - top).exp()).collect();
        let sum: f64 = weights.iter().sum();
        if !sum.is_finite() {
            let problem = format!("the scores of item {} are not finite", row + 1);
            return Err(PretrainedError::Numbers(format!("{problem}; check the weights")));
        }
        let out = &mut self.probabilities[row * self.classes..][..self.classes];
        out.iter_mut().zip(weights).for_each(|(out, weight)| *out = (weight / sum) as f32);
        Ok(())
    }
}

/// Classes of texts; `progress` is asked after each batch whether to go on.
///
/// # Errors
/// A model that does not classify texts, a text without tokens, a score that is no number.
pub fn classify_texts<T: AsRef<str>>(
    pretrained: &Pretrained,
    tokenizer: &Tokenizer,
    texts: &[T],
    batch: usize,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<Predictions, PretrainedError> {
    let Model::Features(model) = &pretrained.model else {
        return Err(no_classifier(pretrained, "a classifier of texts").into());
    };
    if !model.classifies() {
        return Err(no_classifier(pretrained, "a classifier of texts").into());
    }
    let rows = pretrained.encode_all(tokenizer, texts)?;
    let classes = model.sizes().outputs;
    let mut predictions = Predictions::new(texts.len(), classes);
    predictions.truncated = rows.iter().filter(|row| row.dropped > 0).count();
    predictions.dropped = rows.iter().map(|row| row.dropped).sum();
    let (padding, typed) = (padding(tokenizer), pretrained.config.token_types > 0);
    let mut done = 0;
    for batch in batches(&rows, padding, typed, batch) {
        let (taken, tokens) = batch?;
        let states = pretrained.states(&tokens, &Context::evaluation())?;
        let logits = numbers(model.logits(states, &tokens).expect("a head, as checked"))?;
        for (logits, text) in logits.chunks_exact(classes).zip(&taken) {
            predictions.set(*text, logits)?;
        }
        done += taken.len();
        if progress(Progress { done, total: texts.len() }).is_break() && done < texts.len() {
            predictions.complete = false;
            break;
        }
    }
    Ok(predictions)
}

/// Classes of images, `pixels [count,channels,image,image]` in the scale that the model was trained with.
///
/// # Errors
/// A model that does not classify images, a number of pixels that is not that of whole images, a score that is no number.
pub fn classify_images(
    pretrained: &Pretrained,
    pixels: &[f32],
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<Predictions, PretrainedError> {
    let Model::Image(model) = &pretrained.model else {
        return Err(no_classifier(pretrained, "a classifier of images").into());
    };
    if !model.classifies() {
        return Err(no_classifier(pretrained, "a classifier of images").into());
    }
    let each = model.patches().pixels();
    if pixels.is_empty() || !pixels.len().is_multiple_of(each) {
        let expected = format!("a multiple of {each}, the numbers of an image");
        return Err(Error::shape("pixels", &[pixels.len()], expected).into());
    }
    let (total, classes) = (pixels.len() / each, model.sizes().outputs);
    let mut predictions = Predictions::new(total, classes);
    let mut done = 0;
    for some in pixels.chunks(IMAGES * each) {
        let states = model.forward(some, &Context::evaluation())?;
        let logits = numbers(model.logits(states).expect("a head, as checked"))?;
        for (row, logits) in logits.chunks_exact(classes).enumerate() {
            predictions.set(done + row, logits)?;
        }
        done += some.len() / each;
        if progress(Progress { done, total }).is_break() && done < total {
            predictions.complete = false;
            break;
        }
    }
    Ok(predictions)
}

fn no_classifier(pretrained: &Pretrained, expected: &str) -> Error {
    Error::option("model", pretrained.model.kind(), expected)
}
