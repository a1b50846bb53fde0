//! Options of Fastformer.

use serde::{Deserialize, Serialize};

/// `fastformer.*`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FastformerOptions {
    /// The channels that a head's score vector covers.
    pub scores: AdditiveScores,
    /// Parameter sharing.
    pub sharing: Sharing,
    /// How global vectors are combined with token vectors.
    pub interaction: Interaction,
}

/// `fastformer.scores`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdditiveScores {
    /// Only its head's channels, `[H, D]`.
    #[default]
    Paper,
    /// All channels, `[H, H * D]`.
    Released,
}

/// `fastformer.sharing`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// `v = q`.
    #[default]
    QueryValue,
    /// Nothing.
    None,
    /// `v = q`, and one projection and score vector for all heads.
    HeadWise,
    /// `v = q`, and one set of parameters for all layers.
    LayerWise,
}

/// `fastformer.interaction`: how the global query is combined with the keys, and the global key with the values
/// (Fastformer paper, section 3).
///
/// All but the product are for comparison only: layers composed of tensor operations for bidirectional attention,
/// without a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interaction {
    /// `g * x`, channel by channel.
    #[default]
    Product,
    /// `g + x`.
    Sum,
    /// `W [g ; x]`, with a learned matrix `[D, 2D]` per head.
    Concatenation,
}

impl Interaction {
    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Product => "product",
            Self::Sum => "sum",
            Self::Concatenation => "concatenation",
        }
    }
}
