//! The list of mechanisms, their options, and the operator that each set of options names.
//!
//! Everything that walks "every mechanism" walks [`Mechanism::ALL`].

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    Additive, Dropout, Error, GaussianMixture, Layout, Linear, Mask, MixtureOfHeads, Operator, Scatterbrain, Softmax,
    features::{FeatureKind, FeatureOptions},
    routing::MoaOptions,
    support::{SupportKind, SupportOptions},
};

/// An attention mechanism by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Exact scaled dot-product attention.
    #[default]
    Softmax,
    /// One Gaussian kernel around each key.
    Gaussian,
    /// Mixture of Gaussian keys (Transformer-MGK).
    Mgk,
    /// Linear attention with `elu + 1` features.
    Linear,
    /// Mixture of linear keys (Transformer-MLK).
    Mlk,
    /// Attention of positive random features (Performer).
    Performer,
    /// Softmax on a sparse support.
    Sparse,
    /// Sparse and low-rank attention together.
    Scatterbrain,
    /// Mixture of attention heads.
    Moa,
    /// Additive attention (Fastformer).
    Fastformer,
}

/// What is true of a mechanism whatever its options.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// One line for a list.
    pub summary: &'static str,
    /// Time in the length `N` of a sequence.
    pub time: &'static str,
    /// Bytes of a training step beside inputs and outputs, in `N`.
    pub memory: &'static str,
    /// State of a decoder after `N` tokens.
    pub decode_state: &'static str,
    /// Whether queries and keys may come from sequences of different lengths.
    pub cross: bool,
    /// Whether the mask may have a window.
    pub window: bool,
    /// Where the equations come from.
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
        }
    }

    /// Facts for lists and checks.
    pub fn facts(self) -> Facts {
        let quadratic = Facts {
            summary: "exact scaled dot-product attention",
            time: "N^2",
            memory: "N",
            decode_state: "N",
            cross: true,
            window: true,
            source: "Vaswani et al. 2017",
        };
        let linear = Facts {
            summary: "linear attention with elu + 1 features",
            time: "N",
            memory: "N",
            decode_state: "1",
            cross: true,
            window: false,
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
                decode_state: "radius",
                source: "arXiv 2110.15343, section 2",
                ..linear
            },
            Self::Scatterbrain => Facts {
                summary: "exact on a sparse support, low-rank off it",
                decode_state: "radius",
                source: "arXiv 2110.15343, section 4",
                ..linear
            },
            Self::Moa => Facts {
                summary: "each token chooses some of many heads, which share keys and values",
                source: "arXiv 2210.05144, section 3",
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

/// Options of an attention mechanism, named as in configurations and on the command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttentionOptions {
    /// Which mechanism.
    pub mechanism: Mechanism,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, a divisor of `heads`; as many as `heads` when absent, 1 for multi-query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_value_heads: Option<usize>,
    /// Position scheme of the model around it.
    pub position: Position,
    /// Whether a query sees only keys up to its own position.
    pub causal: bool,
    /// Largest distance between a query and a key it sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Keys of a mixture.
    pub keys: KeyOptions,
    /// The mixture of Gaussian keys.
    pub mixture: MixtureOptions,
    /// Features of Performer and Scatterbrain.
    pub features: FeatureOptions,
    /// Support of sparse attention and Scatterbrain.
    pub support: SupportOptions,
    /// Scatterbrain.
    pub scatterbrain: ScatterbrainOptions,
    /// Share of the `N x S` entries that may be computed; sets the sizes of support and features for a given length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Fraction>,
    /// Mixture of attention heads.
    pub moa: MoaOptions,
    /// Fastformer.
    pub fastformer: FastformerOptions,
}

impl Default for AttentionOptions {
    fn default() -> Self {
        Self {
            mechanism: Mechanism::default(),
            heads: 4,
            key_value_heads: None,
            position: Position::default(),
            causal: false,
            window: None,
            keys: KeyOptions::default(),
            mixture: MixtureOptions::default(),
            features: FeatureOptions::default(),
            support: SupportOptions::default(),
            scatterbrain: ScatterbrainOptions::default(),
            budget: None,
            moa: MoaOptions::default(),
            fastformer: FastformerOptions::default(),
        }
    }
}

/// Where a model gets the order of tokens from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Position {
    /// A learned vector a position, added to the token's.
    #[default]
    Learned,
    /// Fixed sines and cosines, added.
    Sinusoidal,
    /// Queries and keys turned by an angle proportional to position.
    Rotary,
    /// A penalty on scores proportional to distance.
    Alibi,
    /// Nothing.
    None,
}

/// `keys.*`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyOptions {
    /// Keys a position, `M`.
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
    /// One projection a component (design A: MGK, MLK).
    #[default]
    Projected,
    /// One projection and a learned shift a component (design B: sMGK, sMLK).
    Shifted,
}

/// `mixture.*`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MixtureOptions {
    /// How a query is assigned to components.
    pub inference: Inference,
    /// What a component measures.
    pub score: Score,
    /// Variances of the components.
    pub variances: Variances,
    /// What the prior depends on.
    pub prior: Prior,
    /// Whether variances are learned.
    pub learn_variances: bool,
}

/// `mixture.inference`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inference {
    /// Every component by its prior, learned by gradient.
    #[default]
    Soft,
    /// The same, the prior set to the mean responsibility after each training step.
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
    /// One prior a head and component.
    #[default]
    Tied,
    /// One prior a head, component and key position.
    PerPosition,
}

/// `mixture.variances`: a named choice or a list with one variance a component.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Variances {
    /// A choice that scales with the head width.
    Named(NamedVariances),
    /// One variance a component.
    List(Vec<f64>),
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
    /// Variances of `components` components over heads of `width`.
    ///
    /// # Errors
    /// A list of another length, a variance that is not positive, or a choice made for two components used with more.
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

/// `scatterbrain.*`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScatterbrainOptions {
    /// How the sparse and the low-rank part are joined.
    pub combination: Combination,
    /// Share of the budget that goes to the support; the features get the rest.
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
    /// Each pair once: exact on the support, features off it.
    #[default]
    Corrected,
    /// Features everywhere, and exact weights on the support besides: pairs of the support count twice.
    Naive,
    /// The outputs of the two parts, averaged by a learned gate a head.
    Gated,
}

/// A share in `(0, 1]`: a number, or a string such as `1/8`.
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

    /// The number.
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

/// `fastformer.*`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FastformerOptions {
    /// What a head's score vector sees.
    pub scores: AdditiveScores,
    /// What is shared.
    pub sharing: Sharing,
    /// How global vectors meet those of the tokens.
    pub interaction: Interaction,
}

/// `fastformer.scores`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdditiveScores {
    /// Its own head's channels, `[H, D]`.
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

/// `fastformer.interaction`: how the global query meets the keys, and the global key the values (Fastformer paper, section 3).
///
/// All but the product are for comparison: layers of tensor operations for bidirectional attention, without a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interaction {
    /// `g * x`, channel by channel.
    #[default]
    Product,
    /// `g + x`.
    Sum,
    /// `W [g ; x]`, with a learned matrix `[D, 2D]` a head.
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

/// What one call of an operator adds to the options.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// Axis order of the tensors.
    pub layout: Layout,
    /// The mask, whole: `causal` and `window` of the options are not added to it.
    pub mask: Mask,
    /// Score scale in place of `1 / sqrt(D)`: softmax, performer, sparse and scatterbrain.
    pub scale: Option<f64>,
    /// ALiBi slopes, one a query head; softmax only.
    pub slopes: Option<Arc<[f32]>>,
    /// Whether an additive bias on the scores is among the inputs; softmax only.
    pub bias: bool,
    /// Dropout on the normalised weights; mechanisms without weights ignore it.
    pub dropout: Option<Dropout>,
    /// Whether keys and values come from a second sequence. Only mechanisms that project ask: moa has input `x_kv` then.
    pub cross: bool,
}

const INTERACTION: &str = "fastformer.interaction";

impl AttentionOptions {
    /// Query heads that a token has: `heads`, with moa the experts it uses.
    pub fn query_heads(&self) -> usize {
        if self.mechanism == Mechanism::Moa { self.moa.active } else { self.heads }
    }

    /// Key and value heads: one with moa.
    pub fn key_heads(&self) -> usize {
        if self.mechanism == Mechanism::Moa { 1 } else { self.key_value_heads.unwrap_or(self.heads) }
    }

    /// Components of the mixture: 1 for mechanisms without one.
    pub fn components(&self) -> usize {
        if self.mechanism.is_mixture() { self.keys.components } else { 1 }
    }

    /// Whether keys are shifted copies of one projection.
    pub fn shifted(&self) -> bool {
        self.mechanism.is_mixture() && self.keys.design == KeyDesign::Shifted
    }

    /// Name for tables: the mechanism with the variant that its options make of it, as the papers call it.
    pub fn label(&self) -> String {
        let mut label = String::new();
        if self.shifted() {
            label.push('s');
        }
        label.push_str(self.mechanism.name());
        match self.mechanism {
            Mechanism::Sparse => return self.support.name().to_owned(),
            Mechanism::Scatterbrain => {
                let joined = match self.scatterbrain.combination {
                    Combination::Corrected => "",
                    Combination::Naive => "-naive",
                    Combination::Gated => "-gated",
                };
                return format!("scatterbrain-{}{joined}", self.support.name());
            }
            _ => {}
        }
        match (self.mechanism, self.mixture.inference) {
            (Mechanism::Mgk, Inference::Hard) => label.push_str("-hard"),
            (Mechanism::Mgk, Inference::SoftEm) => label.push_str("-em"),
            _ => {}
        }
        label
    }

    /// Whether it has a feature map that `features.*` describes.
    pub fn uses_features(&self) -> bool {
        matches!(self.mechanism, Mechanism::Performer | Mechanism::Scatterbrain)
    }

    /// Whether it has a support that `support.*` describes.
    pub fn uses_support(&self) -> bool {
        matches!(self.mechanism, Mechanism::Sparse | Mechanism::Scatterbrain)
    }

    /// Checks what can be known before any tensor is seen.
    ///
    /// # Errors
    /// A size of 0, heads that do not divide, or an option that the mechanism does not have.
    pub fn check(&self) -> Result<(), Error> {
        if self.heads == 0 {
            return Err(Error::option("heads", 0, "at least 1"));
        }
        let key_heads = self.key_heads();
        if key_heads == 0 || !self.heads.is_multiple_of(key_heads) {
            return Err(Error::option("key_value_heads", key_heads, format!("a divisor of heads ({})", self.heads)));
        }
        if self.keys.components == 0 {
            return Err(Error::option("keys.components", 0, "at least 1"));
        }
        if self.mechanism == Mechanism::Moa {
            self.moa.check()?;
            if let Some(key_heads) = self.key_value_heads.filter(|key_heads| *key_heads != 1) {
                let expected = "1 or none: all experts of moa share one head of keys and values";
                return Err(Error::option("key_value_heads", key_heads, expected));
            }
        }
        if self.window.is_some() && !self.mechanism.facts().window {
            return Err(Error::option(
                "window",
                format!("set with {}", self.mechanism),
                "no window: this mechanism sums over all keys it sees; use softmax, gaussian or mgk",
            ));
        }
        if self.uses_features() {
            self.features.check()?;
        }
        if self.uses_support() {
            self.support.check()?;
            if self.support.kind == SupportKind::Lsh && self.key_heads() != self.heads {
                let expected = "as many as heads: with LSH the queries are the keys";
                return Err(Error::option("key_value_heads", key_heads, expected));
            }
        }
        if self.mechanism == Mechanism::Performer && self.features.kind == FeatureKind::Elu {
            let expected = "hyperbolic or plain; elu features alone are mechanism 'linear'";
            return Err(Error::option("features.kind", "'elu' with performer", expected));
        }
        let share = self.scatterbrain.sparse_share;
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::option("scatterbrain.sparse_share", share, "a share between 0 and 1"));
        }
        if self.mechanism == Mechanism::Fastformer && self.key_heads() != self.heads {
            return Err(Error::option(
                "key_value_heads",
                key_heads,
                "as many as heads: fastformer does not share keys",
            ));
        }
        if let Some(interaction) = self.composed_interaction().filter(|_| self.causal) {
            let seen = format!("'{}' with causal attention", interaction.name());
            return Err(Error::option(INTERACTION, seen, "'product': the others are bidirectional alone"));
        }
        if self.position == Position::Alibi && self.mechanism != Mechanism::Softmax {
            return Err(Error::option(
                "position",
                format!("'alibi' with {}", self.mechanism),
                "learned, sinusoidal, rotary or none: only softmax scores take a bias",
            ));
        }
        if self.mixture.inference == Inference::Hard && self.mixture.score == Score::Dot {
            return Err(Error::option("mixture.score", "'dot' with hard inference", "'gaussian'"));
        }
        Ok(())
    }

    /// The interaction of Fastformer, where it is not the product.
    fn composed_interaction(&self) -> Option<Interaction> {
        let interaction = self.fastformer.interaction;
        (self.mechanism == Mechanism::Fastformer && interaction != Interaction::Product).then_some(interaction)
    }

    /// Checks that a kernel computes this attention, which then has an operator, weights to look at and, where it is causal,
    /// a decode state.
    ///
    /// # Errors
    /// An interaction of Fastformer other than the product.
    pub fn check_kernel(&self) -> Result<(), Error> {
        match self.composed_interaction() {
            None => Ok(()),
            Some(interaction) => {
                let expected = "'product' here: the others exist only as layers that train and predict, without a kernel, \
                                a decode state or weights to look at";
                Err(Error::option(INTERACTION, format!("'{}'", interaction.name()), expected))
            }
        }
    }

    /// The operator that these options name, for one call.
    ///
    /// # Errors
    /// Those of [`AttentionOptions::check`], and a call that asks for what the mechanism does not have.
    pub fn operator(&self, call: Call) -> Result<Arc<dyn Operator>, Error> {
        self.check()?;
        self.check_kernel()?;
        let sized = self.uses_features() || self.uses_support();
        if let (true, Some(budget)) = (sized, self.budget) {
            let expected =
                "none here: a layer or a file has lengths to turn it into sizes (within_budget), a call has not";
            return Err(Error::option("budget", budget.value(), expected));
        }
        if self.mechanism == Mechanism::Scatterbrain && self.scatterbrain.combination == Combination::Gated {
            let expected = "corrected or naive: gated exists only as a layer, which learns the gate";
            return Err(Error::option("scatterbrain.combination", "'gated'", expected));
        }
        let Call { layout, mask, scale, slopes, bias, dropout, cross } = call;
        if self.mechanism != Mechanism::Softmax {
            let only_softmax = [("scale", scale.is_some() && !sized), ("bias", bias), ("slopes", slopes.is_some())];
            if let Some((name, _)) = only_softmax.iter().find(|(_, asked)| *asked) {
                let takers = if *name == "scale" { "softmax, performer, sparse or scatterbrain" } else { "softmax" };
                return Err(Error::option(*name, format!("given to {}", self.mechanism), takers));
            }
        }
        let shifted = self.shifted();
        Ok(match self.mechanism {
            Mechanism::Softmax => Arc::new(Softmax { layout, mask, scale, slopes, bias, dropout }),
            Mechanism::Gaussian | Mechanism::Mgk => Arc::new(GaussianMixture {
                layout,
                mask,
                hard: self.mixture.inference == Inference::Hard,
                score: self.mixture.score,
                shifted,
                dropout,
            }),
            Mechanism::Linear => Arc::new(Linear { layout, mask, mixture: false, shifted: false }),
            Mechanism::Mlk => Arc::new(Linear { layout, mask, mixture: true, shifted }),
            Mechanism::Performer | Mechanism::Sparse | Mechanism::Scatterbrain => Arc::new(Scatterbrain {
                layout,
                mask,
                scale,
                support: self.uses_support().then(|| self.support.clone()),
                features: self.uses_features().then_some(self.features.kind),
                naive: self.mechanism == Mechanism::Scatterbrain && self.scatterbrain.combination == Combination::Naive,
            }),
            Mechanism::Moa => {
                let MoaOptions { active, gates, .. } = self.moa;
                Arc::new(MixtureOfHeads { mask, active, gates, cross, dropout })
            }
            Mechanism::Fastformer => Arc::new(Additive {
                layout,
                mask,
                scores: self.fastformer.scores,
                shared_value: self.fastformer.sharing != Sharing::None,
            }),
        })
    }
}
