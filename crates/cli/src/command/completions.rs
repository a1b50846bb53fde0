//! `regard completions`

use clap::CommandFactory;

use crate::{args::Arguments, error::Outcome, output};

/// Prints completions for a shell.
///
/// # Errors
/// Standard output that cannot be written.
pub fn run(shell: clap_complete::Shell) -> Outcome {
    // The generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "regard", &mut script);
    output::bytes(&script)
}
