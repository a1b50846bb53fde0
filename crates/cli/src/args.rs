//! Arguments of the command line.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, CommandFactory, Error, FromArgMatches, Parser, Subcommand, ValueEnum};
use regard_kernels::Storage;
use regard_lab::bench::Level;
use regard_tasks::train::Split;

use crate::values::{Real, seed, size, threads, with_dashes, within};

const TENSORS: &str = "Tensors of the input: q [B,H,N,D], k [B,Hk,S,D] (mixtures [B,Hk,M,S,D]), v [B,Hk,S,Dv], F32 or \
F64; optional valid [B,S] and query_valid [B,N] (U8), bias [H,N,S] (softmax), log_prior [H,M] or [H,M,S], variance [M], \
shift [Hk,M,D], prior [H,M,S] (soft-em), projection [R,D] (performer, scatterbrain), directions [rounds,D+2] (smyrf), \
rotations [rounds,D,hash values/2] (lsh, which takes no k: queries are the keys), layout [blocks,blocks] (block), w_q, w_k and \
w_t (fastformer), grad_out. Tensors of the output: out, lse where it exists, prior_after (soft-em), and grad.NAME of each \
input that is learned where grad_out is given.";

const CODES: &str = "Exit codes: 0 done, 1 a check failed, 2 wrong usage or configuration, 3 data missing or corrupt, or files \
or results that cannot be written, 4 a number that is not finite, 5 more memory needed than there is or a budget too small for \
anything, 130 or 143 stopped by a signal after a checkpoint.";

/// Efficient attention: train, compare and look into transformers with any attention mechanism.
#[derive(Debug, Parser)]
#[command(name = "regard", version, after_help = CODES, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub common: Common,
}

impl Arguments {
    /// What this process was called with.
    ///
    /// # Errors
    /// Arguments that are none; help and version, where they were asked for.
    pub fn typed() -> Result<Self, Error> {
        Self::from_arg_matches(&with_dashes(Self::command()).try_get_matches()?)
    }
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Number of threads; all processors by default.
    #[arg(long, value_parser = threads(), global = true, env = "REGARD_THREADS", value_name = "N")]
    pub threads: Option<usize>,
    /// Print results as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Show no progress.
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

/// Where a configuration comes from.
#[derive(Clone, Debug, Default, Args)]
pub struct Source {
    /// Named configuration; 'regard list presets' shows them.
    #[arg(long, env = "REGARD_PRESET", value_name = "NAME")]
    pub preset: Option<String>,
    /// Configuration file (TOML), laid over the preset.
    #[arg(long, env = "REGARD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One key of the configuration, as in model.width=128; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Attention mechanism ('regard list mechanisms'); short for --set mechanism=NAME.
    #[arg(long, value_name = "NAME")]
    pub mechanism: Option<String>,
    /// Task ('regard list tasks'); short for --set task.name=NAME.
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,
    /// Seed for all random draws; short for --set seed=N.
    #[arg(long, value_parser = seed(), value_name = "N")]
    pub seed: Option<u64>,
}

/// The directory of a run or comparison.
#[derive(Clone, Debug, Args)]
pub struct Directory {
    /// Directory for checkpoints, metrics and reports; below 'runs' by default.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue what is in the directory.
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,
    /// Remove what is in the directory and start over.
    #[arg(long)]
    pub overwrite: bool,
    /// Directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train one model.
    Train {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        directory: Directory,
    },
    /// Measure a trained model on a split of its data.
    Eval(Eval),
    /// Train the same model with each of several mechanisms and put quality, time and memory side by side.
    Compare {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        directory: Directory,
    },
    /// Time and memory of mechanisms against the length of the sequence.
    Bench(Bench),
    /// How well sparse, low-rank and joint methods approximate attention matrices within one budget, beside oracles.
    Approx(Approx),
    /// Apply one mechanism to the tensors of a safetensors file.
    #[command(after_help = TENSORS)]
    Attend(Attend),
    /// Parameters, operations and bytes of a model, before it is run.
    Cost(Cost),
    /// Print text from a trained language model.
    Generate(Generate),
    /// Translate lines of standard input to standard output with a trained translator.
    Translate(Translate),
    /// Look inside a trained model: entropy, rank, heads, experts.
    Inspect(Inspect),
    /// How a decoder without positional embeddings finds positions: untrained decoders, or the decoder of a run.
    Probe(Probe),
    /// Reproduce figures and tables of the papers by name.
    Reproduce(Reproduce),
    /// List mechanisms, tasks and presets.
    List {
        /// What to list; everything by default.
        what: Option<Listed>,
    },
    /// Check this machine and this build.
    Doctor,
    /// Print the configuration that a command with these options would use.
    Config {
        #[command(flatten)]
        source: Source,
    },
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub struct Reproduce {
    /// Entries to run, or 'all'; what is recorded is not run again.
    #[arg(value_name = "NAME", required_unless_present_any = ["list", "page"])]
    pub names: Vec<String>,
    /// Show all entries with the data that they need, and time and verdict of the last recorded run.
    #[arg(long, conflicts_with = "names")]
    pub list: bool,
    /// Reduced for two cores, or as in the paper.
    #[arg(long, value_enum, default_value_t = Scale::Reduced)]
    pub scale: Scale,
    /// Directory of all outcomes, one directory per entry below it.
    #[arg(long, value_name = "DIR", default_value = "runs/reproduce")]
    pub out: PathBuf,
    /// Write the page of all recorded outcomes, as Markdown.
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Run recorded entries again, training included.
    #[arg(long)]
    pub overwrite: bool,
    /// Directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Eval {
    /// Directory of a run.
    pub run: PathBuf,
    /// Split of the data.
    #[arg(long, value_enum, default_value_t = SplitName::Test)]
    pub split: SplitName,
    /// Checkpoint of the run.
    #[arg(long, value_enum, default_value_t = Which::Best)]
    pub checkpoint: Which,
    /// Sequences per batch; as in training by default.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub batch: Option<usize>,
    /// Directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SplitName {
    /// To choose a model by.
    Valid,
    /// To report results on.
    Test,
}

impl From<SplitName> for Split {
    fn from(name: SplitName) -> Self {
        match name {
            SplitName::Valid => Self::Valid,
            SplitName::Test => Self::Test,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// The best on the validation split, or the mean of the last ones where train.average asked for it.
    Best,
    /// The newest.
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Listed {
    /// Attention mechanisms.
    Mechanisms,
    /// Tasks.
    Tasks,
    /// Named configurations.
    Presets,
}

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
    #[arg(long, value_enum, default_value_t = BenchLevel::Operator)]
    pub level: BenchLevel,
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
    #[arg(long, value_enum, default_value_t = KeptAs::F32)]
    pub kv_cache: KeptAs,
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

/// Numbers of keys and values while a model decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeptAs {
    /// 32 bits, exact.
    F32,
    /// 16 bits with the range of f32, 2^-8 of a number.
    Bf16,
    /// 16 bits, 2^-11 of a number up to 65,504.
    F16,
    /// 8 bits, 1/254 of the largest number of a token and head.
    Int8,
}

impl From<KeptAs> for Storage {
    fn from(kept: KeptAs) -> Self {
        match kept {
            KeptAs::F32 => Self::F32,
            KeptAs::Bf16 => Self::Bf16,
            KeptAs::F16 => Self::F16,
            KeptAs::Int8 => Self::Int8,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchLevel {
    /// The operator alone, forward and backward.
    Operator,
    /// The attention layer with its projections in training, forward and backward.
    Layer,
    /// The same layer as a trained model runs it: forward alone, nothing kept for a backward pass.
    Inference,
    /// A training step of a model: forward pass, loss, backward pass, optimizer.
    Step,
    /// One token of incremental decoding.
    Decode,
}

impl From<BenchLevel> for Level {
    fn from(level: BenchLevel) -> Self {
        match level {
            BenchLevel::Operator => Self::Operator,
            BenchLevel::Layer => Self::Layer,
            BenchLevel::Inference => Self::Inference,
            BenchLevel::Step => Self::Step,
            BenchLevel::Decode => Self::Decode,
        }
    }
}

#[derive(Debug, Args)]
pub struct Approx {
    /// Matrices of the clustered process of the Scatterbrain paper; the default.
    #[arg(long, conflicts_with_all = ["input", "run"])]
    pub process: bool,
    /// Matrices of a safetensors file: q (B, H, N, D), k (B, Hk, S, D), v (B, Hk, S, Dv), F32 or F64.
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    pub input: Option<PathBuf>,
    /// Matrices of a softmax model on its test data: the directory of its run.
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Share of the N x S entries that a method may use, as 0.125 or 1/8.
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "1/4")]
    pub budget: String,
    /// How Scatterbrain splits it: scatterbrain.sparse_share (3:1 by default), or the row entropy of each matrix.
    #[arg(long, value_enum, default_value_t = BudgetSplit::Share)]
    pub split: BudgetSplit,
    /// Methods: softmax, top-k, svd, robust-pca, local, smyrf, lsh, performer, scatterbrain-local, scatterbrain-smyrf,
    /// naive-smyrf. All that the matrices allow by default.
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',')]
    pub methods: Vec<String>,
    /// Draws: of methods on each matrix, or of the process with a draw of methods each.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 5)]
    pub draws: usize,
    /// One option of the methods, as in support.rounds=1; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Seed for all random draws.
    #[arg(long, value_parser = seed(), value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Process: inverse temperatures beta of exp(beta q.k).
    #[arg(
        long,
        value_parser = Real,
        value_name = "NUMBER,NUMBER,...",
        value_delimiter = ',',
        default_values_t = [0.25, 1.25, 2.0, 4.0, 8.0],
        conflicts_with_all = ["input", "run"]
    )]
    pub inverse_temperatures: Vec<f64>,
    /// Process: tokens.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 256, conflicts_with_all = ["input", "run"])]
    pub tokens: usize,
    /// Process: channels of a token.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 64, conflicts_with_all = ["input", "run"])]
    pub width: usize,
    /// Process: clusters.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 8, conflicts_with_all = ["input", "run"])]
    pub clusters: usize,
    /// Process: distance of a token to the centre of its cluster; centres have norm 1.
    #[arg(long, value_parser = Real, value_name = "NUMBER", default_value_t = 0.02, conflicts_with_all = ["input", "run"])]
    pub spread: f64,
    /// Input: score scale in place of 1/sqrt(D).
    #[arg(long, value_parser = Real, value_name = "NUMBER", requires = "input")]
    pub scale: Option<f64>,
    /// Input: each query sees only keys up to its own position.
    #[arg(long, requires = "input")]
    pub causal: bool,
    /// Run: layers from 0; all by default.
    #[arg(long, value_parser = size(0), value_name = "N,N,...", value_delimiter = ',', requires = "run")]
    pub layers: Vec<usize>,
    /// Run: test sequences; each has one matrix per head.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 4, conflicts_with_all = ["input", "process"])]
    pub sequences: usize,
    /// Run: checkpoint to read.
    #[arg(long, value_enum, default_value_t = Which::Best)]
    pub checkpoint: Which,
    /// Run: directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Directory for the tables, the charts as SVG and a report.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BudgetSplit {
    /// scatterbrain.sparse_share.
    Share,
    /// High entropy gives more to the low-rank part.
    Entropy,
}

#[derive(Debug, Args)]
pub struct Attend {
    /// Attention mechanism.
    #[arg(long, value_name = "NAME")]
    pub mechanism: String,
    /// Each query sees only keys up to its own position (bottom-right aligned).
    #[arg(long)]
    pub causal: bool,
    /// One option of the mechanism, as in keys.design=shifted; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Safetensors file to read.
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Safetensors file to write.
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Score scale in place of 1/sqrt(D); softmax, performer, sparse and scatterbrain.
    #[arg(long, value_parser = Real, value_name = "NUMBER")]
    pub scale: Option<f64>,
    /// Run the float64 twin instead of the kernel.
    #[arg(long)]
    pub reference: bool,
    /// Seed for what the file does not give: shifts, projections, directions and rotations.
    #[arg(long, value_parser = seed(), value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct Cost {
    #[command(flatten)]
    pub source: Source,
    /// Tokens in a sequence; the task's longest by default.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub length: Option<usize>,
    /// Sequences in a training step; train.batch by default.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub batch: Option<usize>,
    /// Tokens behind the decoder whose state is measured; the length by default.
    #[arg(long, value_parser = size(0), value_name = "N")]
    pub decoded: Option<usize>,
    /// Tokens in the vocabulary; the task's by default.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub vocabulary: Option<usize>,
    /// Also the curves over length and width of every mechanism of compare.mechanisms, and those of the MGK paper
    /// (figures 3, 4 and 10).
    #[arg(long)]
    pub curves: bool,
    /// Directory for the curves as SVG and a report.
    #[arg(long, value_name = "DIR", requires = "curves")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Generate {
    /// Directory of a run of a language model.
    pub run: PathBuf,
    /// Text to continue.
    #[arg(long, allow_hyphen_values = true, default_value = "\n", value_name = "TEXT")]
    pub prompt: String,
    /// Characters to print.
    #[arg(long, value_parser = size(0), default_value_t = 500, value_name = "N")]
    pub tokens: usize,
    /// Sampling temperature; 0 takes the most probable character.
    #[arg(long, value_parser = Real, default_value_t = 0.8, value_name = "NUMBER")]
    pub temperature: f64,
    /// Seed for all random draws.
    #[arg(long, value_parser = seed(), default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// How keys and values are stored.
    #[arg(long, value_enum, default_value_t = KeptAs::F32)]
    pub kv_cache: KeptAs,
    /// Checkpoint of the run.
    #[arg(long, value_enum, default_value_t = Which::Best)]
    pub checkpoint: Which,
}

#[derive(Debug, Args)]
pub struct Translate {
    /// Directory of a translation run.
    pub run: PathBuf,
    /// Hypotheses that the search keeps, 1 for the most probable token each time; train.beam by default.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub beam: Option<usize>,
    /// Exponent of the length penalty; train.length_penalty by default.
    #[arg(long, value_parser = Real, value_name = "NUMBER")]
    pub length_penalty: Option<f64>,
    /// Lines per batch; 64 by default, 1 on a terminal.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub batch: Option<usize>,
    /// Checkpoint of the run.
    #[arg(long, value_enum, default_value_t = Which::Best)]
    pub checkpoint: Which,
}

#[derive(Debug, Args)]
pub struct Inspect {
    /// Directory of a run.
    pub run: PathBuf,
    /// What to look at: all, or some of entropy, rank, redundancy, likelihood, learned, maps, keys; entropy, redundancy,
    /// likelihood and learned by default.
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub what: Vec<String>,
    /// Layers, from 1; all by default.
    #[arg(long, value_parser = size(1), value_name = "N", value_delimiter = ',')]
    pub layers: Vec<usize>,
    /// Heads, from 1; all by default.
    #[arg(long, value_parser = size(1), value_name = "N", value_delimiter = ',')]
    pub heads: Vec<usize>,
    /// Sequences, spread over the split.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 16)]
    pub sequences: usize,
    /// Most matrices whose rank is computed, one per layer, head and sequence.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 1000)]
    pub matrices: usize,
    /// What the experts of a mixture of heads do instead: their load, and the tokens that each prefers.
    #[arg(long, conflicts_with_all = ["what", "layers", "heads", "sequences", "matrices"])]
    pub experts: bool,
    /// Split of the data.
    #[arg(long, value_enum, default_value_t = SplitName::Test)]
    pub split: SplitName,
    /// With --experts: batches of 32 sequences, spread over the split; 0 for all of it.
    #[arg(long, value_parser = size(0), value_name = "N", default_value_t = 0)]
    pub batches: usize,
    /// With --experts: preferred tokens of each expert.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 8)]
    pub tokens: usize,
    /// With --experts: list only tokens that occur at least this often.
    #[arg(long, value_parser = seed(), value_name = "N", default_value_t = 10)]
    pub least: u64,
    /// Checkpoint of the run.
    #[arg(long, value_enum, default_value_t = Which::Best)]
    pub checkpoint: Which,
    /// Directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Directory for the tables, the charts as SVG and a report.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Largest size and count of a decoder: far more than any machine has memory for.
const MOST: u64 = 1 << 30;

#[derive(Debug, Args)]
pub struct Probe {
    /// Directory of a run of a decoder; without it, decoders that were never trained.
    pub run: Option<PathBuf>,
    /// Default sizes: those of the paper (width 768, 12 heads, 512 positions, 12 layers, 5,000 updates) or
    /// smaller ones (256, 4, 256, 6; 1,000).
    #[arg(long, value_enum, default_value_t = Scale::Paper, conflicts_with = "run")]
    pub scale: Scale,
    /// Channels.
    #[arg(long, value_parser = within(1, MOST), value_name = "N", conflicts_with = "run")]
    pub width: Option<usize>,
    /// Heads.
    #[arg(long, value_parser = within(1, MOST), value_name = "N", conflicts_with = "run")]
    pub heads: Option<usize>,
    /// Positions.
    #[arg(long, value_parser = within(1, MOST), value_name = "N", conflicts_with = "run")]
    pub length: Option<usize>,
    /// Layers.
    #[arg(long, value_parser = within(1, MOST), value_name = "N", conflicts_with = "run")]
    pub layers: Option<usize>,
    /// Hidden channels of the feed-forward part, 0 for none; four times the width by default.
    #[arg(long, value_parser = within(0, MOST), value_name = "N", conflicts_with = "run")]
    pub feed_forward: Option<usize>,
    /// Standard deviations of inputs and weights; the classifier reads decoders of the first.
    #[arg(
        long,
        value_parser = Real,
        value_name = "NUMBER,NUMBER,...",
        value_delimiter = ',',
        default_values_t = [0.02, 0.2, 0.002],
        conflicts_with = "run"
    )]
    pub deviation: Vec<f64>,
    /// Distributions of weights: normal, uniform, sign, laplace.
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',', default_value = "normal", conflicts_with = "run")]
    pub weights: Vec<String>,
    /// Mechanism, with options after a colon where wanted, as in sparse:support.radius=16; may be repeated. Softmax by default.
    #[arg(long, value_name = "ENTRY", conflicts_with = "run")]
    pub mechanism: Vec<String>,
    /// One option of all mechanisms; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "run")]
    pub set: Vec<String>,
    /// Also bidirectional attention.
    #[arg(long, conflicts_with = "run")]
    pub bidirectional: bool,
    /// Also a decoder whose queries are 0, so that attention is exactly uniform.
    #[arg(long, conflicts_with = "run")]
    pub uniform: bool,
    /// Decoders of each kind, over which intervals are taken; 8 by default.
    #[arg(long, value_parser = within(1, MOST), value_name = "N", conflicts_with = "run")]
    pub decoders: Option<usize>,
    /// Sequences through each decoder, 4 by default; of a run, test sequences, 64 by default.
    #[arg(long, value_parser = within(1, MOST), value_name = "N")]
    pub sequences: Option<usize>,
    /// Sequences through each decoder for lemma 4, 0 to leave it out; 64 by default.
    #[arg(long, value_parser = within(0, MOST), value_name = "N", conflicts_with = "run")]
    pub channel_sequences: Option<usize>,
    /// In double precision, softmax only, without classifier and lemma 4: slow, for small sizes.
    #[arg(long, conflicts_with = "run")]
    pub reference: bool,
    /// Updates of the classifier that reads positions, 0 for none.
    #[arg(long, value_parser = within(0, MOST), value_name = "N")]
    pub updates: Option<usize>,
    /// After how many layers it reads, 0 for the inputs; powers of two and all layers by default.
    #[arg(long, value_parser = within(0, MOST), value_name = "N,N,...", value_delimiter = ',', conflicts_with = "run")]
    pub classified_layers: Vec<usize>,
    /// Sequences of one update.
    #[arg(long, value_parser = within(1, MOST), value_name = "N", default_value_t = 32)]
    pub batch: usize,
    /// Positions drawn from each of them; 0 for all.
    #[arg(long, value_parser = within(0, MOST), value_name = "N", default_value_t = 16)]
    pub positions: usize,
    /// Learning rate of Adam.
    #[arg(long, value_parser = Real, value_name = "NUMBER", default_value_t = 1e-3)]
    pub rate: f64,
    /// Hidden channels of the classifier; 0 for as many as the decoder has.
    #[arg(long, value_parser = within(0, MOST), value_name = "N", default_value_t = 0)]
    pub hidden: usize,
    /// Sequences that it learns on; 256 by default.
    #[arg(long, value_parser = within(1, MOST), value_name = "N")]
    pub train_sequences: Option<usize>,
    /// Sequences that it is measured on.
    #[arg(long, value_parser = within(1, MOST), value_name = "N", default_value_t = 32)]
    pub held_sequences: usize,
    /// Seed for all random draws.
    #[arg(long, value_parser = seed(), value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Checkpoint of the run.
    #[arg(long, value_enum, default_value_t = Which::Best, requires = "run")]
    pub checkpoint: Which,
    /// Directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Directory for the tables, the charts as SVG and a report.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scale {
    /// As in the paper.
    Paper,
    /// For a first look.
    Reduced,
}
