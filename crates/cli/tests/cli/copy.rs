//! The task of copying, from the preset to the report.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ended, argument, regard, run, text};

const USAGE: i32 = 2;
const DATA: i32 = 3;

/// Short words, a small model, a few updates.
const SHORT: [&str; 18] = [
    "--set",
    "task.copy.length=16",
    "--set",
    "task.copy.symbols=4",
    "--set",
    "task.copy.valid=20",
    "--set",
    "model.width=32",
    "--set",
    "model.feed_forward=32",
    "--set",
    "train.batch=32",
    "--set",
    "train.schedule.warmup=10",
    "--set",
    "train.optimizer.learning_rate=1e-2",
    "--set",
    "train.evaluate_every=50",
];

fn train(out: &Path, further: &[&str]) -> Value {
    let mut command = regard(["train", "--preset", "copy", "--quiet", "--json", "--cache", "none", "--out"]);
    Ended::of(command.arg(out).args(SHORT).args(further)).json()
}

#[test]
fn exact_attention_learns_to_copy_and_a_short_window_cannot() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("softmax");
    let steps = ["--set", "train.steps=150"];
    let exact = train(&out, &[&["--mechanism", "softmax"][..], &steps].concat());
    let figure = |result: &Value, key: &str| result["test"][key].as_f64().unwrap();
    assert!(figure(&exact, "accuracy") > 0.9 && figure(&exact, "perplexity") < 1.5, "{exact}");
    assert_eq!(exact["best"]["score"].as_f64().unwrap(), -figure_of_valid(&out));
    let window = ["--mechanism", "softmax", "--set", "window=2"];
    let blind = train(&folder.path().join("window"), &[&window[..], &steps].concat());
    // Of four symbols one is as good as another; two layers of windows reach back 4 tokens, not 7.
    assert!(figure(&blind, "perplexity") > 3.0 && figure(&blind, "accuracy") < 0.5, "{blind}");

    let path = argument(&out);
    let valid = run(["eval", &path, "--split", "valid", "--json", "--cache", "none"]).json();
    assert_eq!((valid["sequences"].as_u64(), valid["items"].as_u64()), (Some(20), Some(20 * 7)));
    let report = run(["eval", &path, "--cache", "none"]).success();
    assert!(report.contains("accuracy") && report.contains("perplexity"), "{report}");
    run(["generate", &path]).failure(USAGE, &[&path, "holds a model of the task copy", "char-lm"]);
}

/// The best validation loss of a run.
fn figure_of_valid(out: &Path) -> f64 {
    let metrics = text(out.join("metrics.jsonl"));
    let records = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let valid = records.filter(|record| record["split"] == "valid").map(|record| record["loss"].as_f64().unwrap());
    valid.fold(f64::INFINITY, f64::min)
}

#[test]
fn another_attention_starts_from_a_trained_model() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    train(&first, &["--mechanism", "softmax", "--set", "train.steps=150"]);
    let one_update =
        ["--set", "train.steps=1", "--set", "train.schedule.warmup=1", "--set", "train.optimizer.learning_rate=1e-9"];
    let start = format!("train.start={}", argument(&first));
    let swapped = [
        "--mechanism",
        "sparse",
        "--set",
        "support.kind=smyrf",
        "--set",
        "support.rounds=1",
        "--set",
        "budget=1",
        "--set",
        &start,
    ];
    let result = train(&second, &[&swapped[..], &one_update].concat());
    // One cluster that holds everything is exact attention, so nothing of what was learned is lost.
    assert!(result["test"]["accuracy"].as_f64().unwrap() > 0.9, "{result}");
    let fresh = ["--mechanism", "softmax"];
    let fresh = train(&folder.path().join("fresh"), &[&fresh[..], &one_update].concat());
    assert!(fresh["test"]["accuracy"].as_f64().unwrap() < 0.5, "{fresh}");

    let absent = format!("train.start={}", argument(folder.path().join("absent")));
    let mut command = regard(["train", "--preset", "copy", "--quiet", "--cache", "none", "--set", &absent, "--out"]);
    Ended::of(command.arg(folder.path().join("none")).args(SHORT))
        .failure(DATA, &["absent", "train.start", "no checkpoint"]);
}

#[test]
fn a_comparison_has_accuracy_and_perplexity() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("compare");
    let mut command = regard(["compare", "--preset", "copy", "--quiet", "--cache", "none", "--out"]);
    command.arg(&out).args(SHORT).args([
        "--set",
        "train.steps=4",
        "--set",
        "train.schedule.warmup=2",
        "--set",
        "budget=1/2",
    ]);
    let stdout = Ended::of(&mut command).success();
    for word in ["accuracy", "perplexity", "softmax", "lsh", "performer", "local", "scatterbrain"] {
        assert!(stdout.contains(word), "{word} in {stdout}");
    }
    let results: Value = serde_json::from_str(&text(out.join("results.json"))).unwrap();
    let runs = results["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 5);
    for run in runs {
        let (accuracy, perplexity) = (run["test_accuracy"].as_f64().unwrap(), run["test_perplexity"].as_f64().unwrap());
        assert!((0.0..=1.0).contains(&accuracy) && perplexity > 1.0, "{run}");
    }
    assert!(results["setting"].as_str().unwrap().contains("0 w 0 w of 16 tokens, words of 4 symbols"), "{results}");
}

#[test]
fn impossible_words_are_refused() {
    for (assignment, part) in [
        ("task.copy.length=15", "task.copy.length: is 15"),
        ("task.copy.symbols=0", "task.copy.symbols: is 0"),
        ("task.copy.lenght=16", "did you mean 'task.copy.length'"),
    ] {
        run(["train", "--preset", "copy", "--quiet", "--set", assignment]).failure(USAGE, &[part]);
    }
}
