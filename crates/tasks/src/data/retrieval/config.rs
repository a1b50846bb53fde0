//! Options of document retrieval.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{CLASSES, DocumentPairs, PairData, VOCABULARY, films, rows};
use crate::data::{
    DataError, Objective, Progress, Shape, TaskData, TaskOptions,
    config::{check_file, check_fraction},
    file::Meter,
};

/// Matching two documents of bytes, from files (plain, gzip or bzip2, detected by content).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetrievalConfig {
    /// What the rows of the files are.
    pub format: RetrievalFormat,
    /// Training rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<PathBuf>,
    /// Validation rows; absent: a random `valid_fraction` of the training pairs or films, by the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<PathBuf>,
    /// Test rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<PathBuf>,
    /// Fraction of the training pairs or films held out if `valid` is absent, in (0, 1).
    pub valid_fraction: f64,
    /// Bytes kept of each document; also the model's maximum length.
    pub max_length: usize,
}

/// What the rows of a file are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RetrievalFormat {
    /// Label, two identifiers and two documents, as the files of Long Range Arena have them.
    #[default]
    Pairs,
    /// Reviews with the film that each is of: label, stars, identifier, film and text. Two reviews belong together if they
    /// are of one film.
    Films,
}

impl Default for RetrievalConfig {
    fn default() -> Self {
        Self {
            format: RetrievalFormat::Pairs,
            train: None,
            valid: None,
            test: None,
            valid_fraction: 0.1,
            max_length: 4000,
        }
    }
}

impl RetrievalConfig {
    /// A file that [`TaskOptions::check`] has found set.
    fn required<'a>(&self, key: &str, path: &'a Option<PathBuf>) -> Result<&'a Path, DataError> {
        path.as_deref().ok_or_else(|| {
            let problem = format!("is not set; give a TSV file: --set task.retrieval.{key}=FILE");
            DataError::config(&format!("retrieval.{key}"), problem)
        })
    }
}

impl TaskOptions for RetrievalConfig {
    fn summary(&self) -> &'static str {
        "whether two documents belong together, byte by byte, from TSV files (plain, .gz, .bz2)"
    }

    fn check(&self) -> Result<(), DataError> {
        self.required("train", &self.train)?;
        self.required("test", &self.test)?;
        if self.max_length == 0 {
            return Err(DataError::config("retrieval.max_length", "is 0; must be at least 1 (Long Range Arena: 4000)"));
        }
        if self.valid.is_none() {
            check_fraction("retrieval.valid_fraction", self.valid_fraction)?;
        }
        [&self.train, &self.valid, &self.test].into_iter().flatten().try_for_each(|path| check_file(path))
    }

    fn load(&self, seed: u64, _: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        let (train, test) = (self.required("train", &self.train)?, self.required("test", &self.test)?);
        let paths = [Some(train), self.valid.as_deref(), Some(test)];
        let meter = Meter::new(paths.into_iter().flatten(), progress);
        Ok(Box::new(match self.format {
            RetrievalFormat::Films => films::load(self, train, test, &meter, seed)?,
            RetrievalFormat::Pairs => {
                let read = |path: &Path| rows::read(meter.open(path)?, path, self.max_length);
                let all = read(train)?;
                let [valid, train]: [DocumentPairs; 2] = match &self.valid {
                    Some(path) => [read(path)?, all],
                    None if all.len() < 2 => {
                        let problem = "has a single pair, of which none can be held out for validation; set \
                                       task.retrieval.valid";
                        return Err(DataError::Content { path: train.into(), problem: problem.into() });
                    }
                    None => all.hold_out(self.valid_fraction, seed),
                };
                PairData { train, valid, test: read(test)?, max_length: self.max_length, notes: Vec::new() }
            }
        }))
    }

    fn shape(&self) -> Shape {
        let objective = Objective::ClassifyPairs { classes: CLASSES };
        Shape { objective, vocabulary: VOCABULARY, max_length: self.max_length }
    }
}
