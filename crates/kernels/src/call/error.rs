//! Errors of a call: what is wrong, the value seen, the value expected.

/// An invalid call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has the wrong shape.
    #[error("tensor '{tensor}' has shape {seen:?}, expected {expected}")]
    Shape {
        /// Name of the tensor.
        tensor: String,
        /// The shape seen.
        seen: Vec<usize>,
        /// What was expected.
        expected: String,
    },
    /// A tensor that the mechanism needs is missing.
    #[error("tensor '{tensor}' is missing: {why}")]
    Missing {
        /// Name of the tensor.
        tensor: String,
        /// The reason why it is needed.
        why: String,
    },
    /// An option has an invalid value.
    #[error("{option} is {seen}, expected {expected}")]
    Option {
        /// Name of the option.
        option: String,
        /// Its value.
        seen: String,
        /// What was expected.
        expected: String,
    },
    /// A budget too small for the smallest sizes.
    #[error("budget is {seen}, expected {expected}")]
    Budget {
        /// The budget.
        seen: String,
        /// The minimum, and why.
        expected: String,
    },
}

impl Error {
    /// A tensor of the wrong shape.
    pub fn shape(tensor: impl Into<String>, seen: &[usize], expected: impl Into<String>) -> Self {
        Self::Shape { tensor: tensor.into(), seen: seen.to_vec(), expected: expected.into() }
    }

    /// A tensor with the wrong number of axes.
    pub fn rank(tensor: impl Into<String>, seen: &[usize], expected: usize) -> Self {
        Self::shape(tensor, seen, format!("{expected} axes"))
    }

    /// A missing tensor.
    pub fn missing(tensor: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Missing { tensor: tensor.into(), why: why.into() }
    }

    /// An option out of range.
    pub fn option(option: impl Into<String>, seen: impl ToString, expected: impl Into<String>) -> Self {
        Self::Option { option: option.into(), seen: seen.to_string(), expected: expected.into() }
    }

    /// Fails unless `seen` equals `expected`.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn check_shape(tensor: &str, seen: &[usize], expected: &[usize]) -> Result<(), Self> {
        if seen == expected { Ok(()) } else { Err(Self::shape(tensor, seen, format!("{expected:?}"))) }
    }
}
