//! What a person sees while it runs: bars on a terminal, lines elsewhere, all on standard error. What cannot be written there
//! does no harm.

use std::{
    cell::RefCell,
    fmt::Display,
    io::{IsTerminal, Write, stderr},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use regard_lab::{
    compare::{RunResult, Watch, study::Observe},
    load::Loading,
    reproduce::Observer,
};
use regard_tasks::{
    data::TaskName,
    train::{Evaluation, Progress, RankingFigures, RankingScores, StepReport},
};

use crate::{args::Common, job};

/// Prints a line.
pub fn line(text: impl Display) {
    // At once, so that lines of several threads do not mix.
    let _ = stderr().write_all(format!("{text}\n").as_bytes());
}

/// Prints an error.
pub fn error(message: &str) {
    match job::rank() {
        0 => line(format_args!("error: {message}")),
        rank => line(format_args!("error on rank {rank}: {message}")),
    }
}

/// A bar of `total` parts with `unit`; invisible where standard error is no terminal, or when `quiet`.
pub fn bar(total: u64, quiet: bool) -> ProgressBar {
    let visible = !quiet && stderr().is_terminal();
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    let colour = if std::env::var_os("NO_COLOR").is_some() { "" } else { ".cyan" };
    let template = format!("{{prefix:<14}} {{bar:28{colour}}} {{pos}}/{{len}}  {{msg}}  {{eta}} left");
    bar.set_style(ProgressStyle::with_template(&template).expect("a fixed template").progress_chars("━╸─"));
    if visible {
        bar.enable_steady_tick(Duration::from_millis(250));
    }
    bar
}

/// A training run as a bar, or as one line per evaluation.
pub struct TrainingBar {
    bar: ProgressBar,
    prefix: String,
    lines: bool,
    /// The bits of a running mean.
    loss: AtomicU64,
}

impl TrainingBar {
    /// For a run of `steps` updates, named `prefix`.
    pub fn new(prefix: &str, steps: usize, quiet: bool) -> Self {
        let bar = bar(steps as u64, quiet);
        bar.set_prefix(prefix.to_owned());
        Self {
            lines: !quiet && bar.is_hidden(),
            bar,
            prefix: prefix.to_owned(),
            loss: AtomicU64::new(f64::NAN.to_bits()),
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for TrainingBar {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Progress for TrainingBar {
    fn step(&self, report: &StepReport) {
        // A running mean over about 20 updates: single losses jump.
        let old = f64::from_bits(self.loss.load(Relaxed));
        let loss = if old.is_nan() { report.loss } else { old + 0.05 * (report.loss - old) };
        self.loss.store(loss.to_bits(), Relaxed);
        let memory = report.peak_bytes.map_or(String::new(), |bytes| format!("  {} MiB", bytes >> 20));
        self.bar.set_position(report.step as u64);
        self.bar.set_message(format!(
            "loss {:.3}  {:.0} ms  {:.1}k tokens/s{memory}",
            loss,
            report.milliseconds,
            report.tokens_per_second / 1e3
        ));
    }

    fn evaluated(&self, evaluation: &Evaluation) {
        let quality = match (evaluation.accuracy, evaluation.perplexity) {
            (Some(accuracy), Some(perplexity)) => {
                format!("accuracy {:.1} %  perplexity {perplexity:.3}", 100.0 * accuracy)
            }
            (Some(accuracy), None) => format!("accuracy {:.1} %", 100.0 * accuracy),
            (None, Some(perplexity)) => format!("perplexity {perplexity:.3}"),
            (None, None) => match &evaluation.ranking {
                Some(ranking) => ranked(ranking),
                None => correlation(evaluation),
            },
        };
        let rouge = evaluation.rouge.map_or(String::new(), |scores| format!("  ROUGE-1, -2, -L {}", scores.model));
        let text = format!(
            "{} step {}: {} loss {:.4}  {quality}{rouge}",
            self.prefix,
            evaluation.step,
            evaluation.split.name(),
            evaluation.loss
        );
        if self.lines {
            line(text);
        } else {
            self.bar.println(text);
        }
    }

    fn message(&self, text: &str) {
        if self.lines {
            line(text);
        } else {
            self.bar.println(text);
        }
    }
}

/// How predicted scores go with those given.
fn correlation(evaluation: &Evaluation) -> String {
    let pearson = evaluation.values.and_then(|values| values.pearson);
    pearson.map_or(String::new(), |pearson| format!("Pearson {pearson:.4}"))
}

/// Scores of a ranking in one line.
fn ranked(ranking: &RankingFigures) -> String {
    let named = RankingScores::NAMES.iter().zip(ranking.scores.values());
    named.map(|(name, value)| format!("{name} {:.2} %", 100.0 * value)).collect::<Vec<_>>().join("  ")
}

/// What a person sees of data, comparisons and entries.
pub struct Console {
    quiet: bool,
    /// Of the data that are loading.
    data: RefCell<Option<ProgressBar>>,
}

impl Console {
    /// As quiet as the options say.
    pub fn new(common: &Common) -> Self {
        Self { quiet: common.quiet, data: RefCell::default() }
    }
}

impl Loading for Console {
    fn part(&self, task: TaskName, done: u64, total: u64) {
        let mut bar = self.data.borrow_mut();
        let bar = bar.get_or_insert_with(|| {
            let bar = self::bar(total, self.quiet);
            bar.set_prefix(format!("{task} data"));
            bar
        });
        bar.set_length(total);
        bar.set_position(done);
    }

    fn done(&self, notes: &[String]) {
        if let Some(bar) = self.data.take() {
            bar.finish_and_clear();
        }
        notes.iter().for_each(|text| self.note(&format!("note: {text}")));
    }
}

impl Watch for Console {
    fn begin(&self, label: &str, seed: u64, number: usize, total: usize, steps: usize) -> Box<dyn Progress> {
        Box::new(TrainingBar::new(&format!("[{}/{total}] {label}, seed {seed}", number + 1), steps, self.quiet))
    }

    fn end(&self, result: &RunResult, fresh: bool) {
        let rouge = result.test_rouge.map_or(String::new(), |scores| format!(", ROUGE-1, -2, -L {}", scores.model));
        let quality = match (result.test_accuracy, result.test_perplexity) {
            (Some(accuracy), Some(perplexity)) => {
                format!("test accuracy {:.1} %, perplexity {perplexity:.3}", 100.0 * accuracy)
            }
            (Some(accuracy), None) => format!("test accuracy {:.1} %", 100.0 * accuracy),
            (None, perplexity) => match &result.test_ranking {
                Some(ranking) => format!("test {}", ranked(ranking)),
                None => format!("test perplexity {:.3}", perplexity.unwrap_or(f64::NAN)),
            },
        };
        let before = if fresh { "" } else { " (done before)" };
        let RunResult { label, seed, milliseconds_per_step: time, .. } = result;
        self.note(&format!("{label}, seed {seed}: {quality}{rouge}, {time:.1} ms a step{before}"));
    }
}

impl Observe for Console {
    fn failed(&self, cell: &str, sentence: &str, fresh: bool) {
        let before = if fresh { "" } else { " (failed before)" };
        self.note(&format!("{cell}: failed{before}: {sentence}"));
    }
}

impl Observer for Console {
    fn note(&self, text: &str) {
        if !self.quiet {
            line(text);
        }
    }
}
