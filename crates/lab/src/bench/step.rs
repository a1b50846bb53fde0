//! A whole training step: forward pass, loss, backward pass, optimizer.

use regard_kernels::{AttentionOptions, Error, random::bits};
use regard_nn::{device, models::ModelConfig};
use regard_tasks::{
    data::{ClassificationData, LanguageData, Sequences, TaskData, Vocabulary},
    train::{Model, TrainConfig, TrainError, Trainer},
};

use super::{
    Sizes,
    workload::{Meter, Run, Trouble, Workload},
};

/// The model that trains, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Everything except its attention.
    pub model: ModelConfig,
    /// Optimizer, clipping, accumulation; the batch size comes from the benchmark.
    pub train: TrainConfig,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Number of classes of a classifier; `None` for a language model.
    pub classes: Option<usize>,
}

/// Training data of the benchmark: random tokens, full-length sequences, every token of a language model a target.
pub(super) struct Material {
    data: TaskData,
    train: TrainConfig,
}

/// Total updates for the schedule: more than any benchmark runs.
const STEPS: usize = 1 << 20;
/// Number of distinct batches.
const BATCHES: usize = 4;
/// Maximum number of symbols in a classifier's sequences.
const SYMBOLS: usize = 256;

impl Material {
    /// # Errors
    /// Invalid sizes, as a sentence.
    pub fn new(recipe: &Recipe, sizes: Sizes, seed: u64) -> Result<Self, String> {
        let Recipe { vocabulary, classes, .. } = *recipe;
        let Sizes { length, batch, .. } = sizes;
        let draw = |i: usize, below: usize| ((u64::from(bits(seed, i as u32)) * below as u64) >> 32) as usize;
        let rows = BATCHES * batch * recipe.train.accumulate.max(1);
        let data: TaskData = match classes {
            Some(classes) => {
                // Id 0 is padding, which does not occur.
                let symbols = vocabulary.saturating_sub(1).clamp(1, SYMBOLS);
                let mut set = Sequences::new(classes);
                for row in 0..rows {
                    let tokens: Vec<u8> = (0..length).map(|i| draw(row * length + i, symbols) as u8).collect();
                    set.push(&tokens, row % classes).map_err(|error| error.to_string())?;
                }
                let (train, valid, test) = (set.clone(), set.clone(), set);
                let notes = Vec::new();
                Box::new(ClassificationData {
                    train,
                    valid,
                    test,
                    classes,
                    vocabulary,
                    first_id: 1,
                    max_length: length,
                    about: String::new(),
                    units: None,
                    notes,
                })
            }
            None => {
                // Any characters will do: use the private planes.
                let characters = ('\u{F0000}'..).take(vocabulary).collect();
                let text: Vec<u16> = (0..rows * length + 1).map(|i| draw(i, vocabulary) as u16).collect();
                Box::new(LanguageData {
                    train: text.clone(),
                    valid: text.clone(),
                    test: text,
                    vocabulary: Vocabulary::new(characters).map_err(|error| error.to_string())?,
                    context: length,
                })
            }
        };
        Ok(Self { data, train: TrainConfig { steps: STEPS, batch, start: None, ..recipe.train.clone() } })
    }
}

/// A model in training.
pub(super) struct Step<'a> {
    trainer: Trainer<'a>,
    /// Bytes of the parameters, which count as memory of a step.
    parameters: Option<u64>,
}

impl<'a> Step<'a> {
    /// # Errors
    /// Sizes or options that do not fit each other.
    pub fn new(
        recipe: &Recipe,
        options: &AttentionOptions,
        material: &'a Material,
        seed: u64,
    ) -> Result<Self, TrainError> {
        let before = regard_alloc::current_bytes();
        let device = device::chosen().autodiff();
        let device = if recipe.model.checkpointing { device.gradient_checkpointing() } else { device };
        let model = Model::build(&recipe.model, options, &material.data, seed, &device)?;
        let parameters = regard_alloc::current_bytes().zip(before).map(|(now, before)| now.saturating_sub(before));
        Ok(Self { trainer: Trainer::new(model, &material.data, &material.train, seed)?, parameters })
    }
}

impl Workload for Step<'_> {
    /// One update. The first run allocates the moments, so its memory includes them.
    fn run(&mut self, _: bool) -> Result<Run, Trouble> {
        let meter = Meter::start();
        let report = self.trainer.update().map_err(|error| match error {
            TrainError::Numeric { what, .. } => Trouble::NotFinite(format!("the {what}")),
            error => Trouble::Other(error.to_string()),
        })?;
        let bytes = meter.bytes().zip(self.parameters).map(|(peak, parameters)| peak + parameters);
        Ok(Run { times: vec![report.milliseconds], bytes: vec![bytes] })
    }
}

/// An options error as reported by the benchmark; anything else as a sentence.
pub(super) fn options_error(error: TrainError) -> Result<Error, String> {
    match error {
        TrainError::Model(error) => Ok(error),
        error => Err(error.to_string()),
    }
}
