//! What is known of a cell: its result, or why there is none.

use std::{fs, io, path::Path};

use regard_files::write_whole;
use regard_tasks::{Class, Failure, train::Environment};
use serde::{Deserialize, Serialize};

use super::Place;
use crate::compare::RunResult;

/// The file of a cell that has ended.
pub const CELL: &str = "cell.json";

/// A cell that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellRecord {
    /// Where it is.
    #[serde(flatten)]
    pub place: Place,
    /// Its seed.
    pub seed: u64,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How a cell ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was trained and measured.
    Finished(Box<Finished>),
    /// It has no result.
    Failed {
        /// Of which kind.
        reason: Reason,
        /// What failed, in one sentence.
        sentence: String,
    },
}

/// A result with what is needed to judge it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Measured figures.
    pub result: RunResult,
    /// Short description of the data.
    pub data: String,
    /// Fraction of the most frequent class among the test labels; classification only.
    pub majority: Option<f64>,
    /// Machine, version and date.
    pub environment: Environment,
}

/// Why a cell has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Options or sizes that do not fit each other.
    Configuration,
    /// Data missing or corrupt, or a damaged checkpoint.
    Data,
    /// A loss or a gradient that is not finite.
    Diverged,
    /// More memory needed than there is.
    Memory,
    /// An error of the program.
    Program,
}

impl Reason {
    /// In a few words, for a cell of a table.
    pub fn words(self) -> &'static str {
        match self {
            Self::Configuration => "invalid configuration",
            Self::Data => "no data",
            Self::Diverged => "diverged",
            Self::Memory => "too large for memory",
            Self::Program => "error of the program",
        }
    }

    /// Of a failure.
    pub fn of(failure: &Failure) -> Self {
        match failure.class {
            Class::Usage => Self::Configuration,
            Class::Numeric => Self::Diverged,
            Class::Budget => Self::Memory,
            Class::Data | Class::Check | Class::Interrupted => Self::Data,
        }
    }
}

impl CellRecord {
    /// The result, if there is one.
    pub fn finished(&self) -> Option<&Finished> {
        match &self.outcome {
            Outcome::Finished(finished) => Some(finished),
            Outcome::Failed { .. } => None,
        }
    }

    /// The record in the directory of a cell, if it has ended.
    ///
    /// # Errors
    /// A file that cannot be read or holds something else.
    pub fn read(directory: &Path) -> Result<Option<Self>, Failure> {
        let path = directory.join(CELL);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| Failure::reading(&path, &error))?,
        };
        serde_json::from_str(&text).map(Some).map_err(|error| {
            Failure::data(format!(
                "{}: no record of a cell ({error}); remove it to train the cell again",
                path.display()
            ))
        })
    }

    /// Forgets how a cell ended, before it is tried again.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn forget(directory: &Path) -> Result<(), Failure> {
        let path = directory.join(CELL);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::writing(&path, &error)),
            _ => Ok(()),
        }
    }

    /// Writes it into the directory of its cell.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).expect("strings and numbers");
        write_whole(&directory.join(CELL), (text + "\n").as_bytes()).map_err(|error| Failure::written(&error))
    }
}
