//! `regard bench`: its table, files and limits.

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ended, assert_self_contained, names, regard, run, text};

const USAGE: i32 = 2;
const BUDGET: i32 = 5;

/// Two short lengths.
const SHORT: [&str; 11] =
    ["bench", "--quiet", "--lengths", "32,64", "--heads", "2", "--head-width", "8", "--repeats", "2", "--causal"];

#[test]
fn the_default_mechanisms_are_measured_and_reported() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("bench");
    let mut command = regard(SHORT);
    let ended = Ended::of(command.args(["--longest-quadratic", "32", "--out"]).arg(&out));
    assert_eq!(ended.stderr, "");
    let stdout = ended.success();
    for word in [
        "batch 1, 2 heads of 8, causal",
        "softmax",
        "performer",
        "smyrf",
        "local",
        "scatterbrain-local",
        "32 rows",
        "×",
    ] {
        assert!(stdout.contains(word), "{word} in {stdout}");
    }
    assert_eq!(names(&out), ["plots", "report.html", "results.csv", "results.json", "results.md"]);
    let plots = ["memory-both.svg", "memory-forward.svg", "time-both.svg", "time-forward.svg"];
    assert_eq!(names(&out.join("plots")), plots);
    let page = text(out.join("report.html"));
    assert_self_contained(&page);
    let json: Value = serde_json::from_str(&text(out.join("results.json"))).unwrap();
    let points: Vec<_> = json["measurements"].as_array().unwrap().iter().collect();
    let lengths = |label: &str| -> Vec<u64> {
        points.iter().filter(|m| m["label"] == label).map(|m| m["length"].as_u64().unwrap()).collect()
    };
    assert_eq!((lengths("softmax"), lengths("scatterbrain-local")), (vec![32], vec![32, 64]));
    assert_eq!(points.len(), 9);
    for point in points {
        // At least the output is there in the forward pass, and three gradients more in both.
        let tensor = 4 * 16 * point["length"].as_u64().unwrap();
        assert!(point["forward_bytes"].as_u64().unwrap() >= tensor, "{point}");
        assert!(point["both_bytes"].as_u64().unwrap() >= 4 * tensor, "{point}");
        assert!(point["both"]["median"].as_f64().unwrap() > 0.0 && point["runs"] == 2, "{point}");
    }
}

#[test]
fn entries_have_options_of_their_own_and_names_apart() {
    let mut command = regard(SHORT);
    command.args(["--json", "--set", "features.rows=4", "--mechanism", "performer", "--mechanism"]);
    let json = Ended::of(command.args(["performer:features.rows=6", "--mechanism", "sparse:budget=1/4"])).json();
    let seen: Vec<(String, String)> = json["measurements"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["length"] == 64)
        .map(|m| (m["label"].as_str().unwrap().to_owned(), m["sizes"].as_str().unwrap().to_owned()))
        .collect();
    let sizes: Vec<_> = seen.iter().map(|(_, sizes)| sizes.as_str()).collect();
    assert_eq!(sizes, ["4 rows", "6 rows", "radius 15"]);
    assert!(seen[0].0 != seen[1].0 && seen[1].0.contains("features.rows=6") && seen[2].0 == "local", "{seen:?}");
}

#[test]
fn a_line_a_measurement_goes_to_standard_error() {
    let ended = run(["bench", "--mechanism", "linear", "--lengths", "16,8", "--heads", "1", "--head-width", "4"]);
    let lines: Vec<_> = ended.stderr.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].starts_with("linear at 8 tokens: ") && lines[1].contains("at 16"),
        "{lines:?}"
    );
    ended.success();
}

#[test]
fn what_cannot_be_is_refused() {
    let bench = |further: &[&str]| Ended::of(regard(["bench", "--quiet"]).args(further));
    bench(&["--lengths", "0"]).failure(USAGE, &["--lengths is 0"]);
    bench(&["--repeats", "0"]).failure(USAGE, &["--repeats is 0"]);
    bench(&["--seconds=-1"]).failure(USAGE, &["--seconds is -1"]);
    bench(&["--lengths", "99999999999"]).failure(BUDGET, &["99999999999 tokens need", "--lengths"]);
    bench(&["--mechanism", "softmaks"]).failure(USAGE, &["--mechanism is 'softmaks'", "did you mean 'softmax'"]);
    bench(&["--mechanism", "mgk", "--mechanism", "mgk"]).failure(USAGE, &["'mgk' twice"]);
    bench(&["--mechanism", "softmax:model.width=8"]).failure(USAGE, &["changes the model"]);
    bench(&["--set", "train.steps=8"]).failure(USAGE, &["train.steps", "a key of the attention"]);
    let window = ["--mechanism", "linear:window=4", "--lengths", "8"];
    bench(&window).failure(USAGE, &["window"]);
    let budget = ["--mechanism", "performer:budget=0.001", "--lengths", "8"];
    bench(&budget).failure(BUDGET, &["performer at 8 tokens", "budget"]);
}
