//! Other attention in a trained model: measured, planned, and run by the other commands.

use std::{fs, path::Path};

use tempfile::TempDir;

use crate::program::{argument, run};

fn stories() -> String {
    argument(Path::new(env!("CARGO_MANIFEST_DIR")).join("../pretrained/tests/stories260k"))
}

/// A file of text by the model itself, which it finds likely.
fn text(folder: &TempDir) -> String {
    let told = run(["generate", &stories(), "--tokens", "400", "--seed", "1", "--quiet"]).success();
    let path = folder.path().join("story.txt");
    fs::write(&path, told).unwrap();
    argument(path)
}

#[test]
fn a_plan_within_a_budget_is_measured_written_and_used() {
    let folder = TempDir::new().unwrap();
    let (text, out) = (text(&folder), argument(folder.path().join("out")));
    let arguments = ["swap", &stories(), "--text", &text, "--length", "96", "--sequences", "1", "--memory", "1/4"];
    let options = ["--candidates", "window,drop", "--divisors", "4,8", "--compare", "--validate", "4", "--out", &out];
    let swapped = run([&arguments[..], &options, &["--json", "--quiet"]].concat()).json();
    let rows = swapped["rows"].as_array().unwrap();
    assert_eq!((&rows[0]["name"], rows[0]["predicted"]["bytes"].as_f64()), (&"exact".into(), Some(1.0)));
    let chosen = rows.iter().find(|row| row["name"].as_str().unwrap().starts_with("* ")).expect("a choice");
    assert!(chosen["predicted"]["bytes"].as_f64().unwrap() <= 0.25, "{chosen}");
    let sample = |row: &serde_json::Value| row["sample_loss"].as_f64().unwrap();
    assert!(rows[1..].iter().all(|row| sample(row) >= sample(chosen)), "{rows:?}");
    assert_eq!(swapped["validation"].as_array().unwrap().len(), 4);
    for file in ["plan.toml", "report.html", "results.json", "results.csv", "results.md"] {
        assert!(Path::new(&out).join(file).is_file(), "{file}");
    }
    // A plan changes what the model says, prefill and decoding alike, and takes less memory.
    let plan = argument(Path::new(&out).join("plan.toml"));
    let told = |plan: &[&str]| {
        let arguments =
            ["generate", &stories()[..], "--prompt", "Once upon a time", "--temperature", "0", "--tokens", "200"];
        run([&arguments[..], plan, &["--json"]].concat()).json()
    };
    let (exact, planned) = (told(&[]), told(&["--plan", &plan]));
    assert!(2 * planned["state_bytes"].as_u64().unwrap() < exact["state_bytes"].as_u64().unwrap(), "{planned} {exact}");
    let loss = |plan: &[&str]| {
        let arguments = ["perplexity", &stories()[..], "--text", &text, "--context", "96", "--json", "--quiet"];
        run([&arguments[..], plan].concat()).json()
    };
    assert_ne!(loss(&[])["nats"], loss(&["--plan", &plan])["nats"]);
}

#[test]
fn what_cannot_be_planned_is_told() {
    let folder = TempDir::new().unwrap();
    let text = text(&folder);
    let stories = stories();
    let swap = |arguments: &[&str], code: i32, what: &str| {
        let ended = run([&["swap", &stories, "--text", &text, "--quiet"], arguments].concat());
        assert!(ended.code == Some(code) && ended.stderr.contains(what), "{what} in {ended:#?}");
    };
    swap(&[], 2, "no budget is given");
    swap(&["--memory", "2"], 2, "--memory");
    swap(&["--memory", "1/4", "--candidates", "windows"], 2, "did you mean 'window'?");
    swap(&["--memory", "1/4", "--predictor", "errors"], 2, "did you mean 'error'?");
    swap(&["--memory", "1/4", "--length", "400"], 3, "sequences of 400");
    swap(&["--memory", "1/64", "--length", "64", "--sequences", "1", "--divisors", "4"], 5, "no choice of candidates");
    let missing = run(["swap", "nowhere", "--text", &text, "--memory", "1/4"]);
    assert!(missing.code == Some(3) && missing.stderr.contains("nowhere"), "{missing:#?}");
}
