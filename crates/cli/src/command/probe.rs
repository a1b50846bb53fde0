//! `regard probe`

use std::{
    cell::Cell,
    path::{Path, PathBuf},
};

use clap::Args;
use regard_lab::{
    cost::fits,
    probe::{
        Classifier, Decoder, Distribution, ModelPlan, ModelProbe, Plan, Probe, Setting, measure, measure_model, steps,
    },
};
use regard_nn::{attention::AttentionConfig, models::ModelConfig};
use regard_tasks::run::{Layers, Run, SECTIONS, Which};

use super::{command_line, environment, make_out, show, trained};
use crate::{
    args::{CHECKPOINTS, Common, Named},
    console,
    error::{Failure, Outcome},
    signal,
    values::{Real, choice, seed, within},
};

/// Largest size or count of a decoder: far beyond the memory of any machine.
const MOST: u64 = 1 << 30;

/// Default sizes of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Paper,
    Reduced,
}

const SCALES: Named<Scale, 2> =
    [("paper", "As in the paper", Scale::Paper), ("reduced", "For a first look", Scale::Reduced)];

#[derive(Debug, Args)]
pub struct Arguments {
    /// Run directory of a decoder; without it, untrained decoders.
    pub run: Option<PathBuf>,
    /// Default sizes: the paper's (width 768, 12 heads, 512 positions, 12 layers, 5,000 updates) or smaller ones (256,
    /// 4, 256, 6; 1,000).
    #[arg(long, value_parser = choice(&SCALES), default_value = "paper", conflicts_with = "run")]
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
    /// Hidden channels of the feed-forward layer, 0 for none; default: four times the width.
    #[arg(long, value_parser = within(0, MOST), value_name = "N", conflicts_with = "run")]
    pub feed_forward: Option<usize>,
    /// Standard deviations of inputs and weights; the classifier uses decoders with the first.
    #[arg(
        long,
        value_parser = Real,
        value_name = "NUMBER,NUMBER,...",
        value_delimiter = ',',
        default_values_t = [0.02, 0.2, 0.002],
        conflicts_with = "run"
    )]
    pub deviation: Vec<f64>,
    /// Weight distributions: normal, uniform, sign, laplace.
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',', default_value = "normal", conflicts_with = "run")]
    pub weights: Vec<String>,
    /// Mechanism, optionally with options after a colon, as in sparse:support.radius=16; may be repeated. Default:
    /// softmax.
    #[arg(long, value_name = "ENTRY", conflicts_with = "run")]
    pub mechanism: Vec<String>,
    /// Set one option of all mechanisms; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "run")]
    pub set: Vec<String>,
    /// Also measure bidirectional attention.
    #[arg(long, conflicts_with = "run")]
    pub bidirectional: bool,
    /// Also measure a decoder whose queries are 0, so that attention is exactly uniform.
    #[arg(long, conflicts_with = "run")]
    pub uniform: bool,
    /// Decoders of each kind, over which intervals are taken; default: 8.
    #[arg(long, value_parser = within(1, MOST), value_name = "N", conflicts_with = "run")]
    pub decoders: Option<usize>,
    /// Sequences per decoder, default 4; for a run, test sequences, default 64.
    #[arg(long, value_parser = within(1, MOST), value_name = "N")]
    pub sequences: Option<usize>,
    /// Sequences per decoder for lemma 4, 0 to leave it out; default: 64.
    #[arg(long, value_parser = within(0, MOST), value_name = "N", conflicts_with = "run")]
    pub channel_sequences: Option<usize>,
    /// Use double precision, softmax only, without classifier and lemma 4: slow, for small sizes.
    #[arg(long, conflicts_with = "run")]
    pub reference: bool,
    /// Training updates of the position classifier, 0 for none.
    #[arg(long, value_parser = within(0, MOST), value_name = "N")]
    pub updates: Option<usize>,
    /// Layers after which it reads, 0 for the inputs; default: powers of two and all layers.
    #[arg(long, value_parser = within(0, MOST), value_name = "N,N,...", value_delimiter = ',', conflicts_with = "run")]
    pub classified_layers: Vec<usize>,
    /// Sequences per update.
    #[arg(long, value_parser = within(1, MOST), value_name = "N", default_value_t = 32)]
    pub batch: usize,
    /// Positions sampled from each sequence; 0 for all.
    #[arg(long, value_parser = within(0, MOST), value_name = "N", default_value_t = 16)]
    pub positions: usize,
    /// Learning rate of Adam.
    #[arg(long, value_parser = Real, value_name = "NUMBER", default_value_t = 1e-3)]
    pub rate: f64,
    /// Hidden channels of the classifier; 0 for the decoder's width.
    #[arg(long, value_parser = within(0, MOST), value_name = "N", default_value_t = 0)]
    pub hidden: usize,
    /// Training sequences of the classifier; default: 256.
    #[arg(long, value_parser = within(1, MOST), value_name = "N")]
    pub train_sequences: Option<usize>,
    /// Held-out sequences of the classifier.
    #[arg(long, value_parser = within(1, MOST), value_name = "N", default_value_t = 32)]
    pub held_sequences: usize,
    /// Seed for all random draws.
    #[arg(long, value_parser = seed(), value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Checkpoint of the run.
    #[arg(long, value_parser = choice(&CHECKPOINTS), default_value = "best", requires = "run")]
    pub checkpoint: Which,
    /// Cache directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Output directory for tables, SVG charts and a report.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Groups of sequences for a trained model.
const GROUPS: usize = 8;

/// Default sizes from `--scale`.
struct Sizes {
    width: usize,
    heads: usize,
    length: usize,
    layers: usize,
    feed_forward: usize,
    decoders: usize,
    channel_sequences: usize,
    train: usize,
    updates: usize,
    classified: Vec<usize>,
}

/// Measures how a decoder without positional embeddings infers positions.
///
/// # Errors
/// Invalid options, a directory without a run of a decoder, not enough memory, an interrupt.
pub fn run(args: &Arguments, common: &Common) -> Outcome {
    match &args.run {
        Some(path) => probe_model(path, args, common),
        None => probe_decoders(args, common),
    }
}

fn probe_decoders(args: &Arguments, common: &Common) -> Outcome {
    let sizes = sizes(args);
    check(args, &sizes)?;
    let classifier = classifier(args, &sizes);
    let settings = settings(args, &sizes, &classifier)?;
    let classified = settings.iter().any(|setting| !setting.classified.is_empty());
    let sequences = args.sequences.unwrap_or(4);
    check_memory(&sizes, sequences, &classifier, classified)?;
    let plan = Plan {
        settings: &settings,
        decoders: sizes.decoders,
        sequences,
        channel_sequences: if args.reference { 0 } else { sizes.channel_sequences },
        classifier: &classifier,
        double: args.reference,
    };
    make_out(args.out.as_deref())?;
    let bar = console::bar(steps(&plan) as u64, common.quiet);
    bar.set_prefix("probe");
    let (lines, last) = (!common.quiet && bar.is_hidden(), Cell::new(String::new()));
    let watch = |label: &str| {
        bar.inc(1);
        if lines && last.replace(label.to_owned()) != label {
            console::line(label);
        }
    };
    let measured = measure(&plan, &watch, &signal::stop_flag())?;
    bar.finish_and_clear();
    let Sizes { width, heads, length, layers, feed_forward, decoders, .. } = sizes;
    let double = if args.reference { ", float64" } else { "" };
    let probe = Probe {
        measured,
        setting: format!(
            "width {width}, {heads} heads, {length} positions, {layers} layers, feed-forward {feed_forward}, {decoders} \
             decoders of {sequences} sequences{double}"
        ),
        classifier: settings.iter().any(|setting| !setting.classified.is_empty()).then_some(classifier),
        command: command_line(),
        environment: environment(),
    };
    show(common, args.out.as_deref(), &probe)
}

fn probe_model(path: &Path, args: &Arguments, common: &Common) -> Outcome {
    let sizes = sizes(args);
    check(args, &sizes)?;
    let Run { data, model, config, step, .. } = trained(path, args.checkpoint, args.cache.as_deref(), common)?;
    let sequences = args.sequences.unwrap_or(64);
    if !sequences.is_multiple_of(GROUPS) || sequences < 2 * GROUPS {
        return Err(Failure::usage(format!(
            "--sequences is {sequences}, expected a multiple of {GROUPS} from {}: they make {GROUPS} groups",
            2 * GROUPS
        )));
    }
    let classifier = classifier(args, &sizes);
    let plan = ModelPlan { groups: GROUPS, sequences: sequences / GROUPS, classifier: &classifier };
    make_out(args.out.as_deref())?;
    let measured = measure_model(&model, &data, &plan, &signal::stop_flag())?;
    let position = format!("{:?}", config.attention.position).to_lowercase();
    let probe = ModelProbe {
        setting: format!("{sequences} sequences of {} tokens in {GROUPS} groups", measured.length),
        measured,
        source: format!("{} on {}, position {position}, step {step}", config.label(), config.task.name),
        classifier: (classifier.updates > 0).then_some(classifier),
        command: command_line(),
        environment: environment(),
    };
    show(common, args.out.as_deref(), &probe)
}

fn sizes(args: &Arguments) -> Sizes {
    let paper = args.scale == Scale::Paper;
    let or =
        |given: Option<usize>, at_paper: usize, reduced: usize| given.unwrap_or(if paper { at_paper } else { reduced });
    let (width, layers) = (or(args.width, 768, 256), or(args.layers, 12, 6));
    let powers = std::iter::successors(Some(1usize), |power| power.checked_mul(2)).take_while(|count| *count < layers);
    let doubled = [0].into_iter().chain(powers).chain([layers]);
    Sizes {
        width,
        heads: or(args.heads, 12, 4),
        length: or(args.length, 512, 256),
        layers,
        feed_forward: args.feed_forward.unwrap_or(width.saturating_mul(4)),
        decoders: or(args.decoders, 8, 8),
        channel_sequences: or(args.channel_sequences, 64, 64),
        train: or(args.train_sequences, 256, 256),
        updates: or(args.updates, 5000, 1000),
        classified: match args.classified_layers.is_empty() {
            true => doubled.collect(),
            false => args.classified_layers.clone(),
        },
    }
}

fn classifier(args: &Arguments, sizes: &Sizes) -> Classifier {
    Classifier {
        updates: sizes.updates,
        batch: args.batch,
        positions: args.positions,
        rate: args.rate,
        hidden: args.hidden,
        sequences: sizes.train,
        held: args.held_sequences,
        seed: args.seed,
    }
}

/// Checks the numbers.
fn check(args: &Arguments, sizes: &Sizes) -> Outcome {
    if sizes.length < 2 {
        return Err(Failure::usage("--length is 1, expected at least 2: one position says nothing about positions"));
    }
    let wrong = |x: &f64| !(x.is_finite() && *x > 0.0);
    if let Some(deviation) = args.deviation.iter().find(|deviation| wrong(deviation)) {
        return Err(Failure::usage(format!("--deviation has {deviation}, expected positive numbers")));
    }
    if wrong(&args.rate) {
        return Err(Failure::usage(format!("--rate is {}, expected a positive number", args.rate)));
    }
    if let Some(layer) = sizes.classified.iter().find(|layer| **layer > sizes.layers) {
        let expected = format!("expected at most {}, as many as the decoder has", sizes.layers);
        return Err(Failure::usage(format!("--classified-layers has {layer}, {expected}")));
    }
    Ok(())
}

/// All kinds of decoders given by the options: every mechanism with every deviation and distribution, the first
/// distribution also bidirectional if requested, and the first of all with queries of 0.
fn settings(args: &Arguments, sizes: &Sizes, classifier: &Classifier) -> Outcome<Vec<Setting>> {
    let mechanisms = mechanisms(args, sizes.heads)?;
    let model = ModelConfig { width: sizes.width, layers: sizes.layers, ..ModelConfig::default() };
    let mut distributions: Vec<Distribution> = Vec::new();
    for name in &args.weights {
        let distribution = name.parse().map_err(|error| Failure::usage(format!("--weights: {error}")))?;
        if distributions.contains(&distribution) {
            return Err(Failure::usage(format!("--weights names '{name}' twice, expected each once")));
        }
        distributions.push(distribution);
    }
    let Some(&first_weights) = distributions.first() else {
        return Err(Failure::usage("--weights is empty, expected normal, uniform, sign or laplace"));
    };
    let Some(&first_deviation) = args.deviation.first() else {
        return Err(Failure::usage("--deviation is empty, expected a positive number"));
    };
    let mut settings = Vec::new();
    let mut push = |label: &str, attention: &AttentionConfig, deviation: f64, weights: Distribution, uniform: bool| {
        let words = [
            (mechanisms.len() > 1, label.to_owned()),
            (args.deviation.len() > 1, format!("s = {deviation}")),
            (distributions.len() > 1, weights.to_string()),
            (!attention.causal, "both ways".to_owned()),
            (uniform, "queries 0".to_owned()),
        ];
        let mut words: Vec<String> = words.into_iter().filter_map(|(wanted, word)| wanted.then_some(word)).collect();
        if words.is_empty() {
            words.push(label.to_owned());
        }
        let classified = match (deviation == first_deviation && weights == first_weights, classifier.updates) {
            (false, _) | (_, 0) => Vec::new(),
            _ if args.reference || uniform => Vec::new(),
            // For contrast: where there is no signal, depth adds none.
            _ if !attention.causal => sizes.classified.iter().copied().max().into_iter().collect(),
            _ => sizes.classified.clone(),
        };
        let decoder = Decoder {
            attention: attention.clone(),
            width: sizes.width,
            layers: sizes.layers,
            feed_forward: sizes.feed_forward,
            length: sizes.length,
            deviation,
            weights,
            uniform,
            seed: args.seed,
        };
        settings.push(Setting { label: words.join(", "), decoder, classified });
    };
    for (label, attention) in &mechanisms {
        model.check(attention)?;
        for &deviation in &args.deviation {
            for &weights in &distributions {
                push(label, attention, deviation, weights, false);
            }
            if args.bidirectional {
                let both_ways = AttentionConfig { causal: false, ..attention.clone() };
                push(label, &both_ways, deviation, first_weights, false);
            }
        }
    }
    if args.uniform
        && let Some((label, attention)) = mechanisms.first()
    {
        push(label, attention, first_deviation, first_weights, true);
    }
    Ok(settings)
}

/// The mechanisms with their options, causal and without positions, each with a unique name.
fn mechanisms(args: &Arguments, heads: usize) -> Outcome<Vec<(String, AttentionConfig)>> {
    let mut layers = Layers::new();
    for assignment in &args.set {
        let key = assignment.split('=').next().unwrap_or_default().trim();
        let section = key.split('.').next().unwrap_or_default();
        if SECTIONS.contains(&section) || ["position", "causal", "heads"].contains(&key) {
            let expected = "a key of the attention other than heads, position and causal";
            return Err(Failure::usage(format!("--set {key}: no option of a probe, expected {expected}")));
        }
        layers.assign(assignment, "--set")?;
    }
    layers.set("heads", &heads.to_string(), "--heads")?;
    layers.set("causal", "true", "probe")?;
    layers.set("position", "none", "probe")?;
    let base = layers.resolve()?;
    let given = if args.mechanism.is_empty() { &["softmax".to_owned()][..] } else { &args.mechanism };
    let mut all: Vec<(String, AttentionConfig)> = Vec::new();
    for entry in given {
        let (label, config) = base.varied(entry, "--mechanism", "--mechanism")?;
        let own = &config.attention;
        if config.model != base.model || own.heads != heads || !own.causal || own.position != base.attention.position {
            return Err(Failure::usage(format!(
                "--mechanism {entry}: changes the model, expected keys of the attention other than heads, position and causal"
            )));
        }
        if all.iter().any(|(other, _)| *other == label) {
            return Err(Failure::usage(format!("--mechanism names '{label}' twice, expected each once")));
        }
        all.push((label, config.attention));
    }
    Ok(all)
}

/// Checks that states, what is measured of them and the classifier fit into memory. This is a lower bound.
fn check_memory(sizes: &Sizes, sequences: usize, classifier: &Classifier, classified: bool) -> Outcome {
    let factors = |factors: &[usize]| factors.iter().fold(1u128, |all, factor| all.saturating_mul(*factor as u128));
    // Hidden states, and one layer's weights.
    let mut numbers = factors(&[2, sequences, sizes.length, sizes.width]);
    numbers = numbers.saturating_add(factors(&[sizes.width, 4 * sizes.width + 2 * sizes.feed_forward]));
    // Of every decoder, count, mean and spread of some quantities at every layer and position, in 64 bits.
    numbers = numbers.saturating_add(factors(&[6, sizes.decoders, sizes.layers, sizes.length]));
    if classified {
        let all = classifier.sequences.saturating_add(classifier.held);
        let (width, hidden) = (sizes.width, if classifier.hidden == 0 { sizes.width } else { classifier.hidden });
        let positions = if classifier.positions == 0 { sizes.length } else { classifier.positions };
        // States and a copy of them; weights, gradients and moments; one batch.
        let weights = factors(&[hidden, width.saturating_add(sizes.length), 4]);
        let batch = factors(&[classifier.batch, positions, width.max(hidden).max(sizes.length)]);
        for more in [factors(&[2, all, sizes.length, width]), weights, batch] {
            numbers = numbers.saturating_add(more);
        }
    }
    let what = "states, classifier and what is measured need at least";
    let remedy = "lower --width, --length, --decoders, --sequences, --train-sequences, --hidden or --batch";
    fits(what, numbers.saturating_mul(4), remedy)
}
