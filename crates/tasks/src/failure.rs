//! What went wrong, in one sentence, and of which class it is.

use std::{
    error::Error,
    fmt::{self, Display},
    io,
    path::Path,
};

use regard_cluster::ClusterError;
use regard_nn::models::ParameterError;

use crate::{data::DataError, train::TrainError};

/// Class of an error; a program derives its exit code from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A check failed.
    Check,
    /// Wrong usage or configuration.
    Usage,
    /// Data missing or corrupt, files or results that cannot be written.
    Data,
    /// A number that is not finite.
    Numeric,
    /// More memory needed than there is, or a budget too small for anything.
    Budget,
    /// Stopped from outside; what was done until then is kept.
    Interrupted,
}

/// An error that knows its class.
pub trait Classed: Error {
    /// Its class.
    fn class(&self) -> Class;
}

/// Any error by its class, in a sentence that says what failed, the value seen, the value expected and one remedy.
#[derive(Debug)]
pub struct Failure {
    /// The class.
    pub class: Class,
    /// One sentence: what, seen, expected, remedy.
    pub message: String,
}

/// Longest sentence: what was typed may be long, and its ends say enough.
const LONGEST: usize = 2000;

fn shortened(message: String) -> String {
    if message.len() <= LONGEST {
        return message;
    }
    let half = LONGEST / 2;
    let (start, end) = (message.floor_char_boundary(half), message.ceil_char_boundary(message.len() - half));
    format!("{} [...] {}", &message[..start], &message[end..])
}

impl Failure {
    /// A failure, in a sentence of bearable length.
    pub fn new(class: Class, message: impl Display) -> Self {
        Self { class, message: shortened(message.to_string()) }
    }

    /// Wrong usage or configuration.
    pub fn usage(message: impl Display) -> Self {
        Self::new(Class::Usage, message)
    }

    /// Data missing or corrupt.
    pub fn data(message: impl Display) -> Self {
        Self::new(Class::Data, message)
    }

    /// A file that cannot be read.
    pub fn reading(path: &Path, error: &io::Error) -> Self {
        Self::data(format!("cannot read {}: {error}; check the path and its permissions", path.display()))
    }

    /// A file that cannot be written.
    pub fn writing(path: &Path, error: &io::Error) -> Self {
        Self::data(format!("cannot write {}: {error}; choose another path or free some space", path.display()))
    }

    /// What `regard_files::write_whole` says, which names the file.
    pub fn written(error: &io::Error) -> Self {
        Self::data(format!("{error}; choose another path or free some space"))
    }

    /// Stopped from outside.
    pub fn interrupted(message: impl Display) -> Self {
        Self::new(Class::Interrupted, message)
    }

    /// The same failure, with the place where it happened.
    #[must_use]
    pub fn at(self, place: impl Display) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }
}

impl Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl Error for Failure {}

impl<E: Classed> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error.class(), error)
    }
}

impl Classed for regard_kernels::Error {
    fn class(&self) -> Class {
        match self {
            Self::Option { .. } => Class::Usage,
            Self::Budget { .. } => Class::Budget,
            _ => Class::Data,
        }
    }
}

impl Classed for ParameterError {
    fn class(&self) -> Class {
        Class::Data
    }
}

impl Classed for ClusterError {
    fn class(&self) -> Class {
        Class::Interrupted
    }
}

impl Classed for DataError {
    fn class(&self) -> Class {
        if self.is_config() { Class::Usage } else { Class::Data }
    }
}

impl Classed for TrainError {
    fn class(&self) -> Class {
        match self {
            Self::Config { .. } | Self::NotEmpty { .. } | Self::SeveralRuns { .. } | Self::InUse { .. } => Class::Usage,
            Self::Model(regard_kernels::Error::Budget { .. }) => Class::Budget,
            Self::Model(_) => Class::Usage,
            Self::Data(data) => data.class(),
            Self::Numeric { .. } => Class::Numeric,
            Self::Cluster(_) => Class::Interrupted,
            _ => Class::Data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_has_an_end_whatever_was_typed() {
        let failure = Failure::usage(format!("--set: unknown key '{}'; see config", "ß".repeat(100_000)));
        assert!(failure.message.len() < LONGEST + 20, "{}", failure.message.len());
        assert!(failure.message.starts_with("--set: unknown key 'ß") && failure.message.ends_with("ß'; see config"));
        assert_eq!(Failure::data("short").message, "short");
    }
}
