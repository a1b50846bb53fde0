//! Data sets: generators, readers, the cache of generated sets, and batches.
//!
//! A [`TaskConfig`] names a task; [`TaskConfig::load`] turns it into [`TaskData`]. Which items batch `t` holds is a
//! pure function of the data, the seed and `t`, so a resumed run needs to know nothing but its step.

mod batch;
mod cache;
mod char_lm;
mod config;
mod copy;
mod error;
mod file;
pub mod listops;
mod masked_lm;
mod order;
mod plain_text;
mod sentences;
mod sequences;
mod stream;
mod text;
pub mod tokenizer;
mod translation;

use std::path::Path;

pub use self::{
    batch::{BatchOptions, ClassificationBatch, TrainBatches, evaluation_batches},
    char_lm::{LanguageBatch, Vocabulary},
    config::{
        CharLmConfig, CopyConfig, ListOpsConfig, MaskedLmConfig, TaskConfig, TaskName, TextConfig, TranslationConfig,
    },
    copy::{CopyData, CopySplit},
    error::DataError,
    masked_lm::{MaskedBatch, MaskedBatches, MaskedData, Windows},
    plain_text::{NotText, TextLines, decode_text, read_text},
    sequences::Sequences,
    stream::Streams,
    tokenizer::TextTokenizer,
    translation::{SentencePairs, TranslationBatch, TranslationBatches, TranslationData},
};

/// Progress of a load: parts done and their total. The unit is the task's (trees, bytes).
pub type Progress<'a> = &'a dyn Fn(u64, u64);

/// What a task trains and is measured on.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // One value a run.
pub enum TaskData {
    /// Sequences with one label each.
    Classification(ClassificationData),
    /// One text, to predict the next token.
    Language(LanguageData),
    /// Random words to copy.
    Copy(CopyData),
    /// Sentences and their translations.
    Translation(TranslationData),
    /// Texts with masked tokens to predict.
    Masked(MaskedData),
}

/// Labelled sequences in three splits.
#[derive(Clone, Debug)]
pub struct ClassificationData {
    /// To train on.
    pub train: Sequences,
    /// To choose a model by.
    pub valid: Sequences,
    /// To report results on.
    pub test: Sequences,
    /// Labels are `0 .. classes`.
    pub classes: usize,
    /// Token ids are `0 .. vocabulary`; 0 is padding.
    pub vocabulary: usize,
    /// No sequence is longer, and no batch wider.
    pub max_length: usize,
    /// Remarks for the user, as when a damaged cache file was replaced.
    pub notes: Vec<String>,
}

/// One text in two splits.
#[derive(Clone, Debug)]
pub struct LanguageData {
    /// Token ids to train on, in order.
    pub train: Vec<u16>,
    /// Token ids to validate on, in order.
    pub valid: Vec<u16>,
    /// The characters behind the ids.
    pub vocabulary: Vocabulary,
    /// Tokens that a window predicts.
    pub context: usize,
    /// Remarks for the user.
    pub notes: Vec<String>,
}

impl TaskConfig {
    /// Checks the options, then generates or reads the data.
    ///
    /// `seed` is the run's, overruled by [`TaskConfig::seed`]. Generated sets are kept in `cache_dir`, if there is one;
    /// a damaged file there is replaced and a cache that cannot be written is done without, with a note in the result.
    /// `progress` is called from the calling thread.
    ///
    /// ```
    /// use regard_tasks::data::{CharLmConfig, TaskConfig, TaskData, TaskName};
    ///
    /// let char_lm = CharLmConfig { context: 64, ..CharLmConfig::default() };
    /// let task = TaskConfig { name: TaskName::CharLm, char_lm, ..TaskConfig::default() };
    /// let TaskData::Language(text) = task.load(1, None, &|_done, _total| {})? else { unreachable!() };
    /// assert_eq!(text.context, 64);
    /// assert_eq!(text.train.len() + text.valid.len(), 1_115_394); // of the embedded text
    /// # Ok::<(), regard_tasks::data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`TaskConfig::check`]; data that are missing or corrupt.
    pub fn load(&self, seed: u64, cache_dir: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        self.check()?;
        let seed = self.seed.unwrap_or(seed);
        match self.name {
            TaskName::Listops => {
                cache::load_listops(&self.listops, seed, cache_dir, progress).map(TaskData::Classification)
            }
            TaskName::Text => text::load(&self.text, seed, progress).map(TaskData::Classification),
            TaskName::CharLm => char_lm::load(&self.char_lm, progress).map(TaskData::Language),
            TaskName::Copy => Ok(TaskData::Copy(CopyData::new(&self.copy, seed))),
            TaskName::Translation => translation::load(&self.translation, progress).map(TaskData::Translation),
            TaskName::MaskedLm => masked_lm::load(&self.masked_lm, seed, progress).map(TaskData::Masked),
        }
    }
}

impl TaskData {
    /// Remarks for the user, gathered while the data were loaded.
    pub fn notes(&self) -> &[String] {
        match self {
            Self::Classification(data) => &data.notes,
            Self::Language(data) => &data.notes,
            Self::Copy(_) => &[],
            Self::Translation(data) => &data.notes,
            Self::Masked(data) => &data.notes,
        }
    }

    /// Token ids are `0 .. vocabulary`.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Classification(data) => data.vocabulary,
            Self::Language(data) => data.vocabulary.len(),
            Self::Copy(data) => data.vocabulary(),
            Self::Translation(data) => data.tokenizer.vocabulary(),
            Self::Masked(data) => data.tokenizer.vocabulary(),
        }
    }

    /// The longest sequence that a model must take.
    pub fn max_length(&self) -> usize {
        match self {
            Self::Classification(data) => data.max_length,
            Self::Language(data) => data.context,
            Self::Copy(data) => data.length(),
            Self::Translation(data) => data.max_length,
            Self::Masked(data) => data.context,
        }
    }

    /// The tokenizer, where tokens are pieces of words.
    pub fn tokenizer(&self) -> Option<&TextTokenizer> {
        match self {
            Self::Translation(data) => Some(&data.tokenizer),
            Self::Masked(data) => Some(&data.tokenizer),
            Self::Classification(_) | Self::Language(_) | Self::Copy(_) => None,
        }
    }
}
