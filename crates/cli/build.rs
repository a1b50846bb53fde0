//! Tells the program the commit that it is built from, where there is a repository to ask.

use std::{path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Grows with every commit; a file that is not there would have this run at every build.
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.git/logs/HEAD");
    if log.exists() {
        println!("cargo:rerun-if-changed={}", log.display());
    }
    let asked =
        Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let commit =
        asked.ok().filter(|answer| answer.status.success()).and_then(|answer| String::from_utf8(answer.stdout).ok());
    if let Some(commit) = commit {
        println!("cargo:rustc-env=REGARD_COMMIT={}", commit.trim());
    }
}
