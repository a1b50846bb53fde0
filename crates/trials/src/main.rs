//! Attacks on Regard: damaged input in process, and kills, full disks and rivals from outside. Everything is drawn from a
//! seed that is printed, so that a finding can be had again.

// A tool for developers: figures go to the terminal, and one that cannot be written may end it.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bounded;
mod crash;
mod fuzz;
mod kernels;
mod mutate;
mod report;
mod targets;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use report::{Section, write};

#[global_allocator]
static ALLOCATOR: bounded::Bounded = bounded::Bounded;

#[derive(Parser)]
#[command(about = "Attacks on Regard: damaged input, kills, full disks", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Seed for all random draws.
    #[arg(long, value_name = "N", default_value_t = 1, global = true)]
    seed: u64,
}

#[derive(Subcommand)]
enum Command {
    /// Feeds damaged input to every parser.
    Fuzz(fuzz::Options),
    /// Kills runs, takes their disk away, and compares what they leave with runs that nothing disturbed.
    Crash(crash::Options),
    /// Holds instruction sets and numbers of threads against each other, and watches the kernels' memory accesses.
    Kernels,
    /// All of it, and a page of the figures.
    All {
        #[command(flatten)]
        fuzz: fuzz::Options,
        #[command(flatten)]
        crash: crash::Options,
        /// The page to write.
        #[arg(long, value_name = "FILE", default_value = "results/reliability.md")]
        out: PathBuf,
    },
    /// The process that tries inputs; `fuzz` starts it.
    #[command(hide = true)]
    Worker(fuzz::Worker),
}

/// Prints sections; fails where there is a finding.
fn show(sections: &[Section]) -> ExitCode {
    sections.iter().for_each(|section| println!("{}", section.to_markdown()));
    if sections.iter().any(|section| section.findings > 0) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn main() -> ExitCode {
    let Arguments { command, seed } = Arguments::parse();
    match command {
        Command::Worker(worker) => {
            fuzz::work(&worker, seed);
            ExitCode::SUCCESS
        }
        Command::Fuzz(options) => show(&[fuzz::section(&options, seed)]),
        Command::Crash(options) => show(&[crash::section(&options, seed)]),
        Command::Kernels => show(&[kernels::determinism(), kernels::memory()]),
        Command::All { fuzz, crash, out } => {
            let kernels = [kernels::determinism(), kernels::memory()];
            let sections = [fuzz::section(&fuzz, seed), crash::section(&crash, seed)].into_iter().chain(kernels);
            let sections: Vec<Section> = sections.collect();
            if let Err(error) = write(&out, &sections) {
                eprintln!("error: cannot write {}: {error}", out.display());
                return ExitCode::from(3);
            }
            show(&sections)
        }
    }
}
