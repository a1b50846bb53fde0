//! Texts and targets of a split.

use std::{
    borrow::Cow,
    fs,
    io::BufRead,
    path::{Path, PathBuf},
};

use super::{
    fields::{Fields, Record},
    format::TextFormat,
    records,
};
use crate::data::{DataError, file::Meter};

/// What is said of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// A class, from 0.
    Class(usize),
    /// A score, from 0.
    Score(f32),
}

/// How targets are written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Labels {
    /// Whole numbers `first .. first + classes`.
    Numbers { first: usize, classes: usize },
    /// Names, by class.
    Names(Vec<String>),
    /// Scores, numbers from 0.
    Scores,
}

/// Whether targets are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Every row has one.
    Labelled,
    /// As the first row says.
    AsFound,
    /// None is looked at.
    Texts,
}

/// Rows of a file or a folder, as far as they belong to one split.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rows {
    pub path: PathBuf,
    /// One or two texts a row.
    pub texts: Vec<Vec<Box<[u8]>>>,
    /// A target for each row, or none at all.
    pub targets: Vec<Target>,
    /// Their lines in the file ...
    pub lines: Vec<u64>,
    /// ... or the files of a folder.
    pub files: Vec<PathBuf>,
    /// Rows of a set known for broken ones that were left out.
    pub skipped: usize,
}

/// How rows are read.
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub format: TextFormat,
    pub fields: Fields,
    pub labels: Labels,
    pub reading: Reading,
    /// Bytes of a text that are kept.
    pub most: usize,
}

impl Labels {
    /// Number of classes, if there are classes.
    pub fn classes(&self) -> Option<usize> {
        match self {
            Self::Numbers { classes, .. } => Some(*classes),
            Self::Names(names) => Some(names.len()),
            Self::Scores => None,
        }
    }

    /// A class as files write it.
    pub fn name(&self, class: usize) -> String {
        match self {
            Self::Numbers { first, .. } => (first + class).to_string(),
            Self::Names(names) => names.get(class).cloned().unwrap_or_default(),
            Self::Scores => String::new(),
        }
    }

    /// The target that is written so.
    ///
    /// # Errors
    /// Another text, as a sentence.
    pub fn target(&self, written: &[u8]) -> Result<Target, String> {
        let seen = written.trim_ascii();
        let text = std::str::from_utf8(seen).ok();
        let target = match self {
            Self::Numbers { first, classes } => {
                let number = text.and_then(|text| text.parse::<usize>().ok());
                number.and_then(|number| number.checked_sub(*first)).filter(|class| class < classes).map(Target::Class)
            }
            Self::Names(names) => names.iter().position(|name| name.as_bytes() == seen).map(Target::Class),
            Self::Scores => {
                let number = text.and_then(|text| text.parse::<f32>().ok());
                // The sum turns -0 into 0.
                number.filter(|number| number.is_finite() && *number >= 0.0).map(|number| Target::Score(number + 0.0))
            }
        };
        target.ok_or_else(|| {
            let shown = seen[..seen.len().min(40)].escape_ascii();
            match self {
                Self::Numbers { first, classes } => format!(
                    "label `{shown}`; expected a whole number from {first} to {} (task.text.first_label, \
                     task.text.classes); check the row, these two and task.text.label_column",
                    first.saturating_add(classes - 1)
                ),
                Self::Names(names) => format!(
                    "label `{shown}`; expected one of {} (task.text.labels); check the row, these and \
                     task.text.label_column",
                    names.join(", ")
                ),
                Self::Scores => format!(
                    "score `{shown}`; expected a number from 0; check the row and task.text.label_column, or shift all \
                     scores"
                ),
            }
        })
    }
}

impl Rows {
    /// The rows of `items`, in order.
    pub fn select(&self, items: &[usize]) -> Self {
        fn chosen<T: Clone>(all: &[T], items: &[usize]) -> Vec<T> {
            if all.is_empty() { Vec::new() } else { items.iter().map(|&i| all[i].clone()).collect() }
        }
        Self {
            path: self.path.clone(),
            texts: chosen(&self.texts, items),
            targets: chosen(&self.targets, items),
            lines: chosen(&self.lines, items),
            files: chosen(&self.files, items),
            skipped: 0,
        }
    }

    /// The class of row `i`; 0 where it has none.
    pub fn class(&self, i: usize) -> usize {
        match self.targets.get(i) {
            Some(Target::Class(class)) => *class,
            _ => 0,
        }
    }

    /// Where row `i` comes from, for errors.
    pub fn place(&self, i: usize) -> PathBuf {
        match self.files.get(i) {
            Some(file) => file.clone(),
            None => format!("{}:{}", self.path.display(), self.lines[i]).into(),
        }
    }
}

impl Form {
    /// All rows of one file or folder.
    ///
    /// # Errors
    /// A file that cannot be read, a row that is not of this form, or no rows.
    pub fn read(&self, meter: &Meter, path: &Path) -> Result<Rows, DataError> {
        match self.format {
            TextFormat::AclImdb => self.reviews(meter, path),
            _ => self.rows(meter.open(path)?, path),
        }
    }

    /// All rows of a file.
    ///
    /// # Errors
    /// As [`Form::read`].
    pub fn rows(&self, source: impl BufRead, path: &Path) -> Result<Rows, DataError> {
        let mut rows = Rows { path: path.into(), ..Rows::default() };
        let mut labelled = match self.reading {
            Reading::Labelled => Some(true),
            Reading::Texts => Some(false),
            Reading::AsFound => None,
        };
        records::each(source, path, self.format, &self.fields, |line, record, names| {
            // Some rows of this set are cut.
            if let (TextFormat::Qqp, Record::Columns(values, _)) = (self.format, &record)
                && values.len() < names.len()
            {
                rows.skipped += 1;
                return Ok(());
            }
            let labelled = *labelled.get_or_insert_with(|| self.fields.labelled(&record, names));
            let (texts, target) = self.fields.take(record, names, labelled)?;
            if let Some(target) = target {
                rows.targets.push(self.labels.target(&target)?);
            }
            rows.texts.push(texts.iter().map(|text| self.kept(text)).collect());
            rows.lines.push(line);
            Ok(())
        })?;
        if rows.texts.is_empty() {
            let problem = match self.format {
                TextFormat::JsonLines => "has no rows; a row is a JSON object with label and text",
                _ => "has no rows; a row is a label, a tab and a text",
            };
            return Err(DataError::Content { path: path.into(), problem: problem.into() });
        }
        Ok(rows)
    }

    fn kept(&self, text: &[u8]) -> Box<[u8]> {
        text[..text.len().min(self.most)].into()
    }

    /// The reviews below `pos` and `neg` of a folder, in the order of their names: `ID_STARS.txt`, one a file. The label is 1
    /// for `pos` and 0 for `neg`, or the stars, where there are more than two classes.
    fn reviews(&self, meter: &Meter, folder: &Path) -> Result<Rows, DataError> {
        let mut rows = Rows { path: folder.into(), ..Rows::default() };
        for (side, class) in [("neg", 0), ("pos", 1)] {
            let folder = folder.join(side);
            let entries = fs::read_dir(&folder).map_err(|source| DataError::read(&folder, source))?;
            let entries = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
            let mut files = entries.map_err(|source| DataError::read(&folder, source))?;
            files.retain(|file| file.extension().is_some_and(|ending| ending == "txt"));
            files.sort();
            for file in files {
                let wrong = |problem: String| DataError::Content { path: file.clone(), problem };
                let target = if self.labels.classes() == Some(2) {
                    Target::Class(class)
                } else {
                    let name = file.file_stem().map_or(Cow::default(), |name| name.to_string_lossy());
                    let stars = name.rsplit_once('_').map_or("", |(_, stars)| stars);
                    self.labels.target(stars.as_bytes()).map_err(|problem| {
                        wrong(format!("{problem}; the name of a file is an identifier, _ and its stars"))
                    })?
                };
                let mut text = Vec::new();
                let read = meter.open(&file)?.read_to_end(&mut text);
                read.map_err(|source| DataError::read(&file, source))?;
                if text.trim_ascii().is_empty() {
                    return Err(wrong("has no text; remove the file".into()));
                }
                rows.texts.push(vec![self.kept(&text)]);
                rows.targets.push(target);
                rows.files.push(file);
            }
        }
        if rows.texts.is_empty() {
            let problem = "has no reviews; expected pos/ID_STARS.txt and neg/ID_STARS.txt".into();
            return Err(DataError::Content { path: folder.into(), problem });
        }
        Ok(rows)
    }
}
