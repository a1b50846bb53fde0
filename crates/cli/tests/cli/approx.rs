//! `regard approx`: the regimes of the theory, its sources, files and refusals.

use std::{fs, path::Path};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    program::{Ended, argument, assert_self_contained, names, regard, run, text},
    tensors::File,
};

const USAGE: i32 = 2;
const DATA: i32 = 3;
const BUDGET: i32 = 5;

/// Mean error of the part `part` of `method` in group `group`.
#[track_caller]
fn error(json: &Value, group: &str, method: &str, part: &str) -> f64 {
    let rows = json["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["group"] == group && row["method"] == method);
    let row = row.unwrap_or_else(|| panic!("{group} {method} in {json}"));
    row[part]["mean"].as_f64().unwrap_or_else(|| panic!("{part} of {row}"))
}

/// Scatterbrain's theorem 1 on `exp(beta q.k)`: low-rank wins when hot, sparse when cold, both together in between. Hot and in
/// between the normalised weights and their output agree; cold ones are all but a few entries, of which SMYRF misses some.
#[test]
fn the_process_has_the_regimes_of_the_theory() {
    let mut command = regard(["approx", "--quiet", "--json", "--draws", "16", "--inverse-temperatures", "0.25,2,12"]);
    command.args(["--set", "support.rounds=1", "--set", "scatterbrain.sparse_share=0.5"]);
    let json = Ended::of(command.args(["--methods", "smyrf,performer,scatterbrain-smyrf"])).json();
    let errors = |group: &str, part: &str| {
        ["smyrf", "performer", "scatterbrain-smyrf"].map(|method| error(&json, group, method, part))
    };
    for part in ["matrix", "output", "unnormalised"] {
        let [sparse, low_rank, _] = errors("beta = 0.25", part);
        assert!(low_rank < 0.2 * sparse, "{part} hot: {low_rank} {sparse}");
        let [sparse, low_rank, both] = errors("beta = 2", part);
        assert!(both < 0.95 * sparse && both < 0.95 * low_rank, "{part} between: {both} {sparse} {low_rank}");
    }
    let [sparse, low_rank, both] = errors("beta = 12", "unnormalised");
    assert!(sparse < 0.5 * low_rank && sparse < both, "cold: {sparse} {low_rank} {both}");
    let entropies: Vec<f64> =
        json["rows"].as_array().unwrap().iter().step_by(3).map(|row| row["entropy"].as_f64().unwrap()).collect();
    assert!(entropies.is_sorted_by(|a, b| a > b), "colder rows look at fewer keys: {entropies:?}");
}

#[test]
fn results_are_written_and_do_not_depend_on_threads() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    let small =
        ["approx", "--quiet", "--tokens", "48", "--clusters", "6", "--width", "8", "--draws", "2", "--budget", "1/4"];
    let mut command = regard(small);
    let stdout = Ended::of(command.args(["--threads", "2", "--out"]).arg(&out)).success();
    for word in ["beta = 0.25", "robust-pca", "lsh", "naive-smyrf", "oracle", "Spearman", "±", "budget 1/4"] {
        assert!(stdout.contains(word), "{word} in {stdout}");
    }
    assert_eq!(names(&out), ["plots", "report.html", "results.csv", "results.json", "results.md"]);
    let plots = names(&out.join("plots"));
    for plot in
        ["entropy.svg", "entropy-oracles.svg", "correlation-smyrf-performer.svg", "entries-0.svg", "entries-4.svg"]
    {
        assert!(plots.iter().any(|name| name == plot), "{plot} in {plots:?}");
    }
    assert_self_contained(&text(out.join("report.html")));
    let written: Value = serde_json::from_str(&text(out.join("results.json"))).unwrap();
    let other = Ended::of(regard(small).args(["--threads", "1", "--json"])).json();
    assert_eq!(written["matrices"], other["matrices"]);
    assert_eq!(written["rows"].as_array().unwrap().len(), 5 * 11);
    // The exact kernel is in the table for its time.
    let exact = &written["rows"][0];
    assert!(exact["method"] == "softmax" && exact["matrix"]["mean"] == 0.0, "{exact}");
    assert!(exact["cost"]["milliseconds"].as_f64().unwrap() > 0.0 && exact["cost"]["bytes"].as_u64().unwrap() > 0);
    let other = Ended::of(regard(small).args(["--seed", "1", "--json"])).json();
    assert_ne!(written["matrices"], other["matrices"]);
}

#[test]
fn matrices_come_from_a_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("in.safetensors");
    let mut file = File::default();
    let numbers = |count: usize, by: f64| -> Vec<f64> { (0..count).map(|i| (i as f64 * by).sin()).collect() };
    file.put("q", &[1, 2, 40, 4], &numbers(320, 1.3));
    file.put("k", &[1, 1, 48, 4], &numbers(192, 0.7));
    file.put("v", &[1, 1, 48, 3], &numbers(144, 0.9));
    file.write(&path);
    let input = argument(&path);
    let arguments =
        ["approx", "--quiet", "--json", "--input", &input, "--causal", "--split", "entropy", "--draws", "2"];
    let json = run(arguments.into_iter().chain(["--budget", "1/3"])).json();
    // All methods but LSH, which needs the queries to be the keys.
    let methods: Vec<&str> =
        json["rows"].as_array().unwrap().iter().map(|row| row["method"].as_str().unwrap()).collect();
    assert_eq!(methods.len(), 10);
    assert!(!methods.contains(&"lsh") && methods.contains(&"robust-pca"));
    let matrices = json["matrices"].as_array().unwrap();
    assert_eq!(matrices.len(), 2);
    for matrix in matrices {
        let (share, entropy) = (matrix["sparse_share"].as_f64().unwrap(), matrix["entropy"].as_f64().unwrap());
        assert!((share - (1.0 - entropy / 48f64.ln()).clamp(0.1, 0.9)).abs() < 1e-12, "{share} {entropy}");
    }
    assert!(error(&json, "input", "svd", "matrix") < error(&json, "input", "performer", "matrix"));

    run(["approx", "--input", &input, "--methods", "lsh"]).failure(USAGE, &["lsh", "queries are the keys"]);
    run(["approx", "--input", &input, "--scale=-1"]).failure(USAGE, &["--scale is -1", "positive"]);
    file.remove("v");
    file.write(&path);
    run(["approx", "--input", &input]).failure(DATA, &["in.safetensors", "'v' is missing"]);
    fs::write(&path, "no tensors").unwrap();
    run(["approx", "--input", &input]).failure(DATA, &["in.safetensors", "safetensors"]);
    run(["approx", "--input", "nowhere"]).failure(DATA, &["nowhere"]);
}

#[test]
fn matrices_come_from_a_trained_model() {
    let folder = TempDir::new().unwrap();
    let train = |mechanism: &str| {
        let out = argument(folder.path().join(mechanism));
        let arguments =
            ["train", "--preset", "smoke", "--cache", "none", "--json", "--quiet", "--set", "train.steps=4"];
        run(arguments.into_iter().chain(["--mechanism", mechanism, "--out", &out])).success();
        out
    };
    let (softmax, mgk) = (train("softmax"), train("mgk"));
    let arguments =
        ["approx", "--quiet", "--json", "--cache", "none", "--sequences", "2", "--budget", "1", "--draws", "2"];
    let methods = ["--methods", "softmax,svd,performer"];
    let json = run(arguments.into_iter().chain(methods).chain(["--run", &softmax])).json();
    let groups: Vec<&str> = json["matrices"].as_array().unwrap().iter().map(|m| m["group"].as_str().unwrap()).collect();
    assert!(groups.len() >= 4 && groups.first() == Some(&"layer 1") && groups.is_sorted(), "{groups:?}");
    // The weights of the model itself, which the softmax kernel computes from the same tensors.
    assert_eq!(error(&json, "layer 1", "softmax", "matrix"), 0.0);
    let error = error(&json, "layer 1", "performer", "matrix");
    assert!(error > 0.0 && error < 10.0, "{error}");

    let refused = |further: &[&str], code, parts: &[&str]| {
        let mut command = regard(["approx", "--quiet", "--cache", "none"]);
        Ended::of(command.args(further)).failure(code, parts);
    };
    refused(&["--run", &softmax, "--layers", "99"], USAGE, &["layer 99", "expected 1 to"]);
    refused(&["--run", &mgk], USAGE, &["mgk", "softmax"]);
    refused(&["--run", "nowhere"], DATA, &["nowhere", "config.toml"]);
}

#[test]
fn options_that_cannot_be_are_refused() {
    for (arguments, code, parts) in [
        (&["--draws", "0"][..], USAGE, &["--draws is 0"][..]),
        (&["--clusters", "500"], USAGE, &["--clusters is 500", "256"]),
        (&["--width", "0"], USAGE, &["--width is 0"]),
        (&["--spread=-1"], USAGE, &["--spread is -1"]),
        (&["--inverse-temperatures", "1,0"], USAGE, &["--inverse-temperatures has 0"]),
        (&["--budget", "2"], USAGE, &["--budget", "'2'"]),
        (&["--budget", "1/1000"], BUDGET, &["budget"]),
        (&["--methods", "smurf"], USAGE, &["--methods", "smurf", "smyrf"]),
        (&["--methods", "svd,svd"], USAGE, &["'svd' twice"]),
        (&["--set", "model.width=3"], USAGE, &["model.width", "support"]),
        (&["--tokens", "4000000000"], BUDGET, &["GiB", "--tokens"]),
    ] {
        run(["approx", "--quiet"].iter().chain(arguments)).failure(code, parts);
    }
    run(["approx", "--input", "a", "--run", "b"]).usage_failure(&["--run"]);
    run(["approx", "--process", "--input", "a"]).usage_failure(&["--process"]);
}

#[test]
fn matrices_of_a_folder_are_approximated() {
    let folder = TempDir::new().unwrap();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pretrained/tests");
    let (stories, text) = (argument(tests.join("stories260k")), folder.path().join("text.txt"));
    fs::write(&text, "Once upon a time, there was a little girl named Lily. She loved to play outside. ".repeat(9))
        .unwrap();
    let small = ["approx", "--quiet", "--folder", &stories, "--length", "48", "--sequences", "1", "--draws", "1"];
    let text = argument(text);
    let with = |more: &[&str]| run([&small[..], more].concat());
    let json = with(&["--text", &text, "--layers", "1,3", "--methods", "top-k,local,performer", "--json"]).json();
    let groups: Vec<&str> = json["rows"].as_array().unwrap().iter().map(|row| row["group"].as_str().unwrap()).collect();
    assert_eq!(groups, ["layer 1", "layer 1", "layer 1", "layer 3", "layer 3", "layer 3"]);
    assert!(error(&json, "layer 1", "top-k", "matrix") < error(&json, "layer 1", "performer", "matrix"));
    assert_eq!(json["matrices"].as_array().unwrap().len(), 2 * 8);
    with(&[]).failure(USAGE, &["--folder needs what its model reads", "--text"]);
    with(&["--text", &text, "--layers", "9"]).failure(USAGE, &["layer 9 is not one of the model's, expected 1 to 5"]);
    with(&["--pixels", "none"]).failure(USAGE, &["expected one of images"]);
    for (arguments, part) in [
        (&["--layers", "1"][..], "--layers needs --run or --folder"),
        (&["--process", "--scale", "2"], "--scale needs --input"),
        (&["--causal"], "--causal needs --input"),
        (&["--run", "x", "--text", "y"], "--text needs --folder"),
        (&["--folder", "x", "--checkpoint", "last"], "--checkpoint needs --run"),
        (&["--length", "9"], "--length needs --folder"),
    ] {
        run([&["approx"], arguments].concat()).failure(USAGE, &[part]);
    }
}
