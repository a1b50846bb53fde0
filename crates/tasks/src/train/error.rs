//! What can go wrong in training.

use std::{
    fmt::Display,
    io,
    path::{Path, PathBuf},
};

use regard_cluster::ClusterError;

use crate::data::DataError;

/// An error of the training loop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// An invalid number in the configuration.
    #[error("train.{key} is {seen}; expected {expected}")]
    Config {
        /// The option below `train`.
        key: String,
        /// Its value.
        seen: String,
        /// Valid values.
        expected: String,
    },
    /// A model that cannot be built, or that does not fit the task.
    #[error(transparent)]
    Model(#[from] regard_kernels::Error),
    /// Data missing or corrupt.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A run directory that already holds something.
    #[error(
        "{} is not empty; continue its run with --resume, start over with --overwrite, or choose another directory",
        path.display()
    )]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// A directory of runs, which is no run.
    #[error("{} holds several runs, so --overwrite leaves it alone; choose another directory", path.display())]
    SeveralRuns {
        /// The directory.
        path: PathBuf,
    },
    /// A directory that another process writes to.
    #[error("{} is in use by another process; wait for its end, stop it, or choose another directory", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A file or directory that cannot be written.
    #[error("cannot write {}: {source}; {remedy}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A file that cannot be read.
    #[error("cannot read {}: {source}; {remedy}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
        /// What to do about it.
        remedy: String,
    },
    /// A checkpoint that is damaged, or of another model or run.
    #[error("{}: {problem}", path.display())]
    Checkpoint {
        /// The file or directory.
        path: PathBuf,
        /// What was seen, what was expected and a remedy.
        problem: String,
    },
    /// Another rank of the job that is gone.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A loss or a gradient that is not a number.
    #[error(
        "{what} is {value} at step {step}; {kept}; try a lower train.optimizer.learning_rate, a longer \
             train.schedule.warmup or a smaller train.clip"
    )]
    Numeric {
        /// What is not finite.
        what: &'static str,
        /// Its value.
        value: f64,
        /// The step, counted from 1.
        step: usize,
        /// Which checkpoint remains.
        kept: String,
    },
}

impl TrainError {
    pub(crate) fn config(key: &str, seen: impl Display, expected: impl Into<String>) -> Self {
        Self::Config { key: key.into(), seen: seen.to_string(), expected: expected.into() }
    }

    pub(crate) fn checkpoint(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::Checkpoint { path: path.into(), problem: problem.into() }
    }

    /// For `map_err` on the way to `path`.
    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| {
            let remedy = match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "free some space and continue with --resume"
                }
                io::ErrorKind::FileTooLarge => "raise the limit on the size of a file and continue with --resume",
                io::ErrorKind::NotFound => {
                    "was its directory removed or moved meanwhile? put it back and continue with --resume, or start over"
                }
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    "choose a directory that can be written"
                }
                io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                    "a file is in the way: choose another path"
                }
                _ => "check the path and the disk",
            };
            Self::Write { path: path.into(), source, remedy }
        }
    }

    /// For `map_err` on the way from `path`.
    pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Read { path: path.into(), source, remedy: "check the path and its permissions".into() }
    }
}
