//! Options of every mechanism, and their combination.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    Combination, FastformerOptions, Fraction, Inference, Interaction, KeyDesign, KeyOptions, Mechanism, MixtureOptions,
    ScatterbrainOptions, Score, Sharing, attention::Attention,
};
use crate::{
    Additive, Cosine, Dropout, Error, GaussianMixture, Layout, Linear, Mask, MixtureOfHeads, Operator, Scatterbrain,
    Softmax,
    features::{FeatureKind, FeatureOptions},
    routing::MoaOptions,
    support::{SupportKind, SupportOptions},
};

/// Options of an attention mechanism, named as in configurations and on the command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttentionOptions {
    /// Which mechanism.
    pub mechanism: Mechanism,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, a divisor of `heads`; default: `heads`; 1 for multi-query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_value_heads: Option<usize>,
    /// Position scheme of the surrounding model.
    pub position: Position,
    /// Whether a query sees only keys up to its own position.
    pub causal: bool,
    /// Largest distance between a query and a visible key.
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
    /// Fraction of the `N x S` entries that may be computed; sets the sizes of support and features for a given length.
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

/// Position scheme of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Position {
    /// A learned vector per position, added to the token embedding.
    #[default]
    Learned,
    /// Fixed sines and cosines, added.
    Sinusoidal,
    /// Queries and keys rotated by an angle proportional to the position.
    Rotary,
    /// A penalty on scores proportional to distance.
    Alibi,
    /// Nothing.
    None,
}

/// What a call of an operator specifies besides the options.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// Axis order of the tensors.
    pub layout: Layout,
    /// The complete mask: `causal` and `window` of the options are not added to it.
    pub mask: Mask,
    /// Score scale instead of `1 / sqrt(D)`: softmax, performer, sparse and scatterbrain.
    pub scale: Option<f64>,
    /// ALiBi slopes, one per query head; softmax only.
    pub slopes: Option<Arc<[f32]>>,
    /// Whether an additive bias on the scores is among the inputs; softmax only.
    pub bias: bool,
    /// Dropout on the normalised weights; mechanisms without weights ignore it.
    pub dropout: Option<Dropout>,
    /// Whether keys and values come from a second sequence. Only relevant for mechanisms with projections: moa then has
    /// input `x_kv`.
    pub cross: bool,
}

const INTERACTION: &str = "fastformer.interaction";

impl AttentionOptions {
    /// Query heads per token: `heads`, or the active experts with moa.
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

    /// Name for tables: the mechanism with its variant, as named in the papers.
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

    /// Whether it has a feature map configured by `features.*`.
    pub fn uses_features(&self) -> bool {
        matches!(self.mechanism, Mechanism::Performer | Mechanism::Scatterbrain)
    }

    /// Whether it has a support configured by `support.*`.
    pub fn uses_support(&self) -> bool {
        matches!(self.mechanism, Mechanism::Sparse | Mechanism::Scatterbrain)
    }

    /// Checks everything that does not depend on tensors.
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
                "no window: this mechanism sums over all keys it sees; use softmax, gaussian, mgk or cosine",
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

    /// The interaction of Fastformer, if it is not the product.
    fn composed_interaction(&self) -> Option<Interaction> {
        let interaction = self.fastformer.interaction;
        (self.mechanism == Mechanism::Fastformer && interaction != Interaction::Product).then_some(interaction)
    }

    /// Checks that this attention has a kernel, and so an operator, weights to inspect and, if causal, a decode state.
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

    /// The error where `option` asks for a decode state that causal attention with these options does not have; it says why.
    pub fn no_decoder(&self, option: &str) -> Error {
        let reason = match self.support.kind {
            _ if !self.uses_support() => "",
            SupportKind::Smyrf | SupportKind::Lsh => {
                ": who shares a group depends on all tokens of a sequence, those still to come included"
            }
            SupportKind::Bigbird => {
                ": random blocks are drawn among those of the whole sequence, whose length is not known yet"
            }
            _ => "",
        };
        Error::option(option, self.label(), format!("a mechanism with a decode state under these options{reason}"))
    }

    /// The mask of self-attention without padding.
    pub fn mask(&self) -> Mask {
        Mask { causal: self.causal, window: self.window, ..Mask::none() }
    }

    /// The operator with these options, for one call.
    ///
    /// # Errors
    /// As for [`AttentionOptions::check`], and a call with something that the mechanism does not support.
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
        let Call { layout, mask, scale, slopes, bias, dropout, cross } = call.clone();
        if self.mechanism != Mechanism::Softmax {
            let only_softmax = [("scale", scale.is_some() && !sized), ("bias", bias), ("slopes", slopes.is_some())];
            if let Some((name, _)) = only_softmax.iter().find(|(_, asked)| *asked) {
                let takers = if *name == "scale" { "softmax, performer, sparse or scatterbrain" } else { "softmax" };
                return Err(Error::option(*name, format!("given to {}", self.mechanism), takers));
            }
        }
        let shifted = self.shifted();
        let kernel: Arc<dyn Operator> = match self.mechanism {
            Mechanism::Softmax => Arc::new(Softmax { layout, mask, scale, slopes, bias, dropout }),
            Mechanism::Cosine => Arc::new(Cosine { layout, mask, dropout }),
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
        };
        Ok(Arc::new(Attention { options: self.clone(), call, kernel }))
    }
}
