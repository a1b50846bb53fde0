//! The values of a JSON object, with errors that name key, value seen and value expected.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::ConfigProblem;

/// Characters of a value that a message shows.
const SHOWN: usize = 60;
/// The largest size that is taken for one: far above any model, low enough that products of two stay in range.
const LARGEST: u64 = 1 << 28;

/// What a size is expected to be.
fn size() -> String {
    format!("a whole number from 1 to {LARGEST}")
}

/// A JSON object and the keys that lead to it.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    map: &'a Map<String, Value>,
    above: &'a str,
}

type Result<T> = std::result::Result<T, ConfigProblem>;

impl<'a> Keys<'a> {
    /// The object that a file holds.
    pub fn of(value: &'a Value) -> Result<Self> {
        let map =
            value.as_object().ok_or_else(|| ConfigProblem::new("the file", show(value), "an object with keys"))?;
        Ok(Self { map, above: "" })
    }

    /// The value of a key, unless it is missing or null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The object below a key, unless that is missing or null.
    pub fn below(&self, key: &'a str) -> Result<Option<Self>> {
        let below = |value: &'a Value| match value.as_object() {
            Some(map) => Ok(Self { map, above: key }),
            None => Err(self.problem(key, "an object with keys")),
        };
        self.get(key).map(below).transpose()
    }

    /// An error about a key.
    pub fn problem(&self, key: &str, expected: impl std::fmt::Display) -> ConfigProblem {
        let seen = self.map.get(key).map_or_else(|| "missing".into(), show);
        let key = if self.above.is_empty() { key.to_string() } else { format!("{}.{key}", self.above) };
        ConfigProblem::new(key, seen, expected)
    }

    fn optional<T>(&self, key: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        self.get(key).map(|value| read(value).ok_or_else(|| self.problem(key, expected))).transpose()
    }

    /// A size.
    pub fn size(&self, key: &str) -> Result<usize> {
        self.optional_size(key)?.ok_or_else(|| self.problem(key, size()))
    }

    /// A size that may be missing.
    pub fn optional_size(&self, key: &str) -> Result<Option<usize>> {
        let read = |value: &Value| value.as_u64().filter(|n| (1..=LARGEST).contains(n)).and_then(|n| n.try_into().ok());
        self.optional(key, &size(), read)
    }

    /// A whole number from 0 that may be missing.
    pub fn optional_index(&self, key: &str) -> Result<Option<usize>> {
        let read = |value: &Value| value.as_u64().filter(|n| *n <= LARGEST).and_then(|n| n.try_into().ok());
        self.optional(key, "a whole number", read)
    }

    /// The id of a token that may be missing, or -1, as some files say it.
    pub fn optional_id(&self, key: &str) -> Result<Option<u32>> {
        if self.get(key).is_some_and(|value| *value == -1) {
            return Ok(None);
        }
        self.optional(key, "the number of a token", id)
    }

    /// A positive number that may be missing.
    pub fn optional_positive(&self, key: &str) -> Result<Option<f64>> {
        let read = |value: &Value| value.as_f64().filter(|x| *x > 0.0 && x.is_finite());
        self.optional(key, "a number above 0", read)
    }

    /// A positive number.
    pub fn positive(&self, key: &str) -> Result<f64> {
        self.optional_positive(key)?.ok_or_else(|| self.problem(key, "a number above 0"))
    }

    /// A number of at least 0 that may be missing.
    pub fn optional_number(&self, key: &str) -> Result<Option<f64>> {
        self.optional(key, "a number of at least 0", |value| value.as_f64().filter(|x| *x >= 0.0 && x.is_finite()))
    }

    /// Yes or no.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.optional_flag(key)?.unwrap_or(default))
    }

    /// Yes or no, or missing.
    pub fn optional_flag(&self, key: &str) -> Result<Option<bool>> {
        self.optional(key, "true or false", Value::as_bool)
    }

    /// A text that may be missing.
    pub fn optional_text(&self, key: &str) -> Result<Option<&'a str>> {
        self.optional(key, "a text", Value::as_str)
    }

    /// Refuses a flag that asks for what is not supported.
    pub fn only(&self, key: &str, only: bool) -> Result<()> {
        if self.flag(key, only)? == only {
            Ok(())
        } else {
            Err(self.problem(key, format!("{only}, the only one read")))
        }
    }
}

/// The id of a token.
pub(crate) fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| n.try_into().ok())
}

/// A value as it stands in the file, cut where it is long.
pub(crate) fn show(value: &Value) -> String {
    let text = value.to_string();
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        let _ = write!(shown, "...");
    }
    shown
}
