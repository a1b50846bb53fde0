//! Results: all that goes to standard output. What cannot be written there fails the command.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write, stdout},
};

use serde_json::Value;

use crate::{
    error::{Failure, Outcome},
    signal,
};

/// Prints a text as it is. It has left the process when this returns.
///
/// # Errors
/// A full disk, and what else the system says. Where the reader has gone, the process ends quietly.
pub fn text(text: impl Display) -> Outcome {
    bytes(text.to_string().as_bytes())
}

/// Prints a text and a line end.
///
/// # Errors
/// As [`text`].
pub fn line(text: impl Display) -> Outcome {
    bytes(format!("{text}\n").as_bytes())
}

/// Prints a JSON value.
///
/// # Errors
/// As [`text`].
pub fn json(value: &Value) -> Outcome {
    line(serde_json::to_string_pretty(value).expect("a JSON value"))
}

/// Prints bytes as they are.
///
/// # Errors
/// As [`text`].
pub fn bytes(bytes: &[u8]) -> Outcome {
    print(|| stdout().write_all(bytes))
}

/// Prints by a function that knows how to.
///
/// # Errors
/// As [`text`].
pub fn print(write: impl FnOnce() -> io::Result<()>) -> Outcome {
    write().and_then(|()| stdout().flush()).map_err(|error| {
        if error.kind() == ErrorKind::BrokenPipe {
            signal::end_with_reader();
        }
        Failure::data(format!("cannot write to standard output: {error}; send it elsewhere or free some space"))
    })
}
