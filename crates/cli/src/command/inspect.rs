//! `regard inspect`

use regard_lab::inspect::{
    Experts, Inspection, Part, Plan, Recording, Wanted, key_projections, routers, survey, token_texts,
};
use regard_tasks::train::{Model, Split};

use super::{Trained, command_line, environment, show, trained};
use crate::{
    args::{Common, Inspect},
    console,
    error::{Failure, Outcome},
};

/// Shows what goes on inside a trained model.
///
/// # Errors
/// A directory without a run, a model without what was asked for, data that are missing.
pub fn run(args: &Inspect, common: &Common) -> Outcome {
    if args.experts { experts(args, common) } else { attention(args, common) }
}

fn attention(args: &Inspect, common: &Common) -> Outcome {
    let parts = parts(&args.what)?;
    let drawn = [Part::Maps, Part::Keys].into_iter().find(|part| parts.contains(part));
    if let (Some(part), None) = (drawn, &args.out) {
        return Err(Failure::usage(format!("--what {part} draws pictures, expected --out DIR to write them to")));
    }
    let Trained { config, data, model, .. } = trained(&args.run, args.checkpoint, args.cache.as_deref(), common)?;
    let split = Split::from(args.split);
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
    show(common, args.out.as_deref(), |out| inspection.write(out), || inspection.tables(), || inspection.to_json())
}

/// The parts that these names mean, in the order of reports.
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
    let Trained { config, data, model, .. } = trained(&args.run, args.checkpoint, args.cache.as_deref(), common)?;
    let split = Split::from(args.split);
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
    show(
        common,
        args.out.as_deref(),
        |out| experts.write(out),
        || [experts.loads()].into_iter().chain(experts.routers.iter().map(|router| experts.tokens(router))).collect(),
        || experts.to_json(),
    )
}
