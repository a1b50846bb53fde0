//! A model measured on a split.

use std::time::Instant;

use regard_metrics::{Confusion, accuracy, count_correct, perplexity, predicted};
use regard_nn::blocks::Context;

use super::{ClassScores, Evaluation, Items, Model, TrainError, ValueScores, language::LanguageTally, ranking};
use crate::data::{Objective, Split, TaskData, split_batches, target_score};

/// Measures `model` on a split of `data` in batches of `rows`: all of it or, if `most` is not 0, that many batches
/// spread over it. The model should be without autodiff ([`valid`](burn::module::Module::valid)). `step` is that of
/// the report.
///
/// # Errors
/// Batches of no rows.
pub fn evaluate(
    model: &Model,
    data: &TaskData,
    split: Split,
    rows: usize,
    most: usize,
    step: usize,
) -> Result<Evaluation, TrainError> {
    measure(model, data, split, [rows, most], step, None)
}

/// As [`evaluate`], in `most` batches of `rows`; what the model did on each sequence is added to
/// `by_sequence`.
pub(super) fn measure(
    model: &Model,
    data: &TaskData,
    split: Split,
    [rows, most]: [usize; 2],
    step: usize,
    mut by_sequence: Option<&mut Items>,
) -> Result<Evaluation, TrainError> {
    if let (Model::Recommender(model), Some(part)) = (model, data.impressions(split)) {
        return Ok(ranking::measure(model, part, split, [rows, most], step, by_sequence)?);
    }
    let objective = data.shape().objective;
    let extent = data.extent(split);
    let mut tally = LanguageTally::default();
    let mut confusion = objective.classes().map(|classes| Confusion::of([], classes));
    let mut values = Vec::new();
    let (mut loss, mut correct, mut items, mut sequences, mut seconds) = (0.0, 0, 0, 0, 0.0);
    for batch in split_batches(data, split, rows, most)? {
        let start = Instant::now();
        if let (Model::Language(model), Some(_)) = (model, &extent) {
            let nats = model.nats(&batch.tokens, &batch.targets, &Context::evaluation());
            seconds += start.elapsed().as_secs_f64();
            loss += nats.iter().sum::<f64>();
            tally.add(&batch.targets, batch.tokens.length, &nats);
            if let Some(by_sequence) = &mut by_sequence {
                by_sequence.add_losses(&batch, &nats);
            }
        } else {
            let (logits, targets) = model.predictions(&batch, &Context::evaluation());
            let outputs = logits.dims()[1];
            let logits: Vec<f32> = logits.into_data_as::<f32>().try_into_vec().expect("f32, as asked");
            seconds += start.elapsed().as_secs_f64();
            loss += row_losses(&logits, &targets, outputs).sum::<f64>();
            if let Some(by_sequence) = &mut by_sequence {
                by_sequence.add(&batch, &logits, &targets, outputs, objective.has_accuracy());
            }
            if objective.has_accuracy() {
                correct += count_correct(&logits, &targets, outputs);
            }
            if objective == Objective::Regress {
                let given = targets.iter().map(|target| f64::from(target_score(*target)));
                values.extend(logits.iter().map(|value| f64::from(*value)).zip(given));
            }
            confusion = confusion.and_then(|confusion| confused(confusion, &logits, &targets, outputs));
        }
        items += batch.items();
        sequences += batch.tokens.batch / objective.rows();
    }
    let loss = loss / items as f64;
    let accuracy = objective.has_accuracy().then(|| accuracy(correct, items));
    let perplexity = objective.has_perplexity().then(|| perplexity(loss));
    let language = extent.map(|extent| tally.finish(data.shape().max_length, extent));
    Ok(Evaluation {
        step,
        split,
        loss,
        accuracy,
        classes: confusion.filter(|_| items > 0).as_ref().map(ClassScores::from),
        values: (objective == Objective::Regress).then(|| ValueScores::of(&values)),
        perplexity,
        bleu: None,
        rouge: None,
        ranking: None,
        averaged: None,
        language,
        items,
        sequences,
        seconds,
    })
}

/// With the predictions of a batch; `None` if one is not a number.
pub(crate) fn confused(mut confusion: Confusion, logits: &[f32], labels: &[i32], classes: usize) -> Option<Confusion> {
    for (predicted, label) in predicted(logits, classes).zip(labels) {
        confusion.add(usize::try_from(*label).ok()?, predicted?);
    }
    Some(confusion)
}

/// Cross entropies of the rows whose target is not negative, in nats; of a single output, which is a score, squared errors.
pub(crate) fn row_losses(logits: &[f32], targets: &[i32], outputs: usize) -> impl Iterator<Item = f64> {
    let rows = logits.chunks_exact(outputs).zip(targets).filter(|(_, target)| **target >= 0);
    let one = move |(row, &target): (&[f32], &i32)| {
        if let [score] = row {
            return f64::from(score - target_score(target)).powi(2);
        }
        let shift = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|logit| f64::from((logit - shift).exp())).sum();
        sum.ln() + f64::from(shift) - f64::from(row[target as usize])
    };
    rows.map(one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::score_target;

    #[test]
    fn the_loss_is_that_of_the_real_targets() {
        let logits = [0.0, 0.0, 3f32.ln(), 0.0, 5.0, 5.0, 1000.0, 0.0];
        let want = 2f64.ln() + (4.0f64 / 3.0).ln() + 1000.0;
        assert!((row_losses(&logits, &[1, 0, -1, 1], 2).sum::<f64>() - want).abs() < 1e-3);
        assert!(row_losses(&[f32::NAN, 0.0], &[1], 2).sum::<f64>().is_nan());
        let targets = [score_target(2.5), score_target(0.0)];
        assert_eq!(row_losses(&[2.0, -3.0], &targets, 1).collect::<Vec<_>>(), [0.25, 9.0]);
    }
}
