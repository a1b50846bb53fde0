//! The comparison as a table, files and an HTML page.

use regard_report::{Axis, Best, Block, Cell, Chart, Column, Data, Format, Mark, Report, Section, Series, Table};
use regard_tasks::train::{Environment, RankingFigures, RankingScores};
use serde_json::json;

use super::{RunResult, study::Measure};
use crate::record::{Record, Shown};

/// All results of a comparison, with the context needed to judge them.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Labels in the order of the comparison.
    pub labels: Vec<String>,
    /// Results of all runs.
    pub results: Vec<RunResult>,
    /// Name of the task.
    pub task: String,
    /// Short description of the data.
    pub setting: String,
    /// Fraction of the most frequent class among the test labels, the baseline; classification only.
    pub majority: Option<f64>,
    /// What the candidates do not have in common besides their attention.
    pub differences: Option<String>,
    /// The command line.
    pub command: String,
    /// Configuration common to all candidates, as TOML.
    pub config: String,
    /// Machine, version and date.
    pub environment: Environment,
}

fn bits_per_byte(result: &RunResult) -> Option<f64> {
    result.test_language.as_ref()?.bits_per_byte
}

/// Scores of texts that models write and of rankings.
const SCORED: [Measure; 8] = [
    Measure::Bleu,
    Measure::Rouge1,
    Measure::Rouge2,
    Measure::RougeL,
    Measure::Auc,
    Measure::Mrr,
    Measure::Ndcg5,
    Measure::Ndcg10,
];

impl Comparison {
    /// What the comparison is about.
    fn measure(&self) -> Measure {
        if self.ranking().is_some() {
            Measure::Auc
        } else if self.results.iter().any(|result| result.test_perplexity.is_none() && result.test_accuracy.is_some()) {
            Measure::Accuracy
        } else {
            Measure::Loss
        }
    }

    fn quality(&self) -> impl Fn(&RunResult) -> f64 + use<> {
        let measure = self.measure();
        move |result| measure.of(result).unwrap_or(f64::NAN)
    }

    fn ranking(&self) -> Option<RankingFigures> {
        self.results.iter().find_map(|result| result.test_ranking)
    }

    /// A figure to hold the measure against, with its name.
    fn bound(&self) -> Option<(f64, &'static str)> {
        let best = self.ranking().and_then(|ranking| ranking.best).map(|best| (best.auc, "true probabilities"));
        self.majority.map(|share| (share, "most frequent class")).or(best)
    }

    fn of<'a>(&'a self, label: &'a str) -> impl Iterator<Item = &'a RunResult> {
        self.results.iter().filter(move |result| result.label == label)
    }

    fn seeds(&self) -> usize {
        self.labels.iter().map(|label| self.of(label).count()).max().unwrap_or(0)
    }

    /// One row per candidate.
    pub fn table(&self) -> Table {
        // The copy task has both.
        let accuracy = self.results.iter().any(|result| result.test_accuracy.is_some());
        let perplexity = self.results.iter().any(|result| result.test_perplexity.is_some());
        let scored: Vec<Measure> = SCORED
            .into_iter()
            .filter(|measure| self.results.iter().any(|result| measure.of(result).is_some()))
            .collect();
        let mut columns = vec![Column::text("mechanism")];
        let ranking = self.ranking();
        columns
            .extend(scored.iter().map(|measure| Column::number(measure.name(), measure.format()).best(Best::Highest)));
        columns.extend(accuracy.then(|| Column::number("accuracy", Format::Percent(1)).best(Best::Highest)));
        columns.extend(perplexity.then(|| Column::number("perplexity", Format::Significant(4)).best(Best::Lowest)));
        // Figures of models of subwords, characters or bytes that others can be held against.
        let spelled = self.results.iter().any(|result| bits_per_byte(result).is_some());
        columns.extend(spelled.then(|| Column::number("per byte", Format::Fixed(4)).unit("bit").best(Best::Lowest)));
        columns.extend([
            Column::number("loss", Format::Fixed(3)).unit("nat").best(Best::Lowest),
            Column::number("parameters", Format::Plain).best(Best::Lowest),
            Column::number("multiply-adds", Format::Count).best(Best::Lowest),
            Column::number("step", Format::Significant(3)).unit("ms").best(Best::Lowest),
            Column::number("peak memory", Format::Bytes).best(Best::Lowest),
            Column::number("inference", Format::Significant(3)).unit("seq/s").best(Best::Highest),
        ]);
        let mut table = Table::new(format!("{}: {}", self.task, self.setting), columns);
        for label in &self.labels {
            let column =
                |value: &dyn Fn(&RunResult) -> f64| Cell::estimate(&self.of(label).map(value).collect::<Vec<_>>());
            let first = self.of(label).next();
            let mut row: Vec<Cell> = vec![label.as_str().into()];
            row.extend(scored.iter().map(|measure| column(&|r| measure.of(r).unwrap_or(f64::NAN))));
            row.extend(accuracy.then(|| column(&|r| r.test_accuracy.unwrap_or(f64::NAN))));
            row.extend(perplexity.then(|| column(&|r| r.test_perplexity.unwrap_or(f64::NAN))));
            row.extend(spelled.then(|| column(&|r| bits_per_byte(r).unwrap_or(f64::NAN))));
            row.extend([
                column(&|r| r.test_loss),
                first.map(|r| r.parameters).into(),
                first.and_then(|r| r.multiply_adds).into(),
                column(&|r| r.milliseconds_per_step),
                Cell::estimate(
                    &self.of(label).filter_map(|r| r.peak_bytes).map(|bytes| bytes as f64).collect::<Vec<_>>(),
                ),
                column(&|r| r.sequences_per_second),
            ]);
            table.push(row);
        }
        let seeds = self.seeds();
        let spread = if seeds > 1 { ", mean and deviation" } else { "" };
        let host = if self.environment.device.is_some() { " on the host, not on the device" } else { "" };
        table = table.note(format!(
            "Test split, best checkpoint by validation; {seeds} seed{}{spread}. Multiply-adds: forward, one sequence of \
             the longest length. Step: median time of an update. Peak memory: most that an update allocates beyond the data{host}.",
            if seeds == 1 { "" } else { "s" }
        ));
        if let Some(scores) = self.results.iter().find_map(|result| result.test_rouge) {
            let sentences = scores.lead_sentences;
            table = table.note(format!("ROUGE-1, -2 and -L of the first sentences ({sentences}): {}.", scores.lead));
        }
        let percent = |scores: RankingScores| {
            let named = RankingScores::NAMES.iter().zip(scores.values());
            named.map(|(name, value)| format!("{name} {:.2} %", 100.0 * value)).collect::<Vec<_>>().join(", ")
        };
        if let Some(RankingFigures { chance, best, .. }) = ranking {
            table = table.note(format!("A random order can be expected to have {}.", percent(chance)));
            if let Some(best) = best {
                table = table.note(format!(
                    "The true probabilities of the clicks have {}; no model can be expected to do better.",
                    percent(best)
                ));
            }
        }
        if let Some(differences) = &self.differences {
            table = table.note(differences.clone());
        }
        match self.majority {
            Some(share) => {
                table.note(format!("Always answering the most frequent class gives {:.1} %.", 100.0 * share))
            }
            None => table,
        }
    }

    /// Test perplexity by the number of tokens before one in its window, of language models on text in three parts.
    fn positions(&self) -> Option<Table> {
        let figures = self.results.iter().find_map(|result| result.test_language.as_ref())?;
        let mut columns = vec![Column::text("mechanism")];
        let names = figures.positions.iter().map(|bucket| format!("{} to {}", bucket.from, bucket.to));
        columns.extend(names.map(|name| Column::number(name, Format::Significant(4)).best(Best::Lowest)));
        let mut table = Table::new("Test perplexity by the number of tokens before a token in its window", columns)
            .note(format!("Windows of {} tokens, one every {}.", figures.context, figures.stride));
        for label in &self.labels {
            let at = |bucket: usize| {
                let of = |r: &RunResult| r.test_language.as_ref()?.positions.get(bucket).map(|own| own.perplexity);
                Cell::estimate(&self.of(label).map(|r| of(r).unwrap_or(f64::NAN)).collect::<Vec<_>>())
            };
            table.push([label.as_str().into()].into_iter().chain((0..figures.positions.len()).map(at)).collect());
        }
        Some(table)
    }

    /// A summary in two sentences, from the table.
    fn summary(&self) -> String {
        let mean = |label: &str, value: &dyn Fn(&RunResult) -> f64| {
            let values: Vec<f64> = self.of(label).map(value).collect();
            values.iter().sum::<f64>() / values.len() as f64
        };
        let best = |value: &dyn Fn(&RunResult) -> f64| {
            let ranked = self.labels.iter().map(|label| (label, mean(label, value)));
            ranked.filter(|(_, value)| value.is_finite()).max_by(|a, b| a.1.total_cmp(&b.1))
        };
        let (measure, own) = (self.measure(), self.quality());
        let quality = best(&|r| measure.sign() * own(r));
        let speed = best(&|r| -r.milliseconds_per_step);
        let memory = best(&|r| r.peak_bytes.map_or(f64::NAN, |bytes| -(bytes as f64)));
        let mut text =
            format!("{} mechanisms, the same transformer, the same data ({}).", self.labels.len(), self.setting);
        if let Some((label, value)) = quality {
            let figure = match measure {
                Measure::Accuracy => format!("{:.1} % accuracy", 100.0 * value),
                Measure::Auc => format!("an AUC of {:.2} %", 100.0 * value),
                _ => format!("a loss of {:.3} nat", -value),
            };
            text += &format!(" Best on the test split: {label} with {figure}.");
        }
        if let Some((label, value)) = speed {
            text += &format!(" Fastest update: {label}, {:.1} ms.", -value);
        }
        if let Some((label, value)) = memory {
            text += &format!(" Least memory in training: {label}, {}.", regard_report::number::bytes(-value));
        }
        text
    }

    pub(super) fn runs(&self) -> String {
        match self.seeds() {
            1 => "1 seed".into(),
            seeds => format!("mean of {seeds} seeds, bars and bands show the deviation"),
        }
    }

    fn quality_axis(&self) -> Axis {
        match self.measure() {
            Measure::Accuracy => Axis::new("test accuracy", "%"),
            Measure::Auc => Axis::new("test AUC", "%"),
            _ => Axis::new("test loss", "nat"),
        }
    }

    pub(super) fn trade_offs(&self) -> Vec<Block> {
        let quality = self.quality();
        let marks = |x: &dyn Fn(&RunResult) -> f64| -> Vec<Mark> {
            let mark = |(style, label): (usize, &String)| {
                let (xs, ys): (Vec<f64>, Vec<f64>) = self.of(label).map(|r| (x(r), quality(r))).unzip();
                let y = Cell::estimate(&ys);
                let deviation = if let Cell::Estimate { deviation: Some(d), .. } = y { d } else { 0.0 };
                let x = Cell::estimate(&xs).value().unwrap_or(f64::NAN);
                Mark { name: label.clone(), x, y: y.value().unwrap_or(f64::NAN), deviation, style }
            };
            self.labels.iter().enumerate().map(mark).collect()
        };
        let chart = |name: &str, title: &str, x: Axis, value: &dyn Fn(&RunResult) -> f64| {
            let mut chart =
                Chart::new(title, format!("{}; {}", self.setting, self.runs()), Data::Scatter(marks(value)))
                    .axes(x, self.quality_axis());
            if let Some((value, name)) = self.bound() {
                chart = chart.rule(value, name);
            }
            Block::Chart { name: name.into(), chart }
        };
        let bytes = |r: &RunResult| r.peak_bytes.map_or(f64::NAN, |bytes| bytes as f64);
        vec![
            chart("quality-time", "Quality against time", Axis::new("update", "ms"), &|r| r.milliseconds_per_step),
            chart("quality-memory", "Quality against memory", Axis::new("peak memory in training", "B"), &bytes),
        ]
    }

    pub(super) fn learning_curves(&self) -> Vec<Block> {
        let series = |curve: &dyn Fn(&RunResult) -> &Vec<(usize, f64)>| {
            let line = |(style, label): (usize, &String)| {
                let runs: Vec<Vec<(f64, f64)>> =
                    self.of(label).map(|r| curve(r).iter().map(|(step, y)| (*step as f64, *y)).collect()).collect();
                Series::over_runs(label.as_str(), style, &runs)
            };
            Data::Lines(self.labels.iter().enumerate().map(line).collect())
        };
        let subtitle = format!("{}; {}", self.setting, self.runs());
        let metric = match self.measure() {
            Measure::Accuracy => Axis::new("accuracy", "%"),
            Measure::Auc => Axis::new("AUC", "%"),
            _ => Axis::new("loss", "nat"),
        };
        let valid = Chart::new("On the validation split", subtitle.as_str(), series(&|r| &r.curve))
            .axes(Axis::new("update", "").whole(), metric);
        let valid = match self.bound() {
            Some((value, name)) => valid.rule(value, name),
            None => valid,
        };
        let train = Chart::new("Training loss", subtitle, series(&|r| &r.training_loss))
            .axes(Axis::new("update", "").whole(), Axis::new("loss", "nat"));
        vec![
            Block::Chart { name: "validation".into(), chart: valid },
            Block::Chart { name: "training-loss".into(), chart: train },
        ]
    }
}

impl Shown for Comparison {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        let mut sections =
            vec![Section { title: "Results".into(), blocks: self.tables().into_iter().map(Block::Table).collect() }];
        sections.push(Section { title: "Quality against cost".into(), blocks: self.trade_offs() });
        sections.push(Section { title: "Learning curves".into(), blocks: self.learning_curves() });
        sections.push(Section {
            title: "Setting".into(),
            blocks: vec![
                Block::Prose("Configuration common to all candidates; each differs in its attention alone.".into()),
                Block::Code(self.config.clone()),
            ],
        });
        Report {
            title: format!("Attention mechanisms on {}", self.task),
            summary: self.summary(),
            facts: self.record().facts(),
            sections,
        }
    }

    fn tables(&self) -> Vec<Table> {
        [self.table()].into_iter().chain(self.positions()).collect()
    }

    fn to_json(&self) -> serde_json::Value {
        json!({
            "task": self.task,
            "setting": self.setting,
            "majority": self.majority,
            "command": self.command,
            "environment": self.environment,
            "config": self.config,
            "table": self.table().to_json(),
            "runs": self.results,
        })
    }
}
