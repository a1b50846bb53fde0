//! `regard compare --study` and `--merge`: cells, their failures, how a study goes on, and parts put together.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ended, Running, assert_self_contained, names, regard, text};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const DATA: i32 = 3;

/// Two tasks, two models and three seeds, in seconds.
const SOUND: &str = r#"
[study]
title = "Two tasks"
seeds = [1, 2, 3]
set = { "train.steps" = 6, "train.evaluate_every" = 3, "train.checkpoint_every" = 3, "model.width" = 16, "train.schedule.warmup" = 2 }
[[study.task]]
label = "ListOps"
preset = "smoke"
[[study.task]]
task = "copy"
set = { causal = true, "train.batch" = 4, task = { copy = { length = 16, symbols = 5, train = 32, valid = 4, test = 12 } } }
[[study.model]]
mechanism = "softmax"
[[study.model]]
label = "50 % keys & [1] head_"
mechanism = "smgk"
set = { heads = 1 }
"#;

/// Two models that cannot end well.
const UNSOUND: &str = r#"
[[study.model]]
label = "three heads"
set = { heads = 3 }
[[study.model]]
label = "hasty"
set = { "train.optimizer.learning_rate" = 1e30, "train.optimizer.weight_decay" = 0.0 }
[[study.case]]
model = ["three heads", "hasty"]
seeds = [1]
[[study.case]]
task = "copy"
model = "hasty"
exclude = true
"#;

/// One that no machine can hold.
const HUGE: &str = r#"
[[study.model]]
label = "huge"
set = { "model.feed_forward" = 16777216, "model.layers" = 4096 }
[[study.case]]
model = "huge"
seeds = [2]
"#;

/// A study in a file, and its directory.
struct Study {
    folder: TempDir,
    file: PathBuf,
    out: PathBuf,
}

impl Study {
    fn new(content: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let (file, out) = (folder.path().join("study.toml"), folder.path().join("out"));
        fs::write(&file, content).unwrap();
        Self { folder, file, out }
    }

    fn command(&self, out: &Path, further: &[&str]) -> Command {
        let mut command = regard(["compare", "--cache", "none", "--quiet", "--study"]);
        command.arg(&self.file).arg("--out").arg(out).args(further);
        command
    }

    fn run(&self, further: &[&str]) -> Ended {
        Ended::of(&mut self.command(&self.out, further))
    }

    fn merge(&self, directories: &[&Path], out: &Path) -> Ended {
        let mut command = regard(["compare", "--json", "--merge"]);
        Ended::of(command.args(directories).arg("--out").arg(out))
    }
}

/// Records of the cells that have ended, in the order of their paths.
fn cells(out: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut open = vec![out.join("cells")];
    while let Some(folder) = open.pop() {
        for name in names(&folder) {
            let path = folder.join(&name);
            if path.is_dir() {
                open.push(path);
            } else if name == "cell.json" {
                all.push(path);
            }
        }
    }
    all.sort();
    all
}

/// What was learned in every cell, and what was said of each pair: all but times and memory.
fn learned(json: &Value) -> Value {
    let mut learned = json.clone();
    for cell in learned["cells"].as_array_mut().unwrap() {
        let finished = &mut cell["finished"];
        finished["environment"] = Value::Null;
        for key in ["milliseconds_per_step", "peak_bytes", "sequences_per_second", "train_seconds"] {
            finished["result"][key] = Value::Null;
        }
    }
    serde_json::json!([learned["cells"], learned["table"], learned["significance"]])
}

#[test]
fn a_study_leaves_its_tables_in_every_form_and_names_what_failed() {
    let study = Study::new(&[SOUND, UNSOUND, HUGE].concat());
    let ended = study.run(&["--columns", "parameters"]);
    assert_eq!(ended.code, Some(FAILED), "{ended:#?}");
    assert!(ended.stderr.contains("5 of 17 cells failed") && ended.stderr.lines().count() == 1, "{ended:#?}");
    for word in ["ListOps accuracy", "copy accuracy", "failed: invalid configuration", "failed: diverged", "heads (3)"]
    {
        assert!(ended.stdout.contains(word), "{word} in {}", ended.stdout);
    }
    let entries = names(&study.out);
    let files = ["cells.csv", "plots", "report.html", "results.csv", "results.json", "results.md", "results.tex"];
    for name in files.iter().chain(&["cells", "significance.csv", "study.json"]) {
        assert!(entries.iter().any(|entry| entry == name), "{name} in {entries:?}");
    }
    assert_eq!(cells(&study.out).len(), 17);
    let json: Value = serde_json::from_str(&text(study.out.join("results.json"))).unwrap();
    assert_eq!(json["cells"].as_array().unwrap().len(), 17);
    // Every pair of two finished models has a test by seed and one by sequence.
    for pair in json["significance"].as_array().unwrap() {
        let tested = pair["model"] == "50 % keys & [1] head_";
        assert_eq!(pair["seeds"].as_array().unwrap().len(), if tested { 3 } else { 0 }, "{pair}");
        assert_eq!(pair["items"]["p"].is_number(), tested, "{pair}");
        let sequences = if pair["task"] == "copy" { 12 } else { 100 };
        assert!(!tested || pair["items"]["sequences"] == sequences, "{pair}");
    }
    let latex = text(study.out.join("results.tex"));
    assert!(latex.contains("50 \\% keys \\& {[}1{]} head\\_ & "), "{latex}");
    assert!(latex.contains("\\multicolumn{2}{c}{ListOps}") && latex.contains("failed: diverged"), "{latex}");
    let csv = text(study.out.join("cells.csv"));
    assert_eq!(csv.lines().count(), 18, "{csv}");
    assert!(csv.contains("ListOps,,hasty,1,") && csv.contains(",diverged,"), "{csv}");
    let markdown = text(study.out.join("results.md"));
    assert!(markdown.contains("| 50 % keys & \\[1] head\\_ | "), "{markdown}");
    let page = text(study.out.join("report.html"));
    assert_self_contained(&page);
    assert!(page.contains("failed: invalid configuration") && page.contains("50 % keys &amp; [1] head_"));

    // A cell is a run: the configuration in its directory trains it again.
    let cell = study.out.join("cells/ListOps/softmax/seed-2");
    let again = study.folder.path().join("again");
    let mut train = regard(["train", "--quiet", "--json", "--cache", "none", "--config"]);
    let trained = Ended::of(train.arg(cell.join("config.toml")).arg("--out").arg(&again)).json();
    let record: Value = serde_json::from_str(&text(cell.join("cell.json"))).unwrap();
    assert_eq!(trained["test"]["loss"], record["finished"]["result"]["test_loss"]);
    let items = |folder: &Path| fs::read(folder.join("test-items.safetensors")).unwrap();
    assert_eq!(items(&again), items(&cell));
}

#[test]
fn a_study_that_has_ended_is_refused_tried_again_extended_or_overwritten() {
    let study = Study::new(&[SOUND, UNSOUND].concat());
    assert_eq!(study.run(&["--json"]).code, Some(FAILED));
    let before: Vec<String> = cells(&study.out).iter().map(text).collect();
    study.run(&[]).failure(USAGE, &["holds this study, finished", "report.html", "--resume", "--overwrite"]);
    let listed = study.run(&["--dry-run"]);
    assert_eq!(listed.code, Some(FAILED));
    assert!(
        listed.stdout.contains("3 finished") && listed.stdout.contains("1 failed: training loss is"),
        "{listed:#?}"
    );

    // Failed cells are tried again, the others stay as they are down to their times.
    assert_eq!(study.run(&["--resume"]).code, Some(FAILED));
    assert_eq!(cells(&study.out).iter().map(text).collect::<Vec<_>>(), before);
    // A model that is mended is trained; others with another configuration are refused by name.
    let mended = [SOUND, UNSOUND].concat().replace("heads = 3", "heads = 4").replace("1e30", "1e-3");
    fs::write(&study.file, mended).unwrap();
    study.run(&["--set", "train.steps=7"]).failure(USAGE, &["train.steps is 7", "ListOps, softmax, seed 1", "with 6"]);
    let json = study.run(&["--json"]).json();
    assert!(json["cells"].as_array().unwrap().iter().all(|cell| cell["finished"].is_object()), "{json}");
    let kept: Vec<String> = cells(&study.out).iter().map(text).collect();
    assert!(before.iter().filter(|cell| cell.contains("\"finished\"")).all(|cell| kept.contains(cell)));

    fs::write(study.out.join("thesis.txt"), "mine").unwrap();
    fs::write(study.out.join("cells/ListOps/notes.txt"), "mine").unwrap();
    let overwritten = study.run(&["--set", "train.steps=4", "--overwrite", "--json"]).json();
    assert_eq!(overwritten["cells"][0]["finished"]["result"]["steps"], 4);
    for kept in ["thesis.txt", "cells/ListOps/notes.txt"] {
        assert_eq!(text(study.out.join(kept)), "mine");
    }
}

#[test]
fn parts_put_together_are_the_whole_study_and_a_killed_one_goes_on() {
    let study = Study::new(SOUND);
    let whole = study.run(&["--json"]).json();
    let path = |name: &str| study.folder.path().join(name);
    let [first, second, merged] = ["first", "second", "merged"].map(path);
    // The first part is killed on its way.
    let mut running = Running::start(&mut study.command(&first, &["--shard", "1/2", "--set", "train.steps=6"]));
    running.wait_until("the first cell", || !cells(&first).is_empty());
    running.kill();
    let done: Vec<_> = cells(&first).iter().map(text).collect();
    assert!(done.len() < 4 && !first.join("report.html").exists(), "killed too late to show anything");
    Ended::of(&mut study.command(&first, &["--shard", "1/2"])).success();
    let after: Vec<_> = cells(&first).iter().map(text).collect();
    assert!(done.iter().all(|cell| after.contains(cell)));
    Ended::of(&mut study.command(&second, &["--shard", "2/2"])).success();
    let sizes = [cells(&first).len(), cells(&second).len()];
    assert!(sizes.iter().sum::<usize>() == 12 && !sizes.contains(&0), "{sizes:?}");
    let part: Value = serde_json::from_str(&text(first.join("results.json"))).unwrap();
    assert_eq!(part["cells"].as_array().unwrap().len(), sizes[0]);

    let together = study.merge(&[&first, &second], &merged).json();
    assert_eq!(learned(&together), learned(&whole));
    // In another order too, and from what was merged before; a merged study has nothing left to train.
    let again = study.merge(&[&second, &merged], &path("again")).json();
    assert_eq!(learned(&again), learned(&whole));
    let mut finished = study.command(&merged, &[]);
    Ended::of(&mut finished).failure(USAGE, &["holds this study, finished"]);
}

#[test]
fn cells_of_one_label_and_two_configurations_are_not_merged() {
    let short = SOUND.replace("seeds = [1, 2, 3]", "seeds = [1]").replace("\"train.steps\" = 6", "\"train.steps\" = 2");
    let short = short.replace("warmup\" = 2", "warmup\" = 1");
    let (one, other) = (Study::new(&short), Study::new(&short.replace("set = { heads = 1 }", "set = { heads = 2 }")));
    for study in [&one, &other] {
        study.run(&[]).success();
    }
    let out = one.folder.path().join("merged");
    let named = ["ListOps, 50 % keys & [1] head_", "heads = 2", "but 1", "rename"];
    one.merge(&[&one.out, &other.out], &out).failure(USAGE, &named);
    assert!(!out.exists());
    // Other data under the name of a task, with a model of its own.
    let data = short.replace("label = \"50 % keys & [1] head_\"\n", "").replace("symbols = 5", "symbols = 6");
    let data = Study::new(&data.replace("[[study.model]]\nmechanism = \"softmax\"\n", ""));
    data.run(&[]).success();
    let named = ["copy, smgk has task.copy.symbols = 6", "copy, softmax has 5", "rename"];
    one.merge(&[&one.out, &data.out], &out).failure(USAGE, &named);
    // Another seed and another model are added.
    let more = short.replace("seeds = [1]", "seeds = [4]").replace("50 % keys & [1] head_", "mixture");
    let more = Study::new(&more);
    more.run(&[]).success();
    let merged = one.merge(&[&one.out, &more.out], &out).json();
    assert_eq!(merged["models"], serde_json::json!(["softmax", "50 % keys & [1] head_", "mixture"]));
    assert_eq!(merged["cells"].as_array().unwrap().len(), 8);
    // One with settings beside one without has columns of both.
    let model = "[[study.model]]\nmechanism = \"softmax\"\n";
    let setting = "[[study.setting]]\nlabel = \"narrow\"\nset = { \"model.width\" = 8 }\n";
    let narrow = Study::new(&short.replace(model, &format!("{setting}{model}")));
    narrow.run(&[]).success();
    let both = one.folder.path().join("both");
    one.merge(&[&one.out, &narrow.out], &both).success();
    let table = text(both.join("results.md"));
    for column in ["| ListOps (accuracy) |", "| ListOps narrow (accuracy) |", "| copy narrow "] {
        assert!(table.contains(column), "{column} in {table}");
    }
    // An edited configuration; a directory without a study; one of something else.
    let config = one.out.join("cells/copy/softmax/seed-1/config.toml");
    fs::write(&config, text(&config).replace("width = 16", "width = 32")).unwrap();
    one.merge(&[&one.out], &out).failure(USAGE, &["copy, softmax, seed 1", "model.width is 32", "edited"]);
    one.merge(&[one.folder.path()], &out).failure(DATA, &["holds no study"]);
    one.merge(&[&other.out], one.folder.path()).failure(USAGE, &["holds no study", "another --out"]);
}

#[test]
fn the_example_of_the_book_is_a_study() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/study.toml");
    let out = TempDir::new().unwrap();
    let nowhere = out.path().join("nowhere");
    let mut command = regard(["compare", "--json", "--dry-run", "--study", example, "--out"]);
    let plan = Ended::of(command.arg(&nowhere)).json();
    // 3 tasks, 2 settings, 3 models and 3 seeds, without two groups, and one seed for three others.
    assert_eq!(plan["cells"], (18 - 2 - 3) * 3 + 3);
    let rows = plan["rows"].as_array().unwrap();
    for row in rows {
        assert!(row["problem"].is_null() && row["finished"] == 0, "{row}");
        assert!(row["memory_bytes"].as_f64().unwrap() > 16.0 * row["parameters"].as_f64().unwrap(), "{row}");
    }
    let parts: u64 = (1..=4)
        .map(|part| {
            let part = format!("{part}/4");
            let mut command = regard(["compare", "--json", "--dry-run", "--study", example, "--shard", &part]);
            Ended::of(&mut command).json()["cells"].as_u64().unwrap()
        })
        .sum();
    assert_eq!(parts, plan["cells"].as_u64().unwrap());
    assert!(!nowhere.exists());
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let study = Study::new(SOUND);
    for (further, parts) in [
        (&["--preset", "smoke"][..], &["--preset is given with --study", "write it there"][..]),
        (&["--set", "mechanism=linear"], &["mechanism is linear by --set", "but softmax for", "model 'softmax"]),
        (&["--shard", "3/2"], &["--shard is 3/2, expected I/N"]),
        (&["--shard", "-1/2"], &["--shard is -1/2, expected I/N"]),
        (&["--baseline", "sofmax"], &["--baseline", "'sofmax'", "softmax, 50 %"]),
        (&["--set", "modle.width=3"], &["--set", "'modle.width'", "'model.width'?"]),
    ] {
        study.run(further).failure(USAGE, parts);
        assert!(!study.out.exists());
    }
    fs::write(&study.file, SOUND.replace("mechanism = \"smgk\"", "mechansim = \"smgk\"")).unwrap();
    study.run(&[]).failure(USAGE, &["study.toml:16: ", "unknown field `mechansim`"]);
    let measured = SOUND.replacen("[[study.task]]\n", "[[study.task]]\nmeasure = \"bleu\"\n", 1);
    fs::write(&study.file, measured).unwrap();
    study.run(&["--dry-run"]).failure(USAGE, &["measure BLEU", "expected one that listops has"]);
    fs::remove_file(&study.file).unwrap();
    study.run(&[]).failure(DATA, &["cannot read", "study.toml"]);
    fs::create_dir(&study.out).unwrap();
    fs::write(study.out.join("thesis.txt"), "mine").unwrap();
    fs::write(&study.file, SOUND).unwrap();
    for further in [&[][..], &["--overwrite"], &["--resume"]] {
        study.run(further).failure(USAGE, &["holds no study", "another --out"]);
    }
    Ended::of(&mut regard(["compare", "--columns", "time"])).failure(USAGE, &["--baseline and --columns"]);
    for wrong in
        [&["--dry-run"][..], &["--shard", "1/2"], &["--merge", "x"], &["--merge", "x", "--out", "y", "--study", "z"]]
    {
        let mut command = regard(["compare"]);
        Ended::of(command.args(wrong)).usage_failure(&["error:"]);
    }
    for further in [&["--set", "train.steps=1"][..], &["--preset", "smoke"], &["--seed", "3"]] {
        let mut command = regard(["compare", "--merge", "x", "--out", "y"]);
        Ended::of(command.args(further)).failure(USAGE, &[further[0], "is given with --merge"]);
    }
}
