//! Options of text classification.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    TextFormat,
    fields::{Column, Columns, Fields},
    folder::Folder,
    load::{BYTES, load},
    rows::Labels,
    set::objective,
};
use crate::data::{
    DataError, Progress, Shape, TaskData, TaskOptions, TokenKind,
    config::{check_file, check_fraction, check_vocabulary},
};

/// Largest vocabulary of words or pieces: ids are stored in 16 bits.
const LARGEST: usize = 1 << 16;

/// Smallest vocabulary of words: one word, the unknown word, the end of a line and padding.
const FEWEST_WORDS: usize = 4;

/// Classification of texts or of pairs of texts, or their scores, from files (plain, gzip or bzip2, detected by content) or
/// from the folder of a public set.
///
/// Columns are numbered from 0; negative numbers count from the end of the row, -1 being the last. They may be named, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextConfig {
    /// The folder of a set, in place of the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The form of files or folder; absent: by their names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<TextFormat>,
    /// Training rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<PathBuf>,
    /// Validation rows; absent: a random `valid_fraction` of the training rows, by the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<PathBuf>,
    /// Test rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<PathBuf>,
    /// Fraction of the training rows held out if `valid` is absent, in (0, 1).
    pub valid_fraction: f64,
    /// Column of the label or score.
    pub label_column: Column,
    /// Column of the text, or several that are joined by a space.
    pub text_column: Columns,
    /// Column of the second text, where rows are pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second_column: Option<Column>,
    /// Whether the first line names the columns; it does where a column is given by name.
    pub header: bool,
    /// Labels are `first_label .. first_label + classes`.
    pub classes: usize,
    /// The smallest label in the files.
    pub first_label: usize,
    /// Labels that are words, in the order of their classes; `classes` and `first_label` do not count then.
    pub labels: Vec<String>,
    /// Whether rows have scores, numbers from 0, in place of labels: regression.
    pub regression: bool,
    /// Units of text: bytes, words or subwords.
    pub tokens: TokenKind,
    /// Maximum size of a vocabulary of words or subwords, which is learned from the training rows.
    pub vocabulary: usize,
    /// Tokens kept of each text, or of both with the separator between; also the model's maximum length.
    pub max_length: usize,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self {
            path: None,
            format: None,
            train: None,
            valid: None,
            test: None,
            valid_fraction: 0.1,
            label_column: Column::Place(0),
            text_column: Columns::One(Column::Place(-1)),
            second_column: None,
            header: false,
            classes: 2,
            first_label: 0,
            labels: Vec::new(),
            regression: false,
            tokens: TokenKind::Bytes,
            vocabulary: 30_000,
            max_length: 4000,
        }
    }
}

impl TaskOptions for TextConfig {
    fn summary(&self) -> &'static str {
        "classification or scores of texts or pairs by bytes, words or subwords, from TSV, CSV, JSON lines, GLUE or IMDB"
    }

    fn check(&self) -> Result<(), DataError> {
        let error = |key: &str, problem: String| Err(DataError::config(&format!("text.{key}"), problem));
        self.check_files()?;
        if self.text_column.all().contains(&self.label_column) {
            let seen = shown(&self.label_column);
            return error("text_column", format!("is {seen}, the column of the label too; they must differ"));
        }
        if self.text_column.all().is_empty() {
            return error("text_column", "is an empty list; expected at least one column".into());
        }
        if let Some(second) = &self.second_column
            && (self.text_column.all().contains(second) || *second == self.label_column)
        {
            let seen = shown(second);
            return error(
                "second_column",
                format!("is {seen}, the column of a text or the label too; they must differ"),
            );
        }
        // Labels are stored in 16 bits.
        if !(2..=65_536).contains(&self.classes) {
            return error("classes", format!("is {}; must be from 2 to 65536", self.classes));
        }
        let names = &self.labels;
        let twice = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name));
        if let Some((_, name)) = twice.filter(|_| !self.regression) {
            return error("labels", format!("has '{name}' twice; expected a name for each class"));
        }
        if names.len() == 1 || self.regression && !names.is_empty() {
            let expected = if self.regression { "none with task.text.regression" } else { "none, or two or more" };
            return error("labels", format!("has {}; expected {expected}", names.len()));
        }
        self.check_tokens()?;
        if self.valid.is_none() {
            check_fraction("text.valid_fraction", self.valid_fraction)?;
        }
        if let Some(path) = &self.path {
            let folder = Folder::of(path, self.format)?;
            let stars = folder.labels.is_none().then_some(self.labels_of(None));
            return match stars {
                Some(Labels::Numbers { classes, first }) if classes == 2 || (classes, first) == (10, 1) => Ok(()),
                Some(_) => error(
                    "classes",
                    format!(
                        "is {} and first_label {}; reviews in a folder have 2 classes (sides) from 0, or 10 (stars) from 1",
                        self.classes, self.first_label
                    ),
                ),
                None => Ok(()),
            };
        }
        [&self.train, &self.valid, &self.test].into_iter().flatten().try_for_each(|path| check_file(path))
    }

    fn load(&self, seed: u64, _: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        load(self, seed, progress)
    }

    fn shape(&self) -> Shape {
        let (fields, labels) = self.known();
        let separator = usize::from(fields.second.is_some());
        Shape {
            objective: objective(&labels),
            vocabulary: if self.tokens == TokenKind::Bytes { BYTES + separator } else { self.vocabulary },
            max_length: self.max_length,
        }
    }
}

fn shown(column: &Column) -> String {
    match column {
        Column::Place(place) => place.to_string(),
        Column::Name(name) => name.clone(),
    }
}

impl TextConfig {
    pub(super) fn check_files(&self) -> Result<(), DataError> {
        let error = |key: &str, problem: String| Err(DataError::config(&format!("text.{key}"), problem));
        let files = [("train", &self.train), ("valid", &self.valid), ("test", &self.test)];
        if self.path.is_some() {
            return match files.iter().find(|(_, path)| path.is_some()) {
                Some((key, _)) => error(key, "is set and task.text.path too; expected a folder or files".into()),
                None => Ok(()),
            };
        }
        match files.iter().find(|(key, path)| *key != "valid" && path.is_none()) {
            Some((key, _)) => error(
                key,
                format!("is not set; give a file: --set task.text.{key}=FILE, or a folder as task.text.path"),
            ),
            None if self.format == Some(TextFormat::AclImdb) => {
                error("format", "is acl-imdb, the form of a folder; set task.text.path".into())
            }
            None => Ok(()),
        }
    }

    fn check_tokens(&self) -> Result<(), DataError> {
        let error = |key: &str, problem: String| Err(DataError::config(&format!("text.{key}"), problem));
        let pairs = self.known().0.second.is_some();
        // Of a pair the separator, and a token on either side.
        let shortest = if pairs { 3 } else { 1 };
        if self.max_length < shortest {
            return error("max_length", format!("is {}; must be at least {shortest}", self.max_length));
        }
        match self.tokens {
            TokenKind::Bytes => {}
            TokenKind::Characters => {
                return error("tokens", "is 'characters'; must be bytes, words or subwords".into());
            }
            TokenKind::Subwords => check_vocabulary("text.vocabulary", self.vocabulary)?,
            TokenKind::Words if self.vocabulary < FEWEST_WORDS + usize::from(pairs) => {
                let fewest = FEWEST_WORDS + usize::from(pairs);
                return error("vocabulary", format!("is {}; must be at least {fewest}", self.vocabulary));
            }
            TokenKind::Words => {}
        }
        if self.tokens != TokenKind::Bytes && self.vocabulary > LARGEST {
            return error("vocabulary", format!("is {}; must be at most {LARGEST}", self.vocabulary));
        }
        Ok(())
    }

    /// The form of the set, as far as it can be told.
    pub(super) fn form(&self) -> Option<TextFormat> {
        self.format.or_else(|| TextFormat::of_folder(self.path.as_ref()?).map(|(format, _)| format))
    }

    /// The columns and labels of the set: those of its form, or those that the options say.
    pub(super) fn known(&self) -> (Fields, Labels) {
        let own = || Fields {
            label: self.label_column.clone(),
            text: self.text_column.clone(),
            second: self.second_column.clone(),
            header: self.header,
        };
        let (fields, labels) = self.form().and_then(TextFormat::known).unwrap_or_else(|| (own(), None));
        (fields, self.labels_of(labels))
    }

    /// The labels of a form, or those that the options say.
    pub(super) fn labels_of(&self, known: Option<Labels>) -> Labels {
        match known {
            Some(labels) => labels,
            None if self.regression => Labels::Scores,
            None if self.labels.is_empty() => Labels::Numbers { first: self.first_label, classes: self.classes },
            None => Labels::Names(self.labels.clone()),
        }
    }

    /// What is said where the form of a set is known, so that columns or labels of the options do not count.
    pub(super) fn unused(&self) -> Option<String> {
        let form = self.form()?;
        let (fields, labels) = form.known()?;
        let plain = Self { path: None, format: None, ..self.clone() };
        let (own, usual) = (plain.known(), Self::default().known());
        let other =
            own.0 != usual.0 && own.0 != fields || own.1 != usual.1 && labels.is_some_and(|known| known != own.1);
        other.then(|| {
            format!(
                "the files are read as the set {}, whose columns and labels are known: those of the options do not count; for \
                 others name the files with task.text.train and task.text.test",
                form.name()
            )
        })
    }

    /// Whether rows are pairs.
    pub(super) fn has_pairs(&self) -> bool {
        self.known().0.second.is_some()
    }
}
