//! Time and memory of mechanisms against sequence length and other sizes: operators alone, layers in training and at
//! inference, whole training steps, and decoding token by token.
//!
//! Every mechanism is first checked against its float64 twin at a small size. Mechanisms and thread counts are
//! interleaved within each round of runs, so that a machine that slows down affects all of them. The first runs of each
//! are discarded except for their memory.

mod charts;
mod check;
mod compare;
mod crossover;
mod decode;
mod inputs;
mod layer;
mod network;
mod on_device;
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

pub use check::{Check, bound, check};
pub use compare::{Earlier, merge};
pub use crossover::{Crossing, Crossover};
pub use network::{NetworkPlan, NetworkReport};
pub use report::Benchmark;
pub use rounds::run;
pub use shapes::{SHAPES, Shape, ShapeTime, Shapes, read_rate, time_shape};
pub use sizes::Sizes;
pub use step::Recipe;
pub use timing::{TimeRatio, Timing};

/// What is measured: a mechanism alone or with its surroundings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The operator alone.
    #[default]
    Operator,
    /// The attention layer with its projections, in training.
    Layer,
    /// The same layer at inference: forward pass only, nothing saved for a backward pass.
    Inference,
    /// A training step of a model: forward pass, loss, backward pass, optimizer.
    Step,
    /// One token of incremental decoding.
    Decode,
}

impl Level {
    /// The passes timed at this level.
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

/// A timed phase.
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
    /// Its name in file names and JSON fields.
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
    /// Its options, including causality.
    pub options: AttentionOptions,
    /// Whether it keeps the heads of its options instead of those of the benchmark.
    pub own_heads: bool,
    /// The model around it; needed only by [`Level::Step`].
    pub recipe: Option<Recipe>,
}

impl Subject {
    /// Options with this number of heads, unless it has its own.
    fn with_heads(&self, heads: usize) -> AttentionOptions {
        let heads = if self.own_heads { self.options.heads } else { heads };
        AttentionOptions { heads, ..self.options.clone() }
    }

    /// Head width; in a model, the model's.
    fn head_width(&self, options: &AttentionOptions, sizes: Sizes) -> usize {
        self.recipe.as_ref().map_or(sizes.head_width, |recipe| recipe.model.head_width(options))
    }

    /// Whether it is exact attention, the baseline.
    pub fn is_exact(&self) -> bool {
        self.options.mechanism == Mechanism::Softmax && self.options.window.is_none()
    }

    /// Whether time is quadratic in the length: exact mechanisms, a full support, and sizes proportional to the length.
    fn is_quadratic(&self) -> bool {
        let options = &self.options;
        let sized = options.uses_features() || options.uses_support();
        options.mechanism.facts().time == Growth::Quadratic
            || (options.uses_support() && options.support.kind == SupportKind::Full)
            || (sized && options.budget.is_some())
    }
}

/// A benchmark plan: every mechanism at every combination of sizes.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// What is measured around the mechanism.
    pub level: Level,
    /// The mechanisms.
    pub subjects: &'a [Subject],
    /// Sequence lengths, for queries and keys; at [`Level::Decode`] context lengths.
    pub lengths: &'a [usize],
    /// Query heads.
    pub heads: &'a [usize],
    /// Head widths, of values too; ignored at [`Level::Step`], which uses the model's.
    pub head_widths: &'a [usize],
    /// Batch sizes.
    pub batches: &'a [usize],
    /// Thread counts; the current number if empty.
    pub threads: &'a [usize],
    /// Untimed runs before the timed ones, at least 1.
    pub warm_ups: usize,
    /// Timed runs of each mechanism at each combination of sizes, at least 1 ...
    pub repeats: usize,
    /// ... unless they have taken this many seconds in total.
    pub seconds: f64,
    /// Maximum length for mechanisms of quadratic time.
    pub longest_quadratic: usize,
    /// Storage of keys and values at [`Level::Decode`]; the check against the twin uses f32.
    pub storage: Storage,
    /// Seed for tensors, projections and hashes.
    pub seed: u64,
}

/// One mechanism at one combination of sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The mechanism.
    pub label: String,
    /// What is measured around it.
    #[serde(default)]
    pub level: Level,
    /// Length, batch, heads, threads.
    #[serde(flatten)]
    pub at: Sizes,
    /// Whether attention is causal.
    pub causal: bool,
    /// Whether it is exact attention, the baseline.
    #[serde(default)]
    pub exact: bool,
    /// Sizes of support and features as text.
    pub sizes: String,
    /// Result of the check against its float64 twin; absent in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
    /// Number of untimed runs.
    #[serde(default)]
    pub warm_ups: usize,
    /// Number of timed runs.
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
    /// Peak bytes in use in the forward pass beyond the inputs: output, saved tensors, scratch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_bytes: Option<u64>,
    /// The same for both passes, gradients included, beyond inputs and the output gradient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub both_bytes: Option<u64>,
    /// Peak bytes in use in a training step, parameters and moments included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_bytes: Option<u64>,
    /// Decode-state size in bytes after the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
}

impl Measurement {
    /// The time of a pass, if its level has that pass.
    pub fn time(&self, pass: Pass) -> Option<Timing> {
        match pass {
            Pass::Forward => self.forward,
            Pass::Both => self.both,
            Pass::Step => self.step,
            Pass::Token => self.token,
        }
    }

    /// The bytes of a pass: peak in use, or the decode-state size.
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

    /// Whether its check failed, so that its times are meaningless.
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
    /// A non-finite output or gradient.
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
    /// An invalid model or invalid data.
    #[error("{label} at {length} tokens: {problem}")]
    Model {
        /// The mechanism.
        label: String,
        /// Tokens.
        length: usize,
        /// What is wrong.
        problem: String,
    },
    /// Threads that could not be created.
    #[error("{count} threads: {problem}; lower --threads-sweep")]
    Threads {
        /// Number of threads requested.
        count: usize,
        /// The system error.
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
