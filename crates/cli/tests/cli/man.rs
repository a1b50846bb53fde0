//! `regard man`: a page for every command.

use clap::Command;
use tempfile::TempDir;

use crate::program::{argument, names, run, text};

/// The names of the pages of a command and all below it.
fn pages(command: &Command, name: &str, all: &mut Vec<String>) {
    all.push(format!("{name}.1"));
    for part in command.get_subcommands() {
        pages(part, &format!("{name}-{}", part.get_name()), all);
    }
}

#[test]
fn every_command_has_a_page() {
    let folder = TempDir::new().unwrap();
    let out = argument(folder.path().join("man1"));
    let listed = run(["man", "--out", &out]).success();
    let mut expected = Vec::new();
    pages(&regard_cli::described(), "regard", &mut expected);
    expected.sort();
    assert!(expected.contains(&"regard-data-list.1".to_owned()), "{expected:?}");
    assert_eq!(names(&folder.path().join("man1")), expected);
    assert_eq!(listed.lines().count(), expected.len());
    let train = text(folder.path().join("man1/regard-train.1"));
    // Own options, and those of all commands.
    let title = ".TH regard-train 1 \"\" \"regard";
    for part in [title, "regard\\-train \\- Train one model", "\\-\\-preset", "\\-\\-threads"] {
        assert!(train.contains(part), "{part} in {train}");
    }
    let program = run(["man"]).success();
    assert!(program.contains("Exit codes") && program.contains("regard\\-train(1)"), "{program}");
    run(["man", "--out", "/dev/null/x"]).failure(3, &["/dev/null/x"]);
}
