//! Paths as the system has them: names that are no UTF-8, and outputs that are no plain files.
#![cfg(target_os = "linux")]

use std::{
    ffi::OsString,
    fs,
    io::Read,
    os::unix::{
        ffi::OsStringExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    process::Command,
};

use safetensors::SafeTensors;
use tempfile::TempDir;

use crate::{
    program::{Ended, names, regard},
    tensors::File,
};

const USAGE: i32 = 2;
const DATA: i32 = 3;

/// A path below a folder whose last byte is no UTF-8.
fn strange(folder: &TempDir, name: &str) -> PathBuf {
    folder.path().join(OsString::from_vec([name.as_bytes(), b"\xff"].concat()))
}

/// Asserts that a command works, and tells a path as text as far as it is one.
#[track_caller]
fn assert_told(command: &mut Command, name: &str) {
    let stdout = Ended::of(command).success();
    assert!(stdout.contains(&format!("{name}\u{fffd}")), "{name} in {stdout}");
}

#[test]
fn names_that_are_no_text_are_names() {
    let folder = TempDir::new().unwrap();
    let run = strange(&folder, "run");
    let mut train = regard(["train", "--preset", "smoke", "--cache", "none", "--quiet", "--json", "--out"]);
    let json = Ended::of(train.arg(&run)).json();
    assert_eq!(json["run"], run.to_string_lossy().as_ref());
    assert!(run.join("report.html").is_file());
    // The same run again is refused with its name.
    let ended = Ended::of(regard(["train", "--preset", "smoke", "--cache", "none", "--out"]).arg(&run));
    ended.failure(USAGE, &["run\u{fffd} is not empty"]);
    let overwrite = ["train", "--preset", "smoke", "--cache", "none", "--quiet", "--overwrite", "--out"];
    assert_told(regard(overwrite).arg(&run), "run");
    Ended::of(regard(["eval", "--cache", "none"]).arg(&run)).success();

    let out = strange(&folder, "inspected");
    let inspect = ["inspect", "--cache", "none", "--quiet", "--sequences", "2", "--out"];
    assert_told(regard(inspect).arg(&out).arg(&run), "inspected");
    Ended::of(regard(["inspect", "--cache", "none", "--quiet", "--sequences", "2", "--json"]).arg(&run)).json();

    let out = strange(&folder, "bench");
    let bench = ["bench", "--quiet", "--lengths", "16", "--heads", "1", "--head-width", "4", "--repeats", "1"];
    assert_told(regard(bench).args(["--mechanism", "softmax", "--out"]).arg(&out), "bench");
    let mut again = regard(bench);
    again.args(["--mechanism", "softmax", "--json", "--compare"]).arg(out.join("results.json"));
    Ended::of(&mut again).json();

    let out = strange(&folder, "approx");
    let approx = ["approx", "--quiet", "--tokens", "16", "--clusters", "2", "--width", "4", "--draws", "1"];
    assert_told(regard(approx).args(["--methods", "svd", "--out"]).arg(&out), "approx");

    let out = strange(&folder, "cost");
    assert_told(regard(["cost", "--preset", "smoke", "--curves", "--out"]).arg(&out), "cost");

    let out = strange(&folder, "compare");
    let compare = ["compare", "--preset", "smoke", "--cache", "none", "--quiet"];
    let compare = || {
        let mut command = regard(compare);
        command.args(["--set", "compare.mechanisms=softmax", "--out"]).arg(&out);
        command
    };
    assert_told(&mut compare(), "compare");
    Ended::of(compare().args(["--resume", "--json"])).json();

    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("compare\u{fffd}"), "the command as it was typed");
}

#[test]
fn settings_that_are_no_text_are_refused() {
    let value = OsString::from_vec(b"64\xff".to_vec());
    let ended = Ended::of(regard(["config"]).env("REGARD_MODEL__WIDTH", &value));
    ended.failure(USAGE, &["REGARD_MODEL__WIDTH is '64\u{fffd}'", "UTF-8"]);
    // Of other programs anything goes.
    Ended::of(regard(["config"]).env("OTHER_WIDTH", &value)).success();
    Ended::of(regard(["config", "--preset"]).arg(&value)).usage_failure(&["UTF-8"]);
}

/// A folder with an input for `attend`, a golden case of softmax.
fn inputs() -> TempDir {
    let folder = TempDir::new().unwrap();
    File::golden("softmax_plain").write(&folder.path().join("in"));
    folder
}

/// `attend` from the input to an output.
fn attend(folder: &TempDir, output: &Path) -> Command {
    let mut command = regard(["attend", "--mechanism", "softmax", "--input"]);
    command.arg(folder.path().join("in")).arg("--output").arg(output);
    command
}

#[test]
fn tensors_go_where_the_path_leads() {
    let folder = inputs();
    let at = |name: &str| folder.path().join(name);
    let strange = strange(&folder, "out");
    let json = Ended::of(attend(&folder, &strange).arg("--json")).json();
    assert_eq!(json["output"], strange.to_string_lossy().as_ref());
    let expected = fs::read(&strange).unwrap();
    assert_eq!(json["bytes"], expected.len());
    let check = |output: &Path| {
        assert_eq!(Ended::of(&mut attend(&folder, output)).success(), "");
    };

    // A link stays, also one to nothing yet; the mode of a file stays.
    symlink("new", at("link")).unwrap();
    check(&at("link"));
    assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink() && fs::read(at("new")).unwrap() == expected);
    fs::write(at("secret"), "old").unwrap();
    fs::set_permissions(at("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    check(&at("secret"));
    assert_eq!(fs::metadata(at("secret")).unwrap().mode() & 0o777, 0o600);
    assert!(fs::read(at("secret")).unwrap() == expected);
    fs::write(at("one"), "old").unwrap();
    fs::hard_link(at("one"), at("two")).unwrap();
    check(&at("one"));
    assert!(fs::read(at("two")).unwrap() == expected);

    // A pipe, by name and by descriptor.
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    // Both ends: the pipe holds what is written, which is short, until it is read.
    let mut pipe = fs::File::options().read(true).write(true).open(at("pipe")).unwrap();
    check(&at("pipe"));
    assert!(!fs::metadata(at("pipe")).unwrap().is_file());
    let mut seen = vec![0; expected.len()];
    pipe.read_exact(&mut seen).unwrap();
    assert!(seen == expected);
    let output = attend(&folder, Path::new("/proc/self/fd/1")).output().unwrap();
    assert!(output.status.success() && output.stdout == expected, "{output:?}");
    assert!(SafeTensors::deserialize(&output.stdout).is_ok());

    let ended = Ended::of(&mut attend(&folder, folder.path()));
    ended.failure(DATA, &["cannot write", "it is a directory, expected the name of a file"]);
    let left = ["in", "link", "new", "one", "out\u{fffd}", "pipe", "secret", "two"];
    assert_eq!(names(folder.path()), left);
}
