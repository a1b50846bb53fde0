//! Batches of a task as its model takes them.

use std::sync::Arc;

use regard_kernels::Padding;
use regard_nn::models::TokenBatch;

use super::Split;
use crate::data::{
    BatchOptions, ClassificationBatch, ClassificationData, CopyData, CopySplit, DataError, LanguageBatch, LanguageData,
    TaskData, TrainBatches, evaluation_batches,
};

/// Tokens and what is to be predicted from them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The sequences.
    pub tokens: TokenBatch,
    /// One a sequence (classification) or one a token (language models), row by row; negative ones do not count.
    pub targets: Arc<[i32]>,
}

impl Batch {
    /// Targets that count.
    pub fn items(&self) -> usize {
        self.targets.iter().filter(|target| **target >= 0).count()
    }

    fn classification(batch: ClassificationBatch) -> Self {
        let padding = batch.lengths.iter().any(|length| *length < batch.padded_length);
        let padding = padding.then(|| Arc::new(Padding::from_lengths(&batch.lengths, batch.padded_length)));
        let rows = batch.rows();
        let tokens = TokenBatch { ids: batch.tokens.into(), batch: rows, length: batch.padded_length, padding };
        Self { tokens, targets: batch.labels.into() }
    }

    fn language(batch: LanguageBatch) -> Self {
        let tokens = TokenBatch { ids: batch.inputs.into(), batch: batch.rows, length: batch.length, padding: None };
        Self { tokens, targets: batch.targets.into() }
    }
}

/// Training batches without end: batch `i` is a function of data, seed and `i`.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // One value a run.
pub(super) enum Batches<'a> {
    Classification(TrainBatches<'a>),
    Language { data: &'a LanguageData, seed: u64, rows: usize },
    Copy { data: &'a CopyData, seed: u64, rows: usize },
}

impl<'a> Batches<'a> {
    pub fn new(data: &'a TaskData, seed: u64, rows: usize) -> Result<Self, DataError> {
        Ok(match data {
            TaskData::Classification(data) => {
                let options = BatchOptions::new(rows, data.max_length);
                Self::Classification(TrainBatches::new(&data.train, options, seed)?)
            }
            TaskData::Language(data) => Self::Language { data, seed, rows },
            TaskData::Copy(data) => Self::Copy { data, seed, rows },
        })
    }

    pub fn batch(&mut self, index: u64) -> Batch {
        match self {
            Self::Classification(batches) => Batch::classification(batches.batch(index)),
            Self::Language { data, seed, rows } => Batch::language(data.train_batch(*seed, index, *rows)),
            Self::Copy { data, seed, rows } => Batch::language(data.train_batch(*seed, index, *rows)),
        }
    }
}

/// `most` batches of a split, or all of them if `most` is 0: spread evenly, since they come sorted by length.
pub(super) fn split_batches<'a>(
    data: &'a TaskData,
    split: Split,
    rows: usize,
    most: usize,
) -> Result<Box<dyn Iterator<Item = Batch> + 'a>, DataError> {
    Ok(match data {
        TaskData::Classification(data) => {
            let batches = evaluation_batches(sequences(data, split), BatchOptions::new(rows, data.max_length))?;
            Box::new(spread(batches, most).map(Batch::classification))
        }
        TaskData::Language(data) => Box::new(spread(data.evaluation_batches(rows), most).map(Batch::language)),
        TaskData::Copy(data) => {
            let split = match split {
                Split::Valid => CopySplit::Valid,
                Split::Test => CopySplit::Test,
            };
            Box::new(spread(data.evaluation_batches(split, rows), most).map(Batch::language))
        }
    })
}

fn sequences(data: &ClassificationData, split: Split) -> &crate::data::Sequences {
    match split {
        Split::Valid => &data.valid,
        Split::Test => &data.test,
    }
}

/// `most` of the items, the middle one of each of `most` equal parts.
fn spread<I: ExactSizeIterator>(items: I, most: usize) -> impl Iterator<Item = I::Item> {
    let count = items.len();
    let most = if most == 0 { count } else { most.min(count) };
    let mut chosen = (0..most).map(move |part| (2 * part + 1) * count / (2 * most)).peekable();
    items.enumerate().filter_map(move |(i, item)| {
        (chosen.peek() == Some(&i)).then(|| {
            chosen.next();
            item
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_batches_spreads_over_all() {
        let chosen = |count: usize, most| spread(0..count, most).collect::<Vec<_>>();
        assert_eq!(chosen(10, 0), (0..10).collect::<Vec<_>>());
        assert_eq!(chosen(10, 2), [2, 7]);
        assert_eq!(chosen(10, 1), [5]);
        assert_eq!(chosen(3, 7), [0, 1, 2]);
        assert_eq!(chosen(7, 3), [1, 3, 5]);
        assert_eq!(chosen(0, 3), Vec::<usize>::new());
    }
}
