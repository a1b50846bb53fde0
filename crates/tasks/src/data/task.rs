//! The task interface: options that load data, and data with an objective and batches.

use std::{fmt::Debug, path::Path, sync::Arc};

use regard_kernels::Padding;
use regard_nn::{
    attention::AttentionConfig,
    models::{Readers, TokenBatch},
};
use serde::{Deserialize, Serialize};

use super::{DataError, ImpressionPart, Progress, References, SentencePairs, TextTokenizer, TextUnits, Vocabulary};

/// The data of any task.
pub type TaskData = Box<dyn Task>;

/// Endless training batches: batch `i` is a function of the data, the seed and `i`.
pub type Batches<'a> = Box<dyn FnMut(u64) -> Batch + Send + 'a>;

/// The batches of a split.
pub type SplitBatches<'a> = Box<dyn ExactSizeIterator<Item = Batch> + 'a>;

/// Training objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// One label per sequence.
    Classify {
        /// Labels are `0 .. classes`.
        classes: usize,
    },
    /// One label per pair of sequences.
    ClassifyPairs {
        /// Labels are `0 .. classes`.
        classes: usize,
    },
    /// One score per sequence, a number from 0: see [`score_target`].
    Regress,
    /// Next-token prediction.
    NextToken {
        /// Whether the targets are determined by the tokens before them, so that accuracy is measured too.
        certain: bool,
    },
    /// Masked tokens, from all others.
    Fill,
    /// Translation of a sentence.
    Translate,
    /// Summary of a document.
    Summarize {
        /// Tokens of a summary with its end, at most; the shape's length is that of documents.
        longest: usize,
    },
    /// Ranking what is offered to a reader.
    Rank {
        /// Longest history of a reader.
        history: usize,
        /// What is offered in training: one click and what it stands against.
        candidates: usize,
    },
}

impl Objective {
    /// Number of classes of a classifier.
    pub fn classes(self) -> Option<usize> {
        match self {
            Self::Classify { classes } | Self::ClassifyPairs { classes } => Some(classes),
            _ => None,
        }
    }

    /// Whether accuracy is measured.
    pub fn has_accuracy(self) -> bool {
        matches!(self, Self::Classify { .. } | Self::ClassifyPairs { .. } | Self::NextToken { certain: true })
    }

    /// Whether perplexity is measured.
    pub fn has_perplexity(self) -> bool {
        !matches!(self, Self::Classify { .. } | Self::ClassifyPairs { .. } | Self::Regress | Self::Rank { .. })
    }

    /// Whether one sequence is written from another, by a model with an encoder and a decoder.
    pub fn has_decoder(self) -> bool {
        matches!(self, Self::Translate | Self::Summarize { .. })
    }

    /// Rows of a batch for each item that is labelled or continued: two for pairs.
    pub fn rows(self) -> usize {
        if matches!(self, Self::ClassifyPairs { .. }) { 2 } else { 1 }
    }

    /// The attention of the model's first stack: causal for a language model whatever the key says, never causal for a
    /// masked model or a recommender.
    pub fn attention(self, options: &AttentionConfig) -> AttentionConfig {
        let causal = match self {
            Self::NextToken { .. } => true,
            Self::Fill | Self::Rank { .. } => false,
            Self::Classify { .. }
            | Self::ClassifyPairs { .. }
            | Self::Regress
            | Self::Translate
            | Self::Summarize { .. } => options.causal,
        };
        AttentionConfig { causal, ..options.clone() }
    }
}

/// Properties of a task that a model depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The objective.
    pub objective: Objective,
    /// Token ids are `0 .. vocabulary`.
    pub vocabulary: usize,
    /// The model's maximum length.
    pub max_length: usize,
}

impl Shape {
    /// Tokens at most that a decoder writes, its end included.
    pub fn longest_written(&self) -> usize {
        match self.objective {
            Objective::Summarize { longest } => longest.min(self.max_length),
            _ => self.max_length,
        }
    }
}

/// An evaluation split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// For model selection.
    Valid,
    /// For reported results.
    Test,
}

impl Split {
    /// Its name in files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Test => "test",
        }
    }
}

/// Data of a task: everything that training, evaluation and reports need. Any implementation can be trained on.
///
/// ```
/// use burn::tensor::Device;
/// use regard_kernels::AttentionOptions;
/// use regard_nn::models::{ModelConfig, TokenBatch};
/// use regard_tasks::{
///     data::{Batch, Batches, DataError, Objective, Shape, Split, SplitBatches, Task, TaskData},
///     train::{Model, TrainConfig, Trainer},
/// };
///
/// /// Whether the first of eight tokens is odd.
/// #[derive(Debug)]
/// struct Parity;
///
/// fn batch(first: u64, rows: usize) -> Batch {
///     let ids: Vec<i32> = (0..8 * rows).map(|i| (first as i32 + i as i32) * 7 % 10).collect();
///     let targets: Vec<i32> = ids.chunks(8).map(|row| row[0] % 2).collect();
///     let tokens = TokenBatch { ids: ids.into(), batch: rows, length: 8, padding: None, types: None };
///     Batch { tokens, targets: targets.into(), source: None, readers: None }
/// }
///
/// impl Task for Parity {
///     fn shape(&self) -> Shape {
///         Shape { objective: Objective::Classify { classes: 2 }, vocabulary: 10, max_length: 8 }
///     }
///     fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError> {
///         Ok(Box::new(move |index| batch(seed + index, rows)))
///     }
///     fn split(&self, _: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
///         Ok(Box::new((0..4u32).map(move |index| batch(1000 + u64::from(index), rows))))
///     }
///     fn setting(&self) -> String {
///         "sequences of 8 digits".into()
///     }
/// }
///
/// let data: TaskData = Box::new(Parity);
/// let (model, attention) = (ModelConfig::default(), AttentionOptions::default());
/// let model = Model::build(&model, &attention, &data, 1, &Device::flex().autodiff())?;
/// let config = TrainConfig { steps: 2, batch: 4, ..TrainConfig::default() };
/// let mut trainer = Trainer::new(model, &data, &config, 1)?;
/// trainer.run()?;
/// assert!(trainer.evaluate_best(Split::Test)?.accuracy.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Task: Debug + Send + Sync {
    /// Properties that a model depends on.
    fn shape(&self) -> Shape;

    /// Training batches of `rows` sequences.
    ///
    /// # Errors
    /// No rows, or no sequences.
    fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError>;

    /// A split in batches of `rows` sequences, every sequence once.
    ///
    /// # Errors
    /// No rows.
    fn split(&self, split: Split, rows: usize) -> Result<SplitBatches<'_>, DataError>;

    /// Short description of the data size.
    fn setting(&self) -> String;

    /// Types of tokens in the batches: 2 where a sequence is a pair of texts.
    fn token_types(&self) -> usize {
        1
    }

    /// Remarks for the user from loading.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// The tokenizer, if tokens are subwords.
    fn tokenizer(&self) -> Option<&TextTokenizer> {
        None
    }

    /// The characters behind the ids, if tokens are characters.
    fn characters(&self) -> Option<&Vocabulary> {
        None
    }

    /// What the ids stand for, if they are pieces of text.
    fn units(&self) -> Option<&TextUnits> {
        None
    }

    /// The token id of the first of the [units](Self::units): 1 where id 0 is padding.
    fn first_id(&self) -> i32 {
        0
    }

    /// The size of a split's text and how its windows follow one another, if the data are running text in three parts.
    fn extent(&self, _: Split) -> Option<TextExtent> {
        None
    }

    /// Fraction of the most frequent label of the test split, the baseline, if there are labels.
    fn majority(&self) -> Option<f64> {
        None
    }

    /// Sentences with reference translations, or documents and summaries, if any.
    fn pairs(&self, _: Split) -> Option<&SentencePairs> {
        None
    }

    /// What summaries of the [pairs](Self::pairs) are measured against, if they are documents.
    fn summaries(&self, _: Split) -> Option<&References> {
        None
    }

    /// What readers were offered, if that is to be ranked.
    fn impressions(&self, _: Split) -> Option<ImpressionPart<'_>> {
        None
    }
}

/// The text of an evaluation split: what its loss is shared among.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextExtent {
    /// Tokens that can be scored: all but the first.
    pub predictions: usize,
    /// Distance between the starts of neighbouring windows.
    pub stride: usize,
    /// Words, separated by white space, and line ends.
    pub words: usize,
    /// Characters.
    pub characters: usize,
    /// Bytes in UTF-8.
    pub bytes: usize,
    /// Whether tokens are words, some of them unknown, so that figures for each character or byte mean nothing.
    pub of_words: bool,
}

/// Options of a named task.
pub trait TaskOptions {
    /// One line for a list.
    fn summary(&self) -> &'static str;

    /// Checks for invalid options ([`DataError::is_config`]) and missing files.
    ///
    /// # Errors
    /// The first problem found.
    fn check(&self) -> Result<(), DataError>;

    /// Generates or reads the data; the options have passed [`TaskOptions::check`].
    ///
    /// # Errors
    /// Missing or corrupt data.
    fn load(&self, seed: u64, cache_dir: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError>;

    /// Properties known before the data are read; a vocabulary that depends on files is the usual or maximum one.
    fn shape(&self) -> Shape;

    /// Sequences and tokens of the smallest batch when `rows` are requested. If number and length of sequences depend
    /// on files: one sequence of one token.
    fn smallest_batch(&self, _rows: usize) -> [usize; 2] {
        [1, 1]
    }

    /// Memory held by the data, if known.
    fn held(&self) -> Option<Held> {
        None
    }
}

/// Minimum memory held by data.
#[derive(Clone, Debug)]
pub struct Held {
    /// Beginning of a sentence that ends with the size.
    pub what: String,
    /// Bytes.
    pub bytes: u128,
    /// Remedy if that is too much.
    pub remedy: &'static str,
}

/// Tokens and targets.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The sequences; of translations and summaries what is to be written, each after a begin token. The sequences of a pair are
    /// rows `2 i` and `2 i + 1`. Of news, each title that readers name once.
    pub tokens: TokenBatch,
    /// One per sequence or pair (classification, or a score as [`score_target`] writes it), one per reader (ranking: the place of
    /// the click in what is offered) or one per token (the others), row by row; negative ones are ignored.
    pub targets: Arc<[i32]>,
    /// The source sequences of translations, the documents of summaries.
    pub source: Option<TokenBatch>,
    /// Who reads the sequences, and what they are offered, in ranking.
    pub readers: Option<Readers>,
}

/// A score from 0 as a target: the bits of the number, which are not negative either.
pub fn score_target(score: f32) -> i32 {
    score.to_bits() as i32
}

/// The score that [`score_target`] wrote.
pub fn target_score(target: i32) -> f32 {
    f32::from_bits(target as u32)
}

impl Batch {
    /// Number of targets that are not ignored.
    pub fn items(&self) -> usize {
        self.targets.iter().filter(|target| **target >= 0).count()
    }

    /// Number of real tokens processed by the model.
    pub fn real_tokens(&self) -> usize {
        self.tokens.real_tokens() + self.source.as_ref().map_or(0, TokenBatch::real_tokens)
    }
}

/// Rows of the given lengths, padded to `length`.
pub(crate) fn padded(ids: Vec<i32>, lengths: &[usize], length: usize) -> TokenBatch {
    let padding = lengths.iter().any(|own| *own < length);
    let padding = padding.then(|| Arc::new(Padding::from_lengths(lengths, length)));
    TokenBatch { ids: ids.into(), batch: lengths.len(), length, padding, types: None }
}

/// Indices of `most` of `count` items, or of all if `most` is 0: the middle of each of `most` equal parts.
pub fn evenly(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let most = if most == 0 { count } else { most.min(count) };
    // The size of generated splits is up to the user.
    (0..most).map(move |part| ((2 * part as u128 + 1) * count as u128 / (2 * most as u128)) as usize)
}

/// `most` batches of a split, or all of them if `most` is 0: spread evenly, since they are sorted by length.
///
/// # Errors
/// Batches without rows.
pub fn split_batches(
    data: &TaskData,
    split: Split,
    rows: usize,
    most: usize,
) -> Result<impl Iterator<Item = Batch> + '_, DataError> {
    let batches = data.split(split, rows)?;
    let mut chosen = evenly(batches.len(), most).peekable();
    Ok(batches.enumerate().filter_map(move |(i, batch)| chosen.next_if_eq(&i).map(|_| batch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_batches_spreads_over_all() {
        let chosen = |count: usize, most| evenly(count, most).collect::<Vec<_>>();
        assert_eq!(chosen(10, 0), (0..10).collect::<Vec<_>>());
        assert_eq!(chosen(10, 2), [2, 7]);
        assert_eq!(chosen(10, 1), [5]);
        assert_eq!(chosen(3, 7), [0, 1, 2]);
        assert_eq!(chosen(7, 3), [1, 3, 5]);
        assert_eq!(chosen(0, 3), Vec::<usize>::new());
    }
}
