//! `regard config`

use super::resolve;
use crate::{
    args::{Common, Source},
    error::Outcome,
    output,
};

/// Prints the resolved configuration.
///
/// # Errors
/// Errors of the configuration.
pub fn run(source: &Source, common: &Common) -> Outcome {
    let config = resolve(source)?;
    // What needs no files.
    config.check_model()?;
    config.train.check()?;
    if common.json {
        output::json(&serde_json::to_value(config.to_table()).expect("TOML is JSON"))
    } else {
        output::text(config.to_toml())
    }
}
