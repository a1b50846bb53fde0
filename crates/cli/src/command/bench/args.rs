//! Arguments of `regard bench`.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use regard_kernels::Storage;
use regard_lab::bench::Level;

use crate::{
    args::{Named, STORAGES},
    values::{Real, choice, seed, size, threads, within},
};

/// Most runs of one point: tables of positions of a decoder reach to the last.
const MOST_RUNS: u64 = 10_000;

#[derive(Debug, Args)]
pub struct Bench {
    /// Exact attention at a list of shapes in place of mechanisms at lengths: batches, head widths, shared keys, few queries.
    #[arg(long, conflicts_with_all = [
        "level", "mechanism", "lengths", "heads", "head_width", "batch", "threads_sweep", "causal", "preset", "config", "set",
        "crossover", "compare",
    ])]
    pub shapes: bool,
    /// What is measured: the mechanism alone, or with the layer or model around it.
    #[arg(long, value_parser = choice(&LEVELS), default_value = "operator")]
    pub level: Level,
    /// Mechanism, with options after a colon where wanted, as in sparse:support.kind=smyrf; may be repeated. By default those of
    /// figure 6 of the Scatterbrain paper; with --level step that of the configuration.
    #[arg(long, value_name = "ENTRY")]
    pub mechanism: Vec<String>,
    /// Tokens of a sequence, each measured; with --level decode those before the token that is timed. By default 512 to 65536,
    /// with --level step the longest of the task.
    #[arg(long, value_parser = size(1), value_name = "N,N,...", value_delimiter = ',')]
    pub lengths: Vec<usize>,
    /// Longest length of mechanisms whose time grows with its square.
    #[arg(long, value_parser = size(0), value_name = "N", default_value_t = 16_384)]
    pub longest_quadratic: usize,
    /// Query heads, each measured; 8 by default, with --level step those of the configuration.
    #[arg(long, value_parser = size(1), value_name = "N,N,...", value_delimiter = ',')]
    pub heads: Vec<usize>,
    /// Channels of a head, each measured; 64 by default.
    #[arg(long, value_parser = size(1), value_name = "N,N,...", value_delimiter = ',')]
    pub head_width: Vec<usize>,
    /// Sequences per batch, each measured; 1 by default, with --level step train.batch.
    #[arg(long, value_parser = size(1), value_name = "N,N,...", value_delimiter = ',')]
    pub batch: Vec<usize>,
    /// Numbers of threads, each measured in turn, in place of --threads.
    #[arg(long, value_parser = threads(), value_name = "N,N,...", value_delimiter = ',')]
    pub threads_sweep: Vec<usize>,
    /// Each query sees only keys up to its own position.
    #[arg(long)]
    pub causal: bool,
    /// Level decode: how keys and values are stored.
    #[arg(long, value_parser = choice(&STORAGES), default_value = "f32")]
    pub kv_cache: Storage,
    /// Level step: named configuration; a decoder of 4 layers, 256 wide, where there is neither it nor --config.
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Level step: configuration file (TOML), laid over the preset.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Level step: tokens in the vocabulary; the task's by default, 1000 without a configuration.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub vocabulary: Option<usize>,
    /// One option of all mechanisms, as in key_value_heads=1, with --level step of the model too; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Untimed runs of each mechanism before the timed ones.
    #[arg(long, value_parser = within(1, MOST_RUNS), value_name = "N", default_value_t = 1)]
    pub warm_up: usize,
    /// Timed runs of each mechanism at each combination of sizes.
    #[arg(long, value_parser = within(1, MOST_RUNS), value_name = "N", default_value_t = 7)]
    pub repeats: usize,
    /// Stop repeating a measurement after this many seconds.
    #[arg(long, value_parser = Real, value_name = "NUMBER", default_value_t = 20.0)]
    pub seconds: f64,
    /// Also the length at which each mechanism overtakes exact attention, which is added where it is missing.
    #[arg(long)]
    pub crossover: bool,
    /// Also ratios to an earlier result, or to a git revision that is built and takes turns with this program.
    #[arg(long, value_name = "FILE.json|REVISION")]
    pub compare: Option<OsString>,
    /// Seed for tensors, projections and hashes.
    #[arg(long, value_parser = seed(), value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Directory for the table, the charts as SVG and a report.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// What can be measured.
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
