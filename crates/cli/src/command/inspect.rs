//! `regard inspect`

use std::path::PathBuf;

use clap::Args;
use regard_lab::inspect::{
    Experts, Inspection, Part, Plan, Recording, Wanted, key_projections, routers, survey, token_texts,
};
use regard_tasks::{
    run::{Run, Which},
    train::{Model, Split},
};

use super::{command_line, environment, make_out, show, trained};
use crate::{
    args::{CHECKPOINTS, Common, SPLITS},
    console,
    error::{Failure, Outcome},
    values::{choice, seed, size},
};

#[derive(Debug, Args)]
pub struct Inspect {
    /// Run directory.
    pub run: PathBuf,
    /// What to show: all, or some of entropy, rank, redundancy, likelihood, learned, maps, keys; default: entropy,
    /// redundancy, likelihood and learned.
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub what: Vec<String>,
    /// Layers, numbered from 1; default: all.
    #[arg(long, value_parser = size(1), value_name = "N", value_delimiter = ',')]
    pub layers: Vec<usize>,
    /// Heads, numbered from 1; default: all.
    #[arg(long, value_parser = size(1), value_name = "N", value_delimiter = ',')]
    pub heads: Vec<usize>,
    /// Number of sequences, spread over the split.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 16)]
    pub sequences: usize,
    /// Maximum number of matrices whose rank is computed, one per layer, head and sequence.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 1000)]
    pub matrices: usize,
    /// Show the experts of a mixture of attention heads instead: their load, and the tokens that each prefers.
    #[arg(long, conflicts_with_all = ["what", "layers", "heads", "sequences", "matrices"])]
    pub experts: bool,
    /// Split of the data.
    #[arg(long, value_parser = choice(&SPLITS), default_value = "test")]
    pub split: Split,
    /// With --experts: batches of 32 sequences, spread over the split; 0 for all of it.
    #[arg(long, value_parser = size(0), value_name = "N", default_value_t = 0)]
    pub batches: usize,
    /// With --experts: number of preferred tokens per expert.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 8)]
    pub tokens: usize,
    /// With --experts: list only tokens that occur at least this often.
    #[arg(long, value_parser = seed(), value_name = "N", default_value_t = 10)]
    pub least: u64,
    /// Checkpoint of the run.
    #[arg(long, value_parser = choice(&CHECKPOINTS), default_value = "best")]
    pub checkpoint: Which,
    /// Cache directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Output directory for tables, SVG charts and a report.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Shows what the attention of a trained model does.
///
/// # Errors
/// A directory without a run, a model without the requested parts, missing data.
pub fn run(args: &Inspect, common: &Common) -> Outcome {
    if args.experts { experts(args, common) } else { attention(args, common) }
}

fn attention(args: &Inspect, common: &Common) -> Outcome {
    let parts = parts(&args.what)?;
    let drawn = [Part::Maps, Part::Keys].into_iter().find(|part| parts.contains(part));
    if let (Some(part), None) = (drawn, &args.out) {
        return Err(Failure::usage(format!("--what {part} draws pictures, expected --out DIR to write them to")));
    }
    let Run { config, data, model, .. } = trained(&args.run, args.checkpoint, args.cache.as_deref(), common)?;
    make_out(args.out.as_deref())?;
    let split = args.split;
    let plan =
        Plan { parts: parts.clone(), layers: args.layers.clone(), heads: args.heads.clone(), matrices: args.matrices };
    let recordings = Recording::all(&model, &data, split, args.sequences)?;
    let bar = console::bar(recordings.len() as u64, common.quiet);
    bar.set_prefix("inspect");
    let two_stacks = matches!(model, Model::Translator(_));
    let survey = survey(recordings, &plan, two_stacks, &|| bar.inc(1))?;
    bar.finish_and_clear();
    let projections = if parts.contains(&Part::Keys) { key_projections(&model) } else { Vec::new() };
    let inspection = Inspection {
        survey,
        parts,
        projections,
        source: format!("{} on {}, {} split", config.label(), config.task.name, split.name()),
        command: command_line(),
        environment: environment(),
    };
    show(common, args.out.as_deref(), &inspection)
}

/// The parts with these names, in report order.
fn parts(names: &[String]) -> Outcome<Vec<Part>> {
    if names.is_empty() {
        return Ok(Part::CHEAP.to_vec());
    }
    if names.iter().any(|name| name == "all") {
        return Ok(Part::ALL.to_vec());
    }
    let named: Result<Vec<Part>, String> = names.iter().map(|name| name.parse()).collect();
    let named = named.map_err(|problem| Failure::usage(format!("--what: {problem}")))?;
    Ok(Part::ALL.into_iter().filter(|part| named.contains(part)).collect())
}

fn experts(args: &Inspect, common: &Common) -> Outcome {
    let Run { config, data, model, .. } = trained(&args.run, args.checkpoint, args.cache.as_deref(), common)?;
    make_out(args.out.as_deref())?;
    let split = args.split;
    let wanted = Wanted { split, batches: args.batches, tokens: args.tokens, least: args.least };
    let routers = routers(&model, &data, &wanted)?;
    if routers.is_empty() {
        return Err(Failure::usage(format!(
            "{} holds a model without a mixture of heads, expected one with mechanism moa",
            args.run.display()
        )));
    }
    let experts = Experts {
        routers,
        texts: token_texts(&data),
        source: format!("{} on {}, {} split", config.label(), config.task.name, split.name()),
        least: args.least,
        command: command_line(),
        environment: environment(),
    };
    show(common, args.out.as_deref(), &experts)
}
