//! The same model trained with each of several attention mechanisms on the same data, side by side.
//!
//! Each candidate and seed is a separate run in its own directory; a finished run leaves `result.json`, so that an
//! interrupted comparison continues where it stopped.

mod directory;
mod report;
mod run;
pub mod study;

pub use directory::{open, remove};
pub use report::Comparison;
pub use run::{CompareError, Job, Plan, Watch, run, run_directory, train};

use regard_kernels::Mechanism;
use regard_nn::{attention::Attentions, models::ModelConfig};
use regard_tasks::{
    Failure,
    run::RunConfig,
    train::{LanguageFigures, RankingFigures, SummaryScores},
};
use serde::{Deserialize, Serialize};

use crate::cost::check_training;

/// One model to compare.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Name in tables, charts and directories.
    pub label: String,
    /// Its attention, by place; a single-stack model uses the encoder's.
    pub attentions: Attentions,
    /// The transformer around it.
    pub model: ModelConfig,
    /// Its whole configuration as TOML, kept in its run directories.
    pub config: String,
}

impl Candidate {
    /// The models that a configuration compares, each with a unique label.
    ///
    /// # Errors
    /// Invalid, duplicate or missing entries; models too large for this machine.
    pub fn all(config: &RunConfig) -> Result<Vec<Self>, Failure> {
        config.check_undivided()?;
        let mut all: Vec<Self> = Vec::new();
        for entry in &config.compare.mechanisms {
            let (label, own) = config.candidate(entry)?;
            own.check_model()?;
            check_training(&own, 1)?;
            if all.iter().any(|other| other.label == label) {
                return Err(Failure::usage(format!("compare.mechanisms names '{label}' twice, expected each once")));
            }
            let config = own.to_toml();
            all.push(Self { label, attentions: own.attentions(), model: own.model, config });
        }
        if all.is_empty() {
            return Err(Failure::usage("compare.mechanisms is empty, expected at least one, as in softmax,mgk"));
        }
        let seeds = &config.compare.seeds;
        if seeds.is_empty() {
            return Err(Failure::usage("compare.seeds is empty, expected at least one, as in 1,2,3"));
        }
        if let Some(seed) = seeds.iter().enumerate().find_map(|(i, seed)| seeds[..i].contains(seed).then_some(seed)) {
            return Err(Failure::usage(format!("compare.seeds names {seed} twice, expected each once")));
        }
        Ok(all)
    }
}

/// Names the models that `model.attention_dropout` does not reach, where it reaches others they are compared with.
/// Models are given by their label, rate and mechanism.
pub fn dropout_note<'a>(models: impl IntoIterator<Item = (&'a str, f64, Mechanism)>) -> Option<String> {
    let dropped = models.into_iter().filter(|(_, rate, _)| *rate > 0.0);
    let (with, without): (Vec<_>, Vec<_>) = dropped.partition(|(.., mechanism)| mechanism.facts().dropout);
    if with.is_empty() || without.is_empty() {
        return None;
    }
    let names: Vec<&str> = without.iter().map(|(label, ..)| *label).collect();
    Some(format!("Without attention weights, so that model.attention_dropout has no effect: {}.", names.join("; ")))
}

/// Result of one run of one candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The candidate's name.
    pub label: String,
    /// Seed of parameters, batches and dropout.
    pub seed: u64,
    /// Updates done.
    pub steps: usize,
    /// Fraction of test sequences classified correctly, or of copied tokens; absent for language models.
    pub test_accuracy: Option<f64>,
    /// Mean loss on the test split in nats.
    pub test_loss: f64,
    /// `exp` of the test loss; absent for classification and ranking.
    pub test_perplexity: Option<f64>,
    /// Test loss by position, word, character and byte, of running text in three parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_language: Option<LanguageFigures>,
    /// BLEU on the test split, 0 to 100; translation only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_bleu: Option<f64>,
    /// ROUGE on the test split; summaries only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_rouge: Option<SummaryScores>,
    /// How well the test split is ranked; recommendation only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_ranking: Option<RankingFigures>,
    /// Number of parameters.
    pub parameters: usize,
    /// Multiply-adds of the forward pass over one sequence of maximum length.
    pub multiply_adds: Option<f64>,
    /// Median time of an update in milliseconds.
    pub milliseconds_per_step: f64,
    /// Peak allocated bytes of an update beyond those in use before the model was built; evaluations and checkpoints, which
    /// take as much whatever the mechanism, are not in it.
    pub peak_bytes: Option<u64>,
    /// Test sequences per second.
    pub sequences_per_second: f64,
    /// Total time of all updates in seconds.
    pub train_seconds: f64,
    /// Step and validation metric of each evaluation: accuracy for classifiers, AUC for recommenders, loss for others.
    pub curve: Vec<(usize, f64)>,
    /// Step and training loss, averaged over the updates since the point before.
    pub training_loss: Vec<(usize, f64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropout_is_told_apart_where_some_mechanisms_have_it() {
        let model = |rate, mechanism: Mechanism| (mechanism.name(), rate, mechanism);
        let (softmax, linear, mlk) = (Mechanism::Softmax, Mechanism::Linear, Mechanism::Mlk);
        let note = dropout_note([model(0.1, softmax), model(0.1, linear), model(0.1, mlk)]).unwrap();
        assert!(note.ends_with("no effect: linear; mlk."), "{note}");
        assert_eq!(dropout_note([model(0.0, softmax), model(0.0, linear)]), None);
        assert_eq!(dropout_note([model(0.1, mlk), model(0.1, linear)]), None);
        assert_eq!(dropout_note([model(0.1, softmax)]), None);
    }
}
