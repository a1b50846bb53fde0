//! Predictions of the classifier of a run.

use std::{io::Read, path::Path};

use regard_metrics::{Confusion, accuracy, count_correct};
use regard_nn::{attention::Attentions, blocks::Context};
use serde::Serialize;

use super::{Run, Stored, Which, open::filled};
use crate::{
    Failure,
    data::{
        Batch, BatchOptions, Encoded, InputOptions, Objective, Shape, Split, Target, TaskConfig, TaskName, TextEncoder,
        TextInput, expressions, listops, score_target,
    },
    train::{ClassScores, Model, ValueScores, confused, row_losses},
};

/// The classifier of a run, with what makes rows of texts into its tokens. The data of the run are not needed.
#[derive(Debug)]
pub struct Predictor {
    model: Model,
    task: TaskConfig,
    encoder: Encoder,
    objective: Objective,
    options: BatchOptions,
}

/// What makes tokens of a row.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // One value a predictor.
enum Encoder {
    Text(TextEncoder),
    Expressions,
}

/// What a model says of rows, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    /// The classes by name; none where the model gives scores.
    pub classes: Vec<String>,
    /// Probabilities `[rows,classes]`, or scores `[rows]`.
    pub values: Vec<f32>,
    /// Targets of the rows; none where they have none.
    pub targets: Vec<Target>,
    /// How the one goes with the other, where there are targets.
    pub figures: Option<Figures>,
    /// Rows that were too long.
    pub truncated: usize,
    /// Tokens of theirs that were left out.
    pub dropped: usize,
    /// Rows of a set known for broken ones that were left out.
    pub skipped: usize,
}

/// Figures of predictions, as an evaluation has them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Rows.
    pub rows: usize,
    /// Mean cross entropy in nats, or mean squared error of scores.
    pub loss: f64,
    /// Share of rows whose class was predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Scores that weigh the classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<ClassScores>,
    /// Correlations of scores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<ValueScores>,
}

impl Stored {
    /// The classifier of a run of the tasks `text` and `listops`.
    ///
    /// # Errors
    /// A run of another task, without a checkpoint or without its vocabulary.
    pub fn predictor(&self, which: Which, options: &InputOptions) -> Result<Predictor, Failure> {
        let Self { path, config } = self;
        let mut task = config.task.clone();
        let encoder = match task.name {
            TaskName::Text => {
                // A form that was told from the folder of the data, where that is no longer there.
                let set = options.format.filter(|_| !task.text.form_is_known());
                task.text.format = task.text.format.or(set);
                if let (Some(folder), false) = (&task.text.path, task.text.form_is_known()) {
                    return Err(Failure::data(format!(
                        "{} was trained on {}, which is not there, so that the form of its rows is unknown; put it back or \
                         give --format",
                        path.display(),
                        folder.display()
                    )));
                }
                Encoder::Text(TextEncoder::of_run(&task.text, path)?)
            }
            TaskName::Listops => Encoder::Expressions,
            other => {
                return Err(Failure::usage(format!(
                    "{} was trained on the task {other}, whose items are not lines of text, expected text or listops; give \
                     --split to predict those of its own data",
                    path.display()
                )));
            }
        };
        let shape = task.options().shape();
        let (vocabulary, first_id) = match &encoder {
            Encoder::Text(encoder) => (encoder.vocabulary(), encoder.first_id()),
            Encoder::Expressions => (shape.vocabulary, 1),
        };
        let shape = Shape { vocabulary, ..shape };
        let (file, checkpoint) = self.checkpoint(which)?;
        let attentions: Attentions = config.attentions();
        let model = Model::of_shape(&config.model, attentions, shape, config.seed, &regard_nn::device::chosen())?;
        let model = filled(model, checkpoint.model, &file)?;
        let options = BatchOptions { first_id, ..BatchOptions::new(config.train.batch, shape.max_length) };
        Ok(Predictor { model, task, encoder, objective: shape.objective, options })
    }
}

impl Predictor {
    /// With batches of so many rows.
    #[must_use]
    pub fn with_rows(mut self, rows: usize) -> Self {
        self.options.rows = rows;
        self
    }

    /// Reads rows from a file, a folder of reviews or `source`.
    ///
    /// # Errors
    /// An input that cannot be read, a row that is not of its form, or targets of another kind than the model's.
    pub fn read(&self, path: Option<&Path>, source: impl Read, options: &InputOptions) -> Result<TextInput, Failure> {
        let input = match &self.encoder {
            Encoder::Text(encoder) => self.task.text.input(encoder, path, source, options)?,
            Encoder::Expressions => {
                let (longest, classes) = (self.options.max_length, self.objective.classes().unwrap_or(0));
                let encode = |text: &str| {
                    let mut symbols: Vec<u16> = listops::parse(text)?.into_iter().map(u16::from).collect();
                    let dropped = symbols.len().saturating_sub(longest);
                    symbols.truncate(longest);
                    Ok(Encoded { first: symbols.len(), symbols, dropped })
                };
                expressions(path, source, encode, classes, options)?
            }
        };
        let fits = |target: &Target| match (target, self.objective.classes()) {
            (Target::Class(class), Some(classes)) => *class < classes,
            (Target::Score(_), None) => true,
            _ => false,
        };
        if !input.targets.iter().all(fits) {
            let kind = self.objective.classes().map_or("scores".into(), |classes| format!("{classes} classes"));
            return Err(Failure::usage(format!(
                "the rows have labels of another kind, the model has {kind}; choose another --format, or leave labels aside \
                 by --unlabelled"
            )));
        }
        Ok(input)
    }

    /// Predicts all rows. `progress` is told of rows done and in all, and says whether to go on; `None` if it did not.
    ///
    /// # Errors
    /// Batches of no rows.
    pub fn predict(
        &self,
        input: &TextInput,
        mut progress: impl FnMut(usize, usize) -> bool,
    ) -> Result<Option<Predictions>, Failure> {
        let (total, outputs) = (input.part.len(), self.objective.classes().unwrap_or(1));
        let (mut logits, mut done) = (vec![0.0; total * outputs], 0);
        for (items, batch) in input.part.batches(self.options)? {
            let rows = logits_of(&self.model, &batch);
            for (row, &item) in rows.chunks_exact(outputs).zip(&items) {
                logits[item * outputs..(item + 1) * outputs].copy_from_slice(row);
            }
            done += items.len();
            if !progress(done, total) {
                return Ok(None);
            }
        }
        let classes = class_names(&self.task, self.objective);
        let predictions = Predictions::of(&logits, &input.targets, classes);
        let (truncated, dropped) = (input.part.truncated, input.part.dropped);
        Ok(Some(Predictions { truncated, dropped, skipped: input.skipped, ..predictions }))
    }
}

impl Run {
    /// Predicts the items of a split of the run's own data in batches of `rows`, in the order of its batches, which go from
    /// short to long, and keep the order of the data where all are of one length. `progress` as for [`Predictor::predict`],
    /// in batches.
    ///
    /// # Errors
    /// A run of a model that is no classifier.
    pub fn predict(
        &self,
        split: Split,
        rows: usize,
        mut progress: impl FnMut(usize, usize) -> bool,
    ) -> Result<Option<Predictions>, Failure> {
        let Model::Classifier(_) = &self.model else {
            return Err(Failure::usage(format!(
                "{} was trained on the task {}, expected one with labels or scores",
                self.path.display(),
                self.config.task.name
            )));
        };
        let objective = self.data.shape().objective;
        let (mut logits, mut targets) = (Vec::new(), Vec::new());
        let batches = self.data.split(split, rows)?;
        let total = batches.len();
        for (i, batch) in batches.enumerate() {
            logits.extend(logits_of(&self.model, &batch));
            targets.extend(batch.targets.iter().map(|target| match objective {
                Objective::Regress => Target::Score(crate::data::target_score(*target)),
                _ => Target::Class(*target as usize),
            }));
            if !progress(i + 1, total) {
                return Ok(None);
            }
        }
        Ok(Some(Predictions::of(&logits, &targets, class_names(&self.config.task, objective))))
    }
}

/// The classes as files write them, or their numbers.
fn class_names(task: &TaskConfig, objective: Objective) -> Vec<String> {
    match task.name {
        TaskName::Text => task.text.class_names(),
        _ => (0..objective.classes().unwrap_or(0)).map(|class| class.to_string()).collect(),
    }
}

fn logits_of(model: &Model, batch: &Batch) -> Vec<f32> {
    let (logits, _) = model.predictions(batch, &Context::evaluation());
    logits.into_data_as::<f32>().try_into_vec().expect("f32, as asked")
}

impl Predictions {
    /// Of logits `[rows,classes]`, or of scores where there are no classes.
    fn of(logits: &[f32], targets: &[Target], classes: Vec<String>) -> Self {
        let values = if classes.is_empty() { logits.to_vec() } else { probabilities(logits, classes.len()) };
        let figures = (!targets.is_empty()).then(|| Figures::of(logits, targets, classes.len()));
        Self { classes, values, targets: targets.to_vec(), figures, truncated: 0, dropped: 0, skipped: 0 }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.values.len() / self.classes.len().max(1)
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Probabilities of a row, or its score.
    pub fn row(&self, row: usize) -> &[f32] {
        let width = self.classes.len().max(1);
        &self.values[row * width..(row + 1) * width]
    }

    /// Name of the most probable class of a row; none of a score, or where a probability is no number.
    pub fn class(&self, row: usize) -> Option<&str> {
        let best = regard_metrics::predicted(self.row(row), self.classes.len()).next()??;
        self.classes.get(best).map(String::as_str)
    }

    /// The target of a row as files write it, if it has one.
    pub fn target(&self, row: usize) -> Option<String> {
        match self.targets.get(row)? {
            Target::Class(class) => self.classes.get(*class).cloned(),
            Target::Score(score) => Some(score.to_string()),
        }
    }
}

/// Softmax of each row.
fn probabilities(logits: &[f32], classes: usize) -> Vec<f32> {
    let one = |row: &[f32]| {
        let shift = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f64> = row.iter().map(|logit| f64::from(logit - shift).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.into_iter().map(move |power| (power / sum) as f32).collect::<Vec<_>>()
    };
    logits.chunks_exact(classes).flat_map(one).collect()
}

impl Figures {
    /// Of logits and a target for each row.
    fn of(logits: &[f32], targets: &[Target], classes: usize) -> Self {
        let outputs = classes.max(1);
        let numbers: Vec<i32> = targets
            .iter()
            .map(|target| match target {
                Target::Class(class) => *class as i32,
                Target::Score(score) => score_target(*score),
            })
            .collect();
        let rows = targets.len();
        let loss = row_losses(logits, &numbers, outputs).sum::<f64>() / rows as f64;
        if classes == 0 {
            let given = numbers.iter().map(|number| f64::from(crate::data::target_score(*number)));
            let pairs: Vec<(f64, f64)> = logits.iter().map(|score| f64::from(*score)).zip(given).collect();
            return Self { rows, loss, accuracy: None, classes: None, values: Some(ValueScores::of(&pairs)) };
        }
        let correct = count_correct(logits, &numbers, classes);
        let confusion = confused(Confusion::of([], classes), logits, &numbers, classes);
        Self {
            rows,
            loss,
            accuracy: Some(accuracy(correct, rows)),
            classes: confusion.as_ref().map(ClassScores::from),
            values: None,
        }
    }
}
