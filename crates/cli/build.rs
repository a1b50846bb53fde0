//! Tells the program the commit that it is built from, where there is a repository to ask.

use std::process::Command;

/// What git answers; the script runs in the folder of the crate.
fn git<const N: usize>(words: [&str; N]) -> Option<String> {
    let answer = Command::new("git").args(words).output().ok().filter(|answer| answer.status.success())?;
    Some(String::from_utf8(answer.stdout).ok()?.trim().to_owned())
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Grows with every commit. Git knows where it is, also in a second checkout of the repository; a file that is not there
    // would have this run at every build.
    if let Some(log) = git(["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])
        && std::fs::exists(&log).is_ok_and(|there| there)
    {
        println!("cargo:rerun-if-changed={log}");
    }
    if let Some(commit) = git(["rev-parse", "--short", "HEAD"]) {
        println!("cargo:rustc-env=REGARD_COMMIT={commit}");
    }
}
