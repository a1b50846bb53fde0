//! Attention matrices of a trained model: of a run on its test data, of a folder on sequences.

use std::sync::Arc;

use regard_kernels::{Mechanism, View, mechanism::Position};
use regard_nn::{
    attention::{AttentionConfig, AttentionLog, AttentionRecord},
    blocks::Context,
};
use regard_pretrained::{Model as Pretrained, Pretrained as Loaded};
use regard_tasks::{
    data::{Split, TaskData},
    train::Model,
};

use super::{SourceError, dense::Dense, head::Head};
use crate::{inspect::Recording, swap::Example};

/// Selection of layers and sequences.
#[derive(Clone, Debug, Default)]
pub struct Captured {
    /// Layers, numbered from 1; all if empty.
    pub layers: Vec<usize>,
    /// Number of test sequences, spread over the split.
    pub sequences: usize,
}

/// Every head of the chosen layers on some test sequences, without padding; one group per layer.
///
/// # Errors
/// A model whose attention is not plain softmax, layers that it does not have, a split without sequences.
pub fn capture(model: &Model, data: &TaskData, wanted: &Captured) -> Result<Vec<Head>, SourceError> {
    let (options, layers) = match model {
        Model::Classifier(model) => (model.attention(), model.sizes().layers),
        Model::Language(model) => (model.attention(), model.sizes().layers),
        Model::Masked(model) => (model.attention(), model.sizes().layers),
        Model::Recommender(_) => {
            let problem = "the model is a recommender, which has two encoders; expected a model with one attention";
            return Err(SourceError::Model(problem.into()));
        }
        Model::Translator(_) => {
            let problem = "the model is a translator, which has three attentions; expected a model with one";
            return Err(SourceError::Model(problem.into()));
        }
    };
    check(options, layers, &wanted.layers)?;
    let recordings = Recording::all(model, data, Split::Test, wanted.sequences)?;
    if recordings.len() == 0 {
        return Err(SourceError::Model("the test split has no sequence of two tokens, expected at least one".into()));
    }
    Ok(heads(recordings.flat_map(|recording| recording.records), &wanted.layers))
}

/// Every head of the chosen layers (all when empty) of a folder's model on `sequences`; one group per layer.
///
/// # Errors
/// A model whose attention is not plain softmax, layers that it does not have, sequences that are not for it.
pub fn capture_folder(loaded: &Loaded, sequences: &[Example], layers: &[usize]) -> Result<Vec<Head>, SourceError> {
    check(&loaded.attention, loaded.config.layers, layers)?;
    let mut records = Vec::new();
    for sequence in sequences {
        let log = Arc::new(AttentionLog::new());
        let context = Context::evaluation().with_attention_log(log.clone());
        let ran = match (sequence, &loaded.model) {
            (Example::Image(pixels), Pretrained::Image(model)) => model.forward(pixels, &context).map(drop),
            (Example::Image(_), _) => {
                let seen = loaded.model.kind();
                return Err(SourceError::Model(format!("the model is {seen}, expected one of images")));
            }
            (Example::Text(tokens), _) => loaded.states(tokens, &context).map(drop),
        };
        ran.map_err(|error| SourceError::Model(error.to_string()))?;
        records.extend(log.take());
    }
    Ok(heads(records, layers))
}

fn check(options: &AttentionConfig, layers: usize, wanted: &[usize]) -> Result<(), SourceError> {
    if options.position == Position::Alibi || options.window.is_some() {
        let seen = if options.window.is_some() { "a window" } else { "ALiBi positions" };
        let expected = "exp(tau q.k) over all keys: another position, no window";
        return Err(SourceError::Model(format!("the model has {seen}, expected {expected}")));
    }
    if let Some(layer) = wanted.iter().find(|layer| !(1..=layers).contains(*layer)) {
        return Err(SourceError::Model(format!("layer {layer} is not one of the model's, expected 1 to {layers}")));
    }
    if options.mechanism != Mechanism::Softmax {
        let (seen, expected) = (options.label(), "softmax: other attention has no such matrix to approximate");
        return Err(SourceError::Model(format!("the model's attention is {seen}, expected {expected}")));
    }
    Ok(())
}

/// The heads of the chosen layers in records of softmax attention, layer by layer.
fn heads(records: impl IntoIterator<Item = AttentionRecord>, layers: &[usize]) -> Vec<Head> {
    let mut heads = Vec::new();
    for record in records {
        let layer = record.layer;
        if !layers.is_empty() && !layers.contains(&layer) {
            continue;
        }
        let [q, k, v] =
            ["q", "k", "v"].map(|name| record.calls[0].input(name).expect("softmax has queries, keys, values"));
        let group = q.shape[2] / k.shape[2];
        heads.extend((0..q.shape[2]).map(|h| Head {
            group: format!("layer {layer}"),
            queries: matrix(&q, h),
            keys: matrix(&k, h / group),
            values: matrix(&v, h / group),
            scale: (q.shape[3] as f64).sqrt().recip(),
            causal: record.options.causal,
        }));
    }
    // So far ordered by sequence: sort so that each group's matrices are adjacent.
    heads.sort_by_key(|head| head.group.trim_start_matches("layer ").parse::<usize>().unwrap_or(0));
    heads
}

/// Head `head` of one sequence of a tensor `[1, N, H, D]`.
fn matrix(tensor: &View<f32>, head: usize) -> Dense {
    let &[_, tokens, heads, width] = tensor.shape else { unreachable!("softmax has tokens of heads") };
    Dense::from_fn(tokens, width, |i, c| f64::from(tensor.data[(i * heads + head) * width + c]))
}
