//! From arguments to the mechanisms and sizes to measure.

use regard_kernels::AttentionOptions;
use regard_lab::bench::{Level, Recipe, Subject};
use regard_nn::models::ModelConfig;
use regard_tasks::{
    data::{Objective, TaskName},
    run::{Layers, RunConfig, SECTIONS},
    train::TrainConfig,
};

use super::Bench;
use crate::error::{Failure, Outcome};

/// The mechanisms of the Scatterbrain paper's figure 6, with the sizes of the speed targets.
const MECHANISMS: [&str; 5] = [
    "softmax",
    "performer:features.rows=32",
    "sparse:support.kind=smyrf",
    "sparse:support.kind=local,support.radius=32",
    "scatterbrain:support.kind=local,support.radius=32,features.rows=32",
];
/// One mechanism with a growing state, and three with a constant one.
const DECODED: [&str; 4] =
    ["softmax", "linear", "mlk", "scatterbrain:support.kind=local,support.radius=32,features.rows=32"];
/// Heads unless others are asked for.
const HEADS: usize = 8;
/// Vocabulary of the default model.
const VOCABULARY: usize = 1000;

/// What to measure at which sizes.
pub struct Chosen {
    pub subjects: Vec<Subject>,
    pub lengths: Vec<usize>,
    pub heads: Vec<usize>,
    pub head_widths: Vec<usize>,
    pub batches: Vec<usize>,
}

/// The mechanisms with their options, each with a unique name, and the sizes, which default to usual ones or the
/// configuration's.
///
/// # Errors
/// Unknown or incompatible options.
pub fn choose(args: &Bench) -> Outcome<Chosen> {
    let level = args.level;
    let base = base(args, level)?;
    let given: Vec<&str> = match (args.mechanism.is_empty(), level) {
        (false, _) => args.mechanism.iter().map(String::as_str).collect(),
        (true, Level::Step) => vec![base.attention.mechanism.name()],
        (true, Level::Decode) => DECODED.to_vec(),
        (true, _) => MECHANISMS.to_vec(),
    };
    let mut all = candidates(&base, &given, level)?;
    let exact = |config: &RunConfig| {
        config.attention.mechanism == regard_kernels::Mechanism::Softmax && config.attention.window.is_none()
    };
    if args.crossover && !all.iter().any(|(_, config, _)| exact(config)) {
        let (label, config) = candidate(&base, "softmax", level)?;
        all.insert(0, (label, config, false));
    }
    let or = |given: &[usize], usual: &[usize]| {
        let mut sizes = if given.is_empty() { usual.to_vec() } else { given.to_vec() };
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    };
    let (lengths, heads, batches): (&[usize], _, _) = match level {
        Level::Operator => (&[512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536], HEADS, 1),
        Level::Layer | Level::Inference => (&[256, 512, 1024, 2048, 4096, 8192], HEADS, 1),
        Level::Decode => (&[1024, 4096, 16_384, 32_768], HEADS, 1),
        Level::Step => (&[base.task.options().shape().max_length], base.attention.heads, base.train.batch),
    };
    let lengths = or(&args.lengths, lengths);
    let heads = or(&args.heads, &[heads]);
    for (label, config, own_heads) in &all {
        let each = if *own_heads { std::slice::from_ref(&config.attention.heads) } else { heads.as_slice() };
        for &heads in each {
            let mut own = config.clone();
            own.attention.heads = heads;
            let checked = if level == Level::Step { own.check_model() } else { Ok(own.attention.check()?) };
            checked.map_err(|failure: Failure| failure.at(label))?;
        }
    }
    // The mechanism's name suffices if it is unique.
    let short: Vec<String> = all.iter().map(|(_, config, _)| config.attention.label()).collect();
    let named = all.into_iter().enumerate().map(|(n, (long, config, own_heads))| {
        let alone = short.iter().filter(|other| **other == short[n]).count() == 1;
        let label = if alone { short[n].clone() } else { long };
        let recipe =
            if level == Level::Step { Some(recipe(&config, args.vocabulary, configured(args))?) } else { None };
        // A language model is causal whatever the key says, and so is decoding.
        let causal = level == Level::Decode || recipe.as_ref().is_some_and(|recipe: &Recipe| recipe.classes.is_none());
        let options = AttentionOptions { causal: causal || config.attention.causal, ..config.attention };
        Ok(Subject { label, options, own_heads, recipe })
    });
    Ok(Chosen {
        subjects: named.collect::<Outcome<_>>()?,
        lengths,
        heads,
        head_widths: match level {
            Level::Step => vec![base.model.head_width(&base.attention)],
            _ => or(&args.head_width, &[64]),
        },
        batches: or(&args.batch, &[batches]),
    })
}

/// The attentions of `entries` for steps over ranks, which are causal, by unique names.
///
/// # Errors
/// Unknown or incompatible options, keys of a model.
pub fn attentions(args: &Bench, entries: &[&str]) -> Outcome<Vec<(String, AttentionOptions)>> {
    let base = base(args, Level::Operator)?;
    let attention = |(label, config, own_heads): (String, RunConfig, bool)| {
        let mut options = AttentionOptions { causal: true, ..config.attention };
        if !own_heads {
            options.heads = args.heads.first().copied().unwrap_or(HEADS);
        }
        options.check().map_err(|error| Failure::from(error).at(&label))?;
        Ok((label, options))
    };
    candidates(&base, entries, Level::Operator)?.into_iter().map(attention).collect()
}

/// The configurations of all entries, each with a unique label, and whether the entry says how many heads it has.
fn candidates(base: &RunConfig, entries: &[&str], level: Level) -> Outcome<Vec<(String, RunConfig, bool)>> {
    let mut all: Vec<(String, RunConfig, bool)> = Vec::new();
    for entry in entries {
        let (label, config) = candidate(base, entry, level)?;
        if all.iter().any(|(other, ..)| *other == label) {
            return Err(Failure::usage(format!("--mechanism names '{label}' twice, expected each once")));
        }
        let own_heads =
            entry.split([':', ',']).any(|part| part.split('=').next().is_some_and(|key| key.trim() == "heads"));
        all.push((label, config, own_heads));
    }
    Ok(all)
}

/// Whether a configuration is given.
fn configured(args: &Bench) -> bool {
    args.preset.is_some() || args.config.is_some()
}

/// The configuration that the entries of `--mechanism` modify.
fn base(args: &Bench, level: Level) -> Outcome<RunConfig> {
    let step = level == Level::Step;
    let of_models = [
        ("preset", args.preset.is_some()),
        ("config", args.config.is_some()),
        ("vocabulary", args.vocabulary.is_some()),
    ];
    if let Some((name, _)) = of_models.iter().find(|(_, given)| *given && !step) {
        return Err(Failure::usage(format!(
            "--{name} with --level {} has no model to describe, expected --level step",
            level.name()
        )));
    }
    if step && !args.head_width.is_empty() {
        return Err(Failure::usage(
            "--head-width with --level step, expected --set model.head_width=N: heads share the width of the model",
        ));
    }
    let mut layers = if step && !configured(args) { Layers::over(decoder()) } else { Layers::new() };
    if let Some(preset) = &args.preset {
        layers.preset(preset)?;
    }
    if let Some(file) = &args.config {
        layers.file(file)?;
    }
    for assignment in &args.set {
        let key = assignment.split('=').next().unwrap_or_default().trim();
        if !step && SECTIONS.contains(&key.split('.').next().unwrap_or_default()) {
            return Err(Failure::usage(format!(
                "--set {key}: a benchmark of level {} has no {key}, expected a key of the attention",
                level.name()
            )));
        }
        layers.assign(assignment, "--set")?;
    }
    if args.causal {
        layers.set("causal", "true", "--causal")?;
    }
    layers.resolve()
}

/// The configuration of one entry, and its label.
fn candidate(base: &RunConfig, entry: &str, level: Level) -> Outcome<(String, RunConfig)> {
    let (label, config) = base.varied(entry, "--mechanism", "--mechanism")?;
    if level != Level::Step && config.model != base.model {
        return Err(Failure::usage(format!("--mechanism {entry}: changes the model, expected keys of the attention")));
    }
    Ok((label, config))
}

/// A small language model: 4 layers of width 256, on 8 sequences of 256 tokens.
fn decoder() -> RunConfig {
    let mut config = RunConfig {
        model: ModelConfig { width: 256, layers: 4, feed_forward: 1024, ..ModelConfig::default() },
        train: TrainConfig { batch: 8, ..TrainConfig::default() },
        ..RunConfig::default()
    };
    config.attention.causal = true;
    config.task.name = TaskName::CharLm;
    config.task.char_lm.context = 256;
    config
}

/// The model of a configuration, as the benchmark trains it.
fn recipe(config: &RunConfig, vocabulary: Option<usize>, configured: bool) -> Outcome<Recipe> {
    let (task, shape) = (config.task.name, config.task.options().shape());
    let classes = match shape.objective {
        Objective::Classify { classes } => Some(classes),
        Objective::NextToken { .. } => None,
        Objective::ClassifyPairs { .. }
        | Objective::Regress
        | Objective::Fill
        | Objective::Translate
        | Objective::Summarize { .. }
        | Objective::Rank { .. } => {
            return Err(Failure::usage(format!(
                "--level step with the task {task}: only steps of classifiers and language models are measured, expected \
                 listops, pathfinder, text, image, char-lm or copy"
            )));
        }
    };
    config.train.check()?;
    let vocabulary = vocabulary.or((!configured).then_some(VOCABULARY)).unwrap_or(shape.vocabulary);
    Ok(Recipe { model: config.model.clone(), train: config.train.clone(), vocabulary, classes })
}
