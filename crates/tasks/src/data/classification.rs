//! Labelled sequences in three splits, for any task.

use regard_metrics::majority_rate;

use super::{
    Batch, BatchOptions, Batches, DataError, Objective, Sequences, Shape, Split, SplitBatches, Task, TextUnits,
    TrainBatches, evaluation_batches, sequences::Symbol,
};

/// Labelled sequences in three splits.
#[derive(Clone, Debug)]
pub struct ClassificationData<S = u8> {
    /// Training split.
    pub train: Sequences<S>,
    /// Validation split, for model selection.
    pub valid: Sequences<S>,
    /// Test split, for reported results.
    pub test: Sequences<S>,
    /// Labels are `0 .. classes`.
    pub classes: usize,
    /// Token ids are `0 .. vocabulary`.
    pub vocabulary: usize,
    /// Token id of symbol 0: 1 where id 0 is padding, 0 where all sequences have the same length.
    pub first_id: i32,
    /// Maximum length of sequences and batches.
    pub max_length: usize,
    /// What the sequences are, for reports; empty where the task says it.
    pub about: String,
    /// What the ids stand for, where they are pieces of text.
    pub units: Option<TextUnits>,
    /// Remarks for the user, as when a damaged cache file was replaced.
    pub notes: Vec<String>,
}

impl<S> ClassificationData<S> {
    /// With another remark, if there is one.
    #[must_use]
    pub fn noting(mut self, note: Option<String>) -> Self {
        self.notes.extend(note);
        self
    }

    fn options(&self, rows: usize) -> BatchOptions {
        BatchOptions { first_id: self.first_id, ..BatchOptions::new(rows, self.max_length) }
    }
}

impl<S: Symbol> Task for ClassificationData<S> {
    fn shape(&self) -> Shape {
        let objective = Objective::Classify { classes: self.classes };
        Shape { objective, vocabulary: self.vocabulary, max_length: self.max_length }
    }

    fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError> {
        let mut batches = TrainBatches::new(&self.train, self.options(rows), seed)?;
        Ok(Box::new(move |index| batches.batch(index).into()))
    }

    fn split(&self, split: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
        let sequences = match split {
            Split::Valid => &self.valid,
            Split::Test => &self.test,
        };
        let batches = evaluation_batches(sequences, self.options(rows))?;
        Ok(Box::new(batches.map(Batch::from)))
    }

    fn setting(&self) -> String {
        let about = if self.about.is_empty() { String::new() } else { format!("{}: ", self.about) };
        format!(
            "{about}{} training sequences of at most {} tokens, {} for the test",
            self.train.len(),
            self.max_length,
            self.test.len()
        )
    }

    fn units(&self) -> Option<&TextUnits> {
        self.units.as_ref()
    }

    fn first_id(&self) -> i32 {
        self.first_id
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn majority(&self) -> Option<f64> {
        Some(majority_rate(self.test.labels(), self.classes))
    }
}
