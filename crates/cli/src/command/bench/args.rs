//! Arguments of `regard bench`.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use regard_kernels::Storage;
use regard_lab::bench::Level;

use crate::{
    args::{Named, STORAGES},
    values::{Real, choice, seed, size, threads, within},
};

/// Maximum runs of one point: a decoder's position table must cover all of them.
const MOST_RUNS: u64 = 10_000;

#[derive(Debug, Args)]
pub struct Bench {
    /// Time exact attention at a list of shapes instead of mechanisms over lengths: batches, head widths, shared keys,
    /// few queries.
    #[arg(long, conflicts_with_all = [
        "level", "mechanism", "lengths", "heads", "head_width", "batch", "threads_sweep", "causal", "preset", "config", "set",
        "crossover", "compare",
    ])]
    pub shapes: bool,
    /// Measure the network between the ranks of a job (mpirun) and attention over them, and predict it for other numbers of ranks.
    /// --lengths N,M: tokens of the step that is measured, and of those predicted; default: 8192,1000000.
    #[arg(long, conflicts_with_all = [
        "shapes", "level", "batch", "threads_sweep", "causal", "preset", "config", "crossover", "compare",
    ])]
    pub network: bool,
    /// What to measure: the mechanism alone, or inside a layer or model.
    #[arg(long, value_parser = choice(&LEVELS), default_value = "operator")]
    pub level: Level,
    /// Mechanism, optionally with options after a colon, as in sparse:support.kind=smyrf; may be repeated. Default:
    /// those of figure 6 of the Scatterbrain paper; with --level step the configuration's.
    #[arg(long, value_name = "ENTRY")]
    pub mechanism: Vec<String>,
    /// Sequence lengths to measure; with --level decode context lengths. Default: 512 to 65536, with --level step the
    /// task's maximum.
    #[arg(long, value_parser = size(1), value_name = "N,N,...", value_delimiter = ',')]
    pub lengths: Vec<usize>,
    /// Maximum length for mechanisms of quadratic time.
    #[arg(long, value_parser = size(0), value_name = "N", default_value_t = 16_384)]
    pub longest_quadratic: usize,
    /// Numbers of query heads to measure; default: 8, with --level step the configuration's.
    #[arg(long, value_parser = size(1), value_name = "N,N,...", value_delimiter = ',')]
    pub heads: Vec<usize>,
    /// Head widths to measure; default: 64.
    #[arg(long, value_parser = size(1), value_name = "N,N,...", value_delimiter = ',')]
    pub head_width: Vec<usize>,
    /// Batch sizes to measure; default: 1, with --level step train.batch.
    #[arg(long, value_parser = size(1), value_name = "N,N,...", value_delimiter = ',')]
    pub batch: Vec<usize>,
    /// Thread counts to measure, instead of --threads.
    #[arg(long, value_parser = threads(), value_name = "N,N,...", value_delimiter = ',')]
    pub threads_sweep: Vec<usize>,
    /// Each query sees only keys up to its own position.
    #[arg(long)]
    pub causal: bool,
    /// Level decode: storage format of keys and values.
    #[arg(long, value_parser = choice(&STORAGES), default_value = "f32")]
    pub kv_cache: Storage,
    /// Level step: named configuration; without it or --config, a decoder with 4 layers of width 256.
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Level step: configuration file (TOML), applied on top of the preset.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Level step: vocabulary size; default: the task's, 1000 without a configuration.
    #[arg(long, value_parser = within(1, i32::MAX as u64), value_name = "N")]
    pub vocabulary: Option<usize>,
    /// Set one option of all mechanisms, as in key_value_heads=1, with --level step also of the model; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Untimed warm-up runs of each mechanism.
    #[arg(long, value_parser = within(1, MOST_RUNS), value_name = "N", default_value_t = 1)]
    pub warm_up: usize,
    /// Timed runs of each mechanism at each combination of sizes.
    #[arg(long, value_parser = within(1, MOST_RUNS), value_name = "N", default_value_t = 7)]
    pub repeats: usize,
    /// Stop repeating a measurement after this many seconds.
    #[arg(long, value_parser = Real, value_name = "NUMBER", default_value_t = 20.0)]
    pub seconds: f64,
    /// Also find the length at which each mechanism becomes faster than exact attention, which is added if missing.
    #[arg(long)]
    pub crossover: bool,
    /// Also show ratios to an earlier result, or to a git revision that is built and run alternately with this program.
    #[arg(long, value_name = "FILE.json|REVISION")]
    pub compare: Option<OsString>,
    /// Seed for tensors, projections and hashes.
    #[arg(long, value_parser = seed(), value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Output directory for the table, SVG charts and a report.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

impl Bench {
    /// The command, where it measures what only the CPU does.
    pub fn only_on_the_cpu(&self) -> Option<&'static str> {
        match self.level {
            _ if self.shapes => Some("bench --shapes"),
            _ if self.network => Some("bench --network"),
            Level::Decode => Some("bench --level decode"),
            _ => None,
        }
    }
}

/// Benchmark levels.
const LEVELS: Named<Level, 5> = [
    ("operator", "The operator alone, forward and backward", Level::Operator),
    ("layer", "The attention layer with its projections in training, forward and backward", Level::Layer),
    (
        "inference",
        "The same layer as a trained model runs it: forward alone, nothing kept for a backward pass",
        Level::Inference,
    ),
    ("step", "A training step of a model: forward pass, loss, backward pass, optimizer", Level::Step),
    ("decode", "One token of incremental decoding", Level::Decode),
];
