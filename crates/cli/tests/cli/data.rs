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
}
