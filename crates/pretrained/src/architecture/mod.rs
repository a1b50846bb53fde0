//! What a model is made of, whoever trained it.

mod families;
mod head;
mod rotary;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use regard_nn::blocks::RotaryConfig;
pub use regard_nn::blocks::RotaryScaling;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ConfigProblem, keys::Keys};

/// A transformer as `config.json` describes it, in terms that all families share.
///
/// Fields that a family does not have are 0, `false` or `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Architecture {
    /// The family, which says how its tensors are named.
    pub family: Family,
    /// Features of a token between layers.
    pub width: usize,
    /// Layers that a token passes.
    pub layers: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values: `heads`, or a divisor of it.
    pub key_value_heads: usize,
    /// Features of a head; `heads * head_width` need not be `width`.
    pub head_width: usize,
    /// Inner features of the feed-forward part.
    pub feed_forward: usize,
    /// Whether the feed-forward part is `w_2 (activation(w_gate x) * w_1 x)` rather than `w_2 activation(w_1 x)`.
    pub gated: bool,
    /// Its nonlinearity.
    pub activation: Activation,
    /// Norms of the layers, of the embeddings and of the end.
    pub norm: Norm,
    /// Whether embeddings are normed before the first layer.
    pub embedding_norm: bool,
    /// Whether there is a norm after the last layer.
    pub final_norm: bool,
    /// Linear maps with a bias.
    pub biases: Biases,
    /// Tokens of the vocabulary; 0 for images.
    pub vocabulary: usize,
    /// Tokens that the model was made for, class token included; for learned positions the most it can take.
    pub context: usize,
    /// Segments with an embedding of their own; 0 without.
    pub token_types: usize,
    /// Features of the tables of embeddings.
    pub embedding_width: usize,
    /// Whether `w_embedding`, `b_embedding` map embeddings to `width`.
    pub embedding_projection: bool,
    /// How the model knows the place of a token.
    pub position: Position,
    /// The token that stands for padding.
    pub padding: Option<u32>,
    /// Whether a token sees only those before it.
    pub causal: bool,
    /// The tokens of an image.
    pub patch: Option<Patch>,
    /// Whether a learned token precedes the patches.
    pub class_token: bool,
    /// Whether the output of each part is scaled by feature before it is added.
    pub layer_scale: bool,
    /// Whether all layers are layer 0.
    pub shared_blocks: bool,
    /// Whether there is `tanh(pooler.w x + pooler.b)` of the first token, before the classifier if there is one.
    pub pooler: bool,
    /// What is made of the last layer.
    pub head: Head,
    /// Names of the classes; empty without a classifier.
    pub labels: BTreeMap<usize, String>,
}

/// How tensors are named and parts are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Family {
    /// BERT, MiniLM and other sentence encoders.
    Bert,
    /// BERT whose positions begin after that of padding.
    Roberta,
    /// ALBERT: one layer for all, smaller embeddings.
    Albert,
    /// GPT-2.
    Gpt2,
    /// Llama, SmolLM2, TinyLlama.
    Llama,
    /// Vision transformer.
    Vit,
    /// DINOv2: a vision transformer with layer scale.
    Dinov2,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Bert, Self::Roberta, Self::Albert, Self::Gpt2, Self::Llama, Self::Vit, Self::Dinov2];

    /// The `model_type` of `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bert => "bert",
            Self::Roberta => "roberta",
            Self::Albert => "albert",
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
            Self::Vit => "vit",
            Self::Dinov2 => "dinov2",
        }
    }

    /// The name of the base model within one with a head, before its tensors.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Gpt2 => "transformer.",
            Self::Llama => "model.",
            Self::Bert => "bert.",
            Self::Roberta => "roberta.",
            Self::Albert => "albert.",
            Self::Vit => "vit.",
            Self::Dinov2 => "dinov2.",
        }
    }
}

/// The nonlinearity of the feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// `x/2 (1 + erf(x / sqrt 2))`.
    Gelu,
    /// The same with `tanh` in place of `erf`: `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x / (1 + exp(-x))`.
    Silu,
}

impl Activation {
    pub(crate) fn named(keys: &Keys<'_>, key: &str, default: Self) -> Result<Self, ConfigProblem> {
        Ok(match keys.optional_text(key)? {
            None => default,
            Some("gelu" | "gelu_python") => Self::Gelu,
            Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_accurate") => Self::GeluTanh,
            Some("relu") => Self::Relu,
            Some("silu" | "swish") => Self::Silu,
            Some(_) => {
                return Err(keys.problem(key, "\"gelu\", \"gelu_new\", \"gelu_pytorch_tanh\", \"relu\" or \"silu\""));
            }
        })
    }
}

/// Norms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Norm {
    /// What is normed.
    pub kind: NormKind,
    /// What is added to the variance, or to the mean square, under the root.
    pub epsilon: f64,
    /// Where norms of a layer stand.
    pub place: NormPlace,
}

/// What a norm does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormKind {
    /// `(x - mean) / sqrt(variance + epsilon) * weight + bias`.
    Layer,
    /// `x / sqrt(mean square + epsilon) * weight`.
    Rms,
}

/// Where norms of a layer stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormPlace {
    /// `x + part(norm(x))`.
    Pre,
    /// `norm(x + part(x))`.
    Post,
}

/// Linear maps of a layer with a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Biases {
    /// `b_q`, `b_k`, `b_v`.
    pub query_key_value: bool,
    /// `b_o`.
    pub out: bool,
    /// `b_1`, `b_2`, and `b_gate` where there is a gate.
    pub feed_forward: bool,
}

/// How the model knows the place of a token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Position {
    /// It does not.
    None,
    /// A row of `position_embedding` for each.
    Learned {
        /// The row of the first token: 0, or one after that of padding, whose rows the table keeps.
        offset: usize,
        /// Rows of the table: `offset + context`.
        rows: usize,
    },
    /// Queries and keys are rotated: feature `i` of a head with feature `i + rotated/2`.
    Rotary(RotaryConfig),
}

/// How an image becomes tokens: patches in rows, each `channels * patch * patch` numbers in that order, times `w_patch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    /// Height and width of the image in pixels.
    pub image: usize,
    /// Height and width of a patch in pixels.
    pub patch: usize,
    /// Colours.
    pub channels: usize,
}

impl Patch {
    /// Patches of an image.
    pub fn count(&self) -> usize {
        (self.image / self.patch).pow(2)
    }
}

/// What is made of the last layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Head {
    /// Nothing: the model gives features.
    None,
    /// Scores of the next token.
    Language {
        /// Whether `head` is the transpose of `token_embedding`.
        tied: bool,
        /// Whether there is `b_head`.
        bias: bool,
    },
    /// Scores of a token that was hidden: `norm_transform(activation(transform x)) head + b_head`.
    Masked {
        /// Whether `head` is the transpose of `token_embedding`.
        tied: bool,
        /// Whether there is `b_head`.
        bias: bool,
    },
    /// Scores of classes.
    Classifier {
        /// Number of classes.
        classes: usize,
        /// What the scores are made of.
        features: Features,
        /// Whether there is `b_head`.
        bias: bool,
    },
}

/// What a classifier looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Features {
    /// The first token, after the pooler if there is one.
    First,
    /// The last token that is not padding.
    Last,
    /// The first token beside the mean of the others: twice the width.
    FirstAndMean,
    /// Each token.
    Each,
}

impl Architecture {
    /// Reads what a `config.json` holds.
    ///
    /// Whether a model without head has a pooler stands in no configuration: by this it has one where its class has, and
    /// [`Folder::open`](crate::Folder::open) looks into the file.
    ///
    /// # Errors
    /// A family that is not read, a key that is missing, a value that is of the wrong kind, at odds with another one, or asks for
    /// what is not read.
    pub fn from_config(config: &Value) -> Result<Self, ConfigProblem> {
        let keys = Keys::of(config)?;
        let family = Family::ALL.into_iter().find(|family| keys.get("model_type").is_some_and(|v| *v == family.name()));
        let Some(family) = family else {
            let names: Vec<_> = Family::ALL.iter().map(|family| format!("\"{}\"", family.name())).collect();
            return Err(keys.problem("model_type", format!("one of {}", names.join(", "))));
        };
        families::read(family, &keys)
    }

    /// Features that all heads of queries have together.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Features that all heads of keys have together.
    pub fn key_width(&self) -> usize {
        self.key_value_heads * self.head_width
    }

    /// Layers with weights of their own.
    pub fn own_layers(&self) -> usize {
        if self.shared_blocks { 1 } else { self.layers }
    }

    /// Whether the head is the transposed table of tokens.
    pub fn tied(&self) -> bool {
        matches!(self.head, Head::Language { tied: true, .. } | Head::Masked { tied: true, .. })
    }
}
