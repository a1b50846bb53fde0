//! Which differences between models are significant: paired by seed, and by sequence of the test split.

use std::path::Path;

use regard_report::{Cell, Column, Format, Table};
use regard_tasks::train::{Items, TEST_ITEMS};
use serde::Serialize;

use super::{CellRecord, Measure, Place, Study, cell_directory};
use crate::statistics::{Paired, holm, mcnemar, paired};

/// Level of significance.
pub const LEVEL: f64 = 0.05;
/// Fewest seeds on which a verdict rests.
pub const SEEDS: usize = 3;

/// A model against the baseline on one task in one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// The model.
    #[serde(flatten)]
    pub place: Place,
    /// What is compared.
    pub measure: Measure,
    /// Seeds with a result of both.
    pub seeds: Vec<u64>,
    /// Measure of the model less that of the baseline, by seed.
    pub differences: Vec<f64>,
    /// Ends of the 95 % interval of the mean difference.
    pub interval: Option<[f64; 2]>,
    /// p value by seed, from [`SEEDS`] of them on.
    pub p_seeds: Option<f64>,
    /// The same after Holm's correction over all pairs of the study.
    pub p_seeds_corrected: Option<f64>,
    /// The test by sequence.
    pub items: Option<ItemTest>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_items: Option<String>,
    /// Its p value after Holm's correction over all pairs of the study.
    pub p_items_corrected: Option<f64>,
}

/// A test that pairs two trained models, or the means of several, by sequence of the test split.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ItemTest {
    /// Name of the test.
    pub test: &'static str,
    /// Number of sequences.
    pub sequences: usize,
    /// Its p value.
    pub p: f64,
}

/// How far the best model of a column is above the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Better than every other one.
    Significant,
    /// Not significantly better than every other one.
    NotSignificant,
    /// There are too few seeds.
    NotDecided,
}

/// All models of a study against its baseline.
pub fn against_baseline(study: &Study, records: &[CellRecord], out: &Path) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for column in study.columns() {
        let baseline = Place { model: study.baseline.clone(), ..column.clone() };
        if study.group(&baseline).is_none() {
            continue;
        }
        let measure = Measure::of_task(study, records, &column.task);
        for group in study.groups.iter().filter(|group| group.place.beside(column) && group.place != baseline) {
            let (seeds, differences) = by_seed(records, &group.place, &baseline, measure);
            let test = tested(&differences);
            let (items, no_items) = match by_sequence(out, &group.place, &baseline, &seeds, measure) {
                Ok(test) => (Some(test), None),
                Err(reason) => (None, Some(reason)),
            };
            pairs.push(Pair {
                place: group.place.clone(),
                measure,
                seeds,
                differences,
                interval: test.map(|test| test.interval),
                p_seeds: test.map(|test| test.p),
                p_seeds_corrected: None,
                items,
                no_items,
                p_items_corrected: None,
            });
        }
    }
    let corrected = corrected(pairs.iter().map(|pair| pair.p_seeds));
    pairs.iter_mut().zip(corrected).for_each(|(pair, p)| pair.p_seeds_corrected = p);
    let corrected = self::corrected(pairs.iter().map(|pair| Some(pair.items?.p)));
    pairs.iter_mut().zip(corrected).for_each(|(pair, p)| pair.p_items_corrected = p);
    pairs
}

/// The best model of a column by its mean, and how sure that is: all others are tested against it, with Holm's correction.
pub fn best(study: &Study, records: &[CellRecord], column: &Place) -> Option<(String, Standing)> {
    let measure = Measure::of_task(study, records, &column.task);
    let places = study.groups.iter().map(|group| &group.place).filter(|place| place.beside(column));
    let means: Vec<(&Place, f64)> = places
        .filter_map(|place| {
            let values: Vec<f64> = values(records, place, measure).into_iter().map(|(_, value)| value).collect();
            (!values.is_empty()).then(|| (place, measure.sign() * values.iter().sum::<f64>() / values.len() as f64))
        })
        .collect();
    // The first of equals.
    let (best, _) = *means.iter().rev().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let others: Vec<&Place> = means.iter().map(|(place, _)| *place).filter(|place| *place != best).collect();
    if others.is_empty() {
        return None;
    }
    // Means are over all seeds of a model, tests over common ones: there the best may be the worse.
    let test = |other: &&Place| {
        let test = tested(&by_seed(records, best, other, measure).1)?;
        Some(if measure.sign() * test.mean > 0.0 { test.p } else { 1.0 })
    };
    let tests = others.iter().map(test);
    let standing = match tests.collect::<Option<Vec<f64>>>() {
        None => Standing::NotDecided,
        Some(values) if holm(&values).iter().all(|p| *p < LEVEL) => Standing::Significant,
        Some(_) => Standing::NotSignificant,
    };
    Some((best.model.clone(), standing))
}

/// The finite values at a place, by seed.
pub fn values(records: &[CellRecord], place: &Place, measure: Measure) -> Vec<(u64, f64)> {
    let here = records.iter().filter(|record| record.place == *place);
    here.filter_map(|record| Some((record.seed, measure.of(&record.finished()?.result)?))).collect()
}

/// Common seeds of two places, with the differences.
fn by_seed(records: &[CellRecord], one: &Place, other: &Place, measure: Measure) -> (Vec<u64>, Vec<f64>) {
    let others = values(records, other, measure);
    let difference = |(seed, value): (u64, f64)| {
        others.iter().find(|(other, _)| *other == seed).map(|(_, other)| (seed, value - other))
    };
    values(records, one, measure).into_iter().filter_map(difference).unzip()
}

fn tested(differences: &[f64]) -> Option<Paired> {
    if differences.len() < SEEDS { None } else { paired(differences) }
}

fn corrected(values: impl Iterator<Item = Option<f64>>) -> Vec<Option<f64>> {
    let values: Vec<Option<f64>> = values.collect();
    let mut corrected = holm(&values.iter().flatten().copied().collect::<Vec<_>>()).into_iter();
    values.iter().map(|value| value.and_then(|_| corrected.next())).collect()
}

/// Pairs two places by sequence: McNemar's exact test of the labels of one seed, else Student's t on the differences of the
/// sequences, each averaged over the seeds.
fn by_sequence(out: &Path, one: &Place, other: &Place, seeds: &[u64], measure: Measure) -> Result<ItemTest, String> {
    let read = |place: &Place, seed: u64| {
        let path = cell_directory(out, place, seed).join(TEST_ITEMS);
        Items::read(&path).map_err(|_| format!("no results by sequence of {}, seed {seed}", place.model))
    };
    let mut differences: Vec<f64> = Vec::new();
    let (mut fingerprint, mut first, mut second, mut labels) = (None, 0, 0, true);
    for &seed in seeds {
        let (one, other) = (read(one, seed)?, read(other, seed)?);
        let same = fingerprint.get_or_insert(one.fingerprint);
        if one.fingerprint != *same || other.fingerprint != *same || one.targets != other.targets {
            return Err("other test data".into());
        }
        labels &= !one.correct.is_empty() && one.targets.iter().all(|count| *count == 1);
        differences.resize(one.targets.len(), 0.0);
        for item in 0..one.targets.len() {
            differences[item] += match measure {
                Measure::Accuracy => f64::from(one.correct[item]) - f64::from(other.correct[item]),
                _ => f64::from(one.losses[item]) - f64::from(other.losses[item]),
            };
            if labels {
                first += usize::from(one.correct[item] > other.correct[item]);
                second += usize::from(one.correct[item] < other.correct[item]);
            }
        }
    }
    let sequences = differences.len();
    if seeds.len() == 1 && labels && measure == Measure::Accuracy {
        return Ok(ItemTest { test: "McNemar", sequences, p: mcnemar(first, second) });
    }
    differences.iter_mut().for_each(|difference| *difference /= seeds.len() as f64);
    match (seeds.len(), paired(&differences)) {
        (0, _) => Err("no common seed".into()),
        (_, None) if differences.iter().any(|difference| !difference.is_finite()) => {
            Err("a loss that is not finite".into())
        }
        (_, None) => Err("too few sequences".into()),
        (_, Some(test)) => {
            Ok(ItemTest { test: if measure == Measure::Accuracy { "t" } else { "t of losses" }, sequences, p: test.p })
        }
    }
}

impl Pair {
    /// Mean difference; NaN without a common seed.
    pub fn mean(&self) -> f64 {
        self.differences.iter().sum::<f64>() / self.differences.len() as f64
    }

    /// What can be said of it, by seeds.
    pub fn verdict(&self) -> String {
        match self.p_seeds_corrected {
            Some(p) if p < LEVEL && self.measure.sign() * self.mean() > 0.0 => "better".into(),
            Some(p) if p < LEVEL => "worse".into(),
            Some(_) => "not significant".into(),
            None if self.seeds.len() < SEEDS => {
                format!("not decided: {}", super::tables::counted(self.seeds.len(), "seed"))
            }
            None => "not decided: equal differences".into(),
        }
    }
}

/// The pairs as a table: those with a common seed.
pub fn table(study: &Study, pairs: &[Pair]) -> Table {
    let number = |title: &str, format| Column::number(title, format);
    let columns = vec![
        Column::text("task"),
        Column::text("model"),
        Column::text("difference"),
        Column::text("95 % interval"),
        number("seeds", Format::Plain),
        number("p", Format::Significant(2)).group("by seed"),
        number("p, Holm", Format::Significant(2)).group("by seed"),
        number("number", Format::Plain).group("by sequence"),
        number("p", Format::Significant(2)).group("by sequence"),
        number("p, Holm", Format::Significant(2)).group("by sequence"),
        Column::text("test").group("by sequence"),
        Column::text("verdict"),
    ];
    let mut table = Table::new(format!("Models against {}", study.baseline), columns);
    for pair in pairs.iter().filter(|pair| !pair.seeds.is_empty()) {
        let format = pair.measure.format();
        // Differences of shares are points, not percent.
        let signed = |cell: &Cell| format.cell(cell).replace(" %", " points");
        let interval = pair.interval.map(|[low, high]| format!("[{}, {}]", signed(&low.into()), signed(&high.into())));
        table.push(vec![
            pair.place.column().into(),
            pair.place.model.as_str().into(),
            signed(&Cell::estimate(&pair.differences)).into(),
            interval.map(|text| text.replace(" points,", ",")).into(),
            pair.seeds.len().into(),
            pair.p_seeds.into(),
            pair.p_seeds_corrected.into(),
            pair.items.map(|test| test.sequences).into(),
            pair.items.map(|test| test.p).into(),
            pair.p_items_corrected.into(),
            pair.items.map(|test| test.test).or(pair.no_items.as_deref()).into(),
            pair.verdict().into(),
        ]);
    }
    let by_seed = pairs.iter().filter(|pair| pair.p_seeds.is_some()).count();
    let by_item = pairs.iter().filter(|pair| pair.items.is_some()).count();
    table
        .note(format!(
            "Difference: model less {}, mean and deviation over common seeds. By seed: Student's t on the differences, \
             from {SEEDS} seeds on; it says whether training again would show the difference. By sequence: McNemar's exact \
             test of one seed's labels, else Student's t on differences averaged over the seeds; it says whether other test \
             data would show it, for these trained models.",
            study.baseline
        ))
        .note(format!(
            "Two-sided; Holm's correction over the {by_seed} tests by seed and the {by_item} tests by sequence of this table. \
             The verdict is the one by seed at a level of {LEVEL}."
        ))
}

#[cfg(test)]
mod tests {
    use regard_tasks::train::Environment;

    use super::{
        super::{Finished, Group, Outcome, TaskAxis},
        *,
    };
    use crate::compare::RunResult;

    /// A study of one task whose models have these accuracies by seed.
    fn study(models: &[(&str, &[f64])]) -> (Study, Vec<CellRecord>) {
        let place = |model: &str| Place { task: "t".into(), setting: None, model: model.into() };
        let group = |(model, values): &(&str, &[f64])| Group {
            place: place(model),
            seeds: (0..values.len() as u64).collect(),
            config: String::new(),
        };
        let study = Study {
            title: String::new(),
            tasks: vec![TaskAxis { label: "t".into(), measure: None }],
            settings: Vec::new(),
            models: models.iter().map(|(model, _)| (*model).into()).collect(),
            baseline: models[0].0.into(),
            columns: Vec::new(),
            groups: models.iter().map(group).collect(),
        };
        let result = |accuracy| RunResult {
            label: String::new(),
            seed: 0,
            steps: 1,
            test_accuracy: Some(accuracy),
            test_loss: 1.0,
            test_perplexity: None,
            test_bleu: None,
            test_rouge: None,
            test_ranking: None,
            test_language: None,
            parameters: 1,
            multiply_adds: None,
            milliseconds_per_step: 1.0,
            peak_bytes: None,
            sequences_per_second: 1.0,
            train_seconds: 1.0,
            curve: Vec::new(),
            training_loss: Vec::new(),
        };
        let record = |model: &str, seed: usize, accuracy: f64| {
            let environment = Environment::capture(None);
            let finished = Finished { result: result(accuracy), data: String::new(), majority: None, environment };
            CellRecord { place: place(model), seed: seed as u64, outcome: Outcome::Finished(Box::new(finished)) }
        };
        let all = models.iter().flat_map(|(model, values)| {
            values.iter().enumerate().map(move |(seed, accuracy)| record(model, seed, *accuracy))
        });
        let records = all.collect();
        (study, records)
    }

    fn standing(models: &[(&str, &[f64])]) -> Option<(String, Standing)> {
        let (study, records) = study(models);
        best(&study, &records, &study.groups[0].place)
    }

    #[test]
    fn the_best_is_sure_only_if_it_is_better_than_every_other() {
        let (low, high) = ([0.50, 0.52, 0.51, 0.49], [0.60, 0.63, 0.61, 0.59]);
        let near = [0.601, 0.625, 0.608, 0.592];
        let b = |standing| Some(("b".to_owned(), standing));
        assert_eq!(standing(&[("a", &low), ("b", &high)]), b(Standing::Significant));
        assert_eq!(standing(&[("a", &low), ("b", &high), ("c", &near)]), b(Standing::NotSignificant));
        assert_eq!(standing(&[("a", &low), ("b", &high[..2])]), b(Standing::NotDecided));
        // All differences are 1/4.
        assert_eq!(standing(&[("a", &[0.25, 0.5, 0.25]), ("b", &[0.5, 0.75, 0.5])]), b(Standing::NotDecided));
        assert_eq!(standing(&[("a", &low)]), None);
    }

    #[test]
    fn verdicts_stand_after_the_correction_for_all_pairs() {
        let (low, high) = ([0.50, 0.52, 0.51, 0.49], [0.60, 0.63, 0.61, 0.59]);
        // On its own p is 0.035 (SciPy 1.17.1).
        let little = [0.52, 0.53, 0.53, 0.495];
        let (study, records) = study(&[("a", &low), ("b", &high), ("c", &little), ("d", &low), ("e", &high[..2])]);
        let nowhere = Path::new("/nowhere");
        let pairs = against_baseline(&study, &records, nowhere);
        let verdicts: Vec<String> = pairs.iter().map(Pair::verdict).collect();
        assert_eq!(verdicts, ["better", "not significant", "not significant", "not decided: 2 seeds"]);
        let p: Vec<f64> = pairs[..3].iter().map(|pair| pair.p_seeds.unwrap()).collect();
        assert!(p[1] < LEVEL && pairs[1].p_seeds_corrected == Some(2.0 * p[1]), "{p:?}");
        assert!(pairs.iter().all(|pair| pair.no_items.is_some()));
        // The other way round the same pairs are worse.
        let study = study.with_baseline("b").unwrap();
        let pairs = against_baseline(&study, &records, nowhere);
        assert_eq!((pairs[0].place.model.as_str(), pairs[0].verdict().as_str()), ("a", "worse"));
    }
}
