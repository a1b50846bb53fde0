//! A character language model from a text of the user's, and the text it prints.

use std::{fs, path::Path};

use tempfile::TempDir;

use crate::program::{Ended, argument, regard, run};

const USAGE: i32 = 2;

/// Trains a tiny model on a tiny text, below `folder`; returns the directory of its run.
pub fn trained(folder: &Path, mechanism: &str) -> String {
    let text = folder.join("text.txt");
    let line = "the cat sat on the mat, the dog sat on the log.\n";
    fs::write(&text, line.repeat(60)).unwrap();
    let out = argument(folder.join(mechanism));
    let mut command = regard(["train", "--preset", "char-lm", "--quiet", "--json", "--mechanism", mechanism]);
    for assignment in [
        "heads=2",
        "model.width=16",
        "model.layers=2",
        "model.feed_forward=32",
        "model.dropout=0",
        "task.char_lm.context=16",
        "train.steps=60",
        "train.schedule.warmup=5",
        "train.optimizer.learning_rate=1e-2",
        "train.evaluate_every=30",
        "train.checkpoint_every=30",
    ] {
        command.args(["--set", assignment]);
    }
    command.arg("--set").arg(format!("task.char_lm.path={}", text.display())).args(["--out", &out]);
    let result = Ended::of(&mut command).json();
    // Uniform guesses among the 16 characters of the text have a perplexity of 16.
    let perplexity = result["test"]["perplexity"].as_f64().unwrap();
    assert!(perplexity < 8.0, "{mechanism}: {perplexity}");
    out
}

/// Text that `generate` prints, without the line end that closes it.
#[track_caller]
fn generate(run_directory: &str, further: &[&str]) -> String {
    let mut command = regard(["generate", run_directory, "--quiet"]);
    let text = Ended::of(command.args(further)).success();
    text.strip_suffix('\n').expect("a line end").to_owned()
}

#[test]
fn text_continues_the_prompt_and_depends_on_the_seed_alone() {
    let folder = TempDir::new().unwrap();
    let out = trained(folder.path(), "softmax");
    // Longer than the context of 16, so that it has to start over.
    let arguments = ["--prompt", "the c", "--tokens", "60", "--seed", "3", "--temperature", "1"];
    let first = generate(&out, &arguments);
    assert!(first.starts_with("the c"), "{first:?}");
    assert_eq!(first.chars().count(), 65, "{first:?}");
    assert!(first.chars().all(|c| "the cat sat on the mat, the dog sat on the log.\n".contains(c)), "{first:?}");
    assert_eq!(generate(&out, &arguments), first);
    let other = ["--prompt", "the c", "--tokens", "60", "--seed", "4", "--temperature", "1"];
    assert_ne!(generate(&out, &other), first);
    // Without randomness the seed is of no matter.
    let certain = |seed: &str| generate(&out, &["--tokens", "40", "--temperature", "0", "--seed", seed]);
    assert_eq!(certain("1"), certain("2"));
    assert_eq!(generate(&out, &["--prompt", "dog", "--tokens", "0"]), "dog");

    let json = run([&["generate", &out, "--json"], &arguments[..]].concat()).json();
    assert_eq!(json["text"], first);

    // A perplexity says over what it was taken: windows of 16 one after the other, each token but the first of all.
    let eval = run(["eval", &out, "--json"]).json();
    assert_eq!((&eval["context"], &eval["stride"]), (&16.into(), &16.into()), "{eval}");
    assert!(eval["scored_tokens"] == eval["items"] && eval["items"].as_u64() > Some(16), "{eval}");
    let told = run(["eval", &out]).success();
    let scored = format!("context     16 tokens, stride 16\nscored      {} tokens\n", eval["items"]);
    assert!(told.contains(&scored), "{scored} in {told}");
    // The state of so short a text, in a quarter of the bytes and a factor a head and token.
    let bytes = |json: &serde_json::Value| json["state_bytes"].as_u64().unwrap();
    let small = run([&["generate", &out, "--json", "--kv-cache", "int8"], &arguments[..]].concat()).json();
    assert!(0 < bytes(&small) && bytes(&small) < bytes(&json) / 2, "{small} {json}");
}

#[test]
fn every_kind_of_decode_state_continues_as_the_whole_would() {
    let folder = TempDir::new().unwrap();
    for mechanism in ["mgk", "smlk", "fastformer"] {
        let out = trained(folder.path(), mechanism);
        let text = generate(&out, &["--prompt", "the ", "--tokens", "30", "--temperature", "0"]);
        assert_eq!(text.chars().count(), 34, "{mechanism}: {text:?}");
        // The last step and the best differ at most in their parameters.
        generate(&out, &["--checkpoint", "last", "--tokens", "5"]);
    }
}

#[test]
fn prompts_and_temperatures_that_cannot_be() {
    let folder = TempDir::new().unwrap();
    let out = trained(folder.path(), "linear");
    run(["generate", &out, "--prompt", "the Zoo"]).failure(USAGE, &["--prompt", "'Z'", "vocabulary"]);
    // A text, not an option.
    run(["generate", &out, "--prompt", "- the"]).failure(USAGE, &["--prompt", "'-'", "vocabulary"]);
    run(["generate", &out, "--prompt", ""]).failure(USAGE, &["--prompt is empty"]);
    run(["generate", &out, "--temperature", "-1"]).failure(USAGE, &["--temperature is -1"]);
    run(["generate", &out, "--temperature", "-inf"]).failure(USAGE, &["--temperature is -inf"]);
    run(["generate", &out, "--tokens", "-5"]).failure(USAGE, &["--tokens is -5, expected at least 0"]);
    run(["generate", &out, "--temperature=-1"]).failure(USAGE, &["--temperature is -1"]);
    run(["generate", &out, "--temperature", "nan"]).failure(USAGE, &["--temperature is NaN"]);
}

#[test]
#[cfg(unix)]
fn a_reader_that_has_enough_ends_the_text() {
    let folder = TempDir::new().unwrap();
    let out = trained(folder.path(), "mlk");
    let mut running = crate::program::Running::start(&mut regard(["generate", &out, "--tokens", "2000"]));
    running.close_stdout();
    let ended = running.end();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

#[test]
fn a_text_of_other_characters_is_another_vocabulary() {
    let folder = TempDir::new().unwrap();
    let out = trained(folder.path(), "softmax");
    let path = folder.path().join("text.txt");
    let before = fs::read_to_string(&path).unwrap();
    // As many characters as before.
    fs::write(&path, before.replace('t', "z")).unwrap();
    let refusal = ["characters.json", "not the vocabulary of these data", "put them back"];
    run(["eval", &out, "--quiet"]).failure(3, &refusal);
    run(["generate", &out, "--prompt", "the", "--quiet"]).failure(3, &refusal);
    run(["train", "--resume", "--out", &out, "--quiet"]).failure(3, &refusal[..2]);
    fs::write(&path, before).unwrap();
    run(["eval", &out, "--quiet"]).success();
}
