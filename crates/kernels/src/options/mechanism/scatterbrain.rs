//! Options of Scatterbrain, and of the budget.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// `scatterbrain.*`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScatterbrainOptions {
    /// How the sparse and the low-rank part are combined.
    pub combination: Combination,
    /// Fraction of the budget for the support; the features get the rest.
    pub sparse_share: f64,
}

impl Default for ScatterbrainOptions {
    fn default() -> Self {
        // Three to one, as the paper trains (section 5).
        Self { combination: Combination::default(), sparse_share: 0.75 }
    }
}

/// `scatterbrain.combination`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Combination {
    /// Each pair counted once: exact on the support, features elsewhere.
    #[default]
    Corrected,
    /// Features everywhere plus exact weights on the support: pairs of the support count twice.
    Naive,
    /// The outputs of the two parts, averaged by a learned gate per head.
    Gated,
}

/// A fraction in `(0, 1]`: a number, or a string such as `1/8`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
pub struct Fraction(f64);

impl Fraction {
    /// # Errors
    /// A number outside `(0, 1]`.
    pub fn new(value: f64) -> Result<Self, Error> {
        if value > 0.0 && value <= 1.0 {
            Ok(Self(value))
        } else {
            Err(Error::option("budget", value, "a number above 0 and at most 1, as 0.125 or \"1/8\""))
        }
    }

    /// The value.
    pub fn value(self) -> f64 {
        self.0
    }
}

impl FromStr for Fraction {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = |part: &str| part.trim().parse::<f64>().ok();
        let value = match text.split_once('/') {
            Some((above, below)) => number(above).zip(number(below)).map(|(above, below)| above / below),
            None => number(text),
        };
        Self::new(value.unwrap_or(f64::NAN)).map_err(|_| {
            Error::option("budget", format!("'{text}'"), "a number above 0 and at most 1, as 0.125 or \"1/8\"")
        })
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(f64),
            Text(String),
        }
        let fraction = match Written::deserialize(deserializer)? {
            Written::Number(value) => Self::new(value),
            Written::Text(text) => text.parse(),
        };
        fraction.map_err(serde::de::Error::custom)
    }
}
