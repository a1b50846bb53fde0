//! What a training run reports: lines of `metrics.jsonl` and calls of [`Progress`].

use std::path::Path;

use regard_metrics::{Confusion, pearson, spearman};
use serde::{Deserialize, Serialize};

use super::{LanguageFigures, RankingFigures, RouterReport, SummaryScores, TrainError};
use crate::data::Split;

/// One update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Updates done, this one included.
    pub step: usize,
    /// Mean loss over the items of the update, before it, in nats.
    pub loss: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Euclidean norm of all gradients together, before clipping.
    pub gradient_norm: f64,
    /// Time of the update in milliseconds.
    pub milliseconds: f64,
    /// Real tokens per second.
    pub tokens_per_second: f64,
    /// Most memory in this update, without evaluations and checkpoints; where no allocator counts, the most of the process so
    /// far: see [`peak_bytes`](regard_alloc::peak_bytes).
    pub peak_bytes: Option<u64>,
    /// What the loss was multiplied by for the backward pass, in runs with `train.precision = "f16"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Bytes that rank 0 of a job of several sent in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_sent: Option<u64>,
    /// What each router did, in some of the updates of a model with mixtures of heads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routers: Vec<RouterReport>,
}

/// A model measured on a split.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Updates done before it.
    pub step: usize,
    /// The split.
    pub split: Split,
    /// Mean loss over all items in nats; of scores the mean squared error.
    pub loss: f64,
    /// Share of the items that were predicted: labels, or tokens of a copy; absent for language models.
    pub accuracy: Option<f64>,
    /// Of a classifier: how its errors spread over the classes; absent where a prediction is not a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<ClassScores>,
    /// Of scores: how they go with those given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<ValueScores>,
    /// `exp(loss)`; absent for classification, scores and ranking.
    pub perplexity: Option<f64>,
    /// BLEU of translations by beam search ([`BLEU_SIGNATURE`](regard_metrics::BLEU_SIGNATURE)), 0 to 100; measured on the test
    /// split of translation alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bleu: Option<f64>,
    /// ROUGE of summaries by beam search, beside the first sentences; measured of the model that a run ends with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rouge: Option<SummaryScores>,
    /// Of a recommender: how well it ranks what was offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranking: Option<RankingFigures>,
    /// Checkpoints that the model is the mean of; absent where it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub averaged: Option<usize>,
    /// Of running text in three parts: its windows, and the loss by position, word, character and byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<LanguageFigures>,
    /// Labels or tokens predicted.
    pub items: usize,
    /// Sequences.
    pub sequences: usize,
    /// Time of the forward passes.
    pub seconds: f64,
}

/// Scores of a classifier that weigh its classes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassScores {
    /// Mean F1 of the classes.
    pub macro_f1: f64,
    /// F1 of the second class, where there are two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f1: Option<f64>,
    /// Matthews' correlation of labels and predictions.
    pub matthews: f64,
}

impl From<&Confusion> for ClassScores {
    fn from(confusion: &Confusion) -> Self {
        let f1 = (confusion.classes() == 2).then(|| confusion.f1(1));
        Self { macro_f1: confusion.macro_f1(), f1, matthews: confusion.matthews() }
    }
}

/// Correlation of predicted and given scores; absent where one side does not vary.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueScores {
    /// Pearson's, of the values.
    pub pearson: Option<f64>,
    /// Spearman's, of the ranks.
    pub spearman: Option<f64>,
}

impl ValueScores {
    /// Of pairs of predicted and given scores.
    pub fn of(pairs: &[(f64, f64)]) -> Self {
        let (predicted, given): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let finite = |value: f64| value.is_finite().then_some(value);
        Self { pearson: finite(pearson(&predicted, &given)), spearman: finite(spearman(&predicted, &given)) }
    }
}

impl Evaluation {
    /// The figure that chooses the best model, higher being better: the accuracy of a classifier, the AUC of a recommender, the
    /// negative loss of models with a perplexity.
    pub fn score(&self) -> f64 {
        match (self.accuracy, self.perplexity, &self.ranking) {
            (Some(accuracy), None, _) => accuracy,
            (_, _, Some(ranking)) => ranking.scores.auc,
            _ => -self.loss,
        }
    }

    /// Speed of inference.
    pub fn sequences_per_second(&self) -> f64 {
        self.sequences as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[allow(clippy::large_enum_variant)] // Those of one run are read at once, and dropped.
pub enum Record {
    /// An update.
    Step(StepReport),
    /// An evaluation.
    Evaluation(Evaluation),
}

impl Record {
    /// Updates done.
    pub fn step(&self) -> usize {
        match self {
            Self::Step(report) => report.step,
            Self::Evaluation(evaluation) => evaluation.step,
        }
    }

    /// The lines of a `metrics.jsonl`, in order. A last line that a killed run left unfinished is passed over.
    ///
    /// # Errors
    /// A file that cannot be read, or a line that is not a record.
    pub fn read(path: &Path) -> Result<Vec<Self>, TrainError> {
        let text = std::fs::read_to_string(path).map_err(TrainError::reading(path))?;
        let lines = text.split_inclusive('\n').enumerate().filter(|(_, line)| line.ends_with('\n'));
        let record = |(number, line): (usize, &str)| {
            serde_json::from_str(line).map_err(|error| {
                TrainError::checkpoint(path, format!("line {} is no record of a run: {error}", number + 1))
            })
        };
        lines.map(record).collect()
    }
}

/// Observer of a run. Calls come from the training thread.
pub trait Progress: Sync {
    /// After each update.
    fn step(&self, report: &StepReport);
    /// After each evaluation.
    fn evaluated(&self, evaluation: &Evaluation);
    /// A message for the user, as a sentence.
    fn message(&self, text: &str);
}

/// An observer that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _: &StepReport) {}
    fn evaluated(&self, _: &Evaluation) {}
    fn message(&self, _: &str) {}
}
