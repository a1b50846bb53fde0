//! A model measured on a split.

use regard_cluster::{Alone, Communicator};
use regard_metrics::{Confusion, predicted};

use super::{
    Evaluation, Items, Model, TrainError,
    measured::{Measured, Tally},
    parallel::spread,
    ranking,
};
use crate::data::{Batch, Split, TaskData, split_batches, target_score};

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
    measure(model, data, split, [rows, most], step, None, &Alone)
}

/// As [`evaluate`], by the ranks of a job, which take batches in turn and all have the figures.
///
/// # Errors
/// Batches of no rows; a rank that has left the job.
pub fn evaluate_by_ranks(
    model: &Model,
    data: &TaskData,
    split: Split,
    rows: usize,
    step: usize,
    cluster: &dyn Communicator,
) -> Result<Evaluation, TrainError> {
    measure(model, data, split, [rows, 0], step, None, cluster)
}

/// As [`evaluate`], in `most` batches of `rows`, which the ranks of a job take in turn: all have all figures then, the same as
/// those of one. What the model did on each sequence is added to `by_sequence`.
pub(super) fn measure(
    model: &Model,
    data: &TaskData,
    split: Split,
    [rows, most]: [usize; 2],
    step: usize,
    mut by_sequence: Option<&mut Items>,
    cluster: &dyn Communicator,
) -> Result<Evaluation, TrainError> {
    if let (Model::Recommender(model), Some(part)) = (model, data.impressions(split)) {
        return ranking::measure(model, part, split, [rows, most], step, by_sequence, cluster);
    }
    let (objective, text, each) = (data.shape().objective, data.extent(split).is_some(), by_sequence.is_some());
    let own = |batch: &Batch| Measured::of(model, batch, objective, text, each);
    let (mut tally, mut seconds) = (Tally::new(data, split), vec![0.0; cluster.ranks()]);
    let batches = || split_batches(data, split, rows, most);
    let mut add = |number: usize, batch: &Batch, measured: &Measured| {
        seconds[number % cluster.ranks()] += measured.seconds;
        tally.add(batch, measured, by_sequence.as_deref_mut());
    };
    if cluster.ranks() == 1 {
        batches()?.enumerate().for_each(|(number, batch)| add(number, &batch, &own(&batch)));
    } else {
        let mine = batches()?.enumerate().filter(|(number, _)| number % cluster.ranks() == cluster.rank());
        let all = spread(cluster, mine.map(|(_, batch)| own(&batch).to_bytes()).collect())?;
        for ((number, batch), measured) in batches()?.enumerate().zip(all) {
            add(number, &batch, &Measured::from_bytes(&measured));
        }
    }
    // Ranks work side by side.
    Ok(tally.finish(data, split, step, seconds.into_iter().fold(0.0, f64::max)))
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
