//! Labelled sequences in three splits, for any task.

use regard_metrics::majority_rate;

use super::{
    Batch, BatchOptions, Batches, DataError, Objective, Sequences, Shape, Split, SplitBatches, Task, TrainBatches,
    evaluation_batches,
};

/// Labelled sequences in three splits.
#[derive(Clone, Debug)]
pub struct ClassificationData {
    /// Training split.
    pub train: Sequences,
    /// Validation split, for model selection.
    pub valid: Sequences,
    /// Test split, for reported results.
    pub test: Sequences,
    /// Labels are `0 .. classes`.
    pub classes: usize,
    /// Token ids are `0 .. vocabulary`; 0 is padding.
    pub vocabulary: usize,
    /// Maximum length of sequences and batches.
    pub max_length: usize,
    /// Remarks for the user, as when a damaged cache file was replaced.
    pub notes: Vec<String>,
}

impl Task for ClassificationData {
    fn shape(&self) -> Shape {
        let objective = Objective::Classify { classes: self.classes };
        Shape { objective, vocabulary: self.vocabulary, max_length: self.max_length }
    }

    fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError> {
        let mut batches = TrainBatches::new(&self.train, BatchOptions::new(rows, self.max_length), seed)?;
        Ok(Box::new(move |index| batches.batch(index).into()))
    }

    fn split(&self, split: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
        let sequences = match split {
            Split::Valid => &self.valid,
            Split::Test => &self.test,
        };
        let batches = evaluation_batches(sequences, BatchOptions::new(rows, self.max_length))?;
        Ok(Box::new(batches.map(Batch::from)))
    }

    fn setting(&self) -> String {
        format!(
            "{} training sequences of at most {} tokens, {} for the test",
            self.train.len(),
            self.max_length,
            self.test.len()
        )
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn majority(&self) -> Option<f64> {
        Some(majority_rate(self.test.labels(), self.classes))
    }
}
