//! The second stage: the whole model learns its own loss, or what the trained one says.

use burn::tensor::{
    Int, Tensor, TensorData,
    activation::{log_softmax, softmax},
};
use regard_nn::{blocks::Context, ops};
use regard_pretrained::{Model, Pretrained};

use super::{
    AdaptError,
    data::Example,
    learned::{HostGradients, collect},
};

/// Positions whose logits are computed at a time: all at once would be the largest thing in memory.
const HEAD_ROWS: usize = 512;

/// The mean loss of an example and its gradients: cross entropy in nats per token that counts, `distill` of it the divergence from
/// what `teacher` says. For a model without a head over tokens, the distance of its mean states to those of `teacher`.
pub(super) fn backward(
    student: &Pretrained,
    teacher: &Pretrained,
    example: &Example,
    distill: f64,
) -> Result<(f64, HostGradients), AdaptError> {
    let mut gradients = HostGradients::new();
    let states = student.states(&example.tokens, &Context::evaluation())?;
    if example.rows.is_empty() {
        let aim = teacher.states(&example.tokens, &Context::evaluation())?;
        let loss = distance(states, Tensor::from_inner(aim));
        let value = number_of(loss.clone().inner());
        collect(&student.model, "", loss.backward(), &mut gradients);
        return Ok((value, gradients));
    }
    let aims = (distill > 0.0).then(|| teacher.states(&example.tokens, &Context::evaluation())).transpose()?;
    let leaf = states.clone().detach().require_grad();
    let mut whole = leaf.clone().inner().zeros_like();
    let (mut total, count) = (0.0, example.rows.len() as f64);
    for (rows, targets) in example.rows.chunks(HEAD_ROWS).zip(example.targets.chunks(HEAD_ROWS)) {
        let logits = logits(student, &leaf, rows)?;
        let share = rows.len() as f64 / count;
        let mut loss = ops::cross_entropy(logits.clone(), targets, 0.0).mul_scalar((1.0 - distill) * share);
        if let Some(aims) = &aims {
            let aim = self::logits(teacher, aims, rows)?;
            let aims = softmax(aim.clone(), 1);
            // Of the divergence, the entropy of the aims has no gradient.
            let entropy = (aims.clone() * log_softmax(aim, 1)).sum();
            let crossed = (Tensor::from_inner(aims) * log_softmax(logits, 1)).sum();
            loss = loss + (Tensor::from_inner(entropy) - crossed).mul_scalar(distill / count);
        }
        total += number_of(loss.clone().inner());
        let mut grads = loss.backward();
        whole = whole + leaf.grad_remove(&mut grads).expect("the leaf is tracked");
        collect(&student.model, "", grads, &mut gradients);
    }
    let grads = (states * Tensor::from_inner(whole)).sum().backward();
    collect(&student.model, "", grads, &mut gradients);
    Ok((total, gradients))
}

/// The mean loss over examples, without any distillation where there is a head over tokens.
pub(super) fn loss(
    pretrained: &Pretrained,
    teacher: &Pretrained,
    examples: &[Example],
    mut progress: impl FnMut(usize) -> Result<(), AdaptError>,
) -> Result<f64, AdaptError> {
    let (mut total, mut count) = (0.0, 0.0);
    for (done, example) in examples.iter().enumerate() {
        progress(done)?;
        let states = pretrained.states(&example.tokens, &Context::evaluation())?;
        if example.rows.is_empty() {
            total += number_of(distance(states, teacher.states(&example.tokens, &Context::evaluation())?));
            count += 1.0;
            continue;
        }
        for (rows, targets) in example.rows.chunks(HEAD_ROWS).zip(example.targets.chunks(HEAD_ROWS)) {
            let loss = ops::cross_entropy(logits(pretrained, &states, rows)?, targets, 0.0);
            total += number_of(loss) * rows.len() as f64;
            count += rows.len() as f64;
        }
    }
    Ok(total / f64::max(count, 1.0))
}

/// Logits of some rows of states.
fn logits(pretrained: &Pretrained, states: &Tensor<3>, rows: &[i32]) -> Result<Tensor<2>, AdaptError> {
    let [batch, length, width] = states.dims();
    let which = Tensor::<1, Int>::from_data(TensorData::new(rows.to_vec(), [rows.len()]), &states.device());
    let states = states.clone().reshape([batch * length, width]).select(0, which);
    match &pretrained.model {
        Model::Language(model) => Ok(model.logits(states)),
        Model::Masked(model) => Ok(model.logits(states)),
        _ => Err(AdaptError::NoText),
    }
}

/// One minus the mean cosine of mean states.
fn distance(states: Tensor<3>, aims: Tensor<3>) -> Tensor<1> {
    let [batch, _, width] = states.dims();
    let [states, aims] = [states, aims].map(|x| x.mean_dim(1).reshape([batch, width]));
    let dot = |a: &Tensor<2>, b: &Tensor<2>| (a.clone() * b.clone()).sum_dim(1);
    let cosine = dot(&states, &aims) / (dot(&states, &states) * dot(&aims, &aims)).sqrt();
    cosine.mean().neg().add_scalar(1.0)
}

fn number_of(x: Tensor<1>) -> f64 {
    f64::from(x.into_data_as::<f32>().as_slice::<f32>().expect("f32, as asked")[0])
}
