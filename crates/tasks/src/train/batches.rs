//! Batches of a task as its model takes them.

use std::sync::Arc;

use regard_kernels::Padding;
use regard_nn::models::TokenBatch;

use super::Split;
use crate::data::{
    BatchOptions, ClassificationBatch, ClassificationData, CopyData, CopySplit, DataError, LanguageBatch, LanguageData,
    MaskedBatch, MaskedBatches, SentencePairs, TaskData, TrainBatches, TranslationBatch, TranslationBatches,
    TranslationData, evaluation_batches,
};

/// Tokens and what is to be predicted from them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The sequences; in translation those of the target language, each after a begin.
    pub tokens: TokenBatch,
    /// One per sequence (classification) or one per token (the others), row by row; negative ones do not count.
    pub targets: Arc<[i32]>,
    /// The sequences translated from.
    pub source: Option<TokenBatch>,
}

impl Batch {
    /// Targets that count.
    pub fn items(&self) -> usize {
        self.targets.iter().filter(|target| **target >= 0).count()
    }

    /// Real tokens that go through the model.
    pub fn real_tokens(&self) -> usize {
        self.tokens.real_tokens() + self.source.as_ref().map_or(0, TokenBatch::real_tokens)
    }

    fn classification(batch: ClassificationBatch) -> Self {
        let tokens = padded(batch.tokens, &batch.lengths, batch.padded_length);
        Self { tokens, targets: batch.labels.into(), source: None }
    }

    fn language(batch: LanguageBatch) -> Self {
        let tokens = TokenBatch {
            ids: batch.inputs.into(),
            batch: batch.rows,
            length: batch.length,
            padding: None,
            types: None,
        };
        Self { tokens, targets: batch.targets.into(), source: None }
    }

    fn translation(batch: TranslationBatch) -> Self {
        let source = Some(source(&batch));
        let tokens = padded(batch.inputs, &batch.target_lengths, batch.target_length);
        Self { tokens, targets: batch.targets.into(), source }
    }

    fn masked(batch: MaskedBatch) -> Self {
        let tokens = padded(batch.inputs, &batch.lengths, batch.length);
        Self { tokens, targets: batch.targets.into(), source: None }
    }
}

/// The sentences to translate.
pub(super) fn source(batch: &TranslationBatch) -> TokenBatch {
    padded(batch.source.clone(), &batch.source_lengths, batch.source_length)
}

/// Rows of the given lengths, padded to `length`.
pub(super) fn padded(ids: Vec<i32>, lengths: &[usize], length: usize) -> TokenBatch {
    let padding = lengths.iter().any(|own| *own < length);
    let padding = padding.then(|| Arc::new(Padding::from_lengths(lengths, length)));
    TokenBatch { ids: ids.into(), batch: lengths.len(), length, padding, types: None }
}

/// Training batches without end: batch `i` is a function of data, seed and `i`.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // One value a run.
pub(super) enum Batches<'a> {
    Classification(TrainBatches<'a>),
    Language { data: &'a LanguageData, seed: u64, rows: usize },
    Copy { data: &'a CopyData, seed: u64, rows: usize },
    Translation(TranslationBatches<'a>),
    Masked(MaskedBatches<'a>),
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
            TaskData::Translation(data) => Self::Translation(TranslationBatches::new(&data.train, rows, seed)?),
            TaskData::Masked(data) => Self::Masked(MaskedBatches::new(data, rows, seed)?),
        })
    }

    pub fn batch(&mut self, index: u64) -> Batch {
        match self {
            Self::Classification(batches) => Batch::classification(batches.batch(index)),
            Self::Language { data, seed, rows } => Batch::language(data.train_batch(*seed, index, *rows)),
            Self::Copy { data, seed, rows } => Batch::language(data.train_batch(*seed, index, *rows)),
            Self::Translation(batches) => Batch::translation(batches.batch(index)),
            Self::Masked(batches) => Batch::masked(batches.batch(index)),
        }
    }
}

/// `most` batches of a split, or all of them if `most` is 0: spread evenly, since they come sorted by length.
///
/// # Errors
/// Batches of no rows.
pub fn split_batches<'a>(
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
        TaskData::Translation(data) => {
            Box::new(spread(pairs(data, split).evaluation_batches(rows), most).map(Batch::translation))
        }
        TaskData::Masked(data) => Box::new(spread(data.evaluation_batches(rows), most).map(Batch::masked)),
    })
}

/// The pairs of sentences of a split.
pub(super) fn pairs(data: &TranslationData, split: Split) -> &SentencePairs {
    match split {
        Split::Valid => &data.valid,
        Split::Test => &data.test,
    }
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
    // Splits that are drawn have as many items as somebody types.
    let middle = move |part: usize| (2 * part as u128 + 1) * count as u128 / (2 * most as u128);
    let mut chosen = (0..most).map(move |part| middle(part) as usize).peekable();
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
