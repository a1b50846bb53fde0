//! The command line of Regard: parse, validate, call, print.
//!
//! The program alone: what it calls is in the other crates.

mod args;
mod command;
mod console;
mod error;
mod job;
mod output;
mod signal;
mod values;

use std::{path::Path, process::ExitCode};

use regard_kernels::simd::{self, Vectors};

use args::{Arguments, Command, Common};
use error::{Failure, Outcome, code};
use regard_nn::{device, ops::runs_kernels};
use regard_tasks::Class;

/// All commands and options, for checks of what is written about them.
pub fn described() -> clap::Command {
    Arguments::described()
}

/// What `regard view` of a directory sends back for the bytes of one connection, without a connection: for trials.
///
/// # Errors
/// A directory that is not there, in words.
pub fn viewed(directory: &Path, bytes: &[u8]) -> Result<Vec<u8>, String> {
    command::view::reply(directory, bytes).map_err(|failure| failure.message)
}

/// The whole program, its arguments those of the process.
pub fn main() -> ExitCode {
    job::prepare();
    signal::outlive_full_files();
    let result = match Arguments::typed() {
        Ok(Arguments { command, common }) => {
            let set = set_threads(&common).and_then(|()| limit_vectors()).and_then(|()| set_device(&command, &common));
            set.and_then(|()| run(command, &common))
        }
        Err(error) if error.use_stderr() => {
            // In colours where a terminal shows them.
            let _ = error.print();
            return ExitCode::from(code(Class::Usage));
        }
        // --help and --version.
        Err(answer) => output::print(|| answer.print()),
    };
    match result {
        Ok(()) => {
            job::leave(None, 0);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            if !job::told_elsewhere(&failure) {
                console::error(&failure.message);
            }
            let own = job::stopped().or(signal::code()).unwrap_or(code(failure.class));
            job::leave(Some(failure.class), own);
            ExitCode::from(own)
        }
    }
}

fn run(command: Command, common: &Common) -> Outcome {
    let shared = matches!(
        &command,
        Command::Train { .. }
            | Command::Eval(_)
            | Command::Compare(_)
            | Command::Reproduce(_)
            | Command::Attend(_)
            | Command::Doctor
    ) || matches!(&command, Command::Bench(args) if args.network);
    if !shared {
        job::alone()?;
    }
    match command {
        Command::Train { source, directory } => command::train::run(&source, &directory, common),
        Command::Eval(args) => command::eval::run(&args, common),
        Command::Compare(args) => command::compare::run(&args, common),
        Command::Bench(args) => command::bench::run(&args, common),
        Command::Approx(args) => command::approx::run(&args, common),
        Command::Attend(args) => command::attend::run(&args, common),
        Command::Cost(args) => command::cost::run(&args, common),
        Command::Generate(args) => command::generate::run(&args, common),
        Command::Perplexity(args) => command::perplexity::run(&args, common),
        Command::Embed(args) => command::embed::run(&args, common),
        Command::Score(args) => command::score::run(&args, common),
        Command::Predict(args) => command::predict::run(&args, common),
        Command::Translate(args) => command::translate::run(&args, common),
        Command::Summarize(args) => command::summarize::run(&args, common),
        Command::Inspect(args) => command::inspect::run(&args, common),
        Command::Probe(args) => command::probe::run(&args, common),
        Command::Swap(args) => command::swap::run(&args, common),
        Command::Adapt(args) => command::adapt::run(&args, common),
        Command::Reproduce(args) => command::reproduce::run(&args, common),
        Command::Data(args) => command::data::run(&args, common),
        Command::View(args) => command::view::run(&args, common),
        Command::List { what } => command::list::run(what, common),
        Command::Doctor => command::doctor::run(common),
        Command::Config { source } => command::config::run(&source, common),
        Command::Completions { shell } => command::completions::run(shell),
        Command::Man(args) => command::man::run(&args, common),
    }
}

/// Uses at most the vectors that `REGARD_VECTORS` names, to measure a narrower processor on this one.
fn limit_vectors() -> Outcome {
    let Some(named) = values::variable("REGARD_VECTORS") else { return Ok(()) };
    let vectors = Vectors::named(&named.to_string_lossy());
    simd::limit(vectors.map_err(|error| Failure::usage(format!("environment variable REGARD_VECTORS: {error}")))?);
    Ok(())
}

/// Chooses the device of models. Commands that run kernels by themselves have only the CPU.
fn set_device(command: &Command, common: &Common) -> Outcome {
    device::choose(&common.device).map_err(Failure::usage)?;
    let alone = match command {
        Command::Attend(_) => Some("attend"),
        Command::Bench(bench) => bench.only_on_the_cpu(),
        Command::Approx(_) => Some("approx"),
        _ => None,
    };
    match alone {
        Some(name) if !runs_kernels(&device::chosen()) => {
            let told =
                format!("device '{}' cannot be used by 'regard {name}', which runs kernels of the CPU", device::name());
            Err(Failure::usage(format!("{told}; leave --device and REGARD_DEVICE out")))
        }
        _ => Ok(()),
    }
}

fn set_threads(common: &Common) -> Outcome {
    let Some(threads) = common.threads else { return Ok(()) };
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().map_err(Failure::usage)
}
