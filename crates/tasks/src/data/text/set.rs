//! Encoded rows whose batches need more than a sequence and a label: pairs of texts, and scores.

use regard_metrics::majority_rate;

use super::{
    Encoded, TextEncoder,
    load::too_long,
    rows::{Labels, Rows, Target},
};
use crate::data::{
    Batch, BatchOptions, Batches, ClassificationBatch, DataError, Objective, Sequences, Shape, Split, SplitBatches,
    Task, TextUnits, TrainBatches, evaluation_batches, score_target,
};

/// Encoded rows of a split.
#[derive(Clone, Debug)]
pub struct TextPart {
    sequences: Sequences<u16>,
    /// Tokens of the first text and the separator of each row of pairs; else empty.
    firsts: Vec<usize>,
    /// Score of each row of a regression; else empty.
    scores: Vec<f32>,
    /// Rows that were too long.
    pub truncated: usize,
    /// Tokens of theirs that were left out.
    pub dropped: usize,
}

impl TextPart {
    /// Encoded rows; those without a target have the first class.
    pub(super) fn of(rows: &Rows, labels: &Labels, encoder: &TextEncoder) -> Result<Self, DataError> {
        let mut part = Self::empty(labels.classes().unwrap_or(1));
        for (i, texts) in rows.texts.iter().enumerate() {
            let encoded = encoder.encode(texts);
            let pushed = part.push(&encoded, rows.class(i));
            pushed.map_err(|error| DataError::Content { path: rows.place(i), problem: error.to_string() })?;
            if texts.len() > 1 {
                part.firsts.push(encoded.first);
            }
            if let Some(Target::Score(score)) = rows.targets.get(i) {
                part.scores.push(*score);
            }
        }
        Ok(part)
    }

    /// No rows.
    pub(crate) fn empty(classes: usize) -> Self {
        let sequences = Sequences::new(classes);
        Self { sequences, firsts: Vec::new(), scores: Vec::new(), truncated: 0, dropped: 0 }
    }

    /// Appends a row.
    ///
    /// # Errors
    /// One without tokens.
    pub(crate) fn push(&mut self, encoded: &Encoded, class: usize) -> Result<(), DataError> {
        self.sequences.push(&encoded.symbols, class)?;
        self.truncated += usize::from(encoded.dropped > 0);
        self.dropped += encoded.dropped;
        Ok(())
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Batches of at most `options.rows` rows, from the shortest to the longest, each with the places of its rows.
    ///
    /// # Errors
    /// An option of 0.
    pub(crate) fn batches(
        &self,
        options: BatchOptions,
    ) -> Result<impl ExactSizeIterator<Item = (Vec<usize>, Batch)> + use<'_>, DataError> {
        let batches = evaluation_batches(&self.sequences, options)?;
        Ok(batches.map(|batch| (batch.items.clone(), self.completed(batch))))
    }

    /// With token types of pairs, 0 up to the separator and 1 behind it, and with scores.
    fn completed(&self, batch: ClassificationBatch) -> Batch {
        let items = batch.items.clone();
        let lengths = batch.lengths.clone();
        let mut batch = Batch::from(batch);
        if !self.firsts.is_empty() {
            let mut types = vec![0; batch.tokens.ids.len()];
            for ((row, &item), &length) in types.chunks_exact_mut(batch.tokens.length).zip(&items).zip(&lengths) {
                row[self.firsts[item].min(length)..length].fill(1);
            }
            batch.tokens.types = Some(types.into());
        }
        if !self.scores.is_empty() {
            batch.targets = items.iter().map(|&item| score_target(self.scores[item])).collect();
        }
        batch
    }
}

/// Pairs of texts with a label or a score, or texts with a score, in three splits.
#[derive(Clone, Debug)]
pub struct TextData {
    /// Training split.
    pub train: TextPart,
    /// Validation split, for model selection.
    pub valid: TextPart,
    /// Test split, for reported results.
    pub test: TextPart,
    /// The objective.
    objective: Objective,
    /// Whether rows have two texts.
    pairs: bool,
    vocabulary: usize,
    first_id: i32,
    max_length: usize,
    units: TextUnits,
    notes: Vec<String>,
}

impl TextData {
    /// Encodes training, validation and test rows.
    ///
    /// # Errors
    /// A row without tokens.
    pub(super) fn of(rows: &[Rows; 3], labels: &Labels, encoder: &TextEncoder) -> Result<Self, DataError> {
        let [train, valid, test] = rows.each_ref().map(|rows| TextPart::of(rows, labels, encoder));
        let skipped: usize = rows.iter().map(|rows| rows.skipped).sum();
        let note = format!("{skipped} rows with fewer columns than the header were left out");
        let (train, valid, test) = (train?, valid?, test?);
        let cut = too_long([&train, &valid, &test].map(|part| part.truncated), encoder.max_length());
        Ok(Self {
            train,
            valid,
            test,
            objective: objective(labels),
            pairs: encoder.has_pairs(),
            vocabulary: encoder.vocabulary(),
            first_id: encoder.first_id(),
            max_length: encoder.max_length(),
            units: encoder.units().clone(),
            notes: (skipped > 0).then_some(note).into_iter().chain(cut).collect(),
        })
    }

    /// With another note, if there is one.
    pub(super) fn noting(mut self, note: Option<String>) -> Self {
        self.notes.extend(note);
        self
    }

    fn options(&self, rows: usize) -> BatchOptions {
        BatchOptions { first_id: self.first_id, ..BatchOptions::new(rows, self.max_length) }
    }

    fn measured(&self, split: Split) -> &TextPart {
        match split {
            Split::Valid => &self.valid,
            Split::Test => &self.test,
        }
    }
}

/// The objective of rows with such labels.
pub(crate) fn objective(labels: &Labels) -> Objective {
    labels.classes().map_or(Objective::Regress, |classes| Objective::Classify { classes })
}

impl Task for TextData {
    fn shape(&self) -> Shape {
        Shape { objective: self.objective, vocabulary: self.vocabulary, max_length: self.max_length }
    }

    fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError> {
        let mut batches = TrainBatches::new(&self.train.sequences, self.options(rows), seed)?;
        Ok(Box::new(move |index| self.train.completed(batches.batch(index))))
    }

    fn split(&self, split: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
        let batches = self.measured(split).batches(self.options(rows))?;
        Ok(Box::new(batches.map(|(_, batch)| batch)))
    }

    fn setting(&self) -> String {
        let what = if self.pairs { "pairs of texts" } else { "texts" };
        format!(
            "{} training {what} of at most {} tokens, {} for the test",
            self.train.len(),
            self.max_length,
            self.test.len()
        )
    }

    fn token_types(&self) -> usize {
        if self.pairs { 2 } else { 1 }
    }

    fn units(&self) -> Option<&TextUnits> {
        match &self.units {
            TextUnits::Bytes => None,
            units => Some(units),
        }
    }

    fn first_id(&self) -> i32 {
        self.first_id
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn majority(&self) -> Option<f64> {
        let classes = self.objective.classes()?;
        Some(majority_rate(self.test.sequences.labels(), classes))
    }
}
