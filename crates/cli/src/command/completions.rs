//! `regard completions`

use clap::CommandFactory;

use crate::{args::Arguments, error::Outcome};

/// Prints completions for a shell.
///
/// # Errors
/// None.
pub fn run(shell: clap_complete::Shell) -> Outcome {
    clap_complete::generate(shell, &mut Arguments::command(), "regard", &mut std::io::stdout());
    Ok(())
}
