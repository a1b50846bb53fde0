//! Attention matrices of a trained model on its test data.

use regard_kernels::{Mechanism, View, mechanism::Position};
use regard_tasks::{
    data::{Split, TaskData},
    train::Model,
};

use super::{SourceError, dense::Dense, head::Head};
use crate::inspect::Recording;

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
    if let Some(layer) = wanted.layers.iter().find(|layer| !(1..=layers).contains(*layer)) {
        return Err(SourceError::Model(format!("layer {layer} is not one of the model's, expected 1 to {layers}")));
    }
    if options.mechanism != Mechanism::Softmax {
        let (seen, expected) = (options.label(), "softmax: other attention has no such matrix to approximate");
        return Err(SourceError::Model(format!("the model's attention is {seen}, expected {expected}")));
    }
    let recordings = Recording::all(model, data, Split::Test, wanted.sequences)?;
    if recordings.len() == 0 {
        return Err(SourceError::Model("the test split has no sequence of two tokens, expected at least one".into()));
    }
    let mut heads = Vec::new();
    for record in recordings.flat_map(|recording| recording.records) {
        let layer = record.layer;
        if !wanted.layers.is_empty() && !wanted.layers.contains(&layer) {
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
            causal: options.causal,
        }));
    }
    // So far ordered by sequence: sort so that each group's matrices are adjacent.
    heads.sort_by_key(|head| head.group.trim_start_matches("layer ").parse::<usize>().unwrap_or(0));
    Ok(heads)
}

/// Head `head` of one sequence of a tensor `[1, N, H, D]`.
fn matrix(tensor: &View<f32>, head: usize) -> Dense {
    let &[_, tokens, heads, width] = tensor.shape else { unreachable!("softmax has tokens of heads") };
    Dense::from_fn(tokens, width, |i, c| f64::from(tensor.data[(i * heads + head) * width + c]))
}
