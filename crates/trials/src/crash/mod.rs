//! Kills and hardships from outside: whatever happens to a run, what is resumed ends as a run that nothing disturbed.

mod hardships;
mod kills;
mod process;
mod remains;

use std::{path::PathBuf, time::Instant};

use clap::Args;
use rand::{Rng, seq::IndexedRandom};
use regard_tasks::data::Streams;
use tempfile::TempDir;

use crate::{mutate::Stream, report::Section};
use process::Running;

#[derive(Args, Clone)]
pub struct Options {
    /// Runs to disturb, of each kind; a run is killed until it ends.
    #[arg(long, value_name = "N", default_value_t = 10)]
    times: usize,
    /// The program; beside this one by default.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// What is run: a training run or a comparison, of a second or two, with all that must survive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recipe {
    Train,
    Compare,
}

impl Recipe {
    fn arguments(self) -> Vec<&'static str> {
        let common = ["--preset", "smoke", "--cache", "none", "--quiet", "--set", "train.checkpoint_every=5"];
        let own: &[&str] = match self {
            Self::Train => &[
                "--mechanism",
                "mgk",
                "--set",
                "train.steps=43",
                "--set",
                "train.average=3",
                "--set",
                "model.dropout=0.1",
            ],
            Self::Compare => &["--set", "compare.mechanisms=softmax,linear", "--set", "train.steps=12"],
        };
        [&[if self == Self::Train { "train" } else { "compare" }], &common[..], own].concat()
    }
}

/// What trials share.
struct Stage {
    binary: PathBuf,
    folder: TempDir,
    stream: Stream,
}

impl Stage {
    /// Starts a recipe in a directory with as many threads as the draw says.
    fn start(&mut self, recipe: Recipe, out: &std::path::Path, further: &[&str]) -> Running {
        let threads = [1, 2, 3, 7].choose(&mut self.stream).expect("some").to_string();
        let mut arguments = recipe.arguments();
        arguments.extend(further);
        arguments.extend(["--threads", &threads]);
        Running::start(&self.binary, &arguments, out, None)
    }

    /// A moment between 0 and `most` seconds.
    fn moment(&mut self, most: f64) -> std::time::Duration {
        std::time::Duration::from_secs_f64(self.stream.random_range(0.0..most))
    }
}

/// Figures of one kind of trial.
#[derive(Default)]
struct Tally {
    runs: usize,
    kills: usize,
    resumes: usize,
    problems: Vec<String>,
    /// Why there was nothing to do, where that is so.
    skipped: Option<String>,
}

/// Runs every kind of trial.
pub fn section(options: &Options, seed: u64) -> Section {
    println!("seed {seed}");
    let beside = || std::env::current_exe().expect("this program").with_file_name("regard");
    let binary = options.binary.clone().unwrap_or_else(beside);
    if !binary.is_file() {
        eprintln!(
            "error: {} is not there; build it with 'cargo build -p regard-cli', or give --binary",
            binary.display()
        );
        std::process::exit(2);
    }
    let folder = TempDir::with_prefix("regard-crash-").expect("a temporary directory");
    let mut stage = Stage { binary, folder, stream: Streams::new(seed, "crash").at(0) };
    let (mut rows, mut findings) = (Vec::new(), 0);
    type Trial = fn(&mut Stage, usize) -> Tally;
    let trials: [(&str, Trial); 8] = [
        ("train, killed", |stage, times| kills::killed(stage, Recipe::Train, times)),
        ("compare, killed", |stage, times| kills::killed(stage, Recipe::Compare, times)),
        ("two processes on a run", |stage, times| hardships::rivals(stage, Recipe::Train, times)),
        ("two processes on a comparison", |stage, times| hardships::rivals(stage, Recipe::Compare, times)),
        ("directory removed", hardships::removed),
        ("files limited in size", hardships::limited),
        ("disk full", hardships::full),
        ("disk read-only", hardships::read_only),
    ];
    for (name, trial) in trials {
        let begin = Instant::now();
        let tally = trial(&mut stage, options.times);
        findings += tally.problems.len();
        tally.problems.iter().for_each(|problem| println!("FINDING {name}: {problem}"));
        let seconds = begin.elapsed().as_secs_f64();
        eprintln!(
            "{name}: {} runs, {} kills, {} findings, {seconds:.0} s",
            tally.runs,
            tally.kills,
            tally.problems.len()
        );
        let name = tally.skipped.map_or(name.to_owned(), |why| format!("{name}: left out, {why}"));
        let counts = [tally.runs, tally.kills, tally.resumes, tally.problems.len()].map(|count| count.to_string());
        rows.push([&[name][..], &counts, &[format!("{seconds:.0}")]].concat());
    }
    let about = format!(
        "Runs of a second or two, disturbed at random moments (seed {seed}), then resumed on 1, 2, 3 or 7 threads until done. \
         Processes that are killed are also stopped and let go on. A mismatch is a checkpoint, a metric or a result that \
         differs by a bit from that of a run which nothing disturbed (times aside), an exit code other than the documented \
         one, or more than one sentence."
    );
    let columns = vec!["trial", "runs", "kills", "resumed", "mismatches", "seconds"];
    Section { title: "Disturbed runs".into(), about, columns, rows, findings }
}
