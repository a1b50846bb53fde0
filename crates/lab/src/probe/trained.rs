//! Measurements of a trained decoder on its data.

use std::sync::{Arc, atomic::AtomicBool};

use regard_kernels::{Mechanism, mechanism::Position};
use regard_nn::{
    attention::{AttentionLog, AttentionRecord},
    blocks::{Activation, ActivationLog, Context, Part},
    models::{LanguageModel, TokenBatch},
};
use regard_tasks::{
    data::{Split, TaskData, evenly},
    train::Model,
};

use super::{
    ProbeError, check,
    classifier::{Accuracy, Classifier, Features},
    curves::Replicates,
    tally::{Axes, Quantity, Shares, Tally, normalise},
};
use crate::moments::Moments;

/// Sequences per batch.
const BATCH: usize = 8;

/// Measurements of a model.
#[derive(Clone, Copy, Debug)]
pub struct ModelPlan<'a> {
    /// Groups of sequences of the test split; each gives an independent estimate.
    pub groups: usize,
    /// Sequences per group.
    pub sequences: usize,
    /// The position classifier, trained on sequences of the training split; skipped if it has no updates.
    pub classifier: &'a Classifier,
}

/// The results.
#[derive(Clone, Debug)]
pub struct MeasuredModel {
    /// Number of blocks.
    pub layers: usize,
    /// Tokens per sequence.
    pub length: usize,
    /// One tally per group.
    pub replicates: Replicates,
    /// Accuracy of the position classifier on the blocks' outputs; 0 for the input of the first block.
    pub accuracies: Vec<(usize, Accuracy)>,
}

/// Measures a causal single-stack model.
///
/// # Errors
/// An unsupported model, too few sequences, an interrupt.
pub fn measure_model(
    model: &Model,
    data: &TaskData,
    plan: &ModelPlan,
    stop: &AtomicBool,
) -> Result<MeasuredModel, ProbeError> {
    let Model::Language(model) = model else {
        let seen = match model {
            Model::Classifier(_) => "a classifier",
            Model::Translator(_) => "a translator",
            Model::Recommender(_) => "a recommender",
            _ => "a masked model",
        };
        return Err(ProbeError::Model(format!(
            "the run holds {seen}, expected a decoder: one of the tasks lm, char-lm and copy"
        )));
    };
    let (length, held) = held_out(data, plan.groups * plan.sequences)?;
    let mut tallies = Vec::new();
    for group in held.chunks(plan.sequences) {
        check(stop)?;
        tallies.push(tally(model, group, length));
    }
    let accuracies = match plan.classifier.updates {
        0 => Vec::new(),
        _ => classify(model, data, (length, &held), plan.classifier, stop)?,
    };
    Ok(MeasuredModel { layers: model.sizes().layers, length, replicates: Replicates(tallies), accuracies })
}

/// Moments of a group of sequences.
fn tally(model: &LanguageModel, sequences: &[Vec<i32>], length: usize) -> Tally {
    let mut tally = Tally::default();
    // Attention outputs by layer, for all sequences of the group.
    let mut outputs: Vec<Vec<f32>> = vec![Vec::new(); model.sizes().layers];
    for batch in sequences.chunks(BATCH) {
        let tokens = joined(batch, length);
        let axes = Axes { batch: batch.len(), tokens: length };
        let attention = Arc::new(AttentionLog::new());
        let records = activations(model, &tokens, |context| context.with_attention_log(attention.clone()));
        for record in &records {
            let quantity = match record.part {
                Part::Heads => Quantity::Heads,
                Part::Attention => Quantity::Attention,
                Part::FeedForward => Quantity::Normalised,
                Part::Output => Quantity::Output,
                Part::Input | Part::States => continue,
            };
            tally.add(record.layer, quantity, &record.values, axes);
            match quantity {
                Quantity::Output => tally.add_neighbours(record.layer, &record.values, axes),
                Quantity::Attention => {
                    outputs[record.layer - 1].extend_from_slice(&record.values);
                    let input = records.iter().find(|own| own.layer == record.layer && own.part == Part::Input);
                    let input = input.map_or(&[][..], |input| &input.values);
                    let sum: Vec<f32> = input.iter().zip(&record.values).map(|(x, out)| x + out).collect();
                    tally.add(record.layer, Quantity::Residual, &sum, axes);
                }
                _ => {}
            }
        }
        add_scores(&attention.take(), axes, &mut tally);
    }
    for (layer, outputs) in outputs.iter().enumerate() {
        tally.add_moments(layer + 1, Quantity::OverSequences, over_sequences(outputs, sequences.len(), length));
    }
    tally
}

/// Logits and cumulative attention, for softmax attention with plain dot-product scores.
fn add_scores(records: &[AttentionRecord], axes: Axes, tally: &mut Tally) {
    for AttentionRecord { layer, options, calls, .. } in records {
        let products = options.mechanism == Mechanism::Softmax && options.position != Position::Alibi;
        let input = |name| calls[0].input(name);
        let (true, None, Some(q), Some(k), Some(v)) = (products, options.window, input("q"), input("k"), input("v"))
        else {
            continue;
        };
        for (quantity, values) in [(Quantity::Query, &q), (Quantity::Key, &k), (Quantity::Value, &v)] {
            tally.add(*layer, quantity, values.data, axes);
        }
        let sizes = [q.shape[2], k.shape[2], q.shape[3]];
        tally.add_logits(*layer, (q.data, k.data), axes, sizes, true);
        tally.add_cumulative(*layer, &cumulative(q.data, k.data, axes, sizes));
    }
}

/// Attention of the last query to the keys before each of `D` thresholds, for every head and sequence.
fn cumulative(q: &[f32], k: &[f32], axes: Axes, [heads, key_heads, width]: [usize; 3]) -> Shares {
    let Axes { batch, tokens } = axes;
    let mut values = Vec::with_capacity(batch * heads * width);
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        let query = &q[(((b + 1) * tokens - 1) * heads + h) * width..][..width];
        let score = |j: usize| {
            let key = &k[((b * tokens + j) * key_heads + h * key_heads / heads) * width..][..width];
            query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / (width as f64).sqrt()
        };
        let scores: Vec<f64> = (0..tokens).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let all: f64 = weights.iter().sum();
        values.extend((0..width).map(|c| weights[..Shares::before(c, tokens, width)].iter().sum::<f64>() / all));
    }
    Shares { tokens, thresholds: width, values }
}

/// Variance over sequences of every channel of `values [T,N,d]`, averaged over channels: the constant part of a
/// channel, which a trained layer has, is removed. Returned as moments with this variance.
fn over_sequences(values: &[f32], sequences: usize, length: usize) -> Vec<Moments> {
    let width = values.len() / (sequences * length);
    let at = |position: usize| {
        let channel = |c: usize| {
            let own: Vec<f32> = (0..sequences).map(|t| values[(t * length + position) * width + c]).collect();
            // Sample variance: with few sequences the mean absorbs part of the variance.
            Moments::of(&own).squares / (sequences as f64 - 1.0)
        };
        let variance = Moments::of(&(0..width).map(channel).collect::<Vec<_>>()).mean;
        Moments::from_means(width as u64, 0.0, variance)
    };
    (0..length).map(at).collect()
}

/// The classifier on the input of the first block and on the output of each block, normalised.
fn classify(
    model: &LanguageModel,
    data: &TaskData,
    (length, held): (usize, &[Vec<i32>]),
    classifier: &Classifier,
    stop: &AtomicBool,
) -> Result<Vec<(usize, Accuracy)>, ProbeError> {
    let train = training(data, classifier.sequences, classifier.seed)?;
    let held = &held[..classifier.held.min(held.len())];
    let width = model.sizes().width;
    let mut accuracies = Vec::new();
    for layer in 0..=model.sizes().layers {
        // Recomputed for every layer: the hidden states of all layers together may not fit.
        let states = |sequences: &[Vec<i32>]| -> Result<Vec<f32>, ProbeError> {
            let mut all = Vec::with_capacity(sequences.len() * length * width);
            for batch in sequences.chunks(BATCH) {
                check(stop)?;
                let part = if layer == 0 { Part::Input } else { Part::Output };
                let wanted = |record: &Activation| record.layer == layer.max(1) && record.part == part;
                let records = activations(model, &joined(batch, length), |context| context);
                all.extend(records.into_iter().find(wanted).map(|record| record.values).unwrap_or_default());
            }
            normalise(&mut all, width);
            Ok(all)
        };
        let (train, held) = (states(&train)?, states(held)?);
        let features = Features { train: &train, held: &held, length, width };
        accuracies.push((layer, classifier.probe(&features, stop)?));
    }
    Ok(accuracies)
}

fn activations(model: &LanguageModel, tokens: &TokenBatch, also: impl FnOnce(Context) -> Context) -> Vec<Activation> {
    let log = Arc::new(ActivationLog::new());
    model.forward(tokens, &also(Context::evaluation().with_activation_log(log.clone())));
    log.take()
}

fn joined(sequences: &[Vec<i32>], length: usize) -> TokenBatch {
    TokenBatch { ids: sequences.concat().into(), batch: sequences.len(), length, padding: None, types: None }
}

/// The length of full sequences of the test split, and `most` of them, spread over the split.
fn held_out(data: &TaskData, most: usize) -> Result<(usize, Vec<Vec<i32>>), ProbeError> {
    let all: Vec<TokenBatch> = data.split(Split::Test, 1)?.map(|batch| batch.tokens).collect();
    let length = all.iter().map(|tokens| tokens.length).max().unwrap_or(0);
    let whole: Vec<Vec<i32>> =
        all.into_iter().filter(|tokens| tokens.length == length).map(|tokens| tokens.ids.to_vec()).collect();
    if whole.len() < most || length < 2 {
        let seen = format!("the test split has {} sequences of {length} tokens", whole.len());
        return Err(ProbeError::Model(format!("{seen}, expected {most} of at least 2; lower --sequences")));
    }
    Ok((length, evenly(whole.len(), most).map(|place| whole[place].clone()).collect()))
}

/// Sequences of the training split.
fn training(data: &TaskData, count: usize, seed: u64) -> Result<Vec<Vec<i32>>, ProbeError> {
    let tokens = data.batches(seed, count)?(0).tokens;
    Ok(tokens.ids.chunks(tokens.length).map(<[i32]>::to_vec).collect())
}
