//! What can be wrong with a model folder.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use safetensors::Dtype;

/// Tensors that a message lists; the error holds all of them.
const LISTED: usize = 20;

/// An error of a model folder: what is wrong, the value seen, the value expected and a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PretrainedError {
    /// Sizes or options that the model cannot have.
    #[error(transparent)]
    Model(#[from] regard_kernels::Error),
    /// A file or folder that cannot be read.
    #[error("cannot read {}: {source}; {remedy}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A file or folder that cannot be written.
    #[error("cannot write {}: {source}; free some space or choose another folder", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A whole file that cannot be written: what [`regard_files::write_whole`] says, which names it.
    #[error("{0}; free some space or choose another path")]
    WriteWhole(io::Error),
    /// A file or folder whose content is not what it should be.
    #[error("{}: {problem}", path.display())]
    Content {
        /// The file or folder.
        path: PathBuf,
        /// What was seen, what was expected and what to do.
        problem: String,
    },
    /// A value of `config.json` or of one of its companions.
    #[error("{}: {problem}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The value.
        problem: ConfigProblem,
    },
    /// Tensors that are not those of the architecture, all of them.
    #[error("{}: {}", path.display(), List(problems))]
    Tensors {
        /// The folder.
        path: PathBuf,
        /// At least one.
        problems: Vec<TensorProblem>,
    },
    /// A text or a token that cannot be handled, or a conversation that a template refuses.
    #[error("{0}")]
    Text(String),
    /// A result that is no finite number.
    #[error("{0}")]
    Numbers(String),
}

impl PretrainedError {
    pub(crate) fn content(path: &Path, problem: impl Into<String>) -> Self {
        Self::Content { path: path.into(), problem: problem.into() }
    }

    pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| {
            let remedy = match source.kind() {
                io::ErrorKind::NotFound => "check the path",
                io::ErrorKind::PermissionDenied => "check its permissions",
                _ => "check the disk, or fetch it again",
            };
            Self::Read { path, source, remedy }
        }
    }

    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Write { path, source }
    }

    pub(crate) fn config(path: &Path) -> impl FnOnce(ConfigProblem) -> Self {
        let path = path.to_path_buf();
        move |problem| Self::Config { path, problem }
    }
}

/// A value of a configuration that is missing, of the wrong kind, or at odds with another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {seen}; expected {expected}")]
pub struct ConfigProblem {
    /// The key, with those above it.
    pub key: String,
    /// Its value, or `missing`.
    pub seen: String,
    /// Valid values.
    pub expected: String,
}

impl ConfigProblem {
    pub(crate) fn new(key: impl Into<String>, seen: impl fmt::Display, expected: impl fmt::Display) -> Self {
        Self { key: key.into(), seen: seen.to_string(), expected: expected.to_string() }
    }
}

/// What is wrong with one tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorProblem {
    /// The architecture has it, the files have not.
    Missing {
        /// Its name in the files.
        name: String,
        /// Its sizes by the configuration.
        expected: Vec<usize>,
    },
    /// The files have it, the architecture has not.
    Unexpected {
        /// Its name.
        name: String,
        /// Its sizes.
        seen: Vec<usize>,
    },
    /// Sizes that are not those of the configuration.
    Shape {
        /// Its name.
        name: String,
        /// Its sizes in the file.
        seen: Vec<usize>,
        /// Its sizes by the configuration.
        expected: Vec<usize>,
    },
    /// Elements that are not read.
    Type {
        /// Its name.
        name: String,
        /// The type of its elements.
        seen: Dtype,
    },
    /// Two tensors that the configuration ties, with different values.
    Untied {
        /// Its name.
        name: String,
        /// The name of the other.
        other: String,
    },
}

impl fmt::Display for TensorProblem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, expected } => write!(out, "tensor '{name}' is missing; expected shape {expected:?}"),
            Self::Unexpected { name, seen } => {
                write!(
                    out,
                    "tensor '{name}' of shape {seen:?} has no place in the model; allow it by name to leave it out"
                )
            }
            Self::Shape { name, seen, expected } => {
                write!(out, "tensor '{name}' has shape {seen:?}; by config.json expected {expected:?}")
            }
            Self::Type { name, seen } => write!(out, "tensor '{name}' holds {seen:?}; expected F32, F16 or BF16"),
            Self::Untied { name, other } => write!(
                out,
                "tensor '{name}' differs from '{other}', to which config.json ties it; expected equal values, or \
                 tie_word_embeddings false"
            ),
        }
    }
}

struct List<'a>(&'a [TensorProblem]);

impl fmt::Display for List<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().take(LISTED).enumerate() {
            write!(out, "{}{problem}", if i == 0 { "" } else { "; " })?;
        }
        match self.0.len().saturating_sub(LISTED) {
            0 => Ok(()),
            more => write!(out, "; and {more} more"),
        }
    }
}
