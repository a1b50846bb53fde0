//! Trained classifiers beside each other: answers paired by test item, with seeds as the units.

use regard_report::{Axis, Cell, Chart, Column, Data, Format, Mark, Sample, Table};
use regard_tasks::Failure;

use crate::bench::Timing;
use crate::reproduce::{Border, Clause, Compared, Estimate, Finding, SEEDS, Workbench, answers, confidence};

/// One model beside another.
pub struct Beside {
    /// Index of the model whose accuracy comes first.
    pub first: usize,
    /// Index of the model whose accuracy is subtracted.
    pub second: usize,
    /// Where the difference must lie, in points.
    pub border: Border,
    /// Whether the paper says so.
    pub of_paper: bool,
}

impl Beside {
    /// The paper says that one is more accurate than the other.
    pub const fn above(first: usize, second: usize) -> Self {
        Self { first, second, border: Border::Above(0.0), of_paper: true }
    }

    /// The paper says that one is no less accurate, but for these points.
    pub const fn no_less(first: usize, second: usize, points: f64) -> Self {
        Self { border: Border::Above(-points), ..Self::above(first, second) }
    }

    /// The paper says that they are equally accurate, but for these points.
    pub const fn equal(first: usize, second: usize, points: f64) -> Self {
        Self { border: Border::Within { centre: 0.0, margin: points }, ..Self::above(first, second) }
    }

    /// An observation that one is more accurate than the other.
    pub const fn observed(first: usize, second: usize) -> Self {
        Self { of_paper: false, ..Self::above(first, second) }
    }
}

fn points(number: f64) -> String {
    if number == 1.0 { "1 point".into() } else { format!("{number} points") }
}

/// Trained models of one kind after the other, with their answers.
pub struct Answered {
    names: Vec<&'static str>,
    answers: Vec<Vec<Vec<f64>>>,
    times: Vec<f64>,
    parameters: Vec<usize>,
    seeds: Vec<u64>,
}

impl Answered {
    /// Models of these recipes and their answers, in the order of `names`.
    pub fn of(bench: &Workbench, names: &[&'static str], recipes: &[(&str, String)]) -> Result<Self, Failure> {
        let mut all = Self {
            names: names.to_vec(),
            answers: Vec::new(),
            times: Vec::new(),
            parameters: Vec::new(),
            seeds: Vec::new(),
        };
        for (name, recipe) in recipes {
            let compared: Compared = bench.train(name, recipe)?;
            all.answers.extend(answers(bench, &compared)?);
            for runs in compared.candidates() {
                // What else ran beside one of them leaves a median as it is.
                let times = Timing::of(runs.iter().map(|run| run.milliseconds_per_step).collect());
                all.times.push(times.map_or(f64::NAN, |times| times.median));
                all.parameters.push(runs[0].parameters);
                all.seeds = runs.iter().map(|run| run.seed).collect();
            }
        }
        assert_eq!(all.names.len(), all.answers.len(), "a name for each model");
        Ok(all)
    }

    /// Number of parameters of a model.
    pub fn parameters(&self, model: usize) -> usize {
        self.parameters[model]
    }

    /// Accuracy of each seed of a model, in percent.
    fn accuracies(&self, model: usize) -> Vec<f64> {
        self.answers[model].iter().map(|items| 100.0 * Sample::of(items).mean).collect()
    }

    /// Decides on all pairs, and shows all models.
    pub fn finding(&self, pairs: &[Beside], title: &str) -> Finding {
        let sure = confidence(pairs.iter().filter(|pair| pair.of_paper).count());
        let mut clauses: Vec<Clause> = pairs.iter().map(|pair| self.clause(pair, sure)).collect();
        if self.seeds.len() < SEEDS {
            clauses.extend(pairs.iter().filter(|pair| pair.of_paper).map(|pair| self.of_two_models(pair)));
        }
        let told = clauses.iter().filter(|clause| clause.of_paper).filter_map(|clause| {
            let points = clause.estimate.as_ref()?.value;
            Some(format!("{} {points:+.2}", clause.text.trim_end_matches('.')))
        });
        let statement = format!("Points of accuracy: {}.", told.collect::<Vec<_>>().join("; "));
        Finding { clauses, statement, tables: vec![self.table()], charts: vec![("accuracy".into(), self.chart(title))] }
    }

    fn text(&self, pair: &Beside) -> String {
        let (first, second) = (self.names[pair.first], self.names[pair.second]);
        match pair.border {
            Border::Above(least) if least < 0.0 => format!("{first} at most {} below {second}.", points(-least)),
            Border::Within { margin, .. } => format!("{first} within {} of {second}.", points(margin)),
            _ => format!("{first} over {second}."),
        }
    }

    fn clause(&self, pair: &Beside, confidence: f64) -> Clause {
        let own = self.answers[pair.first].iter().zip(&self.answers[pair.second]);
        let difference = |(one, other): (&Vec<f64>, &Vec<f64>)| one.iter().zip(other).map(|(a, b)| a - b).collect();
        let differences: Vec<Vec<f64>> = own.map(difference).collect();
        let estimate = Estimate::of_seeds(&differences, confidence).times(100.0);
        Clause { of_paper: pair.of_paper, ..Clause::paper(self.text(pair)) }.decided(estimate, pair.border)
    }

    /// What can be said of two models alone, without a word on others of their kind.
    fn of_two_models(&self, pair: &Beside) -> Clause {
        let right = |model: usize| self.answers[model][0].iter().map(|answer| *answer > 0.5).collect::<Vec<bool>>();
        let estimate = Estimate::right_or_wrong(&right(pair.first), &right(pair.second), 0.95).times(100.0);
        let text = format!("Of the two models of seed {}: {}", self.seeds[0], self.text(pair));
        Clause::ours(text).decided(estimate, pair.border)
    }

    fn table(&self) -> Table {
        let columns = vec![
            Column::text("variant"),
            Column::number("test accuracy", Format::Fixed(2)).unit("%"),
            Column::number("time", Format::Significant(3)).unit("ms an update"),
            Column::number("parameters", Format::Count),
        ];
        let items = self.answers[0].first().map_or(0, Vec::len);
        let mut table = Table::new("Variants", columns).note(format!(
            "Mean and deviation of {} seeds, {items} test items; the median of their times.",
            self.seeds.len()
        ));
        for (model, name) in self.names.iter().enumerate() {
            let (time, parameters) = (self.times[model].into(), self.parameters[model].into());
            table.push(vec![(*name).into(), Cell::estimate(&self.accuracies(model)), time, parameters]);
        }
        table
    }

    fn chart(&self, title: &str) -> Chart {
        let mark = |(style, name): (usize, &&str)| {
            let sample = Sample::of(&self.accuracies(style));
            let deviation = sample.deviation().unwrap_or(0.0);
            Mark { name: (*name).into(), x: 0.0, y: sample.mean, deviation, style }
        };
        let marks = self.names.iter().enumerate().map(mark).collect();
        let subtitle = format!("Test split; bar: deviation of {} seeds", self.seeds.len());
        Chart::new(title, subtitle, Data::Dots(marks)).axes(Axis::default(), Axis::new("accuracy, %", ""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::Verdict;

    /// Models that are right on the first `share` of items, shifted by seed.
    fn answered(shares: &[[usize; 4]]) -> Answered {
        let items = |right: usize| (0..1000).map(|item| f64::from(u8::from(item < right))).collect();
        Answered {
            names: ["a", "b"][..shares.len()].to_vec(),
            answers: shares.iter().map(|seeds| seeds.iter().map(|right| items(*right)).collect()).collect(),
            times: vec![1.0; shares.len()],
            parameters: vec![10; shares.len()],
            seeds: vec![1, 2, 3, 4],
        }
    }

    #[test]
    fn seeds_decide_and_their_number_matters() {
        let mut all = answered(&[[500, 510, 490, 500], [400, 405, 395, 400]]);
        let pairs = [Beside::above(0, 1), Beside::observed(1, 0)];
        let finding = all.finding(&pairs, "x");
        assert_eq!(finding.verdict(), Some(Verdict::Holds));
        let own = finding.clauses[0].estimate.as_ref().expect("an estimate");
        assert!((own.value - 10.0).abs() < 1e-9 && own.count == 4, "{own:?}");
        assert_eq!(finding.clauses[1].verdict, Verdict::DoesNotHold, "the opposite, as an observation");
        assert_eq!(all.finding(&[Beside::above(1, 0)], "x").verdict(), Some(Verdict::DoesNotHold));
        assert_eq!(all.finding(&[Beside::no_less(1, 0, 20.0)], "x").verdict(), Some(Verdict::Holds));
        // The same models of one seed decide nothing on their kind, however many items.
        all.answers.iter_mut().for_each(|seeds| seeds.truncate(1));
        all.seeds.truncate(1);
        let one = all.finding(&pairs[..1], "x");
        assert_eq!(one.verdict(), Some(Verdict::NotDecided));
        assert_eq!(one.clauses[1].verdict, Verdict::Holds, "of these two models it is known");
    }
}
