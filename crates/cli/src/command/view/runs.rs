//! The runs below a directory, and where each stands.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use regard_report::PAGE;
use regard_tasks::{
    run::RunConfig,
    train::{CHECKPOINTS, CONFIG, DirectoryLock, METRICS, Record, Split},
};
use serde_json::{Value, json};

use super::metrics;

/// Deepest level: a study has its runs four levels down.
const DEPTH: usize = 8;

/// Most directories that are looked into.
const MOST: usize = 5000;

/// Where a lock cannot be tried, a run that has not written for so long was killed.
const SILENCE: Duration = Duration::from_secs(300);

/// What lies below the directory.
#[derive(Default)]
struct Found {
    runs: Vec<Value>,
    /// Reports that belong to no run, as those of comparisons.
    reports: Vec<String>,
    looked_into: usize,
}

/// Runs and reports below `root`; names are paths from there, with slashes.
pub fn list(root: &Path) -> Value {
    let mut found = Found::default();
    walk(root, "", DEPTH, &mut found);
    json!({ "runs": found.runs, "reports": found.reports, "complete": found.looked_into < MOST })
}

fn walk(path: &Path, name: &str, depth: usize, found: &mut Found) {
    found.looked_into += 1;
    let run = path.join(CONFIG).is_file() && path.join(METRICS).is_file();
    if run {
        found.runs.push(one(path, name));
    } else if path.join(PAGE).is_file() {
        found.reports.push(below(name, PAGE));
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    // Without links: what they lead to is found where it lies, if inside.
    let mut folders: Vec<String> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|own| !own.starts_with('.') && own != CHECKPOINTS)
        .collect();
    folders.sort();
    for own in folders {
        if depth > 0 && found.looked_into < MOST {
            walk(&path.join(&own), &below(name, &own), depth - 1, found);
        }
    }
}

fn below(name: &str, own: &str) -> String {
    if name.is_empty() { own.to_owned() } else { format!("{name}/{own}") }
}

/// A run in a line.
fn one(path: &Path, name: &str) -> Value {
    let config = RunConfig::read(&path.join(CONFIG)).ok();
    let records = metrics::last(&path.join(METRICS)).unwrap_or_default();
    let step = records.iter().map(Record::step).max();
    let evaluated = |wanted: Split| {
        records.iter().rev().find_map(|record| match record {
            Record::Evaluation(evaluation) if evaluation.split == wanted => Some(json!({
                "loss": evaluation.loss, "accuracy": evaluation.accuracy, "perplexity": evaluation.perplexity,
            })),
            _ => None,
        })
    };
    let test = evaluated(Split::Test);
    let updates =
        || records.iter().filter_map(|record| if let Record::Step(step) = record { Some(step) } else { None });
    let mut times: Vec<f64> = updates().map(|update| update.milliseconds).collect();
    times.sort_by(f64::total_cmp);
    json!({
        "name": name,
        "model": config.as_ref().map(RunConfig::label),
        "task": config.as_ref().map(|config| config.task.name.name()),
        "step": step,
        "steps": config.as_ref().map(|config| config.train.steps),
        "state": state(path, test.is_some()),
        "loss": updates().next_back().map(|update| update.loss),
        "milliseconds": times.get(times.len() / 2),
        "valid": evaluated(Split::Valid),
        "test": test,
        "written": age(&path.join(METRICS)).map(|age| age.as_secs()),
        "report": path.join(PAGE).is_file().then(|| below(name, PAGE)),
        "maps": path.join(CHECKPOINTS).join("best").exists(),
    })
}

/// `running`, `finished` or `stopped`, from what a run leaves: its lock while it runs, the test at its end.
fn state(path: &Path, tested: bool) -> &'static str {
    let recent = || age(&path.join(METRICS)).is_none_or(|age| age < SILENCE);
    match DirectoryLock::is_held(path).unwrap_or_else(recent) {
        true => "running",
        false if tested => "finished",
        false => "stopped",
    }
}

/// Time since a file was written.
fn age(path: &Path) -> Option<Duration> {
    let written = fs::metadata(path).and_then(|data| data.modified()).ok()?;
    Some(SystemTime::now().duration_since(written).unwrap_or_default())
}
