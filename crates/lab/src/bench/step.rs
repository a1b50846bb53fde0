//! A whole training step: forward pass, loss, backward pass, optimizer.

use regard_kernels::{
    AttentionOptions, Error,
    random::{bits, substream},
};
use regard_nn::{
    device,
    models::{ModelConfig, TokenBatch},
};
use regard_tasks::{
    data::{Batch, Batches, DataError, Objective, Shape, Split, SplitBatches, Task, TaskData},
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

/// Training data of the benchmark, and how they are used.
pub(super) struct Material {
    data: TaskData,
    train: TrainConfig,
}

/// Total updates for the schedule: more than any benchmark runs.
const STEPS: usize = 1 << 20;
/// Number of distinct batches.
const BATCHES: u64 = 4;

impl Material {
    pub fn new(recipe: &Recipe, sizes: Sizes, seed: u64) -> Self {
        let Recipe { vocabulary, classes, .. } = *recipe;
        let Sizes { length, batch, .. } = sizes;
        let data = Box::new(RandomTokens { vocabulary, classes, length, seed });
        Self { data, train: TrainConfig { steps: STEPS, batch, start: None, ..recipe.train.clone() } }
    }
}

/// Sequences of full length whose tokens are drawn independently, and every target: all tokens of a language model, the classes
/// in turn of a classifier, in which id 0 is padding and does not occur.
#[derive(Debug)]
struct RandomTokens {
    vocabulary: usize,
    classes: Option<usize>,
    length: usize,
    seed: u64,
}

impl RandomTokens {
    fn batch(&self, index: u64, rows: usize) -> Batch {
        let &Self { vocabulary, classes, length, seed } = self;
        let stream = substream(seed, index % BATCHES);
        let first = usize::from(classes.is_some() && vocabulary > 1);
        let symbols = (vocabulary - first) as u64;
        let draw = |i: usize| first as i32 + ((u64::from(bits(stream, i as u32)) * symbols) >> 32) as i32;
        // One token more for the last target.
        let text: Vec<i32> = (0..rows * length + 1).map(draw).collect();
        let targets = match classes {
            Some(classes) => (0..rows).map(|row| (row % classes) as i32).collect(),
            None => text[1..].into(),
        };
        let ids = text[..rows * length].into();
        let tokens = TokenBatch { ids, batch: rows, length, padding: None, types: None };
        Batch { tokens, targets, source: None, readers: None }
    }
}

impl Task for RandomTokens {
    fn shape(&self) -> Shape {
        let objective = match self.classes {
            Some(classes) => Objective::Classify { classes },
            None => Objective::NextToken { certain: false },
        };
        Shape { objective, vocabulary: self.vocabulary, max_length: self.length }
    }

    fn batches(&self, _: u64, rows: usize) -> Result<Batches<'_>, DataError> {
        Ok(Box::new(move |index| self.batch(index, rows)))
    }

    fn split(&self, _: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
        Ok(Box::new((0..1).map(move |_| self.batch(0, rows))))
    }

    fn setting(&self) -> String {
        format!("random sequences of {} tokens", self.length)
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
