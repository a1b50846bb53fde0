//! Errors of a task's options or its data.

use std::{io, path::PathBuf};

use regard_files::text::NotText;

/// An error of a data set: invalid options ([`DataError::is_config`]), or missing or corrupt data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// An option of the task that cannot be satisfied.
    #[error("task.{key}: {problem}")]
    Config {
        /// The option below `task`, as in `listops.min_length`.
        key: String,
        /// The value seen, the value expected and a remedy.
        problem: String,
    },
    /// A file that cannot be opened, read or decompressed.
    #[error("cannot read {}: {source}; {remedy}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system or the decompressor.
        source: io::Error,
        /// What to do about it.
        remedy: String,
    },
    /// An invalid row of a file.
    #[error("{}:{line}: {problem}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What was seen, what was expected and a remedy.
        problem: String,
    },
    /// A readable file with unusable content.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What was seen, what was expected and a remedy.
        problem: String,
    },
    /// A label, a symbol, an expression or a character outside its set.
    #[error("{0}")]
    Value(String),
}

impl DataError {
    /// Whether the options are invalid rather than the data: exit code 2, not 3.
    pub fn is_config(&self) -> bool {
        matches!(self, Self::Config { .. })
    }

    pub(crate) fn config(key: &str, problem: impl Into<String>) -> Self {
        Self::Config { key: key.into(), problem: problem.into() }
    }

    /// Bytes of a file that are not text.
    pub(crate) fn text(path: impl Into<PathBuf>, error: &NotText) -> Self {
        Self::Row { path: path.into(), line: error.line, problem: error.to_string() }
    }

    pub(crate) fn read(path: impl Into<PathBuf>, source: io::Error) -> Self {
        let remedy = match source.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "check the permissions",
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                "the file is truncated or damaged: fetch it again"
            }
            _ => "check the path and the disk",
        };
        Self::Read { path: path.into(), source, remedy: remedy.into() }
    }
}
