//! `regard inspect`

use regard_lab::inspect::{Experts, Wanted, routers, token_texts};
use regard_tasks::train::Split;

use super::{Trained, command_line, environment, print_json, trained};
use crate::{
    args::{Common, Inspect},
    error::{Failure, Outcome},
};

/// Shows what goes on inside a trained model.
///
/// # Errors
/// A directory without a run, a model without what was asked for, data that are missing.
pub fn run(args: &Inspect, common: &Common) -> Outcome {
    if !args.experts {
        return Err(Failure::usage("nothing to inspect, expected --experts"));
    }
    if args.tokens == 0 {
        return Err(Failure::usage("--tokens is 0, expected at least 1"));
    }
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
    let files = match &args.out {
        Some(out) => Some(experts.write(out).map_err(|error| Failure::written(&error))?),
        None => None,
    };
    if common.json {
        print_json(&experts.to_json());
        return Ok(());
    }
    print!("{}", experts.loads().to_text());
    for router in &experts.routers {
        print!("\n{}", experts.tokens(router).to_text());
    }
    if let Some(files) = files {
        println!("\nreport: {}", files.report.page.display());
    }
    Ok(())
}
