//! The shape of a model: everything but its attention and its data.

use regard_kernels::{Error, Mechanism, mechanism::Position};
use serde::{Deserialize, Serialize};

use super::{AttentionConfig, Attentions, RotaryConfig, at_place};
use crate::ops::Curve;

/// `model.*`: the transformer around the attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Channels of the residual stream, `d`.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Hidden channels of the feed-forward part.
    pub feed_forward: usize,
    /// Width `D` of one head where it is not `width / heads`: the MGK paper halves the heads and keeps their width.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_width: Option<usize>,
    /// Share of channels dropped after the embedding, inside the feed-forward part and before each residual sum.
    pub dropout: f64,
    /// Share of normalised attention weights dropped; mechanisms without weights ignore it.
    pub attention_dropout: f64,
    /// Where a block normalises.
    pub norm: NormPlace,
    /// How it normalises.
    pub norm_kind: NormKind,
    /// Added to the variance, or to the mean square, before its root is taken.
    pub norm_epsilon: f64,
    /// Non-linearity of the feed-forward part.
    pub activation: Activation,
    /// The feed-forward part is gated: `(activation(x w_gate) * x w_1) w_2` (Shazeer 2020), SwiGLU with `silu`.
    pub gated: bool,
    /// How a classifier makes one vector of a sequence.
    pub pooling: Pooling,
    /// A language model's head is its token embedding.
    pub tied_head: bool,
    /// Keep only the input of each block for the backward pass and compute the block again there.
    pub checkpointing: bool,
    /// Projections and feed-forward have biases.
    pub bias: bool,
    /// Whether queries, keys and values have biases, where it is not as `bias` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qkv_bias: Option<bool>,
    /// Whether the output projections of attention have biases, where it is not as `bias` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bias: Option<bool>,
    /// Whether feed-forward parts have biases, where it is not as `bias` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feed_forward_bias: Option<bool>,
    /// Angles of rotary positions.
    pub rotary: RotaryConfig,
    /// Types of tokens, each with a vector that is added to those of its tokens (Devlin et al. 2019); 0 for none.
    pub token_types: usize,
    /// Width of token and position vectors where it is not `width`: a projection follows (Lan et al. 2020).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_width: Option<usize>,
    /// A norm follows the sum of token and position vectors.
    pub embedding_norm: bool,
    /// All blocks share their parameters: one block runs `layers` times (Lan et al. 2020).
    pub shared_blocks: bool,
    /// What attention and feed-forward add is scaled by a learned vector that starts at this (Touvron et al. 2021).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_scale: Option<f64>,
    /// Before its head, a masked model has a layer of the embedding's width, the activation and a norm (Devlin et al. 2019).
    pub head_transform: bool,
    /// The head has a bias.
    pub head_bias: bool,
    /// A language model's head in clusters of tokens.
    pub adaptive_softmax: AdaptiveSoftmaxConfig,
}

/// `model.adaptive_softmax`: frequent tokens have outputs of their own, rarer ones share those of their cluster, which sees a
/// narrower state (Grave et al. 2017). Ids must begin with the most frequent tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptiveSoftmaxConfig {
    /// The first id of each cluster, ascending; those before the first have outputs of their own. None: a plain softmax.
    pub cutoffs: Vec<usize>,
    /// Cluster `i`, from 1, sees `width / factor^i` channels.
    pub factor: usize,
}

impl Default for AdaptiveSoftmaxConfig {
    fn default() -> Self {
        Self { cutoffs: Vec::new(), factor: 4 }
    }
}

impl AdaptiveSoftmaxConfig {
    /// Whether there are clusters.
    pub fn is_used(&self) -> bool {
        !self.cutoffs.is_empty()
    }

    /// Tokens and channels of each cluster, for states of `width` and `vocabulary` tokens.
    pub fn clusters(&self, width: usize, vocabulary: usize) -> impl Iterator<Item = [usize; 2]> + '_ {
        let ends = self.cutoffs.iter().skip(1).copied().chain([vocabulary]);
        (1..).zip(self.cutoffs.iter().zip(ends)).map(move |(i, (first, end))| {
            let narrowing = self.factor.saturating_pow(i).max(1);
            [end.saturating_sub(*first), width / narrowing]
        })
    }

    /// # Errors
    /// Cutoffs that do not ascend or leave no token, or more clusters than the width can be divided for.
    fn check(&self, width: usize, vocabulary: Option<usize>) -> Result<(), Error> {
        let Self { cutoffs, factor } = self;
        let name = "model.adaptive_softmax.cutoffs";
        let seen = || cutoffs.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        if cutoffs.first() == Some(&0) || cutoffs.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(Error::option(name, seen(), "ascending numbers from 1"));
        }
        if *factor == 0 {
            return Err(Error::option("model.adaptive_softmax.factor", 0, "at least 1"));
        }
        if let Some(vocabulary) = vocabulary.filter(|vocabulary| cutoffs.last() >= Some(vocabulary)) {
            return Err(Error::option(name, seen(), format!("numbers below the vocabulary ({vocabulary})")));
        }
        if self.clusters(width, usize::MAX).any(|[_, channels]| channels == 0) {
            let expected = format!(
                "so few that model.width ({width}) divided by the factor ({factor}) for each leaves at least one channel"
            );
            return Err(Error::option(name, seen(), expected));
        }
        Ok(())
    }
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            width: 64,
            layers: 2,
            feed_forward: 128,
            head_width: None,
            dropout: 0.0,
            attention_dropout: 0.0,
            norm: NormPlace::default(),
            norm_kind: NormKind::default(),
            norm_epsilon: 1e-5,
            activation: Activation::default(),
            gated: false,
            pooling: Pooling::default(),
            tied_head: false,
            checkpointing: false,
            bias: true,
            qkv_bias: None,
            output_bias: None,
            feed_forward_bias: None,
            rotary: RotaryConfig::default(),
            token_types: 0,
            embedding_width: None,
            embedding_norm: false,
            shared_blocks: false,
            layer_scale: None,
            head_transform: false,
            head_bias: false,
            adaptive_softmax: AdaptiveSoftmaxConfig::default(),
        }
    }
}

/// `model.norm`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NormPlace {
    /// Before each part of a block, and once after the last block.
    #[default]
    Pre,
    /// After each residual sum, as in Vaswani et al. 2017.
    Post,
}

/// `model.norm_kind`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NormKind {
    /// `(x - mean) / deviation * weight + bias` (Ba, Kiros and Hinton 2016).
    #[default]
    Layer,
    /// `x / sqrt(mean square) * weight` (Zhang and Sennrich 2019).
    Rms,
}

/// `model.activation`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Activation {
    /// `x Phi(x)` with the exact normal distribution function.
    #[default]
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// GELU with the normal distribution approximated by a hyperbolic tangent (Hendrycks and Gimpel 2016).
    GeluTanh,
    /// `x sigmoid(x)`.
    Silu,
}

impl Activation {
    /// The function.
    pub(crate) fn curve(self) -> Curve {
        match self {
            Self::Gelu => Curve::Gelu,
            Self::Relu => Curve::Relu,
            Self::GeluTanh => Curve::GeluTanh,
            Self::Silu => Curve::Silu,
        }
    }
}

/// `model.pooling`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Pooling {
    /// Mean over real tokens.
    #[default]
    Mean,
    /// The first token.
    First,
    /// Mean weighted by a softmax of learned scores over real tokens.
    Attention,
}

/// Sizes of a model, for checks and for a cost model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Token numbers.
    pub vocabulary: usize,
    /// Longest sequence.
    pub context: usize,
    /// Channels of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub key_heads: usize,
    /// Channels of one head.
    pub head_width: usize,
    /// Hidden channels of the feed-forward part.
    pub feed_forward: usize,
    /// Classes, or the vocabulary for a language model.
    pub outputs: usize,
}

impl ModelConfig {
    /// Width `D` of one head under `attention`: that of the options, or a share of the width for each head of a token.
    pub fn head_width(&self, attention: &AttentionConfig) -> usize {
        let own = (attention.mechanism == Mechanism::Moa).then_some(attention.moa.head_width).flatten();
        own.or(self.head_width).unwrap_or(self.width / attention.query_heads().max(1))
    }

    /// Checks the sizes, and that the attention fits them.
    ///
    /// # Errors
    /// A size of 0, heads that do not divide the width, a rate outside `[0, 1)`, or options of the attention that
    /// [`AttentionOptions::check`](regard_kernels::AttentionOptions::check) or the width forbid.
    pub fn check(&self, attention: &AttentionConfig) -> Result<(), Error> {
        attention.check()?;
        let sizes = [("width", self.width), ("layers", self.layers), ("feed_forward", self.feed_forward)];
        let optional = [("head_width", self.head_width), ("embedding_width", self.embedding_width)];
        let optional = optional.into_iter().filter_map(|(name, size)| Some((name, size?)));
        for (name, size) in sizes.into_iter().chain(optional) {
            if size == 0 {
                return Err(Error::option(format!("model.{name}"), 0, "at least 1"));
            }
        }
        for (name, rate) in [("dropout", self.dropout), ("attention_dropout", self.attention_dropout)] {
            if !(0.0..1.0).contains(&rate) {
                return Err(Error::option(format!("model.{name}"), rate, "at least 0 and below 1"));
            }
        }
        for (name, number) in [("norm_epsilon", Some(self.norm_epsilon)), ("layer_scale", self.layer_scale)] {
            if number.is_some_and(|number| !(number > 0.0 && number.is_finite())) {
                return Err(Error::option(format!("model.{name}"), number.unwrap_or_default(), "a positive number"));
            }
        }
        self.rotary.check()?;
        self.adaptive_softmax.check(self.width, None)?;
        if self.adaptive_softmax.is_used() {
            for (name, set) in
                [("tied_head", self.tied_head), ("head_bias", self.head_bias), ("head_transform", self.head_transform)]
            {
                if set {
                    return Err(Error::option(format!("model.{name}"), true, "false with model.adaptive_softmax"));
                }
            }
        }
        let (name, own, heads) = match attention.mechanism {
            Mechanism::Moa => ("moa.active", attention.moa.head_width, attention.moa.active),
            _ => ("heads", None, attention.heads),
        };
        if own.or(self.head_width).is_none() && !self.width.is_multiple_of(heads) {
            let expected = format!("a multiple of {name} ({heads}), or 'model.head_width' set");
            return Err(Error::option("model.width", self.width, expected));
        }
        let head_width = self.head_width(attention);
        if attention.position == Position::Rotary {
            self.rotary.pairs(head_width)?;
        }
        if attention.position == Position::Sinusoidal && !self.width.is_multiple_of(2) {
            return Err(Error::option(
                "position",
                format!("'sinusoidal' with a width of {}", self.width),
                "an even width, half of it sines and half cosines",
            ));
        }
        super::attention::check(attention, self.width, head_width)
    }

    /// Checks the sizes, and that each attention of an encoder-decoder fits them and its place.
    ///
    /// # Errors
    /// As [`ModelConfig::check`], with the place.
    pub fn check_places(&self, attentions: &Attentions) -> Result<(), Error> {
        attentions.check()?;
        let attentions = attentions.clone().placed();
        let mut named = attentions.named().into_iter();
        named.try_for_each(|(place, options)| self.check(options).map_err(|error| at_place(place, error)))
    }

    /// Sizes of a whole model, checked.
    ///
    /// # Errors
    /// Those of [`ModelConfig::check`], or a size of 0.
    pub fn sizes(
        &self,
        attention: &AttentionConfig,
        vocabulary: usize,
        outputs: usize,
        context: usize,
    ) -> Result<Sizes, Error> {
        self.check(attention)?;
        for (name, size) in [("vocabulary", vocabulary), ("classes", outputs), ("context", context)] {
            if size == 0 {
                return Err(Error::option(name, 0, "at least 1"));
            }
        }
        self.adaptive_softmax.check(self.width, Some(outputs))?;
        Ok(Sizes {
            vocabulary,
            context,
            width: self.width,
            layers: self.layers,
            heads: attention.query_heads(),
            key_heads: attention.key_heads(),
            head_width: self.head_width(attention),
            feed_forward: self.feed_forward,
            outputs,
        })
    }

    /// Width of token and position vectors.
    pub fn embedding_width(&self) -> usize {
        self.embedding_width.unwrap_or(self.width)
    }

    /// Dropout rate in single precision.
    pub(crate) fn rate(&self) -> f32 {
        self.dropout as f32
    }
}
