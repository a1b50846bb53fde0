//! The list of mechanisms, their options, and the operator that each set of options names.
//!
//! Everything that walks "every mechanism" walks [`Mechanism::ALL`].

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{Additive, Dropout, Error, GaussianMixture, Layout, Linear, Mask, Operator, Softmax};

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
    pub const ALL: &[Mechanism] =
        &[Self::Softmax, Self::Gaussian, Self::Mgk, Self::Linear, Self::Mlk, Self::Fastformer];

    /// Its name in configurations, on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::Gaussian => "gaussian",
            Self::Mgk => "mgk",
            Self::Linear => "linear",
            Self::Mlk => "mlk",
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

/// `fastformer.*`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FastformerOptions {
    /// What a head's score vector sees.
    pub scores: AdditiveScores,
    /// What is shared.
    pub sharing: Sharing,
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

/// What one call of an operator adds to the options.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// Axis order of the tensors.
    pub layout: Layout,
    /// The mask, whole: `causal` and `window` of the options are not added to it.
    pub mask: Mask,
    /// Score scale in place of `1 / sqrt(D)`; softmax only.
    pub scale: Option<f64>,
    /// ALiBi slopes, one a query head; softmax only.
    pub slopes: Option<Arc<[f32]>>,
    /// Whether an additive bias on the scores is among the inputs; softmax only.
    pub bias: bool,
    /// Dropout on the normalised weights; mechanisms without weights ignore it.
    pub dropout: Option<Dropout>,
}

impl AttentionOptions {
    /// Key and value heads.
    pub fn key_heads(&self) -> usize {
        self.key_value_heads.unwrap_or(self.heads)
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
        match (self.mechanism, self.mixture.inference) {
            (Mechanism::Mgk, Inference::Hard) => label.push_str("-hard"),
            (Mechanism::Mgk, Inference::SoftEm) => label.push_str("-em"),
            _ => {}
        }
        label
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
        if self.window.is_some() && !self.mechanism.facts().window {
            return Err(Error::option(
                "window",
                format!("set with {}", self.mechanism),
                "no window: this mechanism sums over all keys it sees; use softmax, gaussian or mgk",
            ));
        }
        if self.mechanism == Mechanism::Fastformer && self.key_heads() != self.heads {
            return Err(Error::option(
                "key_value_heads",
                key_heads,
                "as many as heads: fastformer does not share keys",
            ));
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

    /// The operator that these options name, for one call.
    ///
    /// # Errors
    /// Those of [`AttentionOptions::check`], and a call that asks for what the mechanism does not have.
    pub fn operator(&self, call: Call) -> Result<Arc<dyn Operator>, Error> {
        self.check()?;
        let Call { layout, mask, scale, slopes, bias, dropout } = call;
        if self.mechanism != Mechanism::Softmax {
            let only_softmax = [("scale", scale.is_some()), ("bias", bias), ("slopes", slopes.is_some())];
            if let Some((name, _)) = only_softmax.iter().find(|(_, asked)| *asked) {
                return Err(Error::option(*name, format!("given to {}", self.mechanism), "softmax"));
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
            Mechanism::Fastformer => Arc::new(Additive {
                layout,
                mask,
                scores: self.fastformer.scores,
                shared_value: self.fastformer.sharing != Sharing::None,
            }),
        })
    }
}
