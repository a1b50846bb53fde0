//! `regard approx`

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use regard_kernels::{AttentionOptions, mechanism::Fraction};
use regard_lab::{
    approx::{Approximation, Captured, Head, Method, Plan, Process, capture, capture_folder, dump, measure},
    cost::fits,
    swap::{Example, sample},
};
use regard_pretrained::{Model, run::read_pixels};
use regard_tasks::run::{Layers, Run, SECTIONS, Which};

use super::{
    command_line, environment,
    folder::{Loading, Opened, tokens, told},
    make_out, show, trained,
};
use crate::{
    args::{CHECKPOINTS, Common},
    console,
    error::{Failure, Outcome},
    values::{Real, choice, seed, size},
};

#[derive(Debug, Args)]
pub struct Approx {
    /// Use matrices from the clustered generative process of the Scatterbrain paper; the default.
    #[arg(long, conflicts_with_all = ["input", "run", "folder"])]
    pub process: bool,
    /// Use matrices from a safetensors file: q (B, H, N, D), k (B, Hk, S, D), v (B, Hk, S, Dv), F32 or F64.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["run", "folder"])]
    pub input: Option<PathBuf>,
    /// Use matrices of a softmax model on its test data: its run directory.
    #[arg(long, value_name = "DIR", conflicts_with = "folder")]
    pub run: Option<PathBuf>,
    /// Use matrices of the model in a Hugging Face folder, on --text or --pixels.
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Folder: text to read, plain or as gzip; may be repeated.
    #[arg(long, value_name = "FILE", conflicts_with = "pixels")]
    pub text: Vec<PathBuf>,
    /// Folder: safetensors file with pixel_values (images, channels, height, width), scaled as in training.
    #[arg(long, value_name = "FILE")]
    pub pixels: Option<PathBuf>,
    /// Folder: tokens of a sequence of the text; default: 512.
    #[arg(long, value_parser = size(2), value_name = "N")]
    pub length: Option<usize>,
    /// Folder: leave out tensors that the model has no place for, by name, or by its beginning before a final '*'; may be
    /// repeated.
    #[arg(long, value_name = "NAME")]
    pub allow: Vec<String>,
    /// Fraction of the N x S entries that a method may use, as 0.125 or 1/8.
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE", default_value = "1/4")]
    pub budget: String,
    /// How Scatterbrain splits the budget: by scatterbrain.sparse_share (default 3:1), or by the row entropy of each
    /// matrix.
    #[arg(long, value_enum, default_value_t = BudgetSplit::Share)]
    pub split: BudgetSplit,
    /// Methods: softmax, top-k, svd, robust-pca, local, smyrf, lsh, performer, scatterbrain-local, scatterbrain-smyrf,
    /// naive-smyrf. Default: all that the matrices allow.
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',')]
    pub methods: Vec<String>,
    /// Random draws: of the methods on each matrix, or of the process, with one draw of the methods each.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 5)]
    pub draws: usize,
    /// Set one option of the methods, as in support.rounds=1; may be repeated.
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
        conflicts_with_all = ["input", "run", "folder"]
    )]
    pub inverse_temperatures: Vec<f64>,
    /// Process: number of tokens.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 256, conflicts_with_all = ["input", "run", "folder"])]
    pub tokens: usize,
    /// Process: channels per token.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 64, conflicts_with_all = ["input", "run", "folder"])]
    pub width: usize,
    /// Process: number of clusters.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 8, conflicts_with_all = ["input", "run", "folder"])]
    pub clusters: usize,
    /// Process: distance of a token from its cluster centre; centres have norm 1.
    #[arg(long, value_parser = Real, value_name = "NUMBER", default_value_t = 0.02, conflicts_with_all = ["input", "run", "folder"])]
    pub spread: f64,
    /// Input: score scale instead of 1/sqrt(D).
    #[arg(long, value_parser = Real, value_name = "NUMBER")]
    pub scale: Option<f64>,
    /// Input: each query sees only keys up to its own position.
    #[arg(long)]
    pub causal: bool,
    /// Run, folder: layers, numbered from 1; default: all.
    #[arg(long, value_parser = size(0), value_name = "N,N,...", value_delimiter = ',')]
    pub layers: Vec<usize>,
    /// Run, folder: number of sequences, each of which gives one matrix per head; default: 4.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub sequences: Option<usize>,
    /// Run: checkpoint to load; default: best.
    #[arg(long, value_parser = choice(&CHECKPOINTS))]
    pub checkpoint: Option<Which>,
    /// Run: cache directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Output directory for tables, SVG charts and a report.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BudgetSplit {
    /// scatterbrain.sparse_share.
    Share,
    /// Higher entropy gives more to the low-rank part.
    Entropy,
}

impl Approx {
    /// The first given option that does not apply to the source of the matrices, and the sources it applies to. Clap would not
    /// ask for a source that the options of the process exclude, and these have defaults.
    fn stray(&self) -> Option<(&'static str, &'static str)> {
        let [input, run, folder] = [&self.input, &self.run, &self.folder].map(Option::is_some);
        let options = [
            ("--text", !self.text.is_empty(), "--folder", folder),
            ("--pixels", self.pixels.is_some(), "--folder", folder),
            ("--length", self.length.is_some(), "--folder", folder),
            ("--allow", !self.allow.is_empty(), "--folder", folder),
            ("--scale", self.scale.is_some(), "--input", input),
            ("--causal", self.causal, "--input", input),
            ("--layers", !self.layers.is_empty(), "--run or --folder", run || folder),
            ("--sequences", self.sequences.is_some(), "--run or --folder", run || folder),
            ("--checkpoint", self.checkpoint.is_some(), "--run", run),
        ];
        options.into_iter().find(|(_, given, _, fits)| *given && !fits).map(|(option, _, sources, _)| (option, sources))
    }

    fn sequences(&self) -> usize {
        self.sequences.unwrap_or(4)
    }
}

/// Measures how well methods approximate attention matrices.
///
/// # Errors
/// Invalid options, files or runs that cannot be read, a budget too small, not enough memory.
pub fn run(args: &Approx, common: &Common) -> Outcome {
    if let Some((option, sources)) = args.stray() {
        return Err(Failure::usage(format!(
            "{option} needs {sources}: it does not apply to these matrices; leave it out"
        )));
    }
    if args.folder.is_some() && args.text.is_empty() && args.pixels.is_none() {
        return Err(Failure::usage("--folder needs what its model reads, expected --text FILE or --pixels FILE"));
    }
    let options = options(args)?;
    let (heads, source) = heads(args, common)?;
    let methods = methods(args, &heads)?;
    make_out(args.out.as_deref())?;
    // Every draw of the process is a separate matrix.
    let draws = if from_process(args) { 1 } else { args.draws };
    let bar = console::bar(heads.len() as u64, common.quiet);
    bar.set_prefix("approx");
    let split_by_entropy = args.split == BudgetSplit::Entropy;
    let plan = Plan { heads: &heads, methods: &methods, options: &options, split_by_entropy, draws, seed: args.seed };
    let measured = measure(&plan, &|| bar.inc(1))?;
    bar.finish_and_clear();
    let split = match args.split {
        BudgetSplit::Share => format!("{} of it sparse", options.scatterbrain.sparse_share),
        BudgetSplit::Entropy => "split by entropy".into(),
    };
    let approximation = Approximation {
        measured,
        methods,
        source,
        budget: format!("budget {}, {split}", args.budget),
        command: command_line(),
        environment: environment(),
    };
    show(common, args.out.as_deref(), &approximation)
}

fn from_process(args: &Approx) -> bool {
    args.input.is_none() && args.run.is_none() && args.folder.is_none()
}

/// The options for the methods, with the budget.
fn options(args: &Approx) -> Outcome<AttentionOptions> {
    let mut layers = Layers::new();
    for assignment in &args.set {
        let key = assignment.split('=').next().unwrap_or_default().trim();
        let section = key.split('.').next().unwrap_or_default();
        if SECTIONS.contains(&section) || !["support", "features", "scatterbrain"].contains(&section) {
            let expected = "a key of support, features or scatterbrain";
            return Err(Failure::usage(format!("--set {key}: no option of a method here, expected {expected}")));
        }
        layers.assign(assignment, "--set")?;
    }
    let budget: Fraction = args.budget.parse().map_err(|error| Failure::usage(format!("--budget: {error}")))?;
    Ok(AttentionOptions { budget: Some(budget), ..layers.resolve()?.attention })
}

/// The matrices and where they come from.
fn heads(args: &Approx, common: &Common) -> Outcome<(Vec<Head>, String)> {
    if let Some(path) = &args.input {
        if let Some(scale) = args.scale.filter(|scale| !(scale.is_finite() && *scale > 0.0)) {
            return Err(Failure::usage(format!("--scale is {scale}, expected a positive number")));
        }
        let file = fs::read(path).map_err(|error| Failure::reading(path, &error))?;
        let heads = dump(&file, args.scale, args.causal).map_err(|error| Failure::from(error).at(path.display()))?;
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        return Ok((heads, name));
    }
    if let Some(path) = &args.run {
        let Run { data, model, config, .. } =
            trained(path, args.checkpoint.unwrap_or(Which::Best), args.cache.as_deref(), common)?;
        let wanted = Captured { layers: args.layers.clone(), sequences: args.sequences() };
        return Ok((capture(&model, &data, &wanted)?, format!("model of {}", config.task.name)));
    }
    if let Some(path) = &args.folder {
        return of_folder(args, path);
    }
    process(args)
}

fn of_folder(args: &Approx, path: &Path) -> Outcome<(Vec<Head>, String)> {
    let loading = Loading { allow: args.allow.clone(), ..Loading::default() };
    let opened = Opened::new(path, &loading)?;
    let sequences: Vec<Example> = if let Some(file) = &args.pixels {
        let Model::Image(model) = &opened.pretrained.model else { return Err(opened.another("one of images")) };
        let each = model.patches().pixels();
        let patch = opened.folder.architecture().patch.expect("of images");
        let pixels = read_pixels(file, patch).map_err(told)?;
        pixels.chunks_exact(each).take(args.sequences()).map(|image| Example::Image(image.to_vec())).collect()
    } else {
        let tokenizer = opened.tokenizer()?;
        let [sequences, _] = sample(&tokens(&tokenizer, &args.text)?, args.length.unwrap_or(512), args.sequences())?;
        sequences
    };
    if sequences.is_empty() {
        return Err(Failure::usage("there is nothing to read, expected --text FILE or --pixels FILE with an image"));
    }
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok((capture_folder(&opened.pretrained, &sequences, &args.layers)?, name))
}

fn process(args: &Approx) -> Outcome<(Vec<Head>, String)> {
    if args.clusters > args.tokens {
        let seen = format!("--clusters is {}", args.clusters);
        return Err(Failure::usage(format!("{seen}, expected at most as many as the {} tokens", args.tokens)));
    }
    if !(args.spread.is_finite() && args.spread >= 0.0) {
        return Err(Failure::usage(format!("--spread is {}, expected a number from 0", args.spread)));
    }
    if let Some(beta) = args.inverse_temperatures.iter().find(|beta| !(beta.is_finite() && **beta > 0.0)) {
        return Err(Failure::usage(format!("--inverse-temperatures has {beta}, expected positive numbers")));
    }
    let mut betas = args.inverse_temperatures.clone();
    betas.sort_by(f64::total_cmp);
    betas.dedup();
    let Approx { tokens, width, clusters, spread, seed, .. } = *args;
    check_memory(tokens, width, betas.len().saturating_mul(args.draws))?;
    let process = Process { tokens, width, clusters, spread, seed };
    let heads = betas.iter().flat_map(|beta| (0..args.draws as u64).map(|draw| process.head(*beta, draw)));
    let source = format!("process of {tokens} tokens of {width} in {clusters} clusters of spread {spread}");
    Ok((heads.collect(), source))
}

/// Checks that the tokens of all matrices and the working matrices fit into memory.
fn check_memory(tokens: usize, width: usize, matrices: usize) -> Outcome {
    // Minimum number of float64 matrices that one method holds at once: logits, weights, support, estimate, difference.
    const AT_WORK: u128 = 6;
    let (tokens, width, matrices) = (tokens as u128, width as u128, matrices as u128);
    let held = tokens.saturating_mul(width).saturating_mul(3).saturating_mul(matrices);
    let bytes = tokens.saturating_mul(tokens).saturating_mul(AT_WORK).saturating_add(held).saturating_mul(8);
    fits(&format!("{matrices} matrices of {tokens} x {tokens} need at least"), bytes, "lower --tokens or --draws")
}

/// The requested methods, or all that the matrices allow.
fn methods(args: &Approx, heads: &[Head]) -> Outcome<Vec<Method>> {
    let shared = heads.iter().all(|head| head.shares_keys());
    if args.methods.is_empty() {
        return Ok(Method::ALL.into_iter().filter(|method| shared || *method != Method::Lsh).collect());
    }
    let mut methods: Vec<Method> = Vec::new();
    for name in &args.methods {
        let method = name.parse().map_err(|error| Failure::usage(format!("--methods: {error}")))?;
        if methods.contains(&method) {
            return Err(Failure::usage(format!("--methods names '{name}' twice, expected each once")));
        }
        methods.push(method);
    }
    Ok(methods)
}
