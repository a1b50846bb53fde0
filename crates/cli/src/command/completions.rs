//! `regard completions`

use clap::CommandFactory;

use crate::{args::Arguments, error::Outcome, output};

/// Prints shell completions.
///
/// # Errors
/// Standard output that cannot be written.
pub fn run(shell: clap_complete::Shell) -> Outcome {
    // The generator panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "regard", &mut script);
    output::bytes(&script)
}
