//! `regard train` and `regard eval`: what a run leaves, and that neither kill nor signal loses anything.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ended, Running, argument, assert_self_contained, names, regard, run, text};

const USAGE: i32 = 2;
const DATA: i32 = 3;
const NUMERIC: i32 = 4;

/// `train` with a preset of seconds and these arguments.
fn train(out: &Path, further: &[&str]) -> Command {
    let mut command = regard(["train", "--preset", "smoke", "--cache", "none", "--json", "--out"]);
    command.arg(out).args(further);
    command
}

/// A run long enough to be stopped in the middle, with all that must survive: dropout, moments, a schedule.
const LONG: [&str; 13] = [
    "--mechanism",
    "mgk",
    "--set",
    "train.steps=400",
    "--set",
    "model.dropout=0.1",
    "--set",
    "model.attention_dropout=0.1",
    "--set",
    "train.evaluate_every=25",
    "--set",
    "train.accumulate=2",
    "--quiet",
];

/// The records of a run. A line in the making is not one.
fn records(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).expect("a record")).collect()
}

/// Number of updates told of so far.
fn steps(run: &Path) -> usize {
    records(run).iter().filter(|record| record["kind"] == "step").count()
}

/// What a record says about the model; the rest is about time.
fn learned(record: &Value) -> Vec<Value> {
    let keys = ["kind", "step", "split", "loss", "learning_rate", "gradient_norm", "accuracy"];
    keys.iter().map(|key| record[*key].clone()).collect()
}

/// Directory of the newest checkpoint.
fn last(run: &Path) -> PathBuf {
    run.join("checkpoints").join(text(run.join("checkpoints/last")).trim())
}

/// Asserts that two runs are the same but for the time they took: parameters, moments, metrics.
#[track_caller]
fn assert_same_run(seen: &Path, expected: &Path) {
    assert_eq!(last(seen).file_name(), last(expected).file_name());
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let [seen, expected] = [seen, expected].map(|run| fs::read(last(run).join(file)).expect("a checkpoint"));
        assert!(seen == expected, "{file} differs");
    }
    let [seen, expected] = [seen, expected].map(|run| records(run).iter().map(learned).collect::<Vec<_>>());
    assert_eq!(seen, expected);
}

/// The run of [`LONG`] that nothing disturbed.
fn undisturbed(folder: &TempDir) -> PathBuf {
    let out = folder.path().join("undisturbed");
    Ended::of(&mut train(&out, &LONG)).success();
    assert_eq!(steps(&out), 400);
    out
}

#[test]
fn a_run_leaves_its_configuration_metrics_and_checkpoints() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("deep/run");
    let result = Ended::of(&mut train(&out, &["--mechanism", "mlk", "--seed", "5"])).json();
    assert_eq!(
        (&result["mechanism"], &result["task"], &result["steps"]),
        (&"mlk".into(), &"listops".into(), &20.into())
    );
    let mut entries = names(&out);
    let events = entries.iter().position(|name| name.starts_with("events.out.tfevents.")).expect("events");
    entries.remove(events);
    let whole =
        ["checkpoints", "config.toml", "env.json", "metrics.jsonl", "plots", "report.html", "test-items.safetensors"];
    assert_eq!(entries, whole);
    assert_self_contained(&text(out.join("report.html")));
    let arguments = ["config", "--preset", "smoke", "--mechanism", "mlk", "--seed", "5"];
    assert_eq!(text(out.join("config.toml")), run(arguments).success());
    let environment: Value = serde_json::from_str(&text(out.join("env.json"))).unwrap();
    assert_eq!(environment["version"], env!("CARGO_PKG_VERSION"));

    let records = records(&out);
    let kinds: Vec<_> = records.iter().map(|r| (r["kind"].as_str().unwrap(), r["step"].as_u64().unwrap())).collect();
    let expected: Vec<(&str, u64)> = (1..=10)
        .map(|step| ("step", step))
        .chain([("evaluation", 10)])
        .chain((11..=20).map(|step| ("step", step)))
        .chain([("evaluation", 20), ("evaluation", result["test"]["step"].as_u64().unwrap())])
        .collect();
    assert_eq!(kinds, expected);
    assert!(records.iter().all(|record| record["loss"].as_f64().is_some_and(f64::is_finite)));

    let checkpoints = names(&out.join("checkpoints"));
    assert!(
        checkpoints.iter().all(|name| ["best", "last"].contains(&&**name) || name.starts_with("step-")),
        "{checkpoints:?}"
    );
    assert_eq!(text(out.join("checkpoints/last")).trim(), "step-20");
    let best = format!("step-{}", result["best"]["step"]);
    assert_eq!(text(out.join("checkpoints/best")).trim(), best);
    assert_eq!(names(&last(&out)), ["model.safetensors", "optimizer.safetensors", "state.json"]);
}

#[test]
fn eval_measures_what_training_did() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("run");
    let result = Ended::of(&mut train(&out, &["--mechanism", "softmax", "--quiet"])).json();
    let path = argument(&out);
    let test = run(["eval", &path, "--cache", "none", "--json"]).json();
    for key in ["loss", "accuracy", "items", "step", "split"] {
        assert_eq!(test[key], result["test"][key], "{key}");
    }
    let valid = run(["eval", &path, "--cache", "none", "--json", "--split", "valid", "--batch", "7"]).json();
    assert_eq!(valid["accuracy"], result["best"]["score"]);
    let last = run(["eval", &path, "--cache", "none", "--json", "--checkpoint", "last"]).json();
    assert_eq!(last["step"], 20);
    let report = run(["eval", &path, "--cache", "none"]).success();
    assert!(report.contains("test (100 sequences)") && report.contains("accuracy"), "{report}");
    run(["eval", &path, "--batch", "0"]).failure(USAGE, &["--batch is 0"]);
    run(["generate", &path]).failure(USAGE, &[&path, "holds a model of the task listops", "char-lm"]);
}

#[test]
fn a_directory_in_use_is_refused() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("run");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("thesis.txt"), "mine").unwrap();
    let parts = ["is not empty", "--resume", "--overwrite"];
    Ended::of(&mut train(&out, &["--quiet"])).failure(USAGE, &parts);
    assert_eq!(names(&out), ["thesis.txt"]);
    let first = Ended::of(&mut train(&out, &["--quiet", "--overwrite"])).json();
    assert_eq!(text(out.join("thesis.txt")), "mine");
    Ended::of(&mut train(&out, &["--quiet"])).failure(USAGE, &parts);
    // A finished run that is resumed has nothing left to do.
    let again = Ended::of(&mut train(&out, &["--quiet", "--resume"])).json();
    assert_eq!((&again["steps"], &again["test"]["loss"]), (&first["steps"], &first["test"]["loss"]));
    let other = Ended::of(&mut train(&out, &["--quiet", "--overwrite", "--seed", "2"])).json();
    assert_ne!(other["test"]["loss"], first["test"]["loss"]);
    assert_eq!(steps(&out), 20);
    assert_eq!(text(out.join("thesis.txt")), "mine");
    // A run that cannot start removes none.
    Ended::of(&mut train(&out, &["--quiet", "--overwrite", "--set", "train.start=nowhere"]))
        .failure(DATA, &["train.start", "nowhere"]);
    assert_eq!(steps(&out), 20);
    let nowhere = folder.path().join("nowhere");
    Ended::of(&mut train(&nowhere, &["--quiet", "--resume"])).failure(DATA, &["no run to resume"]);
    assert!(!nowhere.exists());
}

#[test]
fn a_run_is_resumed_as_what_it_is() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("run");
    Ended::of(&mut train(&out, &["--quiet"])).success();
    let before = (text(out.join("config.toml")), text(out.join("metrics.jsonl")));
    for (change, parts) in [
        (&["--mechanism", "linear"][..], ["mechanism", "linear"]),
        (&["--seed", "7"], ["seed", "7"]),
        (&["--set", "train.batch=8"], ["train.batch", "8"]),
        (&["--set", "model.width=32"], ["model.width", "32"]),
        (&["--set", "task.listops.train=300"], ["task.listops.train", "300"]),
    ] {
        let ended = Ended::of(&mut train(&out, &[&["--quiet", "--resume"], change].concat()));
        ended.failure(USAGE, &[parts[0], parts[1], "resume with the same"]);
        assert_eq!((text(out.join("config.toml")), text(out.join("metrics.jsonl"))), before, "{change:?}");
    }
    // Fewer than it has done would undo what it is.
    let fewer = Ended::of(&mut train(&out, &["--quiet", "--resume", "--set", "train.steps=10"]));
    fewer.failure(USAGE, &["train.steps is 10", "has done 20 updates"]);
    // Without its configuration nothing says what its checkpoints are of.
    fs::remove_file(out.join("config.toml")).unwrap();
    Ended::of(&mut train(&out, &["--quiet", "--resume"])).failure(DATA, &["holds checkpoints but no config.toml"]);
    fs::write(out.join("config.toml"), &before.0).unwrap();
    // More steps are no other run.
    let longer = Ended::of(&mut train(&out, &["--quiet", "--resume", "--set", "train.steps=30"])).json();
    assert_eq!(longer["steps"], 30);
    assert!(text(out.join("config.toml")).contains("steps = 30"));
    // What its first updates were made with is kept.
    assert_eq!(text(out.join("config-to-20.toml")), before.0);
    // Alone, the directory says what the run is.
    let resumed = |more: &[&str]| {
        let mut command = regard(["train", "--cache", "none", "--json", "--quiet", "--resume", "--out"]);
        Ended::of(command.arg(&out).args(more))
    };
    assert_eq!(resumed(&[]).json()["steps"], 30);
    assert!(!out.join("config-to-30.toml").exists());
    assert_eq!(resumed(&["--set", "train.steps=40"]).json()["steps"], 40);
    resumed(&["--mechanism", "linear"]).failure(USAGE, &["mechanism", "resume with the same"]);
    resumed(&["--preset", "quick"]).failure(USAGE, &["resume with the same"]);
}

#[test]
fn a_killed_run_continues_bit_for_bit() {
    let folder = TempDir::new().unwrap();
    let expected = undisturbed(&folder);
    // Before the first checkpoint; between checkpoints.
    for kill_after in [3, 67] {
        let out = folder.path().join(format!("killed after {kill_after}"));
        let mut running = Running::start(&mut train(&out, &LONG));
        running.wait_until("the step to be killed at", || steps(&out) >= kill_after);
        running.kill();
        let done = steps(&out);
        assert!(done < 400, "killed too late to show anything");
        // A kill may come in the middle of a line, and of a checkpoint.
        let metrics = fs::OpenOptions::new().append(true).open(out.join("metrics.jsonl"));
        std::io::Write::write_all(&mut metrics.unwrap(), b"{\"kind\":\"step\",\"st").unwrap();
        fs::create_dir_all(out.join("checkpoints/.step-390.tmp")).unwrap();
        fs::write(out.join("checkpoints/.step-390.tmp/model.safetensors"), "half").unwrap();
        let resumed = [&LONG[..], &["--resume", "--threads", "2"]].concat();
        let result = Ended::of(&mut train(&out, &resumed)).json();
        assert_eq!(result["steps"], 400);
        assert_same_run(&out, &expected);
        assert!(names(&out.join("checkpoints")).iter().all(|name| !name.ends_with(".tmp")));
    }
}

#[test]
#[cfg(unix)]
fn a_signal_ends_a_run_after_a_checkpoint() {
    let folder = TempDir::new().unwrap();
    let expected = undisturbed(&folder);
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let out = folder.path().join(signal);
        let mut running = Running::start(&mut train(&out, &LONG));
        running.wait_until("the step to stop at", || steps(&out) >= 33);
        let ended = running.signal(signal);
        let done = steps(&out);
        assert!(done < 400, "stopped too late to show anything: {ended:?}");
        ended.failure(code, &[&format!("stopped after step {done}"), &argument(&out), "--resume"]);
        // Nothing that was done is lost.
        assert_eq!(last(&out).file_name().unwrap().to_str(), Some(&*format!("step-{done}")));
        Ended::of(&mut train(&out, &[&LONG[..], &["--resume"]].concat())).success();
        assert_same_run(&out, &expected);
    }
}

#[test]
fn directories_without_a_sound_run() {
    let folder = TempDir::new().unwrap();
    let empty = argument(folder.path().join("empty"));
    fs::create_dir(&empty).unwrap();
    let absent = argument(folder.path().join("absent"));
    for path in [&empty, &absent] {
        for command in ["eval", "generate"] {
            run([command, path]).failure(DATA, &[path, "holds no run", "regard train"]);
        }
    }
    let out = folder.path().join("run");
    Ended::of(&mut train(&out, &["--quiet"])).success();
    let path = argument(&out);
    let eval = || run(["eval", &path, "--cache", "none", "--checkpoint", "last"]);
    eval().success();
    let resume = || Ended::of(&mut train(&out, &["--quiet", "--resume", "--set", "train.steps=30"]));

    let model = last(&out).join("model.safetensors");
    let whole = fs::read(&model).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&model, &damaged).unwrap();
    let remedy = format!("step-10 is sound: remove {} and use --resume", last(&out).display());
    eval().failure(DATA, &["model.safetensors", "SHA-256", &remedy]);
    resume().failure(DATA, &["model.safetensors", "SHA-256", &remedy]);
    fs::write(&model, &whole[..whole.len() / 2]).unwrap();
    eval().failure(DATA, &["model.safetensors", "truncated"]);
    resume().failure(DATA, &["model.safetensors", "truncated"]);
    fs::remove_file(&model).unwrap();
    eval().failure(DATA, &["cannot read", "model.safetensors"]);
    fs::write(&model, &whole).unwrap();
    let state = last(&out).join("state.json");
    let text_before = text(&state);
    fs::write(&state, "{\"format\": 1").unwrap();
    eval().failure(DATA, &["state.json", "not the state of a run"]);
    fs::write(&state, text_before.replace("\"batch\": 16", "\"batch\": 17")).unwrap();
    eval().failure(DATA, &["state.json", "SHA-256", &remedy]);
    // The remedy that is named works.
    fs::remove_dir_all(last(&out)).unwrap();
    assert_eq!(run(["eval", &path, "--cache", "none", "--checkpoint", "last", "--json"]).json()["step"], 10);
    assert_eq!(resume().json()["steps"], 30);

    // A configuration of another model.
    let config = out.join("config.toml");
    let before = text(&config);
    fs::write(&config, before.replace("width = 16", "width = 32")).unwrap();
    eval().failure(DATA, &["was config.toml edited?"]);
    fs::write(&config, before.replace("[model]", "[model")).unwrap();
    eval().failure(USAGE, &["config.toml:"]);
    fs::write(&config, &before).unwrap();
    fs::remove_dir_all(out.join("checkpoints")).unwrap();
    eval().failure(DATA, &["holds no checkpoint yet"]);
}

#[test]
fn a_directory_has_one_process() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("run");
    let mut running = Running::start(&mut train(&out, &LONG));
    running.wait_until("the first steps", || steps(&out) >= 3);
    for further in [&[][..], &["--resume"], &["--overwrite"]] {
        let ended = Ended::of(&mut train(&out, &[&LONG[..], further].concat()));
        ended.failure(USAGE, &[&argument(&out), "in use by another process"]);
    }
    assert!(steps(&out) >= 3);
    // The lock ends with its process, however that ends.
    running.kill();
    assert!(out.join(".lock").exists());
    Ended::of(&mut train(&out, &["--quiet", "--overwrite"])).success();
    assert!(!out.join(".lock").exists());
}

#[test]
fn a_run_whose_directory_goes_away_says_so() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("run");
    let mut running = Running::start(&mut train(&out, &LONG));
    running.wait_until("the first steps", || steps(&out) >= 3);
    fs::rename(&out, folder.path().join("moved")).unwrap();
    running.end().failure(DATA, &[&argument(&out), "was its directory removed or moved meanwhile?"]);
    assert!(!out.exists());
}

#[test]
#[cfg(unix)]
fn a_limit_on_the_size_of_files_is_an_error_and_the_run_goes_on_without_it() {
    let folder = TempDir::new().unwrap();
    let [out, expected] = ["limited", "free"].map(|name| folder.path().join(name));
    let limited = train(&out, &["--quiet"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 16; exec \"$0\" \"$@\""]).arg(limited.get_program()).args(limited.get_args());
    Ended::of(&mut shell).failure(DATA, &["checkpoints", "limit on the size of a file", "--resume"]);
    Ended::of(&mut train(&out, &["--quiet", "--resume"])).success();
    Ended::of(&mut train(&expected, &["--quiet"])).success();
    assert_same_run(&out, &expected);
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("run");
    // A step of this size throws the parameters out of what float32 holds.
    let rate = ["--quiet", "--set", "train.optimizer.learning_rate=1e38", "--set", "train.optimizer.weight_decay=0"];
    let ended = Ended::of(&mut train(&out, &rate));
    ended.failure(NUMERIC, &[" at step ", "train.optimizer.learning_rate"]);
}

#[test]
fn progress_goes_to_standard_error_unless_quiet() {
    let folder = TempDir::new().unwrap();
    let command = |name: &str, further: &[&str]| {
        let mut command = regard(["train", "--preset", "smoke", "--cache", "none", "--out"]);
        command.arg(folder.path().join(name)).args(further);
        Ended::of(&mut command)
    };
    let told = command("told", &[]);
    assert!(told.stderr.contains("softmax on listops: ") && told.stderr.contains("step 10: valid loss"), "{told:?}");
    assert!(!told.stderr.contains('\u{1b}') && !told.stdout.contains('\u{1b}'), "{told:?}");
    let report = told.success();
    assert!(report.contains("best step") && report.contains("accuracy"), "{report}");
    let quiet = command("quiet", &["--quiet"]);
    assert_eq!(quiet.stderr, "");
    assert!(quiet.success().contains("best step"));
}

#[test]
fn generated_data_are_cached() {
    let folder = TempDir::new().unwrap();
    let cache = folder.path().join("cache");
    let losses = ["first", "second", "third"].map(|name| {
        if name == "third" {
            // Damage is noticed and repaired.
            let file = cache.join(&names(&cache)[0]);
            let mut bytes = fs::read(&file).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&file, bytes).unwrap();
        }
        let out = folder.path().join(name);
        let mut command = regard(["train", "--preset", "smoke", "--json", "--set", "train.steps=4", "--out"]);
        let ended = Ended::of(command.arg(&out).arg("--cache").arg(&cache));
        assert_eq!(ended.stderr.contains("note: ") && ended.stderr.contains("damaged"), name == "third", "{ended:?}");
        assert_eq!(names(&cache).len(), 1, "{:?}", names(&cache));
        ended.json()["test"]["loss"].clone()
    });
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
}
