//! The list of mechanisms, their options, and the operators built from them.
//!
//! Code that iterates over every mechanism uses [`Mechanism::ALL`].

mod attention;
mod fastformer;
mod mixture;
mod options;
mod scatterbrain;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::Error;
pub use fastformer::{AdditiveScores, FastformerOptions, Interaction, Sharing};
pub use mixture::{Inference, KeyDesign, KeyOptions, MixtureOptions, NamedVariances, Prior, Score, Variances};
pub use options::{AttentionOptions, Call, Position};
pub use scatterbrain::{Combination, Fraction, ScatterbrainOptions};

/// An attention mechanism by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Exact scaled dot-product attention.
    #[default]
    Softmax,
    /// One Gaussian kernel per key.
    Gaussian,
    /// Mixture of Gaussian keys (Transformer-MGK).
    Mgk,
    /// Linear attention with `elu + 1` features.
    Linear,
    /// Mixture of linear keys (Transformer-MLK).
    Mlk,
    /// Attention with positive random features (Performer).
    Performer,
    /// Softmax on a sparse support.
    Sparse,
    /// Sparse plus low-rank attention.
    Scatterbrain,
    /// Mixture of attention heads.
    Moa,
    /// Fastformer (additive attention).
    Fastformer,
    /// Cosine attention.
    Cosine,
}

/// How a cost grows with the sequence length `N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Not at all.
    Constant,
    /// Up to the radius of the support.
    Radius,
    /// As `N`.
    Linear,
    /// As `N^2`.
    Quadratic,
}

impl Growth {
    /// As shown in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Constant => "1",
            Self::Radius => "radius",
            Self::Linear => "N",
            Self::Quadratic => "N^2",
        }
    }
}

/// Properties of a mechanism that do not depend on its options.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// One line for a list.
    pub summary: &'static str,
    /// Time.
    pub time: Growth,
    /// Memory of a training step besides inputs and outputs.
    pub memory: Growth,
    /// Size of the decode state.
    pub decode_state: Growth,
    /// Whether queries and keys may come from sequences of different lengths.
    pub cross: bool,
    /// Whether the mask may have a window.
    pub window: bool,
    /// Whether it has normalised weights that [`Call::dropout`] can drop; others ignore it.
    pub dropout: bool,
    /// Source of the equations.
    pub source: &'static str,
}

impl Mechanism {
    /// Every mechanism, in the order of lists and reports.
    pub const ALL: &[Mechanism] = &[
        Self::Softmax,
        Self::Gaussian,
        Self::Mgk,
        Self::Linear,
        Self::Mlk,
        Self::Performer,
        Self::Sparse,
        Self::Scatterbrain,
        Self::Moa,
        Self::Fastformer,
        Self::Cosine,
    ];

    /// Its name in configurations, on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::Gaussian => "gaussian",
            Self::Mgk => "mgk",
            Self::Linear => "linear",
            Self::Mlk => "mlk",
            Self::Performer => "performer",
            Self::Sparse => "sparse",
            Self::Scatterbrain => "scatterbrain",
            Self::Moa => "moa",
            Self::Fastformer => "fastformer",
            Self::Cosine => "cosine",
        }
    }

    /// Facts for lists and checks.
    pub fn facts(self) -> Facts {
        let quadratic = Facts {
            summary: "exact scaled dot-product attention",
            time: Growth::Quadratic,
            memory: Growth::Linear,
            decode_state: Growth::Linear,
            cross: true,
            window: true,
            dropout: true,
            source: "Vaswani et al. 2017",
        };
        let linear = Facts {
            summary: "linear attention with elu + 1 features",
            time: Growth::Linear,
            memory: Growth::Linear,
            decode_state: Growth::Constant,
            cross: true,
            window: false,
            dropout: false,
            source: "Katharopoulos et al. 2020",
        };
        match self {
            Self::Softmax => quadratic,
            Self::Gaussian => Facts {
                summary: "one Gaussian kernel around each key",
                source: "arXiv 2110.08678, section 2",
                ..quadratic
            },
            Self::Mgk => {
                Facts { summary: "mixture of Gaussian keys", source: "arXiv 2110.08678, section 2", ..quadratic }
            }
            Self::Linear => linear,
            Self::Mlk => Facts { summary: "mixture of linear keys", source: "arXiv 2110.08678, section 2.4", ..linear },
            Self::Performer => {
                Facts { summary: "positive random features", source: "Choromanski et al. 2021", ..linear }
            }
            Self::Sparse => Facts {
                summary: "softmax on a sparse support",
                decode_state: Growth::Radius,
                source: "arXiv 2110.15343, section 2",
                ..linear
            },
            Self::Scatterbrain => Facts {
                summary: "exact on a sparse support, low-rank off it",
                decode_state: Growth::Radius,
                source: "arXiv 2110.15343, section 4",
                ..linear
            },
            Self::Moa => Facts {
                summary: "each token chooses some of many heads, which share keys and values",
                source: "arXiv 2210.05144, section 4",
                ..quadratic
            },
            Self::Cosine => Facts {
                summary: "softmax of cosines, with a learned scale per head",
                source: "Henry et al. 2020; Liu et al. 2022",
                ..quadratic
            },
            Self::Fastformer => Facts {
                summary: "additive attention through global query and key vectors",
                cross: false,
                source: "arXiv 2108.09084, section 3",
                ..linear
            },
        }
    }

    /// Whether its keys are a mixture with a prior.
    pub fn is_mixture(self) -> bool {
        matches!(self, Self::Mgk | Self::Mlk)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mechanism {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let known = Self::ALL.iter().find(|m| m.name() == name);
        known.copied().ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|m| m.name()).collect();
            Error::option("mechanism", format!("'{name}'"), format!("one of {}", names.join(", ")))
        })
    }
}
