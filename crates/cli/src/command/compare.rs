//! `regard compare`

use std::{
    cell::OnceCell,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use regard_files::write_whole;
use regard_lab::compare::{self, Candidate, Comparison, Plan, RunResult, Watch};
use regard_tasks::{
    data::{CopySplit, TaskData},
    train::{DirectoryLock, Environment, Progress, occupied, sweep},
};

use super::{budget::check_training, command_line, environment, load, resolve, training_device};
use crate::{
    args::{Common, Directory, Source},
    config::{Layers, RunConfig},
    console::{self, TrainingBar},
    error::{Failure, Outcome},
    output, signal,
};

const CONFIG: &str = "config.toml";
const REPORT: &str = "report.html";
const PLOTS: &str = "plots";
/// Files of a comparison as a whole.
const FILES: [&str; 5] = [CONFIG, REPORT, "results.json", "results.csv", "results.md"];
/// A file of a single run.
const METRICS: &str = "metrics.jsonl";

/// Trains the same model with each mechanism and reports.
///
/// # Errors
/// Those of the configuration, the data and the runs.
pub fn run(source: &Source, directory: &Directory, common: &Common) -> Outcome {
    let config = resolve(source)?;
    let candidates = candidates(&config)?;
    config.task.check()?;
    config.train.check()?;
    let out = directory.out.clone().unwrap_or_else(|| PathBuf::from("runs/compare"));
    fs::create_dir_all(&out).map_err(|error| Failure::writing(&out, &error))?;
    let _lock = DirectoryLock::take(&out)?;
    open(&out, directory, &config)?;
    let environment = environment();
    let (data, results) = train(&config, &candidates, &out, directory.cache.as_deref(), &environment, common)?;
    let comparison = Comparison {
        labels: candidates.into_iter().map(|candidate| candidate.label).collect(),
        results,
        task: config.task.name.name().into(),
        setting: setting(&data),
        majority: Comparison::majority_of(&data),
        command: command_line(),
        config: config.to_toml(),
        environment,
    };
    let files = comparison.write(&out).map_err(|error| Failure::written(&error))?;
    if common.json {
        output::json(&comparison.to_json())
    } else {
        output::text(comparison.table().to_text())?;
        output::line(format_args!("\nreport: {}", files.report.page.display()))
    }
}

/// Trains what has no result yet below `out`.
pub(super) fn train(
    config: &RunConfig,
    candidates: &[Candidate],
    out: &Path,
    cache: Option<&Path>,
    environment: &Environment,
    common: &Common,
) -> Outcome<(TaskData, Vec<RunResult>)> {
    let data = load(&config.task, config.seed, cache, common)?;
    let device = training_device(config);
    let seeds = &config.compare.seeds;
    let plan =
        Plan { candidates, seeds, data: &data, train: &config.train, directory: out, environment, device: &device };
    let runs = candidates.len() * seeds.len();
    let watch = Console { quiet: common.quiet, bars: (0..runs).map(|_| OnceCell::new()).collect() };
    let results = compare::run(&plan, &watch, &signal::stop_flag())?;
    Ok((data, results))
}

/// The models to compare, each with a label of its own.
pub(super) fn candidates(config: &RunConfig) -> Outcome<Vec<Candidate>> {
    let mut all: Vec<Candidate> = Vec::new();
    for entry in &config.compare.mechanisms {
        let (label, own) = config.candidate(entry)?;
        own.check_model()?;
        check_training(&own)?;
        if all.iter().any(|other| other.label == label) {
            return Err(Failure::usage(format!("compare.mechanisms names '{label}' twice, expected each once")));
        }
        let config = own.to_toml();
        all.push(Candidate { label, attentions: own.attentions(), model: own.model.clone(), config });
    }
    if all.is_empty() {
        return Err(Failure::usage("compare.mechanisms is empty, expected at least one, as in softmax,mgk"));
    }
    if config.compare.seeds.is_empty() {
        return Err(Failure::usage("compare.seeds is empty, expected at least one, as in 1,2,3"));
    }
    let seeds = &config.compare.seeds;
    if let Some(seed) = seeds.iter().enumerate().find_map(|(i, seed)| seeds[..i].contains(seed).then_some(seed)) {
        return Err(Failure::usage(format!("compare.seeds names {seed} twice, expected each once")));
    }
    Ok(all)
}

/// Decides what becomes of what is in the directory, and leaves the configuration there.
///
/// An unfinished comparison of the same configuration goes on by itself: nothing is lost by that.
fn open(out: &Path, directory: &Directory, config: &RunConfig) -> Outcome {
    let occupied = occupied(out).map_err(|error| Failure::reading(out, &error))?;
    let path = out.join(CONFIG);
    let text = config.to_toml();
    let before = fs::read_to_string(&path).ok();
    if occupied && directory.overwrite {
        if !holds_comparison(out) {
            return Err(Failure::usage(format!(
                "{} holds no comparison, so --overwrite leaves it alone; choose another --out",
                out.display()
            )));
        }
        remove_comparison(out)?;
    } else if occupied {
        let same = before.as_deref() == Some(&text);
        let finished = out.join(REPORT).exists();
        match (same, finished, directory.resume) {
            (true, false, _) | (true, true, true) => {}
            (true, true, false) => {
                return Err(Failure::usage(format!(
                    "{} holds a finished comparison; see {}, start over with --overwrite, or choose another --out",
                    out.display(),
                    out.join(REPORT).display()
                )));
            }
            (false, _, true) => {
                return Err(Failure::usage(format!(
                    "{} holds a comparison of another configuration, expected that of {}; resume with the same options",
                    out.display(),
                    path.display()
                )));
            }
            (false, _, false) => {
                return Err(Failure::usage(format!(
                    "{} is not empty and holds something else; start over with --overwrite, or choose another --out",
                    out.display()
                )));
            }
        }
    }
    sweep(out);
    write_whole(&path, text.as_bytes()).map_err(|error| Failure::written(&error))
}

/// Whether the directory is that of a comparison: it has a configuration of ours, and is not a single run.
fn holds_comparison(out: &Path) -> bool {
    Layers::new().file(&out.join(CONFIG)).is_ok() && !out.join(METRICS).exists()
}

/// Removes what comparisons write, and nothing else: a wrong path must not cost anybody's files.
///
/// # Errors
/// What cannot be removed; a run that another process goes on with.
pub(super) fn remove_comparison(out: &Path) -> Outcome {
    for path in children(out)? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let removed = |result: io::Result<()>| result.map_err(|error| Failure::writing(&path, &error));
        if name == PLOTS {
            removed(fs::remove_dir_all(&path))?;
        } else if FILES.contains(&name) {
            removed(fs::remove_file(&path))?;
        } else if path.is_dir() {
            remove_runs(&path)?;
        }
    }
    Ok(())
}

/// Removes the runs of one candidate, one per seed, and their directory if nothing else is in it.
fn remove_runs(candidate: &Path) -> Outcome {
    let mut left = false;
    for path in children(candidate)? {
        let seed = path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix("seed-"));
        let empty = || occupied(&path).is_ok_and(|occupied| !occupied);
        if seed.is_some_and(|seed| seed.parse::<u64>().is_ok()) && (path.join(CONFIG).is_file() || empty()) {
            let _lock = DirectoryLock::take(&path)?;
            fs::remove_dir_all(&path).map_err(|error| Failure::writing(&path, &error))?;
        } else {
            left = true;
        }
    }
    if left { Ok(()) } else { fs::remove_dir(candidate).map_err(|error| Failure::writing(candidate, &error)) }
}

/// What lies in a directory.
fn children(directory: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    entries.map_err(|error| Failure::reading(directory, &error))
}

/// Size of the data in a few words.
fn setting(data: &TaskData) -> String {
    match data {
        TaskData::Classification(data) => format!(
            "{} training sequences of at most {} tokens, {} for the test",
            data.train.len(),
            data.max_length,
            data.test.len()
        ),
        TaskData::Language(data) => format!(
            "{} training characters, {} for validation, context {}",
            data.train.len(),
            data.valid.len(),
            data.context
        ),
        TaskData::Copy(data) => format!(
            "0 w 0 w of {} tokens, words of {} symbols, {} sequences for the test",
            data.length(),
            data.symbols(),
            data.sequences(CopySplit::Test)
        ),
        TaskData::Translation(data) => format!(
            "{} training pairs of sentences of at most {} tokens, {} for the test, a vocabulary of {}",
            data.train.len(),
            data.max_length,
            data.test.len(),
            data.tokenizer.vocabulary()
        ),
        TaskData::Masked(data) => format!(
            "{} training windows of at most {} tokens, {} for validation, a vocabulary of {}",
            data.train.len(),
            data.context,
            data.valid.len(),
            data.tokenizer.vocabulary()
        ),
    }
}

/// One bar per run.
struct Console {
    quiet: bool,
    bars: Vec<OnceCell<TrainingBar>>,
}

impl Watch for Console {
    fn begin(&self, label: &str, seed: u64, number: usize, total: usize, steps: usize) -> &dyn Progress {
        let name = format!("[{}/{total}] {label}, seed {seed}", number + 1);
        self.bars[number].get_or_init(|| TrainingBar::new(&name, steps, self.quiet))
    }

    fn end(&self, result: &RunResult, fresh: bool) {
        self.bars.iter().filter_map(OnceCell::get).for_each(TrainingBar::finish);
        if self.quiet {
            return;
        }
        let quality = match (result.test_accuracy, result.test_perplexity) {
            (Some(accuracy), Some(perplexity)) => {
                format!("test accuracy {:.1} %, perplexity {perplexity:.3}", 100.0 * accuracy)
            }
            (Some(accuracy), None) => format!("test accuracy {:.1} %", 100.0 * accuracy),
            (None, perplexity) => format!("test perplexity {:.3}", perplexity.unwrap_or(f64::NAN)),
        };
        let before = if fresh { "" } else { " (done before)" };
        console::line(format_args!(
            "{}, seed {}: {quality}, {:.1} ms a step{before}",
            result.label, result.seed, result.milliseconds_per_step
        ));
    }
}
