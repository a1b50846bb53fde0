//! The report of one training run: curves and results.

use std::{io, path::Path};

use regard_report::{Axis, Block, Cell, Chart, Column, Data, Format, Report, Section, Series, Table, Written};
use regard_tasks::train::{
    Environment, Evaluation, LanguageFigures, RankingFigures, RankingScores, Record, Split, StepReport, SummaryScores,
};

/// Points of a curve over updates.
const POINTS: usize = 200;

/// Content of the report.
#[derive(Clone, Copy, Debug)]
pub struct RunReport<'a> {
    /// Name of the model and task.
    pub title: &'a str,
    /// The command line.
    pub command: &'a str,
    /// The configuration as TOML.
    pub config: &'a str,
    /// Machine, version and date.
    pub environment: &'a Environment,
    /// Number of parameters of the model.
    pub parameters: usize,
    /// The lines of `metrics.jsonl`.
    pub records: &'a [Record],
}

/// Perplexity by the number of tokens before one in its window.
pub(crate) fn position_table(figures: &LanguageFigures) -> Table {
    let columns = vec![
        Column::text("tokens before, from"),
        Column::number("to", Format::Plain),
        Column::number("scored", Format::Plain),
        Column::number("perplexity", Format::Significant(5)),
    ];
    let title = format!("Test split by position in windows of {}, stride {}", figures.context, figures.stride);
    let mut table = Table::new(title, columns);
    for position in &figures.positions {
        let from = position.from.to_string();
        table.push(vec![from.as_str().into(), position.to.into(), position.tokens.into(), position.perplexity.into()]);
    }
    table
}

impl RunReport<'_> {
    fn steps(&self) -> Vec<&StepReport> {
        let steps = self.records.iter().filter_map(|record| match record {
            Record::Step(step) => Some(step),
            Record::Evaluation(_) => None,
        });
        steps.collect()
    }

    fn evaluations(&self, split: Split) -> Vec<&Evaluation> {
        let evaluations = self.records.iter().filter_map(|record| match record {
            Record::Evaluation(evaluation) if evaluation.split == split => Some(evaluation),
            _ => None,
        });
        evaluations.collect()
    }

    /// A line of `value` over the updates, averaged over equal parts of the run.
    fn line(&self, name: &str, value: impl Fn(&StepReport) -> f64) -> Series {
        let steps = self.steps();
        let part = steps.len().div_ceil(POINTS).max(1);
        let points = steps.chunks(part).map(|part| {
            let mean = part.iter().map(|step| value(step)).sum::<f64>() / part.len() as f64;
            (part[part.len() - 1].step as f64, mean)
        });
        Series::new(name, 0, points)
    }

    fn curve(&self, name: &str, style: usize, split: Split, value: impl Fn(&Evaluation) -> Option<f64>) -> Series {
        // The model that the run ends with may be of an earlier update.
        let mut evaluations = self.evaluations(split);
        evaluations.sort_by_key(|e| e.step);
        Series::new(name, style, evaluations.into_iter().filter_map(|e| Some((e.step as f64, value(e)?))))
    }

    fn table(&self) -> Table {
        let steps = self.steps();
        let mut times: Vec<f64> = steps.iter().map(|step| step.milliseconds).collect();
        times.sort_by(f64::total_cmp);
        let mut table =
            Table::new("", vec![Column::text("what"), Column::number("value", Format::Plain), Column::text("unit")]);
        let mut row = |what: &str, value: Cell, unit: &str| table.push(vec![what.into(), value, unit.into()]);
        row("updates", steps.len().into(), "");
        row("parameters", self.parameters.into(), "");
        row("median update", times.get(times.len() / 2).copied().into(), "ms");
        let tokens: f64 = steps.iter().map(|step| step.tokens_per_second * step.milliseconds / 1e3).sum();
        row("speed", (tokens / (times.iter().sum::<f64>() / 1e3)).into(), "tokens/s");
        let peak = steps.iter().filter_map(|step| step.peak_bytes).max();
        row("peak memory", peak.map(|bytes| bytes as f64 / f64::from(1 << 20)).into(), "MiB");
        if let Some(test) = self.evaluations(Split::Test).last() {
            row("test loss", test.loss.into(), if test.values.is_some() { "squared error" } else { "nat" });
            row("test accuracy", test.accuracy.map(|accuracy| 100.0 * accuracy).into(), "%");
            if let Some(scores) = &test.classes {
                row("test F1, mean of the classes", scores.macro_f1.into(), "");
                row("test F1 of the second class", scores.f1.into(), "");
                row("test Matthews' correlation", scores.matthews.into(), "");
            }
            if let Some(scores) = &test.values {
                row("test Pearson's correlation", scores.pearson.into(), "");
                row("test Spearman's correlation", scores.spearman.into(), "");
            }
            row("test perplexity", test.perplexity.into(), "");
            row("test BLEU", test.bleu.into(), "");
            if let Some(SummaryScores { model, lead, lead_sentences }) = &test.rouge {
                for (who, scores) in [("".into(), model), (format!(" of the first sentences ({lead_sentences})"), lead)]
                {
                    row(&format!("test ROUGE-1{who}"), scores.rouge_1.into(), "");
                    row(&format!("test ROUGE-2{who}"), scores.rouge_2.into(), "");
                    row(&format!("test ROUGE-L{who}"), scores.rouge_l.into(), "");
                }
            }
            if let Some(RankingFigures { scores, chance, best }) = &test.ranking {
                let all =
                    [("test", Some(scores)), ("random order:", Some(chance)), ("true probabilities:", best.as_ref())];
                for (of, scores) in all.iter().filter_map(|(of, scores)| Some((of, (*scores)?))) {
                    for (name, value) in RankingScores::NAMES.iter().zip(scores.values()) {
                        row(&format!("{of} {name}"), (100.0 * value).into(), "%");
                    }
                }
            }
            if let Some(figures) = &test.language {
                row("test perplexity per word", figures.perplexity_per_word.into(), "");
                row("test loss per character", figures.bits_per_character.into(), "bit");
                row("test loss per byte", figures.bits_per_byte.into(), "bit");
                row("stride of the test windows", figures.stride.into(), "tokens");
            }
            row("of the checkpoint at update", test.step.into(), "");
        }
        table.rows.retain(|row| row[1] != Cell::Empty);
        table
    }

    /// Perplexity by position in the window, of a language model.
    fn positions(&self) -> Option<Table> {
        let test = self.evaluations(Split::Test).last()?.language.as_ref()?;
        Some(position_table(test))
    }

    /// The page.
    pub fn report(&self) -> Report {
        let updates = || Axis::new("update", "").whole();
        let chart = |name: &str, title: &str, y: Axis, lines: Vec<Series>| Block::Chart {
            name: name.into(),
            chart: Chart::new(title, self.title, Data::Lines(lines)).axes(updates(), y),
        };
        let scores = self.evaluations(Split::Valid).iter().any(|evaluation| evaluation.values.is_some());
        let accuracy = self.curve("validation", 1, Split::Valid, |e| e.accuracy);
        let mut blocks = vec![chart(
            "loss",
            "Loss",
            Axis::new("loss", if scores { "" } else { "nat" }),
            vec![self.line("training", |step| step.loss), self.curve("validation", 1, Split::Valid, |e| Some(e.loss))],
        )];
        if !accuracy.points.is_empty() {
            blocks.push(chart("accuracy", "Accuracy", Axis::new("accuracy", "%"), vec![accuracy]));
        }
        let curve = |place: usize| {
            let value = move |e: &Evaluation| Some(e.ranking?.scores.values()[place]);
            self.curve(RankingScores::NAMES[place], place, Split::Valid, value)
        };
        let ranking: Vec<Series> = (0..4).map(curve).filter(|line| !line.points.is_empty()).collect();
        if !ranking.is_empty() {
            blocks.push(chart("ranking", "Ranking of the validation split", Axis::new("score", "%"), ranking));
        }
        blocks.push(chart(
            "learning-rate",
            "Learning rate",
            Axis::new("learning rate", ""),
            vec![self.line("learning rate", |step| step.learning_rate)],
        ));
        blocks.push(chart(
            "gradient-norm",
            "Norm of the gradient",
            Axis::new("norm", ""),
            vec![self.line("before clipping", |step| step.gradient_norm)],
        ));
        let figures = [Some(self.table()), self.positions()].into_iter().flatten().map(Block::Table);
        Report {
            title: self.title.into(),
            summary: String::new(),
            facts: crate::record::Record { command: self.command, environment: self.environment }.facts(),
            sections: vec![
                Section { title: "Figures".into(), blocks: figures.collect() },
                Section { title: "Curves".into(), blocks },
                Section { title: "Configuration".into(), blocks: vec![Block::Code(self.config.into())] },
            ],
        }
    }

    /// Writes `report.html` and `plots/*.svg` into `folder`.
    ///
    /// # Errors
    /// File system errors.
    pub fn write(&self, folder: &Path) -> io::Result<Written> {
        self.report().write(folder)
    }
}
