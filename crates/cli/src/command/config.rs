//! `regard config`

use super::{print_json, resolve};
use crate::{
    args::{Common, Source},
    error::Outcome,
};

/// Prints the resolved configuration.
///
/// # Errors
/// Those of the configuration.
pub fn run(source: &Source, common: &Common) -> Outcome {
    let config = resolve(source)?;
    if common.json {
        print_json(&serde_json::to_value(config.to_table()).expect("TOML is JSON"));
    } else {
        print!("{}", config.to_toml());
    }
    Ok(())
}
