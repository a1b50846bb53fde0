//! The first stage: each layer's attention learns to give what exact attention gives for the same inputs.
//!
//! The inputs are those of the trained model, so that layers do not wait for one another: one pass of it over a sequence is a step
//! of all of them, and only that sequence is in memory.

use std::sync::Arc;

use burn::tensor::Tensor;
use regard_nn::{
    attention::{Attention, LayerLog, LayerRecord},
    blocks::{Context, Place},
    models::TokenBatch,
};
use regard_pretrained::Pretrained;

use super::{
    AdaptError,
    data::Example,
    learned::{HostGradients, Learned, collect},
};

/// The attention layers of a model with weights of their own.
pub(super) fn layers(pretrained: &Pretrained) -> Result<Vec<Attention>, AdaptError> {
    // Any token passes through all of them.
    let records = pass(pretrained, &TokenBatch::full(vec![0], 1)?)?;
    Ok(records.into_iter().take(own_layers(pretrained)).map(|record| record.attention).collect())
}

fn own_layers(pretrained: &Pretrained) -> usize {
    if pretrained.config.shared_blocks { 1 } else { pretrained.config.layers }
}

/// What each layer is called in the model, up to its parameters.
pub(super) fn prefix(layer: usize) -> String {
    format!("layers.{layer}.attention.")
}

fn pass(pretrained: &Pretrained, tokens: &TokenBatch) -> Result<Vec<LayerRecord>, AdaptError> {
    let log = Arc::new(LayerLog::new());
    pretrained.states(tokens, &Context::evaluation().with_layer_log(log.clone()))?;
    Ok(log.take())
}

/// What each layer with weights of its own reads and should give; uses of one layer stand side by side.
fn lessons(teacher: &Pretrained, tokens: &TokenBatch) -> Result<Vec<[Tensor<3>; 2]>, AdaptError> {
    let own = own_layers(teacher);
    let mut lessons: Vec<[Vec<Tensor<3>>; 2]> = vec![[Vec::new(), Vec::new()]; own];
    for record in pass(teacher, tokens)? {
        let [inputs, outputs] = &mut lessons[(record.layer - 1) % own];
        inputs.push(record.input);
        outputs.push(record.output);
    }
    Ok(lessons.into_iter().map(|lesson| lesson.map(|uses| Tensor::cat(uses, 0))).collect())
}

/// Squared error of each layer relative to the squares of what it should give, and its gradient to `visit`, layer by layer.
pub(super) fn backward(
    teacher: &Pretrained,
    layers: &[Attention],
    learned: &Learned,
    example: &Example,
    mut visit: impl FnMut(f64, HostGradients) -> Result<(), AdaptError>,
) -> Result<(), AdaptError> {
    for (number, [input, output]) in lessons(teacher, &example.tokens)?.into_iter().enumerate() {
        let layer = learned.apply(layers[number].clone(), &prefix(number), true);
        let size = number_of(output.clone().square().sum()).max(f32::MIN_POSITIVE);
        let error = difference(&layer, Tensor::from_inner(input), Tensor::from_inner(output));
        let loss = error.square().sum().div_scalar(size);
        let value = number_of(loss.clone().inner());
        let mut gradients = HostGradients::new();
        collect(&layer, &prefix(number), loss.backward(), &mut gradients);
        visit(f64::from(value), gradients)?;
    }
    Ok(())
}

/// The errors of layers over several sequences.
pub(super) fn errors(
    teacher: &Pretrained,
    layers: &[Attention],
    judges: &[Example],
    mut progress: impl FnMut(usize) -> Result<(), AdaptError>,
) -> Result<Vec<f64>, AdaptError> {
    let mut sums = vec![[0.0; 2]; layers.len()];
    for (done, example) in judges.iter().enumerate() {
        progress(done)?;
        for ((layer, [input, output]), sums) in layers.iter().zip(lessons(teacher, &example.tokens)?).zip(&mut sums) {
            sums[0] += squares(difference(layer, input, output.clone()));
            sums[1] += squares(output);
        }
    }
    Ok(sums.into_iter().map(|[error, size]| error / f64::max(size, f64::MIN_POSITIVE)).collect())
}

fn difference(layer: &Attention, input: Tensor<3>, output: Tensor<3>) -> Tensor<3> {
    layer.forward(input.clone(), input, &layer.mask(None), &Context::evaluation(), Place::Weights) - output
}

fn squares(x: Tensor<3>) -> f64 {
    let values = x.into_data_as::<f32>();
    values.as_slice::<f32>().expect("f32, as asked").iter().map(|x| f64::from(*x) * f64::from(*x)).sum()
}

fn number_of(x: Tensor<1>) -> f32 {
    x.into_data_as::<f32>().as_slice::<f32>().expect("f32, as asked")[0]
}
