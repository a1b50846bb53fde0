//! The shape of a model: everything but its attention and its data.

use regard_kernels::{Error, Mechanism, mechanism::Position};
use serde::{Deserialize, Serialize};

use super::Sizes;
use crate::attention::{AttentionConfig, Attentions, at_place};

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
    /// Non-linearity of the feed-forward part.
    pub activation: Activation,
    /// How a classifier makes one vector of a sequence.
    pub pooling: Pooling,
    /// A language model's head is its token embedding.
    pub tied_head: bool,
    /// Keep only the input of each block for the backward pass and compute the block again there.
    pub checkpointing: bool,
    /// Projections and feed-forward have biases.
    pub bias: bool,
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
            activation: Activation::default(),
            pooling: Pooling::default(),
            tied_head: false,
            checkpointing: false,
            bias: true,
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
        for (name, size) in sizes.into_iter().chain(self.head_width.map(|width| ("head_width", width))) {
            if size == 0 {
                return Err(Error::option(format!("model.{name}"), 0, "at least 1"));
            }
        }
        for (name, rate) in [("dropout", self.dropout), ("attention_dropout", self.attention_dropout)] {
            if !(0.0..1.0).contains(&rate) {
                return Err(Error::option(format!("model.{name}"), rate, "at least 0 and below 1"));
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
        if attention.position == Position::Rotary && !head_width.is_multiple_of(2) {
            return Err(Error::option(
                "position",
                format!("'rotary' with heads of {head_width} channels"),
                "an even number of channels a head, which are turned in pairs",
            ));
        }
        if attention.position == Position::Sinusoidal && !self.width.is_multiple_of(2) {
            return Err(Error::option(
                "position",
                format!("'sinusoidal' with a width of {}", self.width),
                "an even width, half of it sines and half cosines",
            ));
        }
        crate::attention::check(attention, self.width, head_width)
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

    /// Rate of dropout in single precision.
    pub(crate) fn rate(&self) -> f32 {
        self.dropout as f32
    }
}
