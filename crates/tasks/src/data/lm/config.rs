//! Options of the language model.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{prepared::Prepared, source};
use crate::data::{
    DataError, Held, Objective, Progress, Shape, TaskData, TaskOptions,
    config::{check_file, check_fraction, check_vocabulary},
    tokenizer::SMALLEST_VOCABULARY,
};

/// Smallest vocabulary of words: one word, the unknown word and the end of a line.
const FEWEST_WORDS: usize = 3;

/// Characters that texts in English use, before a text is read.
const USUAL_CHARACTERS: usize = 100;

/// `task.lm.tokens`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TokenKind {
    /// Byte pairs learned from the training text (Sennrich et al. 2016).
    #[default]
    Subwords,
    /// The words of the training text, as in WikiText (Merity et al. 2016).
    Words,
    /// The characters of the text.
    Characters,
    /// Bytes of UTF-8.
    Bytes,
}

/// `task.lm.batches`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Batching {
    /// Every row goes on where it ended in the batch before.
    #[default]
    Streams,
    /// Windows at random positions.
    Windows,
}

/// Language model on texts in three parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LmConfig {
    /// A folder that `regard data prepare` has written, in place of texts: units and vocabulary are its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepared: Option<PathBuf>,
    /// Units of text.
    pub tokens: TokenKind,
    /// A folder laid out as WikiText: `wiki.train.tokens`, `wiki.valid.tokens`, `wiki.test.tokens`, plain, gzip or bzip2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Training text: files (plain, gzip or bzip2; JSON lines by their names) and folders of them, in this order. Without
    /// them and a `directory`: the embedded text (plays of Shakespeare).
    pub train: Vec<PathBuf>,
    /// Validation text; none: cut off from the training text.
    pub valid: Vec<PathBuf>,
    /// Test text; none: the end of the training text.
    pub test: Vec<PathBuf>,
    /// Fraction of the training text, before the test part, held out for validation if `valid` is empty, in (0, 1).
    pub valid_fraction: f64,
    /// Fraction of the training text, at its end, held out for testing if `test` is empty, in (0, 1).
    pub test_fraction: f64,
    /// The field of JSON lines that holds the text.
    pub field: String,
    /// Whether lines of a paragraph, which ends with an empty line, are joined into one.
    pub paragraphs: bool,
    /// Maximum vocabulary of words or byte pairs.
    pub vocabulary: usize,
    /// Words that occur less often in the training text are unknown.
    pub min_count: usize,
    /// The `tokenizer.json` of a run, instead of byte pairs learned here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// Tokens predicted per window, each from those before it in the window.
    pub context: usize,
    /// How training windows follow one another.
    pub batches: Batching,
    /// Distance between the starts of neighbouring windows of the test split, at most `context`; in each but the first only
    /// the last tokens are scored, so many. Absent: `context`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stride: Option<usize>,
    /// The same for the validation split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_stride: Option<usize>,
}

impl Default for LmConfig {
    fn default() -> Self {
        Self {
            prepared: None,
            tokens: TokenKind::default(),
            directory: None,
            train: Vec::new(),
            valid: Vec::new(),
            test: Vec::new(),
            valid_fraction: 0.05,
            test_fraction: 0.05,
            field: "text".into(),
            paragraphs: false,
            vocabulary: 4000,
            min_count: 1,
            tokenizer: None,
            context: 128,
            batches: Batching::default(),
            stride: None,
            valid_stride: None,
        }
    }
}

impl LmConfig {
    fn check_tokens(&self) -> Result<(), DataError> {
        match self.tokens {
            TokenKind::Subwords if self.tokenizer.is_none() => check_vocabulary("lm.vocabulary", self.vocabulary)?,
            TokenKind::Words if self.vocabulary < FEWEST_WORDS => {
                let problem = format!(
                    "is {}; must be at least {FEWEST_WORDS}: a word, the unknown word and the end of a line",
                    self.vocabulary
                );
                return Err(DataError::config("lm.vocabulary", problem));
            }
            _ => {}
        }
        match (&self.tokenizer, self.tokens) {
            (Some(path), TokenKind::Subwords) => check_file(path),
            (Some(_), _) => {
                let problem = "is set, but tokens are no subwords; leave it out or set task.lm.tokens=subwords";
                Err(DataError::config("lm.tokenizer", problem))
            }
            (None, _) => Ok(()),
        }
    }

    /// Checks units and files, of a text that is to be prepared or read.
    pub(super) fn check_texts(&self, prepares: bool) -> Result<(), DataError> {
        self.check_tokens()?;
        self.check_parts(prepares)
    }

    /// A prepared text has its parts and its units.
    fn check_prepared(&self, folder: &Path) -> Result<(), DataError> {
        let beside = [
            ("directory", self.directory.is_some()),
            ("train", !self.train.is_empty()),
            ("valid", !self.valid.is_empty()),
            ("test", !self.test.is_empty()),
            ("tokenizer", self.tokenizer.is_some()),
        ];
        if let Some((key, _)) = beside.into_iter().find(|(_, set)| *set) {
            let problem =
                format!("is set, and so is task.lm.{key}; a prepared text has all its parts, leave out one of both");
            return Err(DataError::config("lm.prepared", problem));
        }
        Prepared::read(folder).map(drop)
    }

    /// Parquet files are prepared, where that is asked for, and otherwise not read.
    fn check_parts(&self, prepares: bool) -> Result<(), DataError> {
        let all = source::files(self)?;
        if let Some(path) = all.iter().flatten().find(|path| !prepares && source::is_parquet(path)) {
            return Err(source::parquet(path, "prepare it with a 'regard data prepare' built with --features parquet"));
        }
        let [_, valid, test] = all;
        let (mut cut, mut keys) = (0.0, Vec::new());
        for (files, key, fraction) in
            [(valid, "valid_fraction", self.valid_fraction), (test, "test_fraction", self.test_fraction)]
        {
            if files.is_empty() {
                check_fraction(&format!("lm.{key}"), fraction)?;
                cut += fraction;
                keys.push(key);
            }
        }
        if cut >= 1.0 {
            let problem = format!("is {cut} with that of the test text; must be below 1, the rest being for training");
            return Err(DataError::config("lm.valid_fraction", problem));
        }
        Ok(())
    }
}

impl TaskOptions for LmConfig {
    fn summary(&self) -> &'static str {
        "language model of characters, bytes, subwords or words: WikiText folders, text files, JSON lines, prepared texts"
    }

    fn check(&self) -> Result<(), DataError> {
        for (key, size) in [("context", self.context), ("min_count", self.min_count)] {
            if size == 0 {
                return Err(DataError::config(&format!("lm.{key}"), "is 0; must be at least 1"));
            }
        }
        for (key, stride) in [("stride", self.stride), ("valid_stride", self.valid_stride)] {
            if let Some(stride) = stride.filter(|stride| !(1..=self.context).contains(stride)) {
                let problem = format!("is {stride}; must be from 1 to task.lm.context ({})", self.context);
                return Err(DataError::config(&format!("lm.{key}"), problem));
            }
        }
        if let Some(folder) = &self.prepared {
            return self.check_prepared(folder);
        }
        self.check_texts(false)
    }

    fn load(&self, _: u64, _: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        Ok(Box::new(super::load(self, progress)?))
    }

    fn shape(&self) -> Shape {
        let prepared = self.prepared.as_deref().and_then(|folder| Prepared::read(folder).ok());
        let vocabulary = match self.tokens {
            _ if prepared.is_some() => prepared.map_or(0, |prepared| prepared.vocabulary),
            TokenKind::Bytes => 256,
            TokenKind::Characters => USUAL_CHARACTERS,
            TokenKind::Subwords => self.vocabulary.max(SMALLEST_VOCABULARY),
            TokenKind::Words => self.vocabulary,
        };
        Shape { objective: Objective::NextToken { certain: false }, vocabulary, max_length: self.context }
    }

    fn smallest_batch(&self, rows: usize) -> [usize; 2] {
        [rows, self.context]
    }

    /// What the files take on the disk: texts are not smaller in memory. Prepared ones are not held.
    fn held(&self) -> Option<Held> {
        if self.prepared.is_some() {
            return None;
        }
        let bytes: u64 =
            source::files(self).ok()?.iter().flatten().filter_map(|path| Some(path.metadata().ok()?.len())).sum();
        Some(Held {
            what: "the text of task.lm takes at least".into(),
            bytes: bytes.into(),
            remedy: "give a part of it, or work on a machine with more memory",
        })
    }
}
