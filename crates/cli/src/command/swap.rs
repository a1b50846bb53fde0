//! `regard swap`

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use clap::{ArgGroup, Args};
use regard_kernels::{Storage, mechanism::Fraction};
use regard_lab::{
    folder::check_memory,
    swap::{Budget, Example, Kind, Predictor, Study, SwapError, sample, sample_images},
};
use regard_pretrained::{
    Folder,
    run::{Progress, read_pixels},
};

use super::{
    command_line, environment,
    folder::{Watch, open, tokens, told},
    make_out, show,
};
use crate::{
    args::{Common, STORAGES},
    error::{Failure, Outcome},
    output,
    values::{choice, seed, size},
};

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("examples").required(true))]
pub struct Swap {
    /// Model folder: config.json, model.safetensors, tokenizer.json.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Texts to measure on and to judge by (plain or gzip); may be repeated.
    #[arg(long, group = "examples", value_name = "FILE")]
    pub text: Vec<PathBuf>,
    /// Images to measure on and to judge by, in place of texts: safetensors file with pixel_values (images, channels, height,
    /// width), scaled as in training.
    #[arg(long, group = "examples", value_name = "FILE")]
    pub pixels: Option<PathBuf>,
    /// Tokens of a sequence; as many as the model was made for by default.
    #[arg(long, value_parser = size(2), value_name = "N", conflicts_with = "pixels")]
    pub length: Option<usize>,
    /// Most memory of keys and values, as a share of exact attention in f32: 0.125 or 1/8. Several shares give a plan each, and a
    /// curve over them.
    #[arg(long, value_name = "SHARE,SHARE,...", value_delimiter = ',', allow_hyphen_values = true)]
    pub memory: Vec<String>,
    /// Most time of attention, as a share of exact attention.
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub time: Option<String>,
    /// What may stand in place of exact attention: window, scatterbrain, performer, smyrf, scatterbrain-smyrf, drop. All but
    /// drop by default.
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',')]
    pub candidates: Vec<String>,
    /// Their sizes, as divisors of exact attention.
    #[arg(long, value_parser = size(2), value_name = "N,N,...", value_delimiter = ',', default_values_t = [2, 4, 8, 16, 32])]
    pub divisors: Vec<usize>,
    /// Sequences or images to measure on, and as many to judge by.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 2)]
    pub sequences: usize,
    /// Tokens of the texts that effects are measured on, at most; a backward pass keeps everything of them.
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
    /// Directory for the plan (plan.toml; of several shares plan-1-8.toml and so on, and the first of them as plan.toml), the tables
    /// and a report.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace the plans in the directory; they may have been edited.
    #[arg(long, requires = "out")]
    pub overwrite: bool,
}

/// Measures what other attention would cost in each head of a trained model, and plans it under a budget.
///
/// # Errors
/// Folders, texts or options that cannot be used, a budget that nothing keeps to, an interrupt.
pub fn run(args: &Swap, common: &Common) -> Outcome {
    let share = |flag: &str, text: &str| -> Outcome<f64> {
        let share = text.parse::<Fraction>().map_err(|error| Failure::usage(format!("{flag}: {error}")))?;
        Ok(share.value())
    };
    let time = args.time.as_ref().map(|text| share("--time", text)).transpose()?;
    let mut memory: Vec<Budget> = Vec::new();
    for text in &args.memory {
        let budget = Budget { name: text.trim().into(), share: share("--memory", text)? };
        if let Some(same) = memory.iter().find(|other| other.share == budget.share) {
            let (one, other) = (&same.name, &budget.name);
            return Err(Failure::usage(format!("--memory has {one} and {other}, expected each share once")));
        }
        memory.push(budget);
    }
    if memory.is_empty() && time.is_none() {
        return Err(Failure::usage("no budget is given, expected --memory, --time or both"));
    }
    let folder = open(&args.folder, &args.allow)?;
    let length = args.length.unwrap_or(folder.architecture().context);
    check_memory(&folder, Some(length), length)?;
    let kinds: Vec<Kind> = match &args.candidates[..] {
        [] => Kind::ALL.iter().copied().filter(|kind| *kind != Kind::Drop).collect(),
        names => names.iter().map(|name| named("--candidates", name, Kind::ALL, Kind::name)).collect::<Outcome<_>>()?,
    };
    let causal = !args.candidates.is_empty() && folder.architecture().causal;
    if let Some(kind) = kinds.iter().find(|kind| causal && !kind.can_be_causal()) {
        return Err(Failure::usage(format!(
            "--candidates {}: clusters need all tokens of a sequence, but the attention of this model is causal; expected other \
             kinds",
            kind.name()
        )));
    }
    let study = Study {
        length,
        calibration: args.calibration,
        sequences: args.sequences,
        kinds,
        divisors: args.divisors.clone(),
        memory: memory.clone(),
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
    let parts = examples(args, &folder, length)?;
    make_out(args.out.as_deref())?;
    let former = args.out.as_deref().map_or_else(|| Ok(Vec::new()), plans)?;
    if let Some(plan) = former.first().filter(|_| !args.overwrite) {
        let plan = plan.display();
        return Err(Failure::usage(format!(
            "{plan} is there, expected a directory without plans; choose another one, or give --overwrite to replace them"
        )));
    }
    let watch = Watch::new("swap", common);
    let progress = |what: &str, done: usize, total: usize| match watch.part(what, Progress { done, total }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(SwapError::Interrupted),
    };
    let swap = study.run(&folder, &parts, &progress, command_line(), environment())?;
    drop(watch);
    let mut written = Vec::new();
    if let Some(out) = &args.out {
        for chosen in &swap.chosen {
            let mut names = Vec::new();
            if let Some(budget) = chosen.budget.as_ref().filter(|_| memory.len() > 1) {
                names.push(format!("plan-{}.toml", budget.name.replace(['/', ' '], "-")));
            }
            if chosen.budget.as_ref() == memory.first() {
                names.push("plan.toml".into());
            }
            for name in names {
                let path = out.join(name);
                chosen.plan.write(&path).map_err(SwapError::from)?;
                written.push(path);
            }
        }
        // Of other shares, whose figures are no longer beside them.
        let mut stale = former.iter().filter(|plan| !written.contains(plan));
        stale.try_for_each(|plan| fs::remove_file(plan).map_err(|error| Failure::writing(plan, &error)))?;
    }
    show(common, args.out.as_deref(), &swap)?;
    if !common.json {
        written.iter().try_for_each(|path| output::line(format_args!("plan: {}", path.display())))?;
    }
    Ok(())
}

/// The plans in a directory.
fn plans(directory: &Path) -> Outcome<Vec<PathBuf>> {
    let failed = |error| Failure::reading(directory, &error);
    let mut plans = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if name
            .to_str()
            .is_some_and(|name| name == "plan.toml" || (name.starts_with("plan-") && name.ends_with(".toml")))
        {
            plans.push(entry.path());
        }
    }
    plans.sort();
    Ok(plans)
}

/// Texts or images to measure on, and those to judge by.
fn examples(args: &Swap, folder: &Folder, length: usize) -> Outcome<[Vec<Example>; 2]> {
    let path = args.folder.display();
    match (folder.architecture().patch, &args.pixels) {
        (Some(patch), Some(file)) => {
            let pixels = read_pixels(file, patch).map_err(told)?;
            Ok(sample_images(&pixels, patch.channels * patch.image * patch.image, args.sequences)?)
        }
        (Some(_), None) => Err(Failure::usage(format!("the model of {path} is one of images, expected --pixels"))),
        (None, Some(_)) => Err(Failure::usage(format!("the model of {path} is one of texts, expected --text"))),
        (None, None) => {
            let tokenizer = folder.tokenizer().map_err(told)?;
            Ok(sample(&tokens(&tokenizer, &args.text)?, length, args.sequences)?)
        }
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
