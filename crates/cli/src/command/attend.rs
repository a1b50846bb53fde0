//! `regard attend`

use std::fs;

use regard_files::write_whole;
use regard_lab::attend::{Request, attend};

use crate::{
    args::{Attend, Common},
    config::{Layers, SECTIONS},
    error::{Failure, Outcome},
    output,
};

/// Applies one mechanism to a file.
///
/// # Errors
/// Options that do not exist, a file that cannot be read or written, tensors that do not fit.
pub fn run(args: &Attend, common: &Common) -> Outcome {
    let mut layers = Layers::new();
    layers.set_named("mechanism", &args.mechanism)?;
    for assignment in &args.set {
        let key = assignment.split(['.', '=']).next().unwrap_or_default().trim();
        layers.assign(assignment, "--set")?;
        if SECTIONS.contains(&key) || key == "seed" {
            return Err(Failure::usage(format!(
                "--set: {assignment} is no option of a mechanism, expected one as keys.design"
            )));
        }
    }
    if let Some(scale) = args.scale.filter(|scale| !scale.is_finite()) {
        return Err(Failure::usage(format!("--scale is {scale}, expected a finite number")));
    }
    if args.causal {
        layers.set("causal", "true", "--causal")?;
    }
    let config = layers.resolve()?;
    let file = fs::read(&args.input).map_err(|error| Failure::reading(&args.input, &error))?;
    let request = Request {
        options: config.attention,
        chosen: &|key| layers.is_set(key),
        scale: args.scale,
        reference: args.reference,
        seed: args.seed,
    };
    let written = attend(&file, &request).map_err(|error| {
        let failure = Failure::from(error);
        Failure { message: format!("{}: {}", args.input.display(), failure.message), ..failure }
    })?;
    write_whole(&args.output, &written).map_err(|error| Failure::written(&error))?;
    if common.json {
        output::json(&serde_json::json!({ "output": args.output.to_string_lossy(), "bytes": written.len() }))?;
    }
    Ok(())
}
