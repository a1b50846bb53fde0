//! `regard data`: sets are listed, taken from files at hand, held to their checksums.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ended, argument, regard, run};

const CHECK: i32 = 1;
const USAGE: i32 = 2;
const DATA: i32 = 3;

#[test]
fn a_set_is_brought_by_hand_listed_and_verified() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("behaviors.tsv");
    fs::write(&file, "1\tU1\t-\tN1\tN2-1 N3-0\n").unwrap();
    let data = |action: &[&str]| {
        let mut command = regard(["data"]);
        Ended::of(command.args(action).arg("--data").arg(folder.path().join("sets")))
    };
    let fetched = data(&["fetch", "mind", "--from-file", &argument(&file)]).success();
    assert!(fetched.contains("behaviors.tsv  SHA-256 ") && fetched.contains("mind: 1 files, 20 bytes in"), "{fetched}");
    let listed: Value = serde_json::from_str(&data(&["list", "--json"]).success()).unwrap();
    let rows = listed["rows"].as_array().unwrap();
    let state = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        row["state"].as_str().unwrap().to_owned()
    };
    assert_eq!((state("mind").as_str(), state("cifar10").as_str()), ("there", "–"));
    assert!(data(&["verify"]).success().contains("mind: 1 files, all as they should be"));
    fs::write(folder.path().join("sets/mind/behaviors.tsv"), "changed").unwrap();
    let changed = data(&["verify", "mind"]);
    assert_eq!(changed.code, Some(CHECK), "{changed:?}");
    assert!(changed.stdout.contains("mind: 1 of 1 files are not") && changed.stdout.contains("behaviors.tsv: SHA-256"));
}

#[test]
fn a_generated_log_is_written_and_read_back() {
    let folder = TempDir::new().unwrap();
    let out = argument(folder.path().join("news"));
    let sizes = ["users=30", "news=40", "impressions=60", "test_impressions=12"]
        .map(|size| format!("task.news.generated.{size}"));
    let mut small: Vec<&str> = vec!["--preset", "news"];
    small.extend(sizes.iter().flat_map(|size| ["--set", size.as_str()]));
    let written = Ended::of(regard(["data", "write", &out]).args(&small)).success();
    let folders: Vec<&str> = written.lines().collect();
    assert_eq!(folders, [format!("task.news.train={out}/train"), format!("task.news.test={out}/test")]);
    let train = |name: &str, from: &[&str]| {
        let mut command = regard(["train", "--json", "--quiet", "--cache", "none", "--out"]);
        command.arg(folder.path().join(name)).args(&small).args(from);
        command.args(["--set", "train.steps=2", "--set", "train.batch=4", "--set", "model.width=8"]);
        serde_json::from_str::<Value>(&Ended::of(&mut command).success()).unwrap()["test"].clone()
    };
    let (read, generated) = (train("read", &["--set", folders[0], "--set", folders[1]]), train("generated", &[]));
    let auc = |test: &Value| test["ranking"]["auc"].as_f64().unwrap();
    assert_eq!((auc(&read), &read["loss"], &read["sequences"]), (auc(&generated), &generated["loss"], &12.into()));
    // Only who generates a log knows what can be had of it.
    assert!(read["ranking"]["best"].is_null() && generated["ranking"]["best"]["auc"].as_f64().unwrap() > 0.5);
    let shown = run(["eval", &argument(folder.path().join("generated"))]).success();
    assert!(
        shown.contains("AUC ") && shown.contains("nDCG@10") && shown.contains("by the true probabilities"),
        "{shown}"
    );
    run(["data", "write", &out, "--preset", "copy"]).failure(USAGE, &["the task is copy", "--preset news"]);
    fs::write(folder.path().join("news/train/behaviors.tsv"), "1\tU1\n").unwrap();
    let cut = run([
        "train",
        "--preset",
        "news",
        "--set",
        folders[0],
        "--set",
        folders[1],
        "--out",
        &argument(folder.path().join("cut")),
    ]);
    cut.failure(DATA, &["behaviors.tsv:1: 2 tab-separated columns, expected 5"]);
}

#[test]
fn what_is_not_there_is_said_with_what_to_do() {
    let folder = TempDir::new().unwrap();
    let sets = &argument(folder.path());
    run(["data", "fetch", "cifar", "--data", sets]).failure(USAGE, &["'cifar'", "cifar10"]);
    run(["data", "fetch", "lra", "--data", sets]).failure(DATA, &["lra has to be brought by hand"]);
    let file = folder.path().join("any.zip");
    fs::write(&file, "no archive").unwrap();
    let given = run(["data", "fetch", "wikitext-2", "--from-file", &argument(&file), "--data", sets]);
    given.failure(DATA, &["any.zip", "expected 92675f1d"]);
    let shown = run(["data", "show", "wikitext-2", "--data", sets]).success();
    assert!(shown.contains("CC BY-SA 3.0") && shown.contains("not there"), "{shown}");
    run(["data", "verify", sets]).failure(DATA, &["SHA256SUMS"]);
    run(["data", "verify", "imdb", "--data", sets]).failure(DATA, &["imdb is not in", "regard data show imdb"]);
}
