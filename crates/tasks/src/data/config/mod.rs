//! A task by name and the options of each.

mod subwords;

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

pub use self::subwords::{MaskedLmConfig, TranslationConfig};
use super::DataError;

/// Most tokens of a tree that is asked for.
const LONGEST_TREE: usize = 1 << 16;

/// Most sequences of a split that is drawn, and their most tokens: all tokens of a split can be counted.
const MOST_SEQUENCES: usize = 1 << 32;
const LONGEST_COPY: usize = 1 << 30;

/// A task by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskName {
    /// Long Range Arena ListOps: the value of a nested expression over lists of digits.
    #[default]
    Listops,
    /// Classification of texts read byte by byte.
    Text,
    /// Character language model.
    CharLm,
    /// Copying a random word over a long distance.
    Copy,
    /// Translation of sentences.
    Translation,
    /// Masked language model.
    MaskedLm,
}

impl TaskName {
    /// Every task, in the order of lists and reports.
    pub const ALL: &[TaskName] =
        &[Self::Listops, Self::Text, Self::CharLm, Self::Copy, Self::Translation, Self::MaskedLm];

    /// Its name in configurations, on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Listops => "listops",
            Self::Text => "text",
            Self::CharLm => "char-lm",
            Self::Copy => "copy",
            Self::Translation => "translation",
            Self::MaskedLm => "masked-lm",
        }
    }

    /// One line for a list.
    pub fn summary(self) -> &'static str {
        match self {
            Self::Listops => "Long Range Arena ListOps, generated: value (0-9) of a nested list expression",
            Self::Text => "byte-level text classification from a TSV file (plain, .gz, .bz2)",
            Self::CharLm => "character language model on an embedded public-domain text or any UTF-8 file",
            Self::Copy => "copying, generated: the second half of 0 w 0 w from the first",
            Self::Translation => "translation of sentences from pairs of files (plain, .gz, .bz2), measured in BLEU",
            Self::MaskedLm => "masked language model on an embedded public-domain text or any UTF-8 files",
        }
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TaskName {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        Self::ALL.iter().copied().find(|task| task.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|task| task.name()).collect();
            DataError::config("name", format!("no task is called `{name}`; the tasks are {}", names.join(", ")))
        })
    }
}

/// Which task, and the options of each (those of the other tasks are ignored).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TaskConfig {
    /// The task.
    pub name: TaskName,
    /// Seed of the generated data or of the validation split; absent: the seed of the run. Set it to train with
    /// several seeds on the same data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Options of `listops`.
    pub listops: ListOpsConfig,
    /// Options of `text`.
    pub text: TextConfig,
    /// Options of `char-lm`.
    pub char_lm: CharLmConfig,
    /// Options of `copy`.
    pub copy: CopyConfig,
    /// Options of `translation`.
    pub translation: TranslationConfig,
    /// Options of `masked-lm`.
    pub masked_lm: MaskedLmConfig,
}

/// The ListOps generator; the defaults are those of Long Range Arena.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListOpsConfig {
    /// Levels of a tree, the root's included; a node at the last level is always a digit.
    pub depth: u32,
    /// Most arguments of an operator; each has 2 to `max_arguments`.
    pub max_arguments: u32,
    /// A tree is kept iff it has more tokens than this ...
    pub min_length: usize,
    /// ... and fewer than this; also the longest sequence that a model must take.
    pub max_length: usize,
    /// Training trees.
    pub train: usize,
    /// Validation trees.
    pub valid: usize,
    /// Test trees.
    pub test: usize,
}

impl Default for ListOpsConfig {
    fn default() -> Self {
        Self {
            depth: 10,
            max_arguments: 10,
            min_length: 500,
            max_length: 2000,
            train: 96_000,
            valid: 2_000,
            test: 2_000,
        }
    }
}

/// Byte-level classification of the rows of a TSV file (plain, gzip or bzip2, told apart by content).
///
/// A column is a number from 0; a negative one counts from the end of the row, -1 being the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextConfig {
    /// Training rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<PathBuf>,
    /// Validation rows; absent: `valid_fraction` of the training rows, drawn by the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<PathBuf>,
    /// Test rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<PathBuf>,
    /// Part of the training rows held out where `valid` is absent, in (0, 1).
    pub valid_fraction: f64,
    /// Column of the label, a whole number.
    pub label_column: i64,
    /// Column of the text.
    pub text_column: i64,
    /// Whether the first line names the columns and is skipped.
    pub header: bool,
    /// Labels are `first_label .. first_label + classes`.
    pub classes: usize,
    /// The smallest label in the files.
    pub first_label: usize,
    /// Bytes kept of each text; also the longest sequence that a model must take.
    pub max_length: usize,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self {
            train: None,
            valid: None,
            test: None,
            valid_fraction: 0.1,
            label_column: 0,
            text_column: -1,
            header: false,
            classes: 2,
            first_label: 0,
            max_length: 4000,
        }
    }
}

/// Character language model on one text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CharLmConfig {
    /// A UTF-8 file (plain, gzip or bzip2); absent: the embedded text (the works of Shakespeare, 1,115,394 characters).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Part of the text, at its end, kept for validation, in (0, 1).
    pub valid_fraction: f64,
    /// Characters that a window predicts, each from those before it in the window.
    pub context: usize,
}

impl Default for CharLmConfig {
    fn default() -> Self {
        Self { path: None, valid_fraction: 0.1, context: 256 }
    }
}

/// Sequences `0 w 0 w` of a random word `w`; the defaults are those of Kitaev et al. 2020 (arXiv 2001.04451, section 5.1) and
/// of the Scatterbrain paper.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CopyConfig {
    /// Tokens of a sequence, an even number: the word has `length / 2 - 1`.
    pub length: usize,
    /// Different symbols of words, `1 ..= symbols`.
    pub symbols: usize,
    /// Training sequences.
    pub train: usize,
    /// Validation sequences.
    pub valid: usize,
    /// Test sequences.
    pub test: usize,
}

impl Default for CopyConfig {
    fn default() -> Self {
        Self { length: 1024, symbols: 127, train: 100_000, valid: 32, test: 64 }
    }
}

impl TaskConfig {
    /// Checks for invalid options of the chosen task ([`DataError::is_config`]) and missing files.
    ///
    /// # Errors
    /// The first problem found.
    pub fn check(&self) -> Result<(), DataError> {
        match self.name {
            TaskName::Listops => self.listops.check(),
            TaskName::Text => self.text.check(),
            TaskName::CharLm => self.char_lm.check(),
            TaskName::Copy => self.copy.check(),
            TaskName::Translation => self.translation.check(),
            TaskName::MaskedLm => self.masked_lm.check(),
        }
    }
}

impl ListOpsConfig {
    /// The longest tree that `depth` and `max_arguments` allow, saturating.
    fn longest(&self) -> usize {
        (1..self.depth).fold(1usize, |below, _| below.saturating_mul(self.max_arguments as usize).saturating_add(2))
    }

    /// # Errors
    /// Sizes that no tree can have.
    pub fn check(&self) -> Result<(), DataError> {
        let error = |key: &str, problem: String| Err(DataError::config(&format!("listops.{key}"), problem));
        // The generator recurses once a level.
        if !(1..=1000).contains(&self.depth) {
            return error("depth", format!("is {}; must be from 1 to 1000 (Long Range Arena: 10)", self.depth));
        }
        if self.max_arguments < 2 {
            let seen = self.max_arguments;
            return error("max_arguments", format!("is {seen}; an operator takes at least 2 (Long Range Arena: 10)"));
        }
        if self.max_length.saturating_sub(self.min_length) < 2 {
            return error(
                "min_length",
                format!(
                    "is {} and max_length is {}; a tree is kept iff min_length < length < max_length, so max_length \
                     must exceed min_length by 2 or more",
                    self.min_length, self.max_length
                ),
            );
        }
        // Thousands of trees are grown at once; some may be as long as they are let.
        if self.max_length > LONGEST_TREE {
            let seen = self.max_length;
            return error("max_length", format!("is {seen}, expected at most {LONGEST_TREE} (Long Range Arena: 2000)"));
        }
        if self.longest() <= self.min_length {
            return error(
                "min_length",
                format!(
                    "is {}, but trees of depth {} with up to {} arguments have at most {} tokens; lower min_length or \
                     raise depth or max_arguments",
                    self.min_length,
                    self.depth,
                    self.max_arguments,
                    self.longest()
                ),
            );
        }
        for (key, count) in [("train", self.train), ("valid", self.valid), ("test", self.test)] {
            if count == 0 {
                return error(key, "is 0; must be at least 1".into());
            }
        }
        Ok(())
    }
}

impl TextConfig {
    /// # Errors
    /// Absent training or test file, unusable numbers ([`DataError::is_config`]); missing files.
    pub fn check(&self) -> Result<(), DataError> {
        let error = |key: &str, problem: String| Err(DataError::config(&format!("text.{key}"), problem));
        for (key, path) in [("train", &self.train), ("test", &self.test)] {
            if path.is_none() {
                return error(key, format!("is not set; give a TSV file: --set task.text.{key}=FILE"));
            }
        }
        if self.label_column == self.text_column {
            let seen = self.label_column;
            return error("text_column", format!("is {seen}, the column of the label too; they must differ"));
        }
        // Labels are stored in 16 bits.
        if !(2..=65_536).contains(&self.classes) {
            return error("classes", format!("is {}; must be from 2 to 65536", self.classes));
        }
        if self.max_length == 0 {
            return error("max_length", "is 0; must be at least 1".into());
        }
        if self.valid.is_none() {
            check_fraction("text.valid_fraction", self.valid_fraction)?;
        }
        [&self.train, &self.valid, &self.test].into_iter().flatten().try_for_each(|path| check_file(path))
    }
}

impl CharLmConfig {
    /// # Errors
    /// Unusable numbers ([`DataError::is_config`]); a missing file.
    pub fn check(&self) -> Result<(), DataError> {
        if self.context == 0 {
            return Err(DataError::config("char_lm.context", "is 0; must be at least 1"));
        }
        check_fraction("char_lm.valid_fraction", self.valid_fraction)?;
        self.path.as_deref().map_or(Ok(()), check_file)
    }
}

impl CopyConfig {
    /// # Errors
    /// An odd length, one without a word, no symbols or too many, an empty split.
    pub fn check(&self) -> Result<(), DataError> {
        let error = |key: &str, problem: String| Err(DataError::config(&format!("copy.{key}"), problem));
        if !(4..=LONGEST_COPY).contains(&self.length) || self.length % 2 == 1 {
            let seen = self.length;
            let expected = format!("0 w 0 w has an even number of tokens, from 4 to {LONGEST_COPY}");
            return error("length", format!("is {seen}; {expected}"));
        }
        // Ids are stored in 16 bits, one of them for the 0.
        if !(1..1 << 16).contains(&self.symbols) {
            return error("symbols", format!("is {}; must be from 1 to 65535 (the papers: 127)", self.symbols));
        }
        for (key, count) in [("train", self.train), ("valid", self.valid), ("test", self.test)] {
            if !(1..=MOST_SEQUENCES).contains(&count) {
                return error(key, format!("is {count}; must be from 1 to {MOST_SEQUENCES}"));
            }
        }
        Ok(())
    }
}

fn check_fraction(key: &str, fraction: f64) -> Result<(), DataError> {
    if fraction > 0.0 && fraction < 1.0 {
        return Ok(());
    }
    Err(DataError::config(key, format!("is {fraction}; must lie between 0 and 1, both excluded")))
}

fn check_file(path: &Path) -> Result<(), DataError> {
    let about = std::fs::metadata(path).map_err(|source| DataError::read(path, source))?;
    if about.is_dir() {
        return Err(DataError::Content {
            path: path.into(),
            problem: "is a directory; give the path of a file in it".into(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused() {
        for &task in TaskName::ALL {
            assert_eq!(task.name().parse::<TaskName>().unwrap(), task);
            assert_eq!(serde_json::to_string(&task).unwrap(), format!("\"{task}\""));
        }
        let error = "list-ops".parse::<TaskName>().unwrap_err();
        assert!(error.is_config() && error.to_string().contains("listops, text, char-lm, copy"), "{error}");
    }

    #[test]
    fn absent_keys_take_their_defaults_and_unknown_ones_are_refused() {
        let config: TaskConfig = serde_json::from_str(r#"{"name":"char-lm","char_lm":{"context":64}}"#).unwrap();
        let char_lm = CharLmConfig { context: 64, ..CharLmConfig::default() };
        assert_eq!(config, TaskConfig { name: TaskName::CharLm, char_lm, ..TaskConfig::default() });
        let again: TaskConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
        assert!(serde_json::from_str::<TaskConfig>(r#"{"listops":{"min_lenght":5}}"#).is_err());
    }

    #[test]
    fn impossible_options_are_named() {
        let listops = |change: &dyn Fn(&mut ListOpsConfig)| {
            let mut config = TaskConfig::default();
            config.check().unwrap();
            change(&mut config.listops);
            config.check()
        };
        type Change<'a> = (&'a dyn Fn(&mut ListOpsConfig), &'a str);
        let changes: [Change; 6] = [
            (&|c| c.depth = 0, "task.listops.depth: is 0"),
            (&|c| c.max_arguments = 1, "task.listops.max_arguments: is 1"),
            (&|c| c.max_length = 501, "task.listops.min_length: is 500 and max_length is 501"),
            (&|c| c.min_length = usize::MAX, "task.listops.min_length: is 18446744073709551615"),
            (&|c| c.depth = 3, "trees of depth 3 with up to 10 arguments have at most 122 tokens"),
            (&|c| c.valid = 0, "task.listops.valid: is 0"),
        ];
        for (change, expected) in changes {
            let error = listops(change).unwrap_err();
            assert!(error.is_config() && error.to_string().contains(expected), "{error}");
        }
        let char_lm = CharLmConfig { valid_fraction: f64::NAN, ..CharLmConfig::default() };
        assert!(char_lm.check().unwrap_err().is_config());
        assert!(CharLmConfig { context: 0, ..CharLmConfig::default() }.check().unwrap_err().is_config());
        type CopyChange<'a> = (&'a dyn Fn(&mut CopyConfig), &'a str);
        let changes: [CopyChange; 6] = [
            (&|c| c.length = 1023, "task.copy.length: is 1023"),
            (&|c| c.length = 2, "task.copy.length: is 2"),
            (&|c| c.symbols = 65_536, "task.copy.symbols: is 65536"),
            (&|c| c.length = usize::MAX - 1, "task.copy.length: is 18446744073709551614"),
            (&|c| c.test = 0, "task.copy.test: is 0"),
            (&|c| c.train = usize::MAX, "task.copy.train: is 18446744073709551615"),
        ];
        for (change, expected) in changes {
            let mut config = TaskConfig { name: TaskName::Copy, ..TaskConfig::default() };
            config.check().unwrap();
            change(&mut config.copy);
            let error = config.check().unwrap_err();
            assert!(error.is_config() && error.to_string().contains(expected), "{error}");
        }
        assert!(TextConfig::default().check().unwrap_err().to_string().contains("task.text.train: is not set"));
    }

    #[test]
    fn missing_files_are_missing_data_and_not_a_wrong_option() {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("absent.tsv");
        let text = TextConfig { train: Some(absent.clone()), test: Some(absent.clone()), ..TextConfig::default() };
        let error = text.check().unwrap_err();
        assert!(matches!(&error, DataError::Read { path, .. } if *path == absent), "{error}");
        assert!(!error.is_config());
        let error =
            CharLmConfig { path: Some(directory.path().into()), ..CharLmConfig::default() }.check().unwrap_err();
        assert!(!error.is_config() && error.to_string().contains("is a directory"), "{error}");
    }
}
