//! Time and memory of mechanisms against the length of the sequence and other sizes: of the operators alone, of layers in
//! training and in inference, of whole training steps, and of decoding token by token.
//!
//! Every mechanism is first checked against its float64 twin at a small size. Mechanisms and numbers of threads take turns within
//! each round of runs, so that a machine that slows down slows all of them. The first runs of each are thrown away but for
//! their memory.

mod charts;
mod check;
mod compare;
mod crossover;
mod decode;
mod inputs;
mod layer;
mod operator;
mod report;
mod rounds;
mod shapes;
mod sizes;
mod step;
mod timing;
mod workload;

use regard_kernels::{AttentionOptions, Error, Mechanism, Storage, mechanism::Growth, support::SupportKind};
use regard_tasks::{Class, Classed};
use serde::{Deserialize, Serialize};

pub use check::{BOUND, Check, check};
pub use compare::{Earlier, merge};
pub use crossover::{Crossing, Crossover};
pub use report::Benchmark;
pub use rounds::run;
pub use shapes::{SHAPES, Shape, ShapeTime, Shapes, read_rate, time_shape};
pub use sizes::Sizes;
pub use step::Recipe;
pub use timing::{TimeRatio, Timing};

/// How much around a mechanism is measured with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The operator alone.
    #[default]
    Operator,
    /// The attention layer with its projections, in training.
    Layer,
    /// The same layer as a trained model runs it: the forward pass alone, nothing kept for a backward pass.
    Inference,
    /// A training step of a model: forward pass, loss, backward pass, optimizer.
    Step,
    /// One token of incremental decoding.
    Decode,
}

impl Level {
    /// What is timed at this level.
    pub fn passes(self) -> &'static [Pass] {
        match self {
            Self::Operator | Self::Layer => &[Pass::Forward, Pass::Both],
            Self::Inference => &[Pass::Forward],
            Self::Step => &[Pass::Step],
            Self::Decode => &[Pass::Token],
        }
    }

    /// Its name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Layer => "layer",
            Self::Inference => "inference",
            Self::Step => "step",
            Self::Decode => "decode",
        }
    }
}

/// Something that has a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// The forward pass.
    Forward,
    /// Forward and backward pass together.
    Both,
    /// A training step.
    Step,
    /// A decoded token.
    Token,
}

impl Pass {
    /// Its name in names of files and of JSON fields.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Both => "both",
            Self::Step => "step",
            Self::Token => "token",
        }
    }

    /// Its name in tables.
    pub fn title(self) -> &'static str {
        match self {
            Self::Both => "forward+backward",
            _ => self.name(),
        }
    }
}

/// One mechanism with its options.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name in tables and charts.
    pub label: String,
    /// Its options: causality and all that is its own.
    pub options: AttentionOptions,
    /// Whether it keeps the heads of its options whatever the sizes of the benchmark say.
    pub own_heads: bool,
    /// The model around it; needed by [`Level::Step`] alone.
    pub recipe: Option<Recipe>,
}

impl Subject {
    /// Options with these heads, unless it has its own.
    fn with_heads(&self, heads: usize) -> AttentionOptions {
        let heads = if self.own_heads { self.options.heads } else { heads };
        AttentionOptions { heads, ..self.options.clone() }
    }

    /// Width of a head, in a model its own.
    fn head_width(&self, options: &AttentionOptions, sizes: Sizes) -> usize {
        self.recipe.as_ref().map_or(sizes.head_width, |recipe| recipe.model.head_width(options))
    }

    /// Exact attention: what others should overtake.
    pub fn is_exact(&self) -> bool {
        self.options.mechanism == Mechanism::Softmax && self.options.window.is_none()
    }

    /// Whether time grows with the square of the length: of exact mechanisms, of a full support, and of sizes that are a
    /// share of the length.
    fn is_quadratic(&self) -> bool {
        let options = &self.options;
        let sized = options.uses_features() || options.uses_support();
        options.mechanism.facts().time == Growth::Quadratic
            || (options.uses_support() && options.support.kind == SupportKind::Full)
            || (sized && options.budget.is_some())
    }
}

/// What is measured: every mechanism at every combination of sizes.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// How much of a model around the mechanism.
    pub level: Level,
    /// The mechanisms.
    pub subjects: &'a [Subject],
    /// Tokens of a sequence, queries and keys alike; at [`Level::Decode`] those before the one that is timed.
    pub lengths: &'a [usize],
    /// Query heads.
    pub heads: &'a [usize],
    /// Channels of a head, of values too; at [`Level::Step`] those of the model, whatever is here.
    pub head_widths: &'a [usize],
    /// Sequences at once.
    pub batches: &'a [usize],
    /// Threads, each in turn; the current ones where there are none here.
    pub threads: &'a [usize],
    /// Untimed runs before the timed ones, at least 1.
    pub warm_ups: usize,
    /// Timed runs of each mechanism at each combination of sizes, at least 1 ...
    pub repeats: usize,
    /// ... unless they have taken so many seconds together.
    pub seconds: f64,
    /// Mechanisms whose time grows with the square of the length stop there.
    pub longest_quadratic: usize,
    /// Storage of keys and values at [`Level::Decode`]; the check against the twin uses f32.
    pub storage: Storage,
    /// Draws tensors, projections and hashes.
    pub seed: u64,
}

/// One mechanism at one combination of sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The mechanism.
    pub label: String,
    /// How much around it.
    #[serde(default)]
    pub level: Level,
    /// Length, batch, heads, threads.
    #[serde(flatten)]
    pub at: Sizes,
    /// Whether a query sees only what comes before it.
    pub causal: bool,
    /// Whether it is exact attention, which others should overtake.
    #[serde(default)]
    pub exact: bool,
    /// Sizes of support and features in words.
    pub sizes: String,
    /// How it compares with its float64 twin; files of older versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
    /// Untimed runs.
    #[serde(default)]
    pub warm_ups: usize,
    /// Timed runs.
    pub runs: usize,
    /// Time of the forward pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Timing>,
    /// Time of forward and backward pass together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub both: Option<Timing>,
    /// Time of a training step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Timing>,
    /// Time of a decoded token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Timing>,
    /// Most bytes in use at once in the forward pass beyond the inputs: output, what is kept, scratch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_bytes: Option<u64>,
    /// The same of both passes, gradients included, beyond inputs and the gradient of the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub both_bytes: Option<u64>,
    /// Most bytes in use at once in a training step, parameters and moments included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_bytes: Option<u64>,
    /// Bytes of the state of decoding after its context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
}

impl Measurement {
    /// The time of a pass, where its level has that pass.
    pub fn time(&self, pass: Pass) -> Option<Timing> {
        match pass {
            Pass::Forward => self.forward,
            Pass::Both => self.both,
            Pass::Step => self.step,
            Pass::Token => self.token,
        }
    }

    /// The bytes of a pass: at most in use, or held by a state of decoding.
    pub fn bytes(&self, pass: Pass) -> Option<u64> {
        match pass {
            Pass::Forward => self.forward_bytes,
            Pass::Both => self.both_bytes,
            Pass::Step => self.step_bytes,
            Pass::Token => self.state_bytes,
        }
    }

    fn set(&mut self, pass: Pass, time: Option<Timing>, bytes: Option<u64>) {
        let (own_time, own_bytes) = match pass {
            Pass::Forward => (&mut self.forward, &mut self.forward_bytes),
            Pass::Both => (&mut self.both, &mut self.both_bytes),
            Pass::Step => (&mut self.step, &mut self.step_bytes),
            Pass::Token => (&mut self.token, &mut self.state_bytes),
        };
        (*own_time, *own_bytes) = (time, bytes);
    }

    /// Whether it computes something else than it should, so that its times mean nothing.
    pub fn is_wrong(&self) -> bool {
        self.check.as_ref().is_some_and(|check| !check.passed)
    }
}

/// Why a benchmark ended early.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Options that do not fit the mechanism or the length.
    #[error("{label} at {length} tokens: {source}")]
    Options {
        /// The mechanism.
        label: String,
        /// Tokens.
        length: usize,
        /// What is wrong.
        #[source]
        source: Error,
    },
    /// An output or gradient that is not finite.
    #[error(
        "{label} at {length} tokens: {what} is not finite, expected numbers for inputs of unit variance; give other sizes"
    )]
    Numeric {
        /// The mechanism.
        label: String,
        /// Tokens.
        length: usize,
        /// The output or a gradient.
        what: String,
    },
    /// A model or data that cannot be.
    #[error("{label} at {length} tokens: {problem}")]
    Model {
        /// The mechanism.
        label: String,
        /// Tokens.
        length: usize,
        /// What is wrong.
        problem: String,
    },
    /// Threads that the system does not give.
    #[error("{count} threads: {problem}; lower --threads-sweep")]
    Threads {
        /// Threads asked for.
        count: usize,
        /// What the system says.
        problem: String,
    },
    /// The stop flag was raised.
    #[error("interrupted")]
    Interrupted,
}

impl Classed for BenchError {
    fn class(&self) -> Class {
        match self {
            Self::Options { source: Error::Budget { .. }, .. } => Class::Budget,
            Self::Options { .. } | Self::Model { .. } | Self::Threads { .. } => Class::Usage,
            Self::Numeric { .. } => Class::Numeric,
            Self::Interrupted => Class::Interrupted,
        }
    }
}
