//! Commands that tell something: lists, the machine, help, completions; and what every command has in common.

use std::{fs, process::Stdio};

use regard_testkit::cases;
use tempfile::TempDir;

use crate::program::{Ended, Running, argument, names, regard, run};

const MECHANISMS: [&str; 11] = [
    "softmax",
    "gaussian",
    "mgk",
    "linear",
    "mlk",
    "performer",
    "sparse",
    "scatterbrain",
    "moa",
    "fastformer",
    "cosine",
];

#[test]
fn lists_name_everything_that_can_be_asked_for() {
    let all = run(["list"]).success();
    let tasks = ["listops", "text", "char-lm"];
    let presets = ["quick", "smoke", "lra-listops", "lra-text", "char-lm"];
    for name in MECHANISMS.iter().chain(&tasks).chain(&presets) {
        assert!(all.split_whitespace().any(|word| word == *name), "{name} in {all}");
    }
    let only = run(["list", "tasks"]).success();
    assert!(only.contains("char-lm") && !only.contains("fastformer"), "{only}");
    let json = run(["list", "--json"]).json();
    let kinds: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(kinds, ["mechanisms", "presets", "tasks"]);
    // Every mechanism in the list can be asked for, and every one in the golden data is in the list.
    for name in MECHANISMS {
        assert!(run(["config", "--mechanism", name]).success().contains(&format!("mechanism = \"{name}\"")));
        assert!(cases().iter().any(|case| case.mechanism == name), "{name}");
    }
    for preset in presets {
        run(["config", "--preset", preset]).success();
    }
    run(["list", "planets"]).usage_failure(&["planets", "presets"]);
}

#[test]
fn the_doctor_tries_every_kernel_and_the_cache() {
    let folder = TempDir::new().unwrap();
    let mut command = regard(["doctor"]);
    let report = Ended::of(command.env("XDG_CACHE_HOME", folder.path())).success();
    let supports = ["scatterbrain-longformer", "scatterbrain-block", "scatterbrain-smyrf", "scatterbrain-lsh"];
    for name in MECHANISMS.into_iter().chain(supports) {
        let line = report.lines().find(|line| line.contains(&format!("kernel {name}")));
        assert!(line.is_some_and(|line| line.starts_with("ok ")), "{name} in {report}");
    }
    assert!(report.contains(&argument(folder.path().join("regard"))), "{report}");
    assert!(names(&folder.path().join("regard")).is_empty(), "left behind");
    let mut command = regard(["doctor", "--json"]);
    let json = Ended::of(command.env("XDG_CACHE_HOME", folder.path())).json();
    assert!(json["checks"].as_array().unwrap().iter().all(|check| check["passed"] == true), "{json}");
}

#[test]
fn vectors_can_be_kept_narrow_and_kernels_hold_there() {
    let mut command = regard(["doctor"]);
    let report = Ended::of(command.env("REGARD_VECTORS", "scalar").env("REGARD_CACHE", "none")).success();
    assert!(report.contains("vectors     scalar") && !report.contains("FAIL"), "{report}");
    let mut command = regard(["doctor"]);
    let ended = Ended::of(command.env("REGARD_VECTORS", "mmx"));
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("REGARD_VECTORS: vectors is mmx, expected one of those that this processor has: scalar"),
        "{ended:?}"
    );
}

#[test]
fn devices_are_named_or_refused_by_name() {
    let json = run(["doctor", "--json"]).json();
    assert_eq!(json["devices"][0]["name"], "cpu");
    assert!(json["devices"][0]["kernels"].as_bool().unwrap());
    let train = ["train", "--preset", "smoke", "--quiet", "--out", "nowhere", "--device"];
    let told = |device: &'static str, parts: &[&str]| run(train.iter().chain([&device])).failure(2, parts);
    told("gpu", &["device 'gpu' is unknown", "expected cpu, wgpu, metal, cuda or rocm"]);
    told("cpu:1", &["device 'cpu:1' is not there", "regard doctor"]);
    for kind in ["wgpu", "metal", "cuda", "rocm"] {
        if !json["kinds"].as_array().unwrap().iter().any(|built| built == kind) {
            told(kind, &["is not part of this build", &format!("--features {kind}")]);
        }
    }
    let mut command = regard(["list", "presets"]);
    Ended::of(command.env("REGARD_DEVICE", "cpu")).success();
}

#[test]
fn the_doctor_finds_a_cache_that_cannot_be_written() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let mut command = regard(["doctor"]);
    let ended = Ended::of(command.env("XDG_CACHE_HOME", &file));
    let failed = ended.stderr.starts_with("error: 1 of ") && ended.stderr.ends_with(" checks failed\n");
    assert!(ended.code == Some(1) && failed, "{ended:?}");
    assert!(ended.stdout.contains("FAIL  cache directory"), "{ended:?}");
    // The remedy that it names works.
    let other = folder.path().join("other");
    let mut command = regard(["doctor"]);
    let report = Ended::of(command.env("XDG_CACHE_HOME", &file).env("REGARD_CACHE", &other)).success();
    assert!(report.contains(&argument(other)), "{report}");
    let mut command = regard(["doctor"]);
    Ended::of(command.env("XDG_CACHE_HOME", &file).env("REGARD_CACHE", "none")).success();
}

#[test]
fn completions_know_commands_and_options() {
    let bash = run(["completions", "bash"]).success();
    for word in ["attend", "compare", "--mechanism", "--overwrite", "complete -F"] {
        assert!(bash.contains(word), "{word}");
    }
    for shell in ["zsh", "fish", "powershell", "elvish"] {
        assert!(run(["completions", shell]).success().contains("compare"), "{shell}");
    }
    run(["completions", "tcsh"]).usage_failure(&["tcsh", "zsh"]);
}

#[test]
fn help_and_version_are_no_failures() {
    let help = run(["--help"]).success();
    let commands =
        ["train", "eval", "compare", "attend", "cost", "generate", "list", "doctor", "config", "completions"];
    for command in commands {
        assert!(help.contains(command), "{command} in {help}");
        let own = run([command, "--help"]).success();
        assert!(own.contains("Usage: regard"), "{own}");
    }
    assert!(help.contains("Exit codes: 0 done"), "{help}");
    assert_eq!(run(["--version"]).success(), format!("regard {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn arguments_that_are_none() {
    run([""; 0]).usage_failure(&["Usage: regard"]);
    run(["trian"]).usage_failure(&["error: ", "trian", "train"]);
    run(["train", "--mechansim", "mgk"]).usage_failure(&["error: ", "--mechansim", "--mechanism"]);
    run(["train", "--resume", "--overwrite"]).usage_failure(&["error: ", "--resume", "--overwrite"]);
    // Values that begin with a dash are values.
    run(["train", "--seed", "-1"]).failure(2, &["--seed is -1, expected at least 0"]);
    run(["list", "--threads", "-1"]).failure(2, &["--threads is -1, expected 1 to 1024"]);
    run(["list", "--threads", "-x"]).failure(2, &["--threads is -x, expected 1 to 1024"]);
    run(["bench", "--lengths", "-4,8"]).failure(2, &["--lengths has -4, expected at least 1"]);
    run(["approx", "--spread", "-1"]).failure(2, &["--spread is -1, expected a number from 0"]);
    run(["approx", "--budget", "-1/4"]).failure(2, &["--budget", "-1/4"]);
    run(["probe", "--deviation", "-1,2"]).failure(2, &["--deviation has -1, expected positive numbers"]);
    run(["train", "--out", "--resume"]).failure(2, &["--out is --resume, an option, expected a path", "./--resume"]);
    run(["train", "--out", "--overwrit"]).failure(2, &["--out is --overwrit, an option, expected a path"]);
    run(["cost", "--curves", "--out", "-q"]).failure(2, &["--out is -q, an option, expected a path"]);
    let folder = TempDir::new().unwrap();
    let mut command = regard(["cost", "--preset", "smoke", "--curves", "--out", "-curves"]);
    Ended::of(command.current_dir(folder.path())).success();
    assert_eq!(names(folder.path()), ["-curves"]);
    run(["probe", "--rate", "-.5"]).failure(2, &["--rate is -0.5, expected a positive number"]);
    run(["eval"]).usage_failure(&["error: ", "<RUN>"]);
    run(["cost", "--out", "x"]).usage_failure(&["error: ", "--curves"]);
}

#[test]
#[cfg(unix)]
fn a_reader_that_has_enough_is_no_reason_to_panic() {
    for arguments in [&["list"][..], &["completions", "bash"], &["config"], &["doctor", "--json"]] {
        let mut running = Running::start(regard(arguments).env("REGARD_CACHE", "none").stdin(Stdio::null()));
        running.close_stdout();
        let ended = running.end();
        assert!(!ended.stderr.contains("panicked"), "{arguments:?}: {ended:?}");
    }
}
