//! `regard compare`: its files, and how it goes on after it was stopped.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ended, Running, argument, assert_self_contained, names, regard, text};

const USAGE: i32 = 2;

/// Two mechanisms with two seeds each.
fn compare(out: &Path, further: &[&str]) -> Command {
    let mut command = regard(["compare", "--preset", "smoke", "--cache", "none", "--quiet"]);
    command.args(["--set", "compare.mechanisms=softmax,smlk", "--set", "compare.seeds=1,2", "--out"]);
    command.arg(out).args(further);
    command
}

/// Files of results, below the directory of a comparison.
fn results(out: &Path) -> Vec<PathBuf> {
    let seeds = ["softmax", "smlk"].iter().flat_map(|label| ["seed-1", "seed-2"].map(|seed| (label, seed)));
    let paths = seeds.map(|(label, seed)| out.join(label).join(seed).join("result.json"));
    paths.filter(|path| path.exists()).collect()
}

/// What was learned in each run of `results.json`; the rest is about time.
fn learned(out: &Path) -> Vec<Value> {
    let results: Value = serde_json::from_str(&text(out.join("results.json"))).unwrap();
    let keys = ["label", "seed", "steps", "test_accuracy", "test_loss", "parameters", "curve", "training_loss"];
    let runs = results["runs"].as_array().unwrap().iter();
    runs.map(|run| keys.iter().map(|key| run[*key].clone()).collect()).collect()
}

/// As the README has them, one after the other.
#[test]
fn a_comparison_of_a_preset_has_a_folder_of_its_own() {
    let folder = TempDir::new().unwrap();
    for preset in [&["--preset", "smoke"][..], &[]] {
        let mut command = regard(["compare", "--cache", "none", "--quiet", "--set", "compare.mechanisms=linear"]);
        let few = ["train.steps=2", "train.evaluate_every=2", "train.schedule.warmup=1", "task.listops.test=8"];
        command.args(preset).args(few.into_iter().flat_map(|set| ["--set", set])).current_dir(folder.path());
        Ended::of(&mut command).success();
    }
    assert_eq!(names(&folder.path().join("runs")), ["compare", "compare-smoke"]);
}

#[test]
fn a_seed_is_that_of_the_models_unless_they_have_their_own() {
    let folder = TempDir::new().unwrap();
    let few = ["train.steps=2", "train.evaluate_every=2", "train.schedule.warmup=1", "task.listops.test=8"];
    for (seeds, trained) in [(&[][..], &["seed-7"][..]), (&["--set", "compare.seeds=3,4"], &["seed-3", "seed-4"])] {
        let out = folder.path().join(trained[0]);
        let mut command = regard(["compare", "--preset", "smoke", "--cache", "none", "--quiet", "--seed", "7"]);
        command.args(["--set", "compare.mechanisms=linear"]).args(few.into_iter().flat_map(|set| ["--set", set]));
        Ended::of(command.args(seeds).arg("--out").arg(&out)).success();
        assert_eq!(names(&out.join("linear")), trained);
    }
}

#[test]
fn a_comparison_leaves_a_table_in_every_form_and_a_page() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("comparison");
    let ended = Ended::of(&mut compare(&out, &[]));
    assert_eq!(ended.stderr, "");
    let stdout = ended.success();
    for word in ["softmax", "smlk", "accuracy", "parameters", "multiply-adds", "peak memory", "seq/s", "±"] {
        assert!(stdout.contains(word), "{word} in {stdout}");
    }
    let page = out.join("report.html");
    assert!(stdout.contains(&argument(&page)), "{stdout}");
    let entries = names(&out);
    for name in ["config.toml", "plots", "report.html", "results.csv", "results.json", "results.md", "smlk", "softmax"]
    {
        assert!(entries.iter().any(|entry| entry == name), "{name} in {entries:?}");
    }
    assert_eq!(results(&out).len(), 4);

    let json: Value = serde_json::from_str(&text(out.join("results.json"))).unwrap();
    let runs = json["runs"].as_array().unwrap();
    let labels: Vec<_> =
        runs.iter().map(|run| (run["label"].as_str().unwrap(), run["seed"].as_u64().unwrap())).collect();
    assert_eq!(labels, [("softmax", 1), ("softmax", 2), ("smlk", 1), ("smlk", 2)]);
    for run in runs {
        assert!(run["peak_bytes"].as_u64().unwrap() > 0 && run["multiply_adds"].as_f64().unwrap() > 0.0, "{run}");
        assert!(run["milliseconds_per_step"].as_f64().unwrap() > 0.0, "{run}");
        assert_eq!(run["curve"].as_array().unwrap().len(), 2, "{run}");
    }
    // Another seed is another run.
    assert_ne!(runs[0]["test_loss"], runs[1]["test_loss"]);
    let csv = text(out.join("results.csv"));
    let columns = csv.lines().next().unwrap().split(',').count();
    assert_eq!(csv.lines().count(), 3, "{csv}");
    assert!(csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
    let markdown = text(out.join("results.md"));
    assert!(markdown.lines().any(|line| line.starts_with("| softmax")), "{markdown}");

    let page = text(page);
    assert_self_contained(&page);
    assert!(page.contains("<svg") && page.contains("smlk") && page.contains("<table"));
    assert!(names(&out.join("plots")).iter().all(|name| name.ends_with(".svg")));
}

#[test]
fn a_finished_comparison_is_refused_resumed_or_overwritten() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("comparison");
    let first = Ended::of(&mut compare(&out, &["--json"])).json();
    fs::write(out.join("thesis.txt"), "mine").unwrap();
    fs::create_dir_all(out.join("photos/seed-1")).unwrap();
    fs::write(out.join("photos/seed-1/rose.jpg"), "red").unwrap();
    Ended::of(&mut compare(&out, &[])).failure(USAGE, &["finished comparison", "report.html", "--overwrite"]);
    let again = Ended::of(&mut compare(&out, &["--resume", "--json"])).json();
    assert_eq!(again["runs"], first["runs"]);

    let changed = ["--set", "train.steps=12"];
    Ended::of(&mut compare(&out, &changed)).failure(USAGE, &["is not empty", "--overwrite"]);
    let resumed = [&changed[..], &["--resume"]].concat();
    Ended::of(&mut compare(&out, &resumed)).failure(USAGE, &["another configuration", "config.toml"]);
    assert_eq!(learned(&out).len(), 4);
    let overwritten = [&changed[..], &["--overwrite", "--json"]].concat();
    let other = Ended::of(&mut compare(&out, &overwritten)).json();
    assert_eq!(other["runs"][0]["steps"], 12);
    let mut run = regard(["train", "--preset", "smoke", "--cache", "none", "--quiet", "--overwrite", "--out"]);
    Ended::of(run.arg(&out)).failure(USAGE, &["holds several runs", "--overwrite leaves it alone"]);
    // Files that no comparison writes stay.
    assert_eq!((text(out.join("thesis.txt")), text(out.join("photos/seed-1/rose.jpg"))), ("mine".into(), "red".into()));
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let folder = TempDir::new().unwrap();
    let out = folder.path();
    fs::write(out.join("thesis.txt"), "mine").unwrap();
    Ended::of(&mut compare(out, &[])).failure(USAGE, &["is not empty"]);
    Ended::of(&mut compare(out, &["--resume"])).failure(USAGE, &["another configuration"]);
    Ended::of(&mut compare(out, &["--overwrite"])).failure(USAGE, &["holds no comparison"]);
    // A configuration of another program; a single run.
    fs::write(out.join("config.toml"), "[server]\nport = 80\n").unwrap();
    Ended::of(&mut compare(out, &["--overwrite"])).failure(USAGE, &["holds no comparison"]);
    fs::write(out.join("config.toml"), "heads = 2\n").unwrap();
    fs::write(out.join("metrics.jsonl"), "").unwrap();
    Ended::of(&mut compare(out, &["--overwrite"])).failure(USAGE, &["holds no comparison"]);
    assert_eq!(names(out), ["config.toml", "metrics.jsonl", "thesis.txt"]);
}

#[test]
fn a_killed_comparison_goes_on_where_it_was() {
    let folder = TempDir::new().unwrap();
    let undisturbed = folder.path().join("undisturbed");
    Ended::of(&mut compare(&undisturbed, &[])).success();

    let out = folder.path().join("killed");
    let mut running = Running::start(&mut compare(&out, &[]));
    running.wait_until("the first result", || !results(&out).is_empty());
    running.kill();
    let done = results(&out);
    assert!(done.len() < 4 && !out.join("report.html").exists(), "killed too late to show anything");
    let before: Vec<_> = done.iter().map(text).collect();
    let lock = fs::File::create(out.join(".lock")).unwrap();
    lock.lock().unwrap();
    for further in [&[][..], &["--resume"], &["--overwrite"]] {
        Ended::of(&mut compare(&out, further)).failure(USAGE, &["in use by another process"]);
    }
    drop(lock);
    // A kill between making the directory of a run and its first file.
    fs::create_dir_all(out.join("smlk/seed-2")).unwrap();
    Ended::of(&mut compare(&out, &[])).success();
    // Finished runs are kept as they were, down to the times that they took.
    assert_eq!(done.iter().map(text).collect::<Vec<_>>(), before);
    assert_eq!(learned(&out), learned(&undisturbed));
}

#[test]
#[cfg(unix)]
fn an_interrupted_comparison_says_how_to_go_on() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("interrupted");
    let mut running = Running::start(&mut compare(&out, &["--set", "train.steps=60"]));
    let metrics = out.join("softmax/seed-2/metrics.jsonl");
    running.wait_until("the second run", || fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 3));
    running.signal("INT").failure(130, &["interrupted", "--resume"]);
    assert_eq!(results(&out).len(), 1);
    assert!(out.join("softmax/seed-2/checkpoints/last").exists());
    Ended::of(&mut compare(&out, &["--set", "train.steps=60", "--resume"])).success();
    assert_eq!(learned(&out).len(), 4);
}

#[test]
fn entries_that_cannot_be_compared() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("comparison");
    for (mechanisms, parts) in [
        ("softmax,sofmax", &["compare.mechanisms", "'sofmax'", "did you mean 'softmax'?"][..]),
        ("softmax,softmax", &["compare.mechanisms", "'softmax' twice"]),
        ("[]", &["compare.mechanisms is empty"]),
        ("mgk:heads=3", &["multiple of heads (3)"]),
        ("mgk:haeds=1", &["compare.mechanisms", "'haeds'", "'heads'?"]),
        ("mgk:keys.components", &["compare.mechanisms", "has no '='"]),
    ] {
        let entries = format!("compare.mechanisms={mechanisms}");
        Ended::of(&mut compare(&out, &["--set", &entries])).failure(USAGE, parts);
        assert!(!out.exists(), "{mechanisms}");
    }
    Ended::of(&mut compare(&out, &["--set", "compare.seeds=[]"])).failure(USAGE, &["compare.seeds is empty"]);
    Ended::of(&mut compare(&out, &["--set", "compare.seeds=1,1"])).failure(USAGE, &["compare.seeds", "1 twice"]);
}

#[test]
fn an_entry_may_have_options_of_its_own() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("comparison");
    let entries = "compare.mechanisms=[\"mgk:heads=1,keys.components=3\", \"mgk\"]";
    let short = ["--set", entries, "--set", "compare.seeds=1", "--set", "train.steps=6", "--json"];
    let json = Ended::of(&mut compare(&out, &short)).json();
    let labels: Vec<_> = json["runs"].as_array().unwrap().iter().map(|run| run["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["mgk-heads=1-keys.components=3", "mgk"]);
    let own = text(out.join(labels[0]).join("seed-1/config.toml"));
    assert!(own.contains("heads = 1") && own.contains("components = 3"), "{own}");
}

#[test]
fn one_mechanism_may_be_compared_with_several_supports() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("comparison");
    let entries = "compare.mechanisms=[\"scatterbrain\", \"scatterbrain:support.kind=smyrf,support.cluster=4\", \
                   \"scatterbrain:scatterbrain.combination=gated,support.radius=2\", \"sparse:support.kind=lsh\", \
                   \"performer:budget=1/2\"]";
    let short = ["--set", entries, "--set", "compare.seeds=1", "--set", "train.steps=6", "--json"];
    let json = Ended::of(&mut compare(&out, &short)).json();
    let labels: Vec<_> = json["runs"].as_array().unwrap().iter().map(|run| run["label"].as_str().unwrap()).collect();
    assert_eq!(labels[..2], ["scatterbrain-local", "scatterbrain-smyrf-support.kind=smyrf-support.cluster=4"]);
    assert!(labels[2].starts_with("scatterbrain-local-gated-") && labels[3].starts_with("lsh-"), "{labels:?}");
    assert!(labels[4].starts_with("performer-budget=1-2-") && labels[4].ends_with("-rows"), "{labels:?}");
}

#[test]
fn models_may_be_averages_of_checkpoints() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("comparison");
    let average = ["train.steps=6", "train.checkpoint_every=3", "train.keep=2", "train.average=2"];
    let mut command = compare(&out, &["--set", "compare.seeds=1"]);
    command.args(average.iter().flat_map(|option| ["--set", *option]));
    Ended::of(&mut command).success();
    assert!(text(out.join("softmax/seed-1/config.toml")).contains("average = 2"));
}
