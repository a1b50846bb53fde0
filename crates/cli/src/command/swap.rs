//! `regard swap`

use std::{fs, ops::ControlFlow, path::PathBuf};

use clap::Args;
use regard_kernels::{Storage, mechanism::Fraction};
use regard_lab::{
    folder::check_memory,
    swap::{Kind, Predictor, Study, SwapError, sample},
};
use regard_pretrained::{Folder, run::Progress};

use super::{
    command_line, environment,
    folder::{Watch, tokens},
    show,
};
use crate::{
    args::{Common, STORAGES},
    error::{Failure, Outcome},
    output,
    values::{choice, seed, size},
};

#[derive(Debug, Args)]
pub struct Swap {
    /// Model folder: config.json, model.safetensors, tokenizer.json.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Texts to measure on and to judge by (plain or gzip); may be repeated.
    #[arg(long, required = true, value_name = "FILE")]
    pub text: Vec<PathBuf>,
    /// Tokens of a sequence; as many as the model was made for by default.
    #[arg(long, value_parser = size(2), value_name = "N")]
    pub length: Option<usize>,
    /// Most memory of keys and values, as a share of exact attention in f32: 0.125 or 1/8.
    #[arg(long, value_name = "SHARE")]
    pub memory: Option<String>,
    /// Most time of attention, as a share of exact attention.
    #[arg(long, value_name = "SHARE")]
    pub time: Option<String>,
    /// What may stand in place of exact attention: window, scatterbrain, performer, smyrf, scatterbrain-smyrf, drop. All but
    /// drop by default.
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',')]
    pub candidates: Vec<String>,
    /// Their sizes, as divisors of exact attention.
    #[arg(long, value_parser = size(2), value_name = "N,N,...", value_delimiter = ',', default_values_t = [2, 4, 8, 16, 32])]
    pub divisors: Vec<usize>,
    /// Sequences to measure on, and as many to judge by.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 2)]
    pub sequences: usize,
    /// Tokens of the sequences that effects are measured on, at most; a backward pass keeps everything of them.
    #[arg(long, value_parser = size(2), value_name = "N", default_value_t = 4096)]
    pub calibration: usize,
    /// What candidates are chosen by: error (of the heads' outputs), first or fisher (what it does to the loss), weighted (the
    /// first times what the group matters by the third). By default whichever choice the whole model likes best on the sample,
    /// single candidates among them.
    #[arg(long, value_name = "NAME")]
    pub predictor: Option<String>,
    /// How keys and values are kept while the model decodes.
    #[arg(long, value_parser = choice(&STORAGES), default_value = "f32")]
    pub kv_cache: Storage,
    /// Judge single candidates that keep to the budget, and the other predictors, beside the choice.
    #[arg(long)]
    pub compare: bool,
    /// Swap this many single groups and hold the predictions against what they do.
    #[arg(long, value_parser = size(0), value_name = "N", default_value_t = 0)]
    pub validate: usize,
    /// Leave out tensors that the model has no place for, by name, or by its beginning before a final '*'; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub allow: Vec<String>,
    /// Stretch a table of positions that is shorter than --length.
    #[arg(long)]
    pub stretch: bool,
    /// Seed for all random draws.
    #[arg(long, value_parser = seed(), value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Directory for the plan (plan.toml), the tables and a report.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Measures what other attention would cost in each head of a trained model, and plans it under a budget.
///
/// # Errors
/// Folders, texts or options that cannot be used, a budget that nothing keeps to, an interrupt.
pub fn run(args: &Swap, common: &Common) -> Outcome {
    let share = |flag: &str, text: &Option<String>| -> Outcome<Option<f64>> {
        let parsed = text.as_ref().map(|text| text.parse::<Fraction>().map(|share| share.value()));
        parsed.transpose().map_err(|error| Failure::usage(format!("{flag}: {error}")))
    };
    let (memory, time) = (share("--memory", &args.memory)?, share("--time", &args.time)?);
    if memory.is_none() && time.is_none() {
        return Err(Failure::usage("no budget is given, expected --memory, --time or both"));
    }
    let allowed: Vec<&str> = args.allow.iter().map(String::as_str).collect();
    let folder = Folder::open_allowing(&args.folder, &allowed).map_err(SwapError::from)?;
    let length = args.length.unwrap_or(folder.architecture().context);
    check_memory(&folder, Some(length), length)?;
    let tokenizer = folder.tokenizer().map_err(SwapError::from)?;
    let ids = tokens(&tokenizer, &args.text)?;
    let kinds = match &args.candidates[..] {
        [] => Kind::ALL.iter().copied().filter(|kind| *kind != Kind::Drop).collect(),
        names => names.iter().map(|name| named("--candidates", name, Kind::ALL, Kind::name)).collect::<Outcome<_>>()?,
    };
    let study = Study {
        length,
        calibration: args.calibration,
        sequences: args.sequences,
        kinds,
        divisors: args.divisors.clone(),
        memory,
        time,
        storage: args.kv_cache,
        predictor: (args.predictor.as_ref())
            .map(|name| named("--predictor", name, Predictor::ALL, Predictor::name))
            .transpose()?,
        compare: args.compare,
        validate: args.validate,
        seed: args.seed,
        stretch: args.stretch,
    };
    let parts = sample(&ids, length, args.sequences)?;
    let watch = Watch::new("swap", common);
    let progress = |what: &str, done: usize, total: usize| match watch.part(what, Progress { done, total }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(SwapError::Interrupted),
    };
    let swap = study.run(&folder, &parts, &progress, command_line(), environment())?;
    drop(watch);
    if let Some(out) = &args.out {
        fs::create_dir_all(out).map_err(|error| Failure::writing(out, &error))?;
        swap.plan.write(&out.join("plan.toml")).map_err(SwapError::from)?;
    }
    show(common, args.out.as_deref(), &swap)?;
    match (&args.out, common.json) {
        (Some(out), false) => output::line(format_args!("plan: {}", out.join("plan.toml").display())),
        _ => Ok(()),
    }
}

/// The value of a name.
fn named<T: Copy>(flag: &str, name: &str, all: &[T], of: fn(T) -> &'static str) -> Outcome<T> {
    all.iter().copied().find(|value| of(*value) == name).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|value| of(*value)).collect();
        let near = regard_tasks::run::nearest(name, names.iter().copied());
        Failure::usage(format!("{flag} is '{name}', expected one of {}{near}", names.join(", ")))
    })
}
