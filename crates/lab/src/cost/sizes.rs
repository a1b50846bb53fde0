//! The sizes of a model, from a configuration or given individually.

use regard_kernels::{AttentionOptions, Error};
use regard_nn::{
    attention::{AttentionConfig, Attentions},
    models::ModelConfig,
};
use regard_tasks::{
    Class, Classed,
    data::{Objective, Shape},
    run::RunConfig,
};
use serde::Serialize;

use super::Count;

/// Sizes of the attention of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSizes {
    /// Mechanism, heads, keys, mixture and the like.
    pub options: AttentionOptions,
    /// `D`, head width, also of values.
    pub head_width: usize,
    /// Whether queries, keys and values have biases.
    pub bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
}

/// The model's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// One vector per sequence, then one projection to this many classes.
    Classes(usize),
    /// One vector per sequence of a pair, then one projection of both, their product and their difference to this many
    /// classes. The sequences of a pair are equally long.
    Pairs(usize),
    /// Logits over the vocabulary at each position.
    Tokens,
    /// Scores of what is offered to a reader: one vector for each title read or offered, then a second encoder over those that
    /// were read. All titles are equally long, and no two readers share one.
    Readers {
        /// Titles read.
        history: usize,
        /// Titles offered.
        candidates: usize,
    },
}

impl Head {
    /// Sequences of an item.
    pub(super) fn sequences(self) -> Count {
        match self {
            Self::Classes(_) | Self::Tokens => 1,
            Self::Pairs(_) => 2,
            Self::Readers { history, candidates } => history as Count + candidates as Count,
        }
    }
}

/// Sizes of a model: blocks of attention and feed-forward over token embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSizes {
    /// The transformer around its attention.
    pub model: ModelConfig,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Maximum length: rows of the learned positions and of a per-position prior.
    pub context: usize,
    /// The model's head.
    pub head: Head,
    /// Self-attention of each layer.
    pub attention: AttentionSizes,
    /// The decoder of an encoder-decoder: as many blocks again. Source and target are equally long, and share the token
    /// embedding.
    pub decoder: Option<DecoderSizes>,
}

/// The attentions of a decoder block.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSizes {
    /// Self-attention over the target so far.
    pub attention: AttentionSizes,
    /// Cross-attention to the encoder's output.
    pub cross: AttentionSizes,
}

/// Sizes of a training step and of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// Sequences per training step.
    pub batch: usize,
    /// Tokens per sequence.
    pub length: usize,
    /// Number of decoded tokens when the decode state is counted.
    pub decoded: usize,
}

/// Invalid sizes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CostError {
    /// A size out of range.
    #[error("{name} is {seen}, expected a whole number from {least} to {most}")]
    Size {
        /// Name of the size.
        name: &'static str,
        /// Its value.
        seen: usize,
        /// Minimum.
        least: usize,
        /// Maximum.
        most: usize,
    },
    /// Heads that cannot share the width evenly.
    #[error("width is {width}, expected a multiple of {unit}, for heads of whole widths")]
    Heads {
        /// What the width must be a multiple of.
        unit: usize,
        /// Width of the model.
        width: usize,
    },
    /// Options of the attention that do not fit together.
    #[error(transparent)]
    Attention(#[from] regard_kernels::Error),
    /// A mechanism that adds query and output needs them to have the same width.
    #[error("{mechanism} adds queries to its output: heads x head width is {inner}, expected the width, {width}")]
    Inner {
        /// The mechanism.
        mechanism: regard_kernels::Mechanism,
        /// `H * D`.
        inner: usize,
        /// `d`.
        width: usize,
    },
}

impl Classed for CostError {
    fn class(&self) -> Class {
        match self {
            Self::Attention(error @ Error::Budget { .. }) => error.class(),
            _ => Class::Usage,
        }
    }
}

impl ModelSizes {
    /// Sizes of the model of a configuration on sequences of `length`, over `vocabulary` or the task's.
    pub fn of(config: &RunConfig, vocabulary: Option<usize>, length: usize) -> Self {
        let shape = config.task.options().shape();
        let (vocabulary, max_length) = (vocabulary.unwrap_or(shape.vocabulary), length.max(shape.max_length));
        Self::new(&config.model, &config.attentions(), Shape { vocabulary, max_length, ..shape })
    }

    /// Sizes of the model of a task of this shape. A single-stack model uses the encoder's attention.
    pub fn new(config: &ModelConfig, attentions: &Attentions, shape: Shape) -> Self {
        let sizes = |options: AttentionConfig| AttentionSizes {
            head_width: config.head_width(&options),
            options,
            bias: config.qkv_bias.unwrap_or(config.bias),
            output_bias: config.output_bias.unwrap_or(config.bias),
        };
        let decoder = |attentions: &Attentions| DecoderSizes {
            attention: sizes(AttentionConfig { causal: true, ..attentions.decoder.clone() }),
            cross: sizes(AttentionConfig { causal: false, ..attentions.cross.clone() }),
        };
        Self {
            model: config.clone(),
            vocabulary: shape.vocabulary,
            context: shape.max_length,
            head: match shape.objective {
                Objective::Classify { classes } => Head::Classes(classes),
                Objective::Regress => Head::Classes(1),
                Objective::ClassifyPairs { classes } => Head::Pairs(classes),
                Objective::Rank { history, candidates } => Head::Readers { history, candidates },
                _ => Head::Tokens,
            },
            attention: sizes(shape.objective.attention(&attentions.encoder)),
            decoder: shape.objective.has_decoder().then(|| decoder(attentions)),
        }
    }

    /// Checks that every size is valid. The upper limits keep every count far from overflow.
    ///
    /// # Errors
    /// The first size out of range, or attention options that do not fit together.
    pub fn check(&self) -> Result<(), CostError> {
        let sizes = [
            ("vocabulary", self.vocabulary, 1, 1 << 26),
            ("width", self.model.width, 1, 1 << 20),
            ("layers", self.model.layers, 0, 1 << 12),
            ("feed_forward", self.model.feed_forward, 0, 1 << 24),
            ("embedding_width", self.model.embedding_width(), 1, 1 << 20),
            ("token_types", self.model.token_types, 0, 1 << 26),
            ("context", self.context, 1, 1 << 30),
            (
                "classes",
                if let Head::Classes(classes) | Head::Pairs(classes) = self.head { classes } else { 1 },
                1,
                1 << 26,
            ),
            ("history", if let Head::Readers { history, .. } = self.head { history } else { 1 }, 1, 1 << 20),
            ("candidates", if let Head::Readers { candidates, .. } = self.head { candidates } else { 1 }, 1, 1 << 20),
        ];
        in_range(&sizes)?;
        let softmax = &self.model.adaptive_softmax;
        if softmax.is_used() {
            let last = softmax.cutoffs.iter().copied().max().unwrap_or(0);
            in_range(&[("model.adaptive_softmax.cutoffs", last, 1, self.vocabulary.saturating_sub(1))])?;
        }
        self.attentions().try_for_each(AttentionSizes::check)
    }

    fn attentions(&self) -> impl Iterator<Item = &AttentionSizes> {
        let decoder = self.decoder.iter().flat_map(|decoder| [&decoder.attention, &decoder.cross]);
        [&self.attention].into_iter().chain(decoder)
    }

    /// What a [scaled](Self::scaled) width must be a multiple of, so that the width of every head is a whole number.
    pub fn width_unit(&self) -> usize {
        let unit = |sizes: &AttentionSizes| self.model.width / gcd(self.model.width, sizes.head_width);
        self.attentions().map(unit).fold(1, common_multiple)
    }

    /// The same model at another width: as many heads, with head and feed-forward width scaled in proportion.
    ///
    /// # Errors
    /// A width that the heads cannot share evenly.
    pub fn scaled(&self, width: usize) -> Result<Self, CostError> {
        self.check()?;
        let unit = self.width_unit();
        if width == 0 || !width.is_multiple_of(unit) {
            return Err(CostError::Heads { unit, width });
        }
        let share = |size: usize| (size as Count * width as Count / self.model.width as Count) as usize;
        let model = ModelConfig {
            width,
            feed_forward: share(self.model.feed_forward),
            embedding_width: self.model.embedding_width.map(share),
            ..self.model.clone()
        };
        let attention =
            |sizes: &AttentionSizes| AttentionSizes { head_width: share(sizes.head_width), ..sizes.clone() };
        let decoder = |decoder: &DecoderSizes| DecoderSizes {
            attention: attention(&decoder.attention),
            cross: attention(&decoder.cross),
        };
        Ok(Self {
            model,
            attention: attention(&self.attention),
            decoder: self.decoder.as_ref().map(decoder),
            ..self.clone()
        })
    }
}

/// The least common multiple.
pub(super) fn common_multiple(a: usize, b: usize) -> usize {
    a / gcd(a, b) * b
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl AttentionSizes {
    fn check(&self) -> Result<(), CostError> {
        let options = &self.options;
        in_range(&[
            ("heads", options.heads, 1, 1 << 12),
            ("head_width", self.head_width, 1, 1 << 16),
            ("keys.components", options.keys.components, 1, 1 << 10),
            ("features.rows", options.features.rows, 0, 1 << 20),
            ("support.rounds", options.support.rounds, 0, 1 << 10),
            ("moa.experts", options.moa.experts, 1, 1 << 20),
        ])?;
        Ok(options.check()?)
    }
}

impl Run {
    /// Checks the sizes of a step.
    ///
    /// # Errors
    /// The first size out of range.
    pub fn check(&self) -> Result<(), CostError> {
        let most = 1 << 30;
        in_range(&[
            ("batch", self.batch, 1, 1 << 20),
            ("length", self.length, 1, most),
            ("decoded", self.decoded, 0, most),
        ])
    }
}

/// `(name, seen, least, most)` each.
fn in_range(sizes: &[(&'static str, usize, usize, usize)]) -> Result<(), CostError> {
    match sizes.iter().find(|(_, seen, least, most)| !(least..=most).contains(&seen)) {
        Some(&(name, seen, least, most)) => Err(CostError::Size { name, seen, least, most }),
        None => Ok(()),
    }
}
