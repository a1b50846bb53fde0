//! `regard adapt`

use std::{ops::ControlFlow, path::PathBuf};

use clap::{ArgAction, ArgGroup, Args};
use regard_kernels::Mechanism;
use regard_lab::{
    adapt::{AdaptConfig, AdaptError, Study, Training, mixture_plan},
    folder::check_memory,
};
use regard_pretrained::run::Progress;

use super::{
    command_line, environment,
    folder::{Watch, open, read_plan, tokens, told},
    show,
};
use crate::{
    args::{Common, Named},
    error::{Failure, Outcome},
    output,
    values::{Real, choice, seed, size},
};

const MIXTURES: Named<Mechanism, 2> = [
    ("mgk", "Mixture of Gaussian keys, near softmax at first", Mechanism::Mgk),
    ("mlk", "Mixture of linear keys, linear attention at first", Mechanism::Mlk),
];

const TRAININGS: Named<bool, 2> = [
    ("lora", "Low-rank updates of the projections of attention, merged at the end", false),
    ("full", "All parameters", true),
];

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("attention of the heads").required(true).args(["plan", "attention"])))]
pub struct Adapt {
    /// Model folder: config.json, model.safetensors, tokenizer.json.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Other attention in some of the heads: a plan of 'regard swap' (TOML).
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// A mixture of keys in all layers, in place of a plan.
    #[arg(long, value_parser = choice(&MIXTURES))]
    pub attention: Option<Mechanism>,
    /// Texts to learn from and to judge by (plain or gzip); may be repeated.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    pub text: Vec<PathBuf>,
    /// Directory for the model, checkpoints, the tables and a report.
    #[arg(long, required = true, value_name = "DIR")]
    pub out: PathBuf,
    /// Continue what is in the directory.
    #[arg(long)]
    pub resume: bool,
    /// Tokens of a sequence; as many as the model was made for, at most 2,048, by default.
    #[arg(long, value_parser = size(4), value_name = "N")]
    pub length: Option<usize>,
    /// Sequences of a step.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Sequences to judge by, which nothing learns from.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 4)]
    pub held_out: usize,
    /// Steps in which each layer learns what exact attention gives.
    #[arg(long, value_parser = size(0), value_name = "N", default_value_t = 50)]
    pub match_steps: usize,
    /// Steps in which the model learns its loss.
    #[arg(long, value_parser = size(0), value_name = "N", default_value_t = 100)]
    pub steps: usize,
    /// What learns.
    #[arg(long = "train", value_name = "WHAT", action = ArgAction::Set, value_parser = choice(&TRAININGS), default_value = "lora")]
    pub full: bool,
    /// Rank of low-rank updates.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 8)]
    pub rank: usize,
    /// Low-rank updates are added times this over their rank.
    #[arg(long, value_parser = Real, value_name = "X", default_value_t = 16.0)]
    pub alpha: f64,
    /// Highest learning rate while layers are matched.
    #[arg(long, value_parser = Real, value_name = "X", default_value_t = 1e-3)]
    pub match_rate: f64,
    /// Highest learning rate after that; 0.0005 for low-rank updates, 0.00002 in full, by default.
    #[arg(long, value_parser = Real, value_name = "X")]
    pub rate: Option<f64>,
    /// Steps of each stage in which the rate rises; a tenth of the longer one by default.
    #[arg(long, value_parser = size(0), value_name = "N")]
    pub warmup: Option<usize>,
    /// Longest norm of gradients; 0: no limit.
    #[arg(long, value_parser = Real, value_name = "X", default_value_t = 1.0)]
    pub clip: f64,
    /// Share of the loss that is the divergence from what exact attention says, 0 to 1.
    #[arg(long, value_parser = Real, value_name = "X", default_value_t = 0.0)]
    pub distill: f64,
    /// Tune the exact model alike and judge it too: what tuning on these texts gives without any change of attention.
    #[arg(long)]
    pub control: bool,
    /// Steps between checkpoints; 0: only at the end of a stage and on an interrupt.
    #[arg(long, value_parser = size(0), value_name = "N", default_value_t = 20)]
    pub checkpoint_every: usize,
    /// Leave out tensors that the model has no place for, by name, or by its beginning before a final '*'; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub allow: Vec<String>,
    /// Seed for all random draws.
    #[arg(long, value_parser = seed(), value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Longest sequences where none are asked for: activations of all layers are kept for a backward pass.
const LENGTH: usize = 2048;

/// Trains a model with other attention until it is near what it was.
///
/// # Errors
/// Folders, plans, texts or options that cannot be used, a directory that holds something else, an interrupt.
pub fn run(args: &Adapt, common: &Common) -> Outcome {
    // A plan that is none is told before a large model is read.
    let plan = args.plan.as_deref().map(read_plan).transpose()?;
    let folder = open(&args.folder, &args.allow)?;
    let width = folder.architecture().width;
    if !args.full && args.rank > width {
        return Err(Failure::usage(format!(
            "--rank is {}, expected at most {width}, the width of the model",
            args.rank
        )));
    }
    let length = args.length.unwrap_or(folder.architecture().context.min(LENGTH));
    check_memory(&folder, Some(length), args.batch.saturating_mul(length))?;
    let tokenizer = folder.tokenizer().map_err(told)?;
    let ids = tokens(&tokenizer, &args.text)?;
    let training = match args.full {
        true => Training::Full,
        false => Training::Lora { rank: args.rank, alpha: args.alpha },
    };
    let config = AdaptConfig {
        length,
        batch: args.batch,
        held_out: args.held_out,
        match_steps: args.match_steps,
        steps: args.steps,
        match_rate: args.match_rate,
        rate: args.rate.unwrap_or(if args.full { 2e-5 } else { 5e-4 }),
        warmup: args.warmup.unwrap_or(args.match_steps.max(args.steps) / 10),
        clip: args.clip,
        training,
        distill: args.distill,
        control: args.control,
        seed: args.seed,
        checkpoint_every: args.checkpoint_every,
    };
    let plan = match (plan, args.attention) {
        (Some(plan), _) => plan,
        (None, Some(mechanism)) => mixture_plan(&folder, mechanism, args.seed),
        (None, None) => unreachable!("one of them is required"),
    };
    let watch = Watch::new("adapt", common);
    let progress = |what: &str, done: usize, total: usize| match watch.part(what, Progress { done, total }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(AdaptError::Interrupted),
    };
    let study = Study { config, plan };
    let adapted = study
        .run(&folder, &tokenizer, &ids, &args.out, args.resume, &progress, command_line(), environment())
        .map_err(|error| match error {
            AdaptError::Interrupted => {
                Failure::interrupted(format!("stopped; continue what is in {} with --resume", args.out.display()))
            }
            other => other.into(),
        })?;
    drop(watch);
    show(common, Some(&args.out), &adapted)?;
    let written = adapted.written.display();
    match (common.json, args.out.join("plan.toml")) {
        (true, _) => Ok(()),
        (false, plan) if plan == adapted.written => {
            output::line(format_args!("model: {} with --plan {written}", args.folder.display()))
        }
        (false, plan) => output::line(format_args!("model: {written} with --plan {}", plan.display())),
    }
}
