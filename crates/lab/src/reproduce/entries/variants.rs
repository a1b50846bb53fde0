//! Variants of a classifier beside each other: accuracies paired by test item, over seeds.

use regard_nn::blocks::Context;
use regard_report::{Axis, Cell, Chart, Column, Data, Format, Mark, Sample, Table};
use regard_tasks::{Failure, data::Split, train::split_batches};

use crate::reproduce::{Clause, Compared, Estimate, Finding, Workbench, confidence};

/// Test sequences of a batch.
const ROWS: usize = 64;

/// Whether each test item is classified rightly, by variant and seed.
pub(super) struct Answers(Vec<Vec<Vec<bool>>>);

impl Answers {
    /// Runs every model on the test split.
    pub fn of(bench: &Workbench, compared: &Compared) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for runs in compared.candidates() {
            let mut seeds = Vec::new();
            for run in runs {
                bench.note(&format!("{}, seed {}: test items", run.label, run.seed));
                if bench.stopped() {
                    return Err(Failure::interrupted("stopped"));
                }
                let (model, data) = bench.open(compared, run)?;
                let mut right = Vec::new();
                for batch in split_batches(&data, Split::Test, ROWS, 0)? {
                    let (logits, targets) = model.predictions(&batch, &Context::evaluation());
                    let classes = logits.dims()[1];
                    let logits: Vec<f32> = logits.into_data_as::<f32>().try_into_vec().expect("f32, as asked");
                    right.extend(
                        logits
                            .chunks_exact(classes)
                            .zip(targets.iter())
                            .map(|(row, target)| first_largest(row) == *target as usize),
                    );
                }
                seeds.push(right);
            }
            all.push(seeds);
        }
        Ok(Self(all))
    }

    /// The accuracy of one variant less that of another, in points.
    pub fn points(&self, one: usize, other: usize, confidence: f64) -> Estimate {
        let difference = |(a, b): (&bool, &bool)| f64::from(u8::from(*a)) - f64::from(u8::from(*b));
        let of_seed = |(a, b): (&Vec<bool>, &Vec<bool>)| a.iter().zip(b).map(difference).collect::<Vec<f64>>();
        let differences: Vec<Vec<f64>> = self.0[one].iter().zip(&self.0[other]).map(of_seed).collect();
        Estimate::of_seeds(&differences, confidence).times(100.0)
    }
}

/// The class with the largest logit, the first of equals.
fn first_largest(row: &[f32]) -> usize {
    let mut best = 0;
    for (at, logit) in row.iter().enumerate() {
        if *logit > row[best] {
            best = at;
        }
    }
    best
}

/// Judges claims that one variant is more accurate than another. Each claim names both by their place, and what the paper
/// says.
pub(super) fn judged(
    bench: &Workbench,
    compared: &Compared,
    names: &[&str],
    claims: &[(usize, usize, &str)],
) -> Result<Finding, Failure> {
    let answers = Answers::of(bench, compared)?;
    let accuracies = compared.accuracies();
    let seeds = accuracies.first().map_or(0, Vec::len);
    let columns = vec![
        Column::text("variant"),
        Column::number("test accuracy", Format::Percent(2)),
        Column::number("time", Format::Significant(3)).unit("ms an update"),
        Column::number("parameters", Format::Count),
    ];
    let mut table = Table::new("Variants", columns).note(format!("Mean and deviation of {seeds} seeds."));
    for (name, (runs, values)) in names.iter().zip(compared.candidates().into_iter().zip(&accuracies)) {
        let times: Vec<f64> = runs.iter().map(|run| run.milliseconds_per_step).collect();
        table.push(vec![
            (*name).into(),
            Cell::estimate(values),
            Sample::of(&times).mean.into(),
            runs[0].parameters.into(),
        ]);
    }
    let clauses: Vec<Clause> = claims
        .iter()
        .map(|(one, other, says)| {
            let text = format!("{says}: {} less {}, points of accuracy.", names[*one], names[*other]);
            Clause::paper(text).above(answers.points(*one, *other, confidence(claims.len())), 0.0)
        })
        .collect();
    let said = clauses.iter().zip(claims).map(|(clause, (one, other, _))| {
        let value = clause.estimate.as_ref().map_or(f64::NAN, |estimate| estimate.value);
        format!("{} less {} {value:+.2}", names[*one], names[*other])
    });
    let statement = format!("Points of accuracy: {}.", said.collect::<Vec<_>>().join("; "));
    let marks = names.iter().zip(&accuracies).enumerate().map(|(style, (name, values))| {
        let sample = Sample::of(values);
        let deviation = sample.deviation().unwrap_or(0.0);
        Mark { name: (*name).into(), x: 0.0, y: sample.mean, deviation, style }
    });
    let subtitle = format!("Test split; bar: deviation of {seeds} seeds");
    let chart = Chart::new("Accuracy of variants", subtitle, Data::Dots(marks.collect()))
        .axes(Axis::default(), Axis::new("accuracy", "%"));
    Ok(Finding { clauses, statement, tables: vec![table], charts: vec![("accuracy".into(), chart)] })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: of 4 items the first variant has 3 and 3 right, the second 2 and 2: 25 points in either seed.
    #[test]
    fn differences_are_paired_by_item() {
        let right = |text: &str| text.chars().map(|answer| answer == 'x').collect::<Vec<bool>>();
        let answers = Answers(vec![vec![right("xxx."), right("xx.x")], vec![right("xx.."), right("xx..")]]);
        assert_eq!(answers.points(0, 1, 0.95).value, 25.0);
        assert_eq!(answers.points(1, 0, 0.95).value, -25.0);
        assert_eq!(first_largest(&[0.0, 2.0, 2.0]), 1);
    }
}
