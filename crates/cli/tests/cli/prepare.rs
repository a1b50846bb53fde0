//! `regard data prepare`: texts are prepared, verified, trained on, and refused.

use std::fs;

use tempfile::TempDir;

use crate::{
    lm::{wikitext, with},
    program::{Ended, Running, argument, regard, run, text},
};

const CHECK: i32 = 1;
const USAGE: i32 = 2;
const DATA: i32 = 3;

#[test]
fn a_prepared_text_is_trained_on_evaluated_and_continued_as_the_text_itself() {
    let folder = TempDir::new().unwrap();
    let directory = wikitext(folder.path());
    for tokens in ["words", "subwords", "characters", "bytes"] {
        let (prepared, name) = (argument(folder.path().join(tokens)), format!("task.lm.tokens={tokens}"));
        let told = run([
            "data",
            "prepare",
            &argument(&directory),
            "--out",
            &prepared,
            "--tokens",
            tokens,
            "--vocabulary",
            "300",
        ]);
        let told = told.success();
        assert!(told.contains(&format!("{tokens}: {tokens}, a vocabulary of")) && told.contains("\ntest   "), "{told}");
        assert!(run(["data", "verify", &prepared]).success().contains("all as they should be"));
        let train = |setting: &[String], name: &str| {
            let out = argument(folder.path().join(format!("{tokens}-{name}")));
            (Ended::of(with("train", setting).args(["--json", "--out", &out])).json(), out)
        };
        let (direct, _) = train(&[format!("task.lm.directory={}", directory.display()), name], "direct");
        let (mapped, out) = train(&[format!("task.lm.prepared={prepared}")], "mapped");
        for figure in ["loss", "perplexity", "items", "language"] {
            assert_eq!(mapped["test"][figure], direct["test"][figure], "{tokens}: {figure}");
        }
        let evaluated = run(["eval", &out, "--json"]).json();
        assert_eq!(evaluated["loss"], mapped["test"]["loss"], "{evaluated}");
        let said = run(["generate", &out, "--prompt", "the cat", "--tokens", "8", "--seed", "1"]).success();
        assert!(said.starts_with("the cat"), "{said}");
        let kept = ["tokenizer.json", "vocabulary.txt"]
            .into_iter()
            .find(|name| folder.path().join(tokens).join(name).exists());
        if let Some(kept) = kept {
            assert_eq!(text(format!("{out}/{kept}")), text(format!("{prepared}/{kept}")));
        }
        let cost = Ended::of(with("cost", &[format!("task.lm.prepared={prepared}")]).arg("--json")).json();
        assert!(cost["total"]["parameters"].as_u64() == mapped["parameters"].as_u64(), "{cost} {mapped}");
    }
    fs::write(folder.path().join("bytes/train.bin"), "changed").unwrap();
    let prepared = argument(folder.path().join("bytes"));
    run(["data", "verify", &prepared]).stdout.contains("train.bin: SHA-256").then_some(()).unwrap();
    assert_eq!(run(["data", "verify", &prepared]).code, Some(CHECK));
    let out = argument(folder.path().join("bytes-mapped"));
    run(["eval", &out]).failure(DATA, &["train.bin: has 7 bytes, expected", "prepare the text again"]);
}

#[test]
fn options_and_folders_are_refused_in_a_sentence() {
    let folder = TempDir::new().unwrap();
    let directory = argument(wikitext(folder.path()));
    let file = argument(folder.path().join("text.txt"));
    fs::write(&file, "one two three\n".repeat(200)).unwrap();
    let out = argument(folder.path().join("out"));
    let prepare = |arguments: &[&str]| {
        let mut command = regard(["data", "prepare", "--quiet", "--out", &out]);
        Ended::of(command.args(arguments))
    };
    prepare(&[&file, "--vocabulary", "100"]).failure(USAGE, &["--vocabulary: is 100"]);
    prepare(&[&file, "--valid", "1.5"]).failure(USAGE, &["--valid: is 1.5; must lie between 0 and 1"]);
    prepare(&[&file, "--valid", "0.1", "--valid", "0.2"]).failure(USAGE, &["--valid is 0.1 and more"]);
    prepare(&[&directory, "--valid", "0.1"]).failure(USAGE, &["is laid out as WikiText"]);
    prepare(&[&file, "--tokens", "words", "--tokenizer", &file])
        .failure(USAGE, &["--tokenizer: is set", "--tokens=subwords"]);
    prepare(&[&file, "--test", "none.txt"]).failure(DATA, &["none.txt", "check the path"]);
    prepare(&["--tokens", "bytes"]).usage_failure(&["SOURCE"]);
    let parquet = argument(folder.path().join("a.parquet"));
    fs::write(&parquet, "PAR1").unwrap();
    let refused = if cfg!(feature = "parquet") {
        "cannot be read as Parquet"
    } else {
        "build this program with --features parquet"
    };
    prepare(&[&parquet]).failure(DATA, &["a.parquet", refused]);
    fs::write(folder.path().join("bad.txt"), b"one\ntwo\xff\n").unwrap();
    prepare(&[&argument(folder.path().join("bad.txt"))]).failure(DATA, &["bad.txt:2: is not UTF-8 from byte 7"]);
    assert!(!folder.path().join("out").exists() && !folder.path().join("out.part").exists());

    let same = ["text.txt: is in the train text and in the test text"];
    prepare(&[&file, "--tokens", "bytes", "--test", &file]).failure(DATA, &same);
    let other = argument(folder.path().join("other.txt"));
    fs::copy(&file, &other).unwrap();
    let told = prepare(&[&file, "--tokens", "bytes", "--valid", "0.1", "--test", &other, "--json"]).json();
    assert_eq!(
        (&told["tokens"], &told["parts"][1]["tokens"], &told["parts"][2]["tokens"]),
        (&"bytes".into(), &280.into(), &2800.into())
    );
    prepare(&[&file, "--tokens", "bytes"]).failure(USAGE, &["out holds a prepared text", "--overwrite"]);
    prepare(&[&file, "--tokens", "characters", "--overwrite"]).success();
    assert!(text(folder.path().join("out/prepared.json")).contains("\"characters\": \"\\n ehnortw\""));
    fs::write(folder.path().join("out/thesis.txt"), "mine").unwrap();
    prepare(&[&file, "--overwrite"]).failure(USAGE, &["out holds files that are not of a prepared text"]);
}

/// A killed run leaves nothing that is taken for a prepared text, and the next one goes its way.
#[cfg(unix)]
#[test]
fn a_killed_run_leaves_nothing_that_is_taken_for_whole() {
    let folder = TempDir::new().unwrap();
    let (file, out) = (folder.path().join("text.txt"), folder.path().join("out"));
    fs::write(&file, "some words of a text\n".repeat(1 << 20)).unwrap();
    let part = folder.path().join("out.part");
    let prepare =
        || regard(["data", "prepare", &argument(&file), "--out", &argument(&out), "--tokens", "words", "--quiet"]);
    let mut running = Running::start(&mut prepare());
    running.wait_until("a part was begun", || part.join("train.bin").exists());
    running.kill();
    assert!(!out.exists() && part.exists());
    run([
        "train",
        "--preset",
        "smoke",
        "--set",
        "task.name=lm",
        "--set",
        &format!("task.lm.prepared={}", part.display()),
    ])
    .failure(DATA, &["has no prepared.json"]);
    Ended::of(&mut prepare()).success();
    assert!(out.join("prepared.json").exists() && !part.exists());
}
