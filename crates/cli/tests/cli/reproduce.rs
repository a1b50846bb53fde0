//! `regard reproduce`: entries are run once, recorded, listed and written as a page.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ended, argument, assert_self_contained, names, regard, run};

const USAGE: i32 = 2;
const DATA: i32 = 3;

#[test]
fn an_entry_is_run_once_recorded_listed_and_written_as_a_page() {
    let folder = TempDir::new().unwrap();
    let (out, page) = (folder.path().join("outcomes"), folder.path().join("page.md"));
    let entry = |options: &[&str]| {
        let mut command = regard(["reproduce", "mgk-operations", "moa-operations", "--quiet"]);
        Ended::of(command.args(options).arg("--out").arg(&out)).success()
    };
    let first = entry(&[]);
    assert!(
        first.contains("mgk-operations (paper): holds.") && first.contains("843.1 million for 8 of 32 experts"),
        "{first}"
    );
    assert_eq!(names(&out.join("mgk-operations-paper")), ["outcome.json", "plots", "report.html"]);
    assert_self_contained(&fs::read_to_string(out.join("mgk-operations-paper/report.html")).unwrap());
    let outcome = out.join("mgk-operations-paper/outcome.json");
    let recorded = fs::read_to_string(&outcome).unwrap();
    let json: Value = serde_json::from_str(&recorded).unwrap();
    assert_eq!(json["verdict"], "holds");
    for picture in json["pictures"].as_array().unwrap() {
        assert!(out.join("mgk-operations-paper").join(picture.as_str().unwrap()).is_file(), "{picture}");
    }

    // A recorded outcome is read, not made anew: what the file says is what is printed.
    fs::write(&outcome, recorded.replace("\n  \"verdict\": \"holds\"", "\n  \"verdict\": \"not-decided\"")).unwrap();
    let mut command = regard(["reproduce", "mgk-operations"]);
    let ended = Ended::of(command.arg("--out").arg(&out));
    assert!(ended.stderr.contains("recorded on") && ended.stdout.contains("(paper): not decided."), "{ended:?}");
    assert!(entry(&["--overwrite"]).contains("mgk-operations (paper): holds."));

    let mut command = regard(["reproduce", "--list"]);
    let listed = Ended::of(command.arg("--out").arg(&out).arg("--page").arg(&page)).success();
    let row =
        |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {listed}"));
    assert!(row("mgk-operations").contains("holds") && !row("mgk-ablation").contains("holds"), "{listed}");
    let page = fs::read_to_string(page).unwrap();
    for part in ["[mgk-operations](#mgk-operations): holds (paper) |", "not run", "**Claim.**", "1220.6"] {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(page.contains("](outcomes/mgk-operations-paper/plots/"), "{page}");
}

#[test]
fn refusals_name_the_entry_and_the_file() {
    let folder = TempDir::new().unwrap();
    run(["reproduce"]).usage_failure(&["NAME"]);
    run(["reproduce", "mgk-operations", "--scale", "quick"])
        .failure(USAGE, &["mgk-operations does not run", "that it has: paper"]);
    run(["reproduce", "mgk-operation"]).failure(USAGE, &["did you mean 'mgk-operations'?"]);
    let mut command = regard(["reproduce", "scatterbrain-entries-trained", "--out"]);
    let ended = Ended::of(command.arg(folder.path()).env_remove("REGARD_MODELS"));
    ended.failure(DATA, &["scatterbrain-entries-trained: it reads 'minilm', expected --models DIR"]);
    let broken = folder.path().join("moa-operations-paper");
    fs::create_dir_all(&broken).unwrap();
    fs::write(broken.join("outcome.json"), "{").unwrap();
    let all = argument(folder.path());
    run(["reproduce", "moa-operations", "--out", &all])
        .failure(DATA, &["moa-operations-paper/outcome.json: no outcome of an entry"]);
    run(["reproduce", "--list", "--out", &all]).failure(DATA, &["remove the file"]);
    let file = argument(broken.join("outcome.json"));
    run(["reproduce", "moa-operations", "--out", &file]).failure(DATA, &["cannot write", "choose another path"]);
}
