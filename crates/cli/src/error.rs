//! Errors of a command and the exit code of each.

use std::{
    fmt::{self, Display},
    io,
    path::Path,
};

use regard_lab::{
    approx::SourceError, attend::AttendError, bench::BenchError, compare::CompareError, cost::model::CostError,
    inspect::SurveyError, probe::ProbeError,
};
use regard_nn::models::ParameterError;
use regard_tasks::{data::DataError, train::TrainError};

/// Exit codes, as `regard --help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// A check failed.
    Check = 1,
    /// Wrong usage or configuration.
    Usage = 2,
    /// Data missing or corrupt, files or results that cannot be written.
    Data = 3,
    /// A number that is not finite in training.
    Numeric = 4,
    /// More memory needed than there is, or a budget too small for anything.
    Budget = 5,
    /// Stopped by a signal, after a checkpoint.
    Interrupted = 130,
}

/// What went wrong, in one sentence, and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: Code,
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

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure, in a sentence of bearable length.
    pub fn new(code: Code, message: impl Display) -> Self {
        Self { code, message: shortened(message.to_string()) }
    }

    /// Wrong usage or configuration.
    pub fn usage(message: impl Display) -> Self {
        Self::new(Code::Usage, message)
    }

    /// Data missing or corrupt.
    pub fn data(message: impl Display) -> Self {
        Self::new(Code::Data, message)
    }

    /// A file that cannot be read.
    pub fn reading(path: &Path, error: &io::Error) -> Self {
        Self::data(format!("cannot read {}: {error}; check the path and its permissions", path.display()))
    }

    /// A file that cannot be written.
    pub fn writing(path: &Path, error: &io::Error) -> Self {
        Self::data(format!("cannot write {}: {error}; choose another path or free some space", path.display()))
    }

    /// What `write_whole` says, which names the file.
    pub fn written(error: &io::Error) -> Self {
        Self::data(format!("{error}; choose another path or free some space"))
    }

    /// Stopped by a signal.
    pub fn interrupted(message: impl Display) -> Self {
        Self::new(Code::Interrupted, message)
    }
}

impl Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<regard_kernels::Error> for Failure {
    fn from(error: regard_kernels::Error) -> Self {
        match error {
            regard_kernels::Error::Option { .. } => Self::usage(error),
            regard_kernels::Error::Budget { .. } => Self::new(Code::Budget, error),
            _ => Self::data(error),
        }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        let code = if error.is_config() { Code::Usage } else { Code::Data };
        Self::new(code, error)
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        let code = match &error {
            TrainError::Config { .. } | TrainError::NotEmpty { .. } | TrainError::InUse { .. } => Code::Usage,
            TrainError::Model(regard_kernels::Error::Budget { .. }) => Code::Budget,
            TrainError::Model(_) => Code::Usage,
            TrainError::Data(data) if data.is_config() => Code::Usage,
            TrainError::Numeric { .. } => Code::Numeric,
            _ => Code::Data,
        };
        Self::new(code, error)
    }
}

impl From<CompareError> for Failure {
    fn from(error: CompareError) -> Self {
        let message = error.to_string();
        let code = match error {
            CompareError::Run { source, .. } => Self::from(source).code,
            CompareError::Result { .. } => Code::Data,
            CompareError::Interrupted => Code::Interrupted,
        };
        Self::new(code, message)
    }
}

impl From<AttendError> for Failure {
    fn from(error: AttendError) -> Self {
        match error {
            AttendError::Data(message) => Self::data(message),
            AttendError::Call(error) => error.into(),
        }
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Data(message) => Self::data(message),
            SourceError::Model(message) => Self::usage(message),
            SourceError::Task(error) => error.into(),
        }
    }
}

impl From<SurveyError> for Failure {
    fn from(error: SurveyError) -> Self {
        match error {
            SurveyError::Model(message) => Self::usage(message),
            SurveyError::Options(error) => error.into(),
        }
    }
}

impl From<CostError> for Failure {
    fn from(error: CostError) -> Self {
        match error {
            CostError::Attention(error @ regard_kernels::Error::Budget { .. }) => error.into(),
            _ => Self::usage(error),
        }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        let code = match &error {
            BenchError::Options { source: regard_kernels::Error::Budget { .. }, .. } => Code::Budget,
            BenchError::Options { .. } | BenchError::Model { .. } | BenchError::Threads { .. } => Code::Usage,
            BenchError::Numeric { .. } => Code::Numeric,
            BenchError::Interrupted => Code::Interrupted,
        };
        Self::new(code, error)
    }
}

impl From<ProbeError> for Failure {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::Options(error) => error.into(),
            ProbeError::Data(error) => error.into(),
            ProbeError::Model(message) => Self::usage(message),
            ProbeError::Numeric { .. } | ProbeError::Classifier => Self::new(Code::Numeric, error),
            ProbeError::Interrupted => Self::interrupted(error),
        }
    }
}

impl From<ParameterError> for Failure {
    fn from(error: ParameterError) -> Self {
        Self::data(error)
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
