//! How well a language model predicts texts.

use std::{ops::ControlFlow, sync::Arc, time::Instant};

use regard_kernels::{Error, Operator, View, elementwise::CrossEntropy};
use regard_nn::{
    blocks::Context,
    models::{LanguageModel, TokenBatch},
};
use serde::{Deserialize, Serialize};

use super::{Progress, numbers};
use crate::PretrainedError;

/// Logits that are held at once, 64 MiB: those of a long window and a large vocabulary would fill gigabytes.
const HELD: usize = 1 << 24;

/// Where the token that begins texts stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Beginning {
    /// Before every window.
    Always,
    /// Before every document.
    Document,
    /// Nowhere: the first token of a document is not scored.
    Never,
}

/// How texts are cut into windows.
///
/// Every token is scored once. Windows of `context` tokens begin every `stride` tokens; in each but the first of a document the
/// tokens count that the one before did not reach, so that a token sees at least `context - stride` others before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerplexityOptions {
    /// Tokens that the model sees at once.
    pub context: usize,
    /// From the start of one window to that of the next.
    pub stride: usize,
    /// Where the token that begins texts stands.
    pub beginning: Beginning,
    /// That token.
    pub bos: Option<u32>,
}

/// Tokens with a similar number of others before them in their window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Fewest tokens before one, a power of two.
    pub from: usize,
    /// Most of them: below the next power, or the context.
    pub to: usize,
    /// Tokens that were scored.
    pub tokens: usize,
    /// Their mean negative log likelihood, in nats.
    pub nats: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Perplexity {
    /// `exp(nats)`.
    pub perplexity: f64,
    /// Mean negative log likelihood of a token, in nats.
    pub nats: f64,
    /// Standard error of `nats`, windows taken for independent; absent for one window.
    pub standard_error: Option<f64>,
    /// Tokens that were scored.
    pub tokens: usize,
    /// Windows.
    pub windows: usize,
    /// Documents with at least one scored token.
    pub documents: usize,
    /// How texts were cut.
    pub options: PerplexityOptions,
    /// By the number of tokens before one.
    pub buckets: Vec<Bucket>,
    /// Whether all windows were scored, not only those until the caller wanted no more.
    pub complete: bool,
    /// Seconds that it took.
    pub seconds: f64,
}

/// A window of a document.
struct Window {
    document: usize,
    /// Tokens that the model sees.
    inputs: Vec<i32>,
    /// What follows each of them.
    targets: Vec<i32>,
    /// The first target that counts.
    from: usize,
}

/// Scores the tokens of documents, which hold no special tokens; `progress` is asked after each window whether to go on.
///
/// # Errors
/// A window of no token, a stride beyond it, a token that the model does not have, no token to score, or a score that is no
/// number.
pub fn perplexity(
    model: &LanguageModel,
    documents: &[Vec<u32>],
    options: PerplexityOptions,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<Perplexity, PretrainedError> {
    let sizes = model.sizes();
    check(options, sizes.context)?;
    let start = Instant::now();
    let total: usize = documents.iter().map(|document| window_count(document.len(), options)).sum();
    if total == 0 {
        return Err(Error::option("text", "without a token to score", "at least one token after the first").into());
    }
    let mut sums: Vec<WindowSum> = Vec::new();
    let mut buckets: Vec<(usize, f64)> = Vec::new();
    let mut complete = true;
    let windows = (0..documents.len()).flat_map(|document| Windows::new(document, &documents[document], options));
    for window in windows {
        let losses = losses(model, &window)?;
        if let Some(loss) = losses.iter().find(|loss| !loss.is_finite()) {
            let problem = format!("the score of a token of document {} is {loss}", window.document + 1);
            return Err(PretrainedError::Numbers(format!("{problem}, expected a finite number; check the weights")));
        }
        for (seen, loss) in (window.from + 1..).zip(&losses) {
            let bucket = seen.ilog2() as usize;
            buckets.resize(buckets.len().max(bucket + 1), (0, 0.0));
            buckets[bucket].0 += 1;
            buckets[bucket].1 += loss;
        }
        sums.push(WindowSum { document: window.document, tokens: losses.len(), nats: losses.iter().sum() });
        if progress(Progress { done: sums.len(), total }).is_break() && sums.len() < total {
            complete = false;
            break;
        }
    }
    let tokens: usize = sums.iter().map(|window| window.tokens).sum();
    let nats = sums.iter().map(|window| window.nats).sum::<f64>() / tokens as f64;
    let mut scored: Vec<usize> = sums.iter().map(|window| window.document).collect();
    scored.dedup();
    Ok(Perplexity {
        perplexity: nats.exp(),
        nats,
        standard_error: standard_error(&sums, nats, tokens),
        tokens,
        windows: sums.len(),
        documents: scored.len(),
        options,
        buckets: (0..)
            .zip(buckets)
            .filter(|(_, (tokens, _))| *tokens > 0)
            .map(|sums| bucket(sums, options.context))
            .collect(),
        complete,
        seconds: start.elapsed().as_secs_f64(),
    })
}

fn bucket((power, (tokens, nats)): (u32, (usize, f64)), context: usize) -> Bucket {
    let from = 1 << power;
    Bucket { from, to: (2 * from - 1).min(context), tokens, nats: nats / tokens as f64 }
}

fn check(options: PerplexityOptions, most: usize) -> Result<(), Error> {
    let PerplexityOptions { context, stride, beginning, bos } = options;
    if context == 0 || context > most {
        return Err(Error::option("context", context, format!("from 1 to {most}, which the model takes")));
    }
    if stride == 0 || stride > context {
        return Err(Error::option("stride", stride, format!("from 1 to {context}, the context")));
    }
    if beginning != Beginning::Never && bos.is_none() {
        let expected = "a tokenizer with one, or no such token before texts";
        return Err(Error::option("token that begins texts", "missing", expected));
    }
    Ok(())
}

/// Targets of a document.
fn targets(tokens: usize, beginning: Beginning) -> usize {
    if beginning == Beginning::Never { tokens.saturating_sub(1) } else { tokens }
}

fn window_count(tokens: usize, options: PerplexityOptions) -> usize {
    match targets(tokens, options.beginning) {
        0 => 0,
        targets => 1 + targets.saturating_sub(options.context).div_ceil(options.stride),
    }
}

/// The windows of a document.
struct Windows {
    document: usize,
    /// What predicts the targets: one token before each.
    inputs: Vec<i32>,
    targets: Vec<i32>,
    options: PerplexityOptions,
    next: usize,
}

impl Windows {
    fn new(document: usize, tokens: &[u32], options: PerplexityOptions) -> Self {
        let tokens: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
        let first = if options.beginning == Beginning::Never { None } else { options.bos.map(|bos| bos as i32) };
        let inputs: Vec<i32> = first.into_iter().chain(tokens.iter().copied()).collect();
        let targets = inputs.get(1..).unwrap_or_default().to_vec();
        Self { document, inputs, targets, options, next: 0 }
    }
}

impl Iterator for Windows {
    type Item = Window;

    fn next(&mut self) -> Option<Window> {
        let PerplexityOptions { context, stride, beginning, bos } = self.options;
        let start = self.next * stride;
        let end = (start + context).min(self.targets.len());
        let from = if self.next == 0 { 0 } else { context - stride };
        if start + from >= end {
            return None;
        }
        self.next += 1;
        let mut inputs = self.inputs[start..end].to_vec();
        if let (Beginning::Always, Some(bos)) = (beginning, bos) {
            inputs[0] = bos as i32;
        }
        Some(Window { document: self.document, inputs, targets: self.targets[start..end].to_vec(), from })
    }
}

/// Negative log likelihoods of the targets of a window that count.
fn losses(model: &LanguageModel, window: &Window) -> Result<Vec<f64>, PretrainedError> {
    let sizes = model.sizes();
    let tokens = TokenBatch::full(window.inputs.clone(), 1)?;
    tokens.check(sizes.vocabulary, sizes.context)?;
    let known = |target: &&i32| usize::try_from(**target).is_ok_and(|target| target < sizes.vocabulary);
    if let Some(target) = window.targets.iter().find(|target| !known(target)) {
        let expected = format!("at least 0 and below the vocabulary ({})", sizes.vocabulary);
        return Err(Error::option("token", target, expected).into());
    }
    let states = model.states(&tokens, &Context::evaluation());
    let count = window.targets.len();
    let rows = (HELD / sizes.vocabulary).max(1);
    let mut losses = Vec::with_capacity(count - window.from);
    for first in (window.from..count).step_by(rows) {
        let some = rows.min(count - first);
        let logits = numbers(model.logits(states.clone().narrow(1, first, some)))?;
        let targets: Arc<[i32]> = window.targets[first..first + some].into();
        let view = View { data: &logits, shape: &[some, sizes.vocabulary] };
        // The logs of the denominators are kept for a backward pass.
        let kept = CrossEntropy::new(targets.clone(), 0.0).forward(&[view], &mut [0.0]);
        losses.extend(kept.buffers()[0].iter().zip(targets.iter()).enumerate().map(|(row, (normaliser, target))| {
            f64::from(*normaliser) - f64::from(logits[row * sizes.vocabulary + *target as usize])
        }));
    }
    Ok(losses)
}

struct WindowSum {
    document: usize,
    tokens: usize,
    nats: f64,
}

/// Of a ratio of sums over windows.
fn standard_error(sums: &[WindowSum], nats: f64, tokens: usize) -> Option<f64> {
    let count = sums.len() as f64;
    if sums.len() < 2 {
        return None;
    }
    let squares: f64 = sums.iter().map(|window| (window.nats - nats * window.tokens as f64).powi(2)).sum();
    Some((squares * count / (count - 1.0)).sqrt() / tokens as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(tokens: usize, context: usize, stride: usize, beginning: Beginning) -> Vec<(Vec<i32>, Vec<i32>)> {
        let tokens: Vec<u32> = (1..=tokens as u32).collect();
        let options = PerplexityOptions { context, stride, beginning, bos: Some(0) };
        let windows: Vec<_> = Windows::new(0, &tokens, options).collect();
        assert_eq!(windows.len(), window_count(tokens.len(), options));
        windows.into_iter().map(|window| (window.inputs, window.targets[window.from..].to_vec())).collect()
    }

    #[test]
    fn windows_are_those_described() {
        assert_eq!(windows(6, 3, 3, Beginning::Never), [(vec![1, 2, 3], vec![2, 3, 4]), (vec![4, 5], vec![5, 6])]);
        assert_eq!(
            windows(5, 3, 2, Beginning::Document),
            [(vec![0, 1, 2], vec![1, 2, 3]), (vec![2, 3, 4], vec![4, 5])]
        );
        assert_eq!(windows(5, 3, 2, Beginning::Always), [(vec![0, 1, 2], vec![1, 2, 3]), (vec![0, 3, 4], vec![4, 5])]);
        assert!(windows(1, 3, 2, Beginning::Never).is_empty() && windows(0, 3, 1, Beginning::Always).is_empty());
    }

    #[test]
    fn every_token_is_scored_once_with_enough_before_it() {
        for (tokens, context) in (0..30).flat_map(|tokens| (1..8).map(move |context| (tokens, context))) {
            for stride in 1..=context {
                for beginning in [Beginning::Always, Beginning::Document, Beginning::Never] {
                    let windows = windows(tokens, context, stride, beginning);
                    let scored: Vec<i32> = windows.iter().flat_map(|(_, targets)| targets.clone()).collect();
                    let first = if beginning == Beginning::Never { 2 } else { 1 };
                    assert_eq!(scored, (first..=tokens as i32).collect::<Vec<_>>());
                    assert!(windows.iter().all(|(inputs, _)| inputs.len() <= context));
                    let before = |(inputs, targets): &(Vec<i32>, Vec<i32>)| inputs.len() - targets.len() + 1;
                    assert!(windows.iter().skip(1).all(|window| before(window) > context - stride));
                }
            }
        }
    }

    #[test]
    fn the_error_is_that_of_a_ratio() {
        let window = |tokens, nats| WindowSum { document: 0, tokens, nats };
        // Two windows of equal size: half the difference of their means.
        let error = standard_error(&[window(10, 20.0), window(10, 40.0)], 3.0, 20).unwrap();
        assert!((error - 1.0).abs() < 1e-12);
        assert_eq!(standard_error(&[window(10, 20.0)], 2.0, 10), None);
    }
}
