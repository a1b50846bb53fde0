//! Attention matrices of a trained model on its test data.

use burn::tensor::Tensor;
use regard_kernels::mechanism::Position;
use regard_nn::models::TokenBatch;
use regard_tasks::{
    data::{BatchOptions, CopySplit, LanguageBatch, TaskData, evaluation_batches},
    train::Model,
};

use super::{SourceError, dense::Dense, head::Head};

/// What to take from a model.
#[derive(Clone, Debug, Default)]
pub struct Captured {
    /// Layers, from 0; all when empty.
    pub layers: Vec<usize>,
    /// Test sequences, spread over all of them.
    pub sequences: usize,
}

/// Every head of the chosen layers on some test sequences, without their padding; a group a layer.
///
/// # Errors
/// A model whose attention is not plain softmax, layers that it does not have, a split without sequences.
pub fn capture(model: &Model, data: &TaskData, wanted: &Captured) -> Result<Vec<Head>, SourceError> {
    let (options, layers) = match model {
        Model::Classifier(model) => (model.attention(), model.sizes().layers),
        Model::Language(model) => (model.attention(), model.sizes().layers),
        Model::Masked(model) => (model.attention(), model.sizes().layers),
        Model::Translator(_) => {
            let problem = "the model is a translator, which has three attentions; expected a model with one";
            return Err(SourceError::Model(problem.into()));
        }
    };
    if options.position == Position::Alibi || options.window.is_some() {
        let seen = if options.window.is_some() { "a window" } else { "ALiBi positions" };
        let expected = "exp(tau q.k) over all keys: another position, no window";
        return Err(SourceError::Model(format!("the model has {seen}, expected {expected}")));
    }
    if let Some(layer) = wanted.layers.iter().find(|layer| **layer >= layers) {
        return Err(SourceError::Model(format!(
            "layer {layer} is not one of the model's, expected 0 to {}",
            layers - 1
        )));
    }
    let sequences = sequences(data, wanted.sequences)?;
    if sequences.is_empty() {
        return Err(SourceError::Model("the test split has no sequence of two tokens, expected at least one".into()));
    }
    let mut heads = Vec::new();
    for tokens in &sequences {
        let projections = match model {
            Model::Classifier(model) => model.projections(tokens),
            Model::Language(model) => model.projections(tokens),
            Model::Masked(model) => model.projections(tokens),
            Model::Translator(_) => None,
        };
        let Some(projections) = projections else {
            let (seen, expected) = (options.label(), "softmax: other attention has no such matrix to approximate");
            return Err(SourceError::Model(format!("the model's attention is {seen}, expected {expected}")));
        };
        for (layer, [q, k, v]) in projections.into_iter().enumerate() {
            if !wanted.layers.is_empty() && !wanted.layers.contains(&layer) {
                continue;
            }
            let (q, k, v) = (Projected::new(q), Projected::new(k), Projected::new(v));
            let group = q.heads / k.heads;
            heads.extend((0..q.heads).map(|h| Head {
                group: format!("layer {layer}"),
                queries: q.matrix(h),
                keys: k.matrix(h / group),
                values: v.matrix(h / group),
                scale: (q.width as f64).sqrt().recip(),
                causal: options.causal,
            }));
        }
    }
    // Sequence by sequence so far: a group's matrices come one after the other.
    heads.sort_by_key(|head| head.group.trim_start_matches("layer ").parse::<usize>().unwrap_or(0));
    Ok(heads)
}

/// Heads of one sequence side by side, `[N, H, D]`.
struct Projected {
    tokens: usize,
    heads: usize,
    width: usize,
    data: Vec<f32>,
}

impl Projected {
    /// Of `[1, N, H, D]`.
    fn new(tensor: Tensor<4>) -> Self {
        let [_, tokens, heads, width] = tensor.dims();
        let data = tensor.into_data_as::<f32>().try_into_vec().expect("f32, as asked");
        Self { tokens, heads, width, data }
    }

    fn matrix(&self, head: usize) -> Dense {
        let at = |i: usize, c: usize| f64::from(self.data[(i * self.heads + head) * self.width + c]);
        Dense::from_fn(self.tokens, self.width, at)
    }
}

/// `most` sequences of the test split, each a batch of its own without padding, spread evenly over all of them.
fn sequences(data: &TaskData, most: usize) -> Result<Vec<TokenBatch>, SourceError> {
    let language = |batch: LanguageBatch| (batch.inputs, batch.length);
    let all: Vec<(Vec<i32>, usize)> = match data {
        TaskData::Classification(data) => {
            let batches = evaluation_batches(&data.test, BatchOptions::new(1, data.max_length))?;
            spread(batches.map(|batch| (batch.tokens, batch.lengths[0])), most)
        }
        TaskData::Language(data) => spread(data.evaluation_batches(1).map(language), most),
        TaskData::Copy(data) => spread(data.evaluation_batches(CopySplit::Test, 1).map(language), most),
        TaskData::Masked(data) => spread(data.evaluation_batches(1).map(|batch| (batch.inputs, batch.length)), most),
        TaskData::Translation(_) => Vec::new(),
    };
    let real = all.into_iter().filter(|(_, length)| *length > 1);
    Ok(real
        .map(|(mut ids, length)| {
            ids.truncate(length);
            TokenBatch { ids: ids.into(), batch: 1, length, padding: None, types: None }
        })
        .collect())
}

/// The middle one of each of `most` equal parts.
fn spread<T>(items: impl ExactSizeIterator<Item = T>, most: usize) -> Vec<T> {
    let (count, most) = (items.len(), most.min(items.len()));
    let chosen: Vec<usize> = (0..most).map(|part| (2 * part + 1) * count / (2 * most)).collect();
    items.enumerate().filter(|(i, _)| chosen.contains(i)).map(|(_, item)| item).collect()
}
