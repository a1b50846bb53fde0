//! Options of mixtures of keys.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, IntoDeserializer, SeqAccess, Visitor},
};

use crate::Error;

/// `keys.*`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyOptions {
    /// Keys per position, `M`.
    pub components: usize,
    /// How the keys of a position differ.
    pub design: KeyDesign,
}

impl Default for KeyOptions {
    fn default() -> Self {
        Self { components: 2, design: KeyDesign::default() }
    }
}

/// How the keys of one position differ (MGK paper, section 3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyDesign {
    /// One projection per component (design A: MGK, MLK).
    #[default]
    Projected,
    /// One projection, and a learned shift per component (design B: sMGK, sMLK).
    Shifted,
}

/// `mixture.*`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MixtureOptions {
    /// How a query is assigned to components.
    pub inference: Inference,
    /// Score of a component.
    pub score: Score,
    /// Variances of the components.
    pub variances: Variances,
    /// Whether the prior depends on position.
    pub prior: Prior,
    /// Whether variances are learned.
    pub learn_variances: bool,
}

/// `mixture.inference`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inference {
    /// Every component weighted by its prior, learned by gradient.
    #[default]
    Soft,
    /// The same, with the prior set to the mean responsibility after each training step.
    SoftEm,
    /// The nearest component only, without a prior.
    Hard,
}

/// `mixture.score`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Score {
    /// `-|q - k|^2 / (2 s)`.
    #[default]
    Gaussian,
    /// `q.k / s`, the ablation "softmax MGK".
    Dot,
}

/// `mixture.prior`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prior {
    /// One prior per head and component.
    #[default]
    Tied,
    /// One prior per head, component and key position.
    PerPosition,
}

/// `mixture.variances`: a named choice or a list with one variance per component.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Variances {
    /// A named choice that scales with the head width.
    Named(NamedVariances),
    /// One variance per component.
    List(Vec<f64>),
}

impl<'de> Deserialize<'de> for Variances {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl<'de> Visitor<'de> for Written {
            type Value = Variances;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("'paper', 'paper-1-3', 'released-lm' or a list with one number a component")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Variances, E> {
                NamedVariances::deserialize(name.into_deserializer()).map(Variances::Named)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Variances, A::Error> {
                let mut variances = Vec::new();
                while let Some(variance) = list.next_element::<f64>()? {
                    variances.push(variance);
                }
                Ok(Variances::List(variances))
            }
        }

        deserializer.deserialize_any(Written)
    }
}

impl Default for Variances {
    fn default() -> Self {
        Self::Named(NamedVariances::Paper)
    }
}

/// Named choices of variances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamedVariances {
    /// `sqrt(D)` for all (MGK paper, appendix A.1).
    Paper,
    /// `sqrt(D)`, `3 sqrt(D)` (MGK paper, section 3.4).
    #[serde(rename = "paper-1-3")]
    Paper13,
    /// `sqrt(D)`, `sqrt(D) / 3` (the released language-model code).
    ReleasedLm,
}

impl Variances {
    /// Variances of `components` components for heads of `width`.
    ///
    /// # Errors
    /// A list of the wrong length, a variance that is not positive, or a two-component choice used with more.
    pub fn resolve(&self, components: usize, width: usize) -> Result<Vec<f64>, Error> {
        let root = (width as f64).sqrt();
        let pair = |second: f64, name: &str| match components {
            1 => Ok(vec![root]),
            2 => Ok(vec![root, second]),
            _ => Err(Error::option(
                "mixture.variances",
                format!("'{name}' with {components} components"),
                "a list with one variance a component, or 'paper'",
            )),
        };
        match self {
            Self::Named(NamedVariances::Paper) => Ok(vec![root; components]),
            Self::Named(NamedVariances::Paper13) => pair(3.0 * root, "paper-1-3"),
            Self::Named(NamedVariances::ReleasedLm) => pair(root / 3.0, "released-lm"),
            Self::List(list) if list.len() != components => Err(Error::option(
                "mixture.variances",
                format!("a list of {}", list.len()),
                format!("one variance for each of {components} components"),
            )),
            Self::List(list) => match list.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
                Some(bad) => Err(Error::option("mixture.variances", bad, "positive numbers")),
                None => Ok(list.clone()),
            },
        }
    }
}
