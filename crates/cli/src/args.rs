//! Command-line arguments: the commands, and the arguments shared by several of them. The arguments of a single command
//! are in its file.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Error, FromArgMatches, Parser, Subcommand};
use regard_kernels::Storage;
use regard_lab::reproduce::Scale;
use regard_tasks::{run::Which, train::Split};

use crate::{
    command::{
        adapt::Adapt,
        approx::Approx,
        attend::{Attend, TENSORS},
        bench::Bench,
        compare::Compare,
        cost::Cost,
        data::Data,
        embed::Embed,
        eval::Eval,
        generate::Generate,
        inspect::Inspect,
        list::Listed,
        man::ManPages,
        perplexity::Perplexity,
        predict::Predict,
        probe::Arguments as Probe,
        reproduce::Reproduce,
        score::Score,
        summarize::Summarize,
        swap::Swap,
        translate::Translate,
        view::View,
    },
    values::{seed, threads, with_dashes},
};

const CODES: &str = "Exit codes: 0 done, 1 a check or cells of a study failed, 2 wrong usage or configuration, 3 data missing or corrupt, or files \
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
    /// The arguments of this process.
    ///
    /// # Errors
    /// Invalid arguments; also help and version, if requested.
    pub fn typed() -> Result<Self, Error> {
        Self::from_arg_matches(&Self::described().try_get_matches()?)
    }

    /// All commands and options, as they are parsed.
    pub fn described() -> clap::Command {
        with_dashes(Self::command())
    }
}

/// Options common to all commands.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Number of threads; default: all processors.
    #[arg(long, value_parser = threads(), global = true, env = "REGARD_THREADS", value_name = "N")]
    pub threads: Option<usize>,
    /// Device to compute on: cpu, wgpu, metal, cuda or rocm, cuda:1 for the second; 'regard doctor' lists what there is.
    #[arg(
        long,
        default_value = "cpu",
        global = true,
        env = "REGARD_DEVICE",
        value_name = "NAME",
        hide_default_value = true
    )]
    pub device: String,
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
    /// Named configuration; see 'regard list presets'.
    #[arg(long, env = "REGARD_PRESET", value_name = "NAME")]
    pub preset: Option<String>,
    /// Configuration file (TOML), applied on top of the preset.
    #[arg(long, env = "REGARD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one configuration key, as in model.width=128; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Attention mechanism ('regard list mechanisms'); short for --set mechanism=NAME.
    #[arg(long, value_name = "NAME")]
    pub mechanism: Option<String>,
    /// Task ('regard list tasks'); short for --set task.name=NAME.
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,
    /// Seed for all random draws; short for --set seed=N, in a comparison also for compare.seeds=N.
    #[arg(long, value_parser = seed(), value_name = "N")]
    pub seed: Option<u64>,
}

/// Output directory of a run or comparison.
#[derive(Clone, Debug, Args)]
pub struct Directory {
    /// Directory for checkpoints, metrics and reports; default: below 'runs'.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue the run in the directory.
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,
    /// Delete the run or comparison in the directory and start over.
    #[arg(long)]
    pub overwrite: bool,
    /// Cache directory for generated data, or 'none' to generate it each time.
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
    /// Evaluate a trained model on a split of its data.
    Eval(Eval),
    /// Train the same model with each of several mechanisms and compare quality, time and memory; or a study of several tasks
    /// and models.
    Compare(Compare),
    /// Measure time and memory of mechanisms against sequence length.
    Bench(Bench),
    /// Measure how well sparse, low-rank and combined methods approximate attention matrices at equal budget, against
    /// oracles.
    Approx(Approx),
    /// Apply one mechanism to the tensors of a safetensors file.
    #[command(after_help = TENSORS)]
    Attend(Attend),
    /// Count parameters, operations and bytes of a model before it runs.
    Cost(Cost),
    /// Generate text with a language model from a run or model folder.
    Generate(Generate),
    /// Measure how well a language model from a model folder predicts texts.
    Perplexity(Perplexity),
    /// Embed texts with an encoder from a model folder.
    Embed(Embed),
    /// Score an encoder from a model folder: sentence similarity, retrieval, masked tokens.
    Score(Score),
    /// Classify texts or images with a classifier from a run or model folder.
    Predict(Predict),
    /// Translate standard input line by line with a trained translator.
    Translate(Translate),
    /// Summarise files, or lines of standard input, with a model that was trained on summaries.
    Summarize(Summarize),
    /// Look inside a trained model: entropy, rank, heads, experts.
    Inspect(Inspect),
    /// Plan cheaper attention for the heads of a trained model under a budget, and measure the loss in quality.
    Swap(Swap),
    /// Train a pretrained model with other attention until it is close to the original.
    Adapt(Adapt),
    /// Measure how a decoder without positional embeddings infers positions, untrained or from a run.
    Probe(Probe),
    /// Reproduce figures and tables of the papers by name.
    Reproduce(Reproduce),
    /// Public data sets by name: list, fetch, verify; large texts: prepare.
    Data(Data),
    /// Show runs in the browser of this machine: curves while they train, reports, attention maps.
    View(View),
    /// List mechanisms, tasks and presets.
    List {
        /// What to list; default: everything.
        what: Option<Listed>,
    },
    /// Check this machine and this build.
    Doctor,
    /// Print the configuration that a command with these options would use.
    Config {
        #[command(flatten)]
        source: Source,
    },
    /// Print shell completions.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print or write manual pages.
    Man(ManPages),
}

/// Named values of a type: name, description and value of each.
pub type Named<T, const N: usize> = [(&'static str, &'static str, T); N];

/// Splits of the data.
pub const SPLITS: Named<Split, 2> =
    [("valid", "To choose a model by", Split::Valid), ("test", "To report results on", Split::Test)];

/// Checkpoints of a run.
pub const CHECKPOINTS: Named<Which, 2> = [
    (
        "best",
        "The best on the validation split, or the mean of the last ones where train.average asked for it",
        Which::Best,
    ),
    ("last", "The newest", Which::Last),
];

/// Storage formats of the key-value cache.
pub const STORAGES: Named<Storage, 4> = [
    ("f32", "32 bits, exact", Storage::F32),
    ("bf16", "16 bits with the range of f32, 2^-8 of a number", Storage::Bf16),
    ("f16", "16 bits, 2^-11 of a number up to 65,504", Storage::F16),
    ("int8", "8 bits, 1/254 of the largest number of a token and head", Storage::Int8),
];

/// Scales of the papers' experiments.
pub const SCALES: Named<Scale, 3> = [
    ("quick", "Minutes, for a first look", Scale::Quick),
    ("here", "About an hour on two cores", Scale::Here),
    ("paper", "The paper's data, size and steps", Scale::Paper),
];
