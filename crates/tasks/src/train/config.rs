//! `train.*`: how a model is trained.

use std::path::PathBuf;

use regard_nn::{config::Precision, models::BeamOptions};
use serde::{Deserialize, Serialize};

use super::TrainError;

/// How a model is trained. The seed is the run's and comes from the caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Updates of the parameters.
    pub steps: usize,
    /// Sequences that go through the model at once.
    pub batch: usize,
    /// Batches whose gradients make one update; the loss is the mean over all their items.
    pub accumulate: usize,
    /// Parts that each batch is cut into, whose gradients are added up in a fixed order: any number of ranks gives the same
    /// bits. 0: as many as there are ranks to take them, which is the fastest.
    pub parts: usize,
    /// AdamW.
    pub optimizer: OptimizerConfig,
    /// The learning rate over the steps.
    pub schedule: ScheduleConfig,
    /// In what activations are stored: `bf16` and `f16` halve their memory. Parameters, their gradients, the optimizer and
    /// evaluations are f32.
    pub precision: Precision,
    /// Largest Euclidean norm of all gradients together; longer ones are scaled down to it. 0: no limit.
    pub clip: f64,
    /// Steps between evaluations on the validation split; 0: only after the last step.
    pub evaluate_every: usize,
    /// Batches of an evaluation during training; 0: the whole split.
    pub evaluate_batches: usize,
    /// Steps between checkpoints; 0: only on a better validation metric, on an interrupt and after the last step.
    pub checkpoint_every: usize,
    /// Evaluations without a better metric after which training stops; 0: never.
    pub patience: usize,
    /// Checkpoints kept beside the best one, newest first.
    pub keep: usize,
    /// Share of a target's probability spread over all classes or tokens, in [0, 1): label smoothing (Szegedy et al. 2016).
    /// Evaluations have none.
    pub smoothing: f64,
    /// Checkpoints whose mean is the model that the run ends with, as in Vaswani et al. 2017, section 6.1: the last, and those
    /// of `checkpoint_every` before it, which are kept for it. 0 or 1: the model with the best validation metric.
    pub average: usize,
    /// Translations that a beam search keeps, 1 for the most probable token each time. Used where BLEU or ROUGE is measured.
    pub beam: usize,
    /// Exponent of the length penalty of that search; higher values favour long translations, 0 none.
    pub length_penalty: f64,
    /// Tokens of a translation or summary at least, its end included; 0 for any number.
    pub shortest: usize,
    /// Number of tokens in a row that no translation or summary has twice, as 3; 0: they may.
    pub no_repeat: usize,
    /// Directory of a run whose best checkpoint gives the parameters to start from, those of the same name and shape: to
    /// put another attention into a trained model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<PathBuf>,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            steps: 1000,
            batch: 32,
            accumulate: 1,
            parts: 0,
            optimizer: OptimizerConfig::default(),
            schedule: ScheduleConfig::default(),
            precision: Precision::F32,
            clip: 1.0,
            evaluate_every: 200,
            evaluate_batches: 0,
            checkpoint_every: 200,
            patience: 0,
            keep: 2,
            smoothing: 0.0,
            average: 0,
            beam: 4,
            length_penalty: 0.6,
            shortest: 0,
            no_repeat: 0,
            start: None,
        }
    }
}

/// `train.optimizer.*`: AdamW (Loshchilov and Hutter 2019).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerConfig {
    /// Peak of the schedule.
    pub learning_rate: f64,
    /// Decay of the mean gradient, in [0, 1).
    pub beta1: f64,
    /// Decay of the mean squared gradient, in [0, 1).
    pub beta2: f64,
    /// Added to the root of the mean squared gradient.
    pub epsilon: f64,
    /// Each step shrinks every parameter by the learning rate times this.
    pub weight_decay: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

/// `train.schedule.*`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// Shape of the curve.
    pub kind: ScheduleKind,
    /// Steps of linear warm-up.
    pub warmup: usize,
    /// Learning rate after the last step as a part of the peak, in [0, 1]; linear, cosine and one-cycle.
    pub final_fraction: f64,
}

/// `train.schedule.kind`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ScheduleKind {
    /// Constant after the warm-up.
    #[default]
    Constant,
    /// Inverse square root decay (Vaswani et al. 2017, section 5.3).
    InverseSqrt,
    /// Linear decay.
    Linear,
    /// Cosine decay.
    Cosine,
    /// Linear rise from 1/25 of the peak, then linear decay (PyTorch's `OneCycleLR` with linear annealing).
    OneCycle,
}

impl TrainConfig {
    /// Checks what can be known before any data is seen.
    ///
    /// # Errors
    /// The first invalid number, with its key below `train`.
    pub fn check(&self) -> Result<(), TrainError> {
        let at_least_one = [
            ("steps", self.steps),
            ("batch", self.batch),
            ("accumulate", self.accumulate),
            ("keep", self.keep),
            ("beam", self.beam),
        ];
        for (key, value) in at_least_one {
            if value == 0 {
                return Err(TrainError::config(key, 0, "at least 1"));
            }
        }
        if self.beam > BeamOptions::WIDEST {
            return Err(TrainError::config("beam", self.beam, format!("at most {}", BeamOptions::WIDEST)));
        }
        if self.parts > self.batch {
            let expected = format!("at most train.batch ({}), a sequence for each", self.batch);
            return Err(TrainError::config("parts", self.parts, expected));
        }
        if !(self.clip >= 0.0 && self.clip.is_finite()) {
            return Err(TrainError::config("clip", self.clip, "a positive number, or 0 for no limit"));
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(TrainError::config("smoothing", self.smoothing, "from 0 to below 1"));
        }
        if !(self.length_penalty >= 0.0 && self.length_penalty.is_finite()) {
            return Err(TrainError::config("length_penalty", self.length_penalty, "a number from 0"));
        }
        if self.average > 1 {
            let every = self.checkpoint_every;
            if every == 0 {
                let expected = format!("1 or more, whose checkpoints train.average ({}) averages", self.average);
                return Err(TrainError::config("checkpoint_every", 0, expected));
            }
            // The last checkpoint, and multiples of `every` before it.
            let most = self.steps.div_ceil(every);
            if self.average > most {
                let expected = format!("at most {most}, the checkpoints of {} steps, one every {every}", self.steps);
                return Err(TrainError::config("average", self.average, expected));
            }
        }
        self.optimizer.check()?;
        self.schedule.check(self.steps)
    }

    /// The beam search, for at most `longest` tokens.
    pub fn search(&self, longest: usize) -> BeamOptions {
        let Self { beam, length_penalty, shortest, no_repeat, .. } = *self;
        BeamOptions { beam, length_penalty, longest, shortest, no_repeat }
    }

    /// Steps of the checkpoints that the model of a run which ends at `last` is averaged from, ascending; none if it is not
    /// averaged.
    pub(super) fn averaged(&self, last: usize) -> Vec<usize> {
        if self.average < 2 {
            return Vec::new();
        }
        let every = self.checkpoint_every.max(1);
        let before = (1..last.div_ceil(every)).rev().map(|i| i * every).take(self.average - 1);
        let mut steps: Vec<usize> = [last].into_iter().chain(before).collect();
        steps.reverse();
        steps
    }
}

impl OptimizerConfig {
    fn check(&self) -> Result<(), TrainError> {
        for (key, value) in [("learning_rate", self.learning_rate), ("epsilon", self.epsilon)] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(TrainError::config(&format!("optimizer.{key}"), value, "a positive number"));
            }
        }
        for (key, value) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&value) {
                return Err(TrainError::config(&format!("optimizer.{key}"), value, "from 0 to below 1"));
            }
        }
        let shrink = self.learning_rate * self.weight_decay;
        if !(0.0..1.0).contains(&shrink) {
            let expected = "not negative, and below 1 when multiplied by learning_rate";
            return Err(TrainError::config("optimizer.weight_decay", self.weight_decay, expected));
        }
        Ok(())
    }
}

impl ScheduleConfig {
    fn check(&self, steps: usize) -> Result<(), TrainError> {
        if self.warmup > steps {
            let warmup = (steps / 10).max(1);
            let expected = format!("at most train.steps ({steps}); set it too, as train.schedule.warmup={warmup}");
            return Err(TrainError::config("schedule.warmup", self.warmup, expected));
        }
        if !(0.0..=1.0).contains(&self.final_fraction) {
            return Err(TrainError::config("schedule.final_fraction", self.final_fraction, "from 0 to 1"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_pass_and_every_impossible_number_is_named() {
        TrainConfig::default().check().unwrap();
        let problem = |json: &str| {
            let config: TrainConfig = serde_json::from_str(json).unwrap();
            config.check().unwrap_err().to_string()
        };
        for (json, message) in [
            (r#"{"steps": 0}"#, "train.steps is 0; expected at least 1"),
            (r#"{"batch": 0}"#, "train.batch is 0"),
            (r#"{"accumulate": 0}"#, "train.accumulate is 0"),
            (r#"{"batch": 2, "parts": 4}"#, "train.parts is 4; expected at most train.batch (2)"),
            (r#"{"keep": 0}"#, "train.keep is 0"),
            (r#"{"clip": -1.0}"#, "train.clip is -1"),
            (r#"{"optimizer": {"learning_rate": 0.0}}"#, "train.optimizer.learning_rate is 0"),
            (r#"{"optimizer": {"beta2": 1.0}}"#, "train.optimizer.beta2 is 1"),
            (r#"{"optimizer": {"weight_decay": -0.1}}"#, "train.optimizer.weight_decay is -0.1"),
            (
                r#"{"steps": 5, "schedule": {"warmup": 6}}"#,
                "train.schedule.warmup is 6; expected at most train.steps (5)",
            ),
            (r#"{"schedule": {"final_fraction": 1.5}}"#, "train.schedule.final_fraction is 1.5"),
            (r#"{"smoothing": 1.0}"#, "train.smoothing is 1; expected from 0 to below 1"),
            (r#"{"beam": 0}"#, "train.beam is 0"),
            (r#"{"length_penalty": -0.5}"#, "train.length_penalty is -0.5"),
            (r#"{"average": 3, "checkpoint_every": 0}"#, "train.checkpoint_every is 0; expected 1 or more"),
            (
                r#"{"steps": 45, "average": 6, "checkpoint_every": 10}"#,
                "train.average is 6; expected at most 5, the checkpoints of 45 steps",
            ),
        ] {
            assert!(problem(json).starts_with(message), "{}", problem(json));
        }
    }

    #[test]
    fn the_last_checkpoint_and_regular_ones_before_it_are_averaged() {
        let config = TrainConfig { steps: 45, average: 3, checkpoint_every: 10, ..TrainConfig::default() };
        config.check().unwrap();
        assert_eq!(config.averaged(45), [30, 40, 45]);
        assert_eq!(config.averaged(40), [20, 30, 40]);
        assert_eq!(config.averaged(12), [10, 12]);
        assert_eq!(config.averaged(3), [3]);
        assert_eq!(TrainConfig { average: 1, ..config }.averaged(45), [0; 0]);
    }

    #[test]
    fn unknown_keys_and_kinds_are_refused() {
        assert!(serde_json::from_str::<TrainConfig>(r#"{"step": 3}"#).is_err());
        assert!(serde_json::from_str::<TrainConfig>(r#"{"schedule": {"kind": "one_cycle"}}"#).is_err());
        let config: TrainConfig = serde_json::from_str(r#"{"schedule": {"kind": "one-cycle"}}"#).unwrap();
        assert_eq!(config.schedule.kind, ScheduleKind::OneCycle);
    }
}
