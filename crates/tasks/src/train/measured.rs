//! What a model did on one batch of an evaluation, and the sums over batches.

use std::time::Instant;

use regard_metrics::{Confusion, accuracy, count_correct, perplexity, predicted};
use regard_nn::blocks::Context;

use super::{
    ClassScores, Evaluation, Items, Model, ValueScores,
    evaluation::row_losses,
    items::SequenceFigures,
    language::LanguageTally,
    parallel::{Reader, Writer},
};
use crate::data::{Batch, Objective, Split, TaskData, TextExtent, target_score};

/// Stands for a class that is not a number.
const NO_CLASS: usize = usize::MAX;

/// One batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// Time of the forward pass.
    pub seconds: f64,
    /// Sum over the targets.
    loss: f64,
    /// Loss of each target, of running text.
    nats: Vec<f64>,
    /// Targets that were predicted, where that is measured.
    correct: usize,
    /// Class of each sequence, of a classifier.
    classes: Vec<usize>,
    /// Predicted scores, where they are the task.
    values: Vec<f64>,
    /// By sequence, if that was asked for.
    sequences: SequenceFigures,
}

impl Measured {
    /// Of a `model` without autodiff; `by_sequence` too if asked for.
    pub fn of(model: &Model, batch: &Batch, objective: Objective, text: bool, by_sequence: bool) -> Self {
        let start = Instant::now();
        if let (Model::Language(model), true) = (model, text) {
            let nats = model.nats(&batch.tokens, &batch.targets, &Context::evaluation());
            let seconds = start.elapsed().as_secs_f64();
            let sequences = by_sequence.then(|| SequenceFigures::of_losses(batch, &nats));
            let (loss, sequences) = (nats.iter().sum(), sequences.unwrap_or_default());
            return Self { seconds, loss, nats, sequences, ..Self::default() };
        }
        let (logits, targets) = model.predictions(batch, &Context::evaluation());
        let outputs = logits.dims()[1];
        let logits: Vec<f32> = logits.into_data_as::<f32>().try_into_vec().expect("f32, as asked");
        let seconds = start.elapsed().as_secs_f64();
        let accurate = objective.has_accuracy();
        let sequences = by_sequence.then(|| SequenceFigures::of(batch, &logits, &targets, outputs, accurate));
        let classes = |classes| predicted(&logits, classes).map(|class| class.unwrap_or(NO_CLASS)).collect();
        let values = (objective == Objective::Regress).then(|| logits.iter().map(|value| f64::from(*value)).collect());
        Self {
            seconds,
            loss: row_losses(&logits, &targets, outputs).sum(),
            nats: Vec::new(),
            correct: if accurate { count_correct(&logits, &targets, outputs) } else { 0 },
            classes: objective.classes().map_or(Vec::new(), |_| classes(outputs)),
            values: values.unwrap_or_default(),
            sequences: sequences.unwrap_or_default(),
        }
    }

    /// As a message to other ranks.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.number(self.seconds);
        writer.number(self.loss);
        writer.numbers(&self.nats);
        writer.count(self.correct);
        writer.count(self.classes.len());
        self.classes.iter().for_each(|class| writer.count(*class));
        writer.numbers(&self.values);
        writer.floats(&self.sequences.losses);
        writer.count(self.sequences.correct.len());
        self.sequences.correct.iter().for_each(|count| writer.count(*count as usize));
        writer.done()
    }

    /// Reads such a message.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut reader = Reader::of(bytes);
        let (seconds, loss, nats, correct) = (reader.number(), reader.number(), reader.numbers(), reader.count());
        let count = reader.count();
        let classes = (0..count).map(|_| reader.count()).collect();
        let (values, losses, count) = (reader.numbers(), reader.floats(), reader.count());
        let sequences = SequenceFigures { losses, correct: (0..count).map(|_| reader.count() as u32).collect() };
        Self { seconds, loss, nats, correct, classes, values, sequences }
    }
}

/// Batches so far.
#[derive(Debug)]
pub(super) struct Tally {
    objective: Objective,
    extent: Option<TextExtent>,
    language: LanguageTally,
    confusion: Option<Confusion>,
    values: Vec<(f64, f64)>,
    loss: f64,
    correct: usize,
    items: usize,
    sequences: usize,
}

impl Tally {
    pub fn new(data: &TaskData, split: Split) -> Self {
        let objective = data.shape().objective;
        Self {
            objective,
            extent: data.extent(split),
            language: LanguageTally::default(),
            confusion: objective.classes().map(|classes| Confusion::of([], classes)),
            values: Vec::new(),
            loss: 0.0,
            correct: 0,
            items: 0,
            sequences: 0,
        }
    }

    /// Adds a batch, in the order of the split.
    pub fn add(&mut self, batch: &Batch, measured: &Measured, by_sequence: Option<&mut Items>) {
        self.loss += measured.loss;
        self.language.add(&batch.targets, batch.tokens.length, &measured.nats);
        self.correct += measured.correct;
        let given = batch.targets.iter().map(|target| f64::from(target_score(*target)));
        self.values.extend(measured.values.iter().copied().zip(given));
        self.confusion = self.confusion.take().and_then(|mut confusion| {
            for (class, label) in measured.classes.iter().zip(&*batch.targets) {
                let class = Some(*class).filter(|class| *class != NO_CLASS)?;
                confusion.add(usize::try_from(*label).ok()?, class);
            }
            Some(confusion)
        });
        if let Some(by_sequence) = by_sequence {
            by_sequence.add(batch, &measured.sequences);
        }
        self.items += batch.items();
        self.sequences += batch.tokens.batch / self.objective.rows();
    }

    /// The figures of a split, after `step` updates and `seconds` of forward passes.
    pub fn finish(self, data: &TaskData, split: Split, step: usize, seconds: f64) -> Evaluation {
        let Self { objective, items, sequences, .. } = self;
        let loss = self.loss / items as f64;
        let language = self.extent.map(|extent| self.language.finish(data.shape().max_length, extent));
        Evaluation {
            step,
            split,
            loss,
            accuracy: objective.has_accuracy().then(|| accuracy(self.correct, items)),
            classes: self.confusion.filter(|_| items > 0).as_ref().map(ClassScores::from),
            values: (objective == Objective::Regress).then(|| ValueScores::of(&self.values)),
            perplexity: objective.has_perplexity().then(|| perplexity(loss)),
            bleu: None,
            rouge: None,
            ranking: None,
            averaged: None,
            language,
            items,
            sequences,
            seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_comes_back_bit_for_bit() {
        let measured = Measured {
            seconds: 0.1,
            loss: -0.0,
            nats: vec![0.25, f64::INFINITY],
            correct: 3,
            classes: vec![1, NO_CLASS],
            values: vec![0.5],
            sequences: SequenceFigures { losses: vec![1.5], correct: vec![7, 8] },
        };
        let back = Measured::from_bytes(&measured.to_bytes());
        assert_eq!((&back, back.loss.to_bits()), (&measured, (-0.0f64).to_bits()));
    }
}
