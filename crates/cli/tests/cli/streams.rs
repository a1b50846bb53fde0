//! Standard streams that cannot be written: results that are lost fail the command, progress that is lost does not.
#![cfg(target_os = "linux")]

use std::{path::Path, process::Command};

use tempfile::TempDir;

use crate::{
    language,
    program::{Ended, Running, full, names, regard, text},
};

const USAGE: i32 = 2;
const DATA: i32 = 3;

/// A training of seconds.
fn train(out: &Path, further: &[&str]) -> Command {
    let mut command = regard(["train", "--preset", "smoke", "--cache", "none", "--out"]);
    command.arg(out).args(further);
    command
}

/// Asserts that a run is whole: its report, its metrics to the last line, its checkpoints.
#[track_caller]
fn assert_whole(out: &Path) {
    assert!(text(out.join("report.html")).ends_with("</html>\n"));
    let metrics = text(out.join("metrics.jsonl"));
    let lines: Vec<_> = metrics.lines().map(serde_json::from_str::<serde_json::Value>).collect();
    assert!(lines.len() == 23 && lines.iter().all(Result::is_ok), "{metrics}");
    assert_eq!(text(out.join("checkpoints/last")), "step-20");
}

/// Asserts that a command whose results are lost says so.
#[track_caller]
fn assert_lost(command: &mut Command) {
    let ended = Ended::of(command.stdout(full()));
    ended.failure(DATA, &["cannot write to standard output: No space left on device", "free some space"]);
}

#[test]
fn results_on_a_full_device_fail_the_command() {
    let commands: [&[&str]; 13] = [
        &["list"],
        &["list", "--json"],
        &["config"],
        &["config", "--json"],
        &["cost"],
        &["cost", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["reproduce", "--list"],
        &["--help"],
        &["--version"],
    ];
    for arguments in commands {
        assert_lost(regard(arguments).env("REGARD_CACHE", "none"));
    }
    let bench = ["bench", "--quiet", "--lengths", "16", "--heads", "1", "--head-width", "4", "--repeats", "1"];
    assert_lost(regard(bench).args(["--mechanism", "softmax"]));
    let approx = ["approx", "--quiet", "--tokens", "16", "--clusters", "2", "--width", "4", "--draws", "1"];
    assert_lost(regard(approx).args(["--methods", "svd", "--json"]));
}

#[test]
fn what_was_asked_for_in_files_is_there_though_the_table_is_lost() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("curves");
    assert_lost(regard(["cost", "--preset", "smoke", "--curves", "--out"]).arg(&out));
    assert_eq!(names(&out), ["plots", "report.html"]);
    let page = folder.path().join("page.md");
    assert_lost(regard(["reproduce", "--list", "--out"]).arg(folder.path()).arg("--page").arg(&page));
    assert!(page.is_file());
}

#[test]
fn text_on_a_full_device_fails_the_command() {
    let folder = TempDir::new().unwrap();
    let out = language::trained(folder.path(), "linear");
    for further in
        [&["generate", "--tokens", "5"][..], &["generate", "--json"], &["eval"], &["eval", "--json"], &["inspect"]]
    {
        assert_lost(regard(further).arg("--quiet").arg(&out));
    }
}

#[test]
fn a_training_is_whole_though_its_results_are_lost() {
    let folder = TempDir::new().unwrap();
    for further in [&["--quiet"][..], &["--quiet", "--json"]] {
        let out = folder.path().join(further.len().to_string());
        assert_lost(&mut train(&out, further));
        assert_whole(&out);
    }
}

#[test]
fn progress_that_is_lost_stops_nothing() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("full");
    let ended = Ended::of(train(&out, &[]).stderr(full()));
    assert!(ended.success().contains("test loss"));
    assert_whole(&out);
    // Somebody read the first lines and went away.
    let out = folder.path().join("gone");
    let mut running = Running::start(&mut train(&out, &[]));
    running.close_stderr();
    assert!(running.end().success().contains("test loss"));
    assert_whole(&out);
    // An error keeps its code where nobody can be told.
    for arguments in [&["train", "--mechansim"][..], &["cost", "--length", "0"], &["config", "--preset", "x"]] {
        assert_eq!(Ended::of(regard(arguments).stderr(full())).code, Some(USAGE), "{arguments:?}");
    }
}

/// A command below a shell that closes streams before.
fn closed(redirections: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(format!("exec \"$0\" \"$@\" {redirections}"))
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

#[test]
fn files_are_not_mixed_up_with_streams_that_are_closed() {
    let folder = TempDir::new().unwrap();
    for (n, redirections) in [">&-", "2>&-", "<&- >&- 2>&-"].into_iter().enumerate() {
        let out = folder.path().join(n.to_string());
        let ended = Ended::of(&mut closed(redirections, &train(&out, &[])));
        assert_eq!(ended.code, Some(0), "{redirections}: {ended:?}");
        assert!(!ended.stderr.contains("panicked"), "{ended:?}");
        assert_whole(&out);
    }
}

#[test]
fn a_reader_of_results_that_has_gone_ends_the_command_quietly() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("run");
    let mut running = Running::start(&mut train(&out, &["--quiet", "--json"]));
    running.close_stdout();
    let ended = running.end();
    // By the signal, as other programs end.
    assert_eq!((ended.code, ended.stderr.as_str()), (None, ""), "{ended:?}");
    assert_whole(&out);
}
