//! The command line of Regard: parse, validate, call, print.
//!
//! A library beside the binary, so that trials can read configurations in process.

mod args;
mod command;
pub mod config;
mod console;
pub mod error;
mod signal;

use std::process::ExitCode;

use clap::Parser;

pub use command::check_training;

use args::{Arguments, Command, Common};
use error::{Failure, Outcome};

/// The whole program, its arguments those of the process.
pub fn main() -> ExitCode {
    signal::end_with_reader();
    signal::outlive_full_files();
    // Usage errors end here with code 2, --help and --version with 0.
    let Arguments { command, common } = Arguments::parse();
    match set_threads(&common).and_then(|()| run(command, &common)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            console::error(&message);
            ExitCode::from(signal::code().unwrap_or(code as u8))
        }
    }
}

fn run(command: Command, common: &Common) -> Outcome {
    match command {
        Command::Train { source, directory } => command::train::run(&source, &directory, common),
        Command::Eval(args) => command::eval::run(&args, common),
        Command::Compare { source, directory } => command::compare::run(&source, &directory, common),
        Command::Bench(args) => command::bench::run(&args, common),
        Command::Approx(args) => command::approx::run(&args, common),
        Command::Attend(args) => command::attend::run(&args, common),
        Command::Cost(args) => command::cost::run(&args, common),
        Command::Generate(args) => command::generate::run(&args, common),
        Command::Translate(args) => command::translate::run(&args, common),
        Command::Inspect(args) => command::inspect::run(&args, common),
        Command::Probe(args) => command::probe::run(&args, common),
        Command::Reproduce(args) => command::reproduce::run(&args, common),
        Command::List { what } => command::list::run(what, common),
        Command::Doctor => command::doctor::run(common),
        Command::Config { source } => command::config::run(&source, common),
        Command::Completions { shell } => command::completions::run(shell),
    }
}

fn set_threads(common: &Common) -> Outcome {
    let Some(threads) = common.threads else { return Ok(()) };
    if !(1..=1024).contains(&threads) {
        return Err(Failure::usage(format!("--threads is {threads}, expected 1 to 1024")));
    }
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().map_err(Failure::usage)
}
