//! The task lm from the command line: every command on it, and texts that cannot be used.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ended, argument, regard, run, text};

const USAGE: i32 = 2;
const DATA: i32 = 3;

/// A folder with the three files of a WikiText.
pub fn wikitext(folder: &Path) -> PathBuf {
    let path = folder.join("wikitext");
    fs::create_dir(&path).unwrap();
    let sentences =
        [" the cat sat on the mat . \n", " \n = A dog = \n", " the dog sat on the log , the <unk> log . \n"];
    for (part, repeats) in [("train", 60), ("valid", 6), ("test", 7)] {
        fs::write(path.join(format!("wiki.{part}.tokens")), sentences.concat().repeat(repeats)).unwrap();
    }
    path
}

const SMALL: [&str; 9] = [
    "heads=2",
    "model.width=16",
    "model.feed_forward=32",
    "task.name=lm",
    "task.lm.context=16",
    "task.lm.vocabulary=300",
    "train.batch=4",
    "train.steps=40",
    "train.optimizer.learning_rate=1e-2",
];

pub fn with(command: &str, further: &[String]) -> std::process::Command {
    // Its keys of ListOps are of no matter here.
    let mut command = regard([command, "--quiet", "--preset", "smoke"]);
    let schedule = ["train.evaluate_every=20", "train.checkpoint_every=20", "train.schedule.warmup=4"];
    for assignment in SMALL.iter().chain(&schedule) {
        command.args(["--set", assignment]);
    }
    for assignment in further {
        command.args(["--set", assignment]);
    }
    command
}

fn setting(directory: &Path, tokens: &str) -> Vec<String> {
    vec![format!("task.lm.directory={}", directory.display()), format!("task.lm.tokens={tokens}")]
}

fn trained(folder: &Path, directory: &Path, tokens: &str, further: &[&str]) -> (String, Value) {
    let out = argument(folder.join(tokens));
    let mut all = setting(directory, tokens);
    all.extend(further.iter().map(|one| one.to_string()));
    let json = Ended::of(with("train", &all).args(["--json", "--out", &out])).json();
    (out, json)
}

#[test]
fn words_are_trained_evaluated_inspected_and_continued() {
    let folder = TempDir::new().unwrap();
    let directory = wikitext(folder.path());
    let further = ["task.lm.stride=4", "model.adaptive_softmax.cutoffs=6,10", "model.adaptive_softmax.factor=2"];
    let (out, json) = trained(folder.path(), &directory, "words", &further);
    let test = &json["test"];
    // 14 words, three of them in each of two clusters and more.
    assert!(test["perplexity"].as_f64().unwrap() < 6.0, "{json}");
    assert_eq!((&test["language"]["stride"], &test["language"]["context"]), (&4.into(), &16.into()), "{json}");
    assert!(test["language"].get("bits_per_byte").is_none(), "words do not spell: {json}");
    // Seven times 22 words and four line ends, but for the first.
    assert_eq!(test["items"], 7 * 26 - 1, "{json}");
    let words = text(folder.path().join("words/vocabulary.txt"));
    assert_eq!(words.lines().next(), Some("the"));
    assert!(
        text(folder.path().join("words/report.html")).contains("Test split by position in windows of 16, stride 4")
    );

    let evaluated = run(["eval", &out, "--stride", "1", "--json"]).json();
    assert_eq!((&evaluated["stride"], &evaluated["scored_tokens"]), (&1.into(), &(7 * 26 - 1).into()), "{evaluated}");
    let last = evaluated["language"]["positions"].as_array().unwrap().last().unwrap();
    assert_eq!(last["tokens"], 7 * 26 - 1 - 15, "{evaluated}");
    let told = run(["eval", &out, "--split", "valid"]).success();
    let lines = [
        "context     16 tokens, stride 16",
        "scored      155 tokens",
        "tokens before      scored  perplexity",
        "    16 to 16",
    ];
    lines.iter().for_each(|line| assert!(told.contains(line), "{line} in {told}"));
    run(["eval", &out, "--stride", "17"]).failure(USAGE, &["task.lm.stride: is 17; must be from 1 to task.lm.context"]);

    let said = run(["generate", &out, "--prompt", "the cat", "--tokens", "12", "--seed", "1"]).success();
    assert!(
        said.starts_with("the cat ") && said.split_whitespace().all(|word| words.lines().any(|own| own == word)),
        "{said}"
    );
    assert_eq!(
        run(["generate", &out, "--prompt", "a zebra", "--tokens", "12", "--json"]).json()["text"]
            .as_str()
            .map(|text| text.starts_with("<unk> <unk>")),
        Some(true)
    );
    // Another text with as many words is another vocabulary.
    let train = PathBuf::from(&directory).join("wiki.train.tokens");
    let before = fs::read_to_string(&train).unwrap();
    fs::write(&train, before.replace("cat", "cow")).unwrap();
    run(["eval", &out, "--quiet"])
        .failure(DATA, &["vocabulary.txt", "not the vocabulary of these data", "put them back"]);
    fs::write(&train, before).unwrap();
    let inspected = run(["inspect", &out, "--quiet", "--sequences", "3"]).success();
    assert!(inspected.contains("Entropy"), "{inspected}");
    let probe = run(["probe", "--run", &out, "--quiet"]);
    assert!(probe.code != Some(101), "{probe:?}");

    // On with the run, which has all its steps; then with another text.
    let mut all = setting(&directory, "words");
    all.extend(further.map(String::from));
    all.push("train.steps=44".into());
    let on = Ended::of(with("train", &all).args(["--json", "--resume", "--out", &out])).json();
    assert_eq!(on["steps"], 44);
    let path = directory.join("wiki.train.tokens");
    fs::write(&path, text(&path).replace("cat", "fox")).unwrap();
    Ended::of(with("train", &all).args(["--json", "--resume", "--out", &out])).failure(DATA, &["vocabulary"]);
}

#[test]
fn subwords_bytes_and_characters_say_what_a_byte_costs() {
    let folder = TempDir::new().unwrap();
    let directory = wikitext(folder.path());
    for tokens in ["subwords", "bytes", "characters"] {
        let (out, json) = trained(folder.path(), &directory, tokens, &[]);
        let figures = &json["test"]["language"];
        let bits = figures["bits_per_byte"].as_f64().unwrap();
        // Eight bits for a byte are a guess.
        assert!(bits < 5.0 && figures["bits_per_character"].as_f64() == Some(bits), "{tokens}: {json}");
        assert!(figures["perplexity_per_word"].as_f64().unwrap() > 1.0);
        let said = run(["generate", &out, "--prompt", "the ", "--tokens", "9", "--temperature", "0"]).success();
        assert!(said.starts_with("the ") && said.len() > 9, "{tokens}: {said:?}");
        let told = run(["eval", &out]).success();
        assert!(told.contains("bytes       ") && told.contains(" bits each"), "{told}");
    }
    run(["generate", &argument(folder.path().join("characters")), "--prompt", "Z"])
        .failure(USAGE, &["--prompt", "'Z'"]);
}

#[test]
fn comparisons_costs_and_presets() {
    let folder = TempDir::new().unwrap();
    let directory = wikitext(folder.path());
    let out = folder.path().join("compare");
    let mut all = setting(&directory, "subwords");
    all.extend(["compare.mechanisms=softmax,mgk", "train.steps=4"].map(String::from));
    let told = Ended::of(with("compare", &all).arg("--out").arg(&out)).success();
    assert!(told.contains("per byte") && told.contains("Test perplexity by the number of tokens before"), "{told}");
    assert!(text(out.join("report.html")).contains("Test perplexity by the number of tokens before"));
    let results: Value = serde_json::from_str(&text(out.join("results.json"))).unwrap();
    assert!(results["runs"][0]["test_language"]["bits_per_byte"].as_f64().is_some(), "{results}");

    let head = |further: &[&str]| {
        let json = run([&["cost", "--preset", "wikitext103-mgk", "--json"], further].concat()).json();
        json["cost"]["parts"].as_array().unwrap().iter().find(|part| part["name"] == "head").unwrap()["parameters"]
            .clone()
    };
    assert_eq!(head(&[]), 0, "tied");
    assert_eq!(head(&["--set", "model.tied_head=false"]), 267_735 * 128);
    let clusters = ["--set", "model.tied_head=false", "--set", "model.adaptive_softmax.cutoffs=20000,60000"];
    assert_eq!(head(&clusters), 128 * 20_002 + (128 * 32 + 32 * 40_000) + (128 * 8 + 8 * 207_735));
    let tied = ["cost", "--preset", "wikitext103-mgk", "--set", "model.adaptive_softmax.cutoffs=20000"];
    run(tied).failure(USAGE, &["model.tied_head is true, expected false with model.adaptive_softmax"]);
    let far = [
        "cost",
        "--preset",
        "austen",
        "--set",
        "model.tied_head=false",
        "--set",
        "model.adaptive_softmax.cutoffs=4000",
    ];
    run(far).failure(USAGE, &["model.adaptive_softmax.cutoffs is 4000"]);
    let classifier = ["train", "--preset", "smoke", "--set", "model.adaptive_softmax.cutoffs=3"];
    run(classifier).failure(USAGE, &["model.adaptive_softmax.cutoffs", "only language models"]);
    for preset in ["wikitext103-mgk", "wikitext103-scatterbrain", "austen"] {
        assert!(run(["config", "--preset", preset]).success().contains("[task.lm]"));
    }
    // What they need is not there.
    let nowhere = format!("task.lm.directory={}", argument(folder.path().join("nowhere")));
    run(["train", "--preset", "wikitext103-scatterbrain", "--set", &nowhere])
        .failure(DATA, &["cannot read", "nowhere"]);
}

#[test]
fn texts_that_cannot_be_used_are_named() {
    let folder = TempDir::new().unwrap();
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let out = argument(folder.path().join("out"));
    let fails = |assignments: &[String], code: i32, parts: &[&str]| {
        Ended::of(with("train", assignments).args(["--out", &out])).failure(code, parts);
        assert!(!Path::new(&out).exists(), "nothing is written for a text that cannot be read");
    };
    let train = |path: &Path| vec![format!("task.lm.train={}", path.display())];
    fails(&train(&put("a.txt", b"some\nte\xfft\n")), DATA, &["a.txt:2: is not UTF-8"]);
    fails(&train(&put("b.txt.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\x03KLJ")), DATA, &["b.txt.gz", "truncated or damaged"]);
    fails(
        &train(&put("c.jsonl", b"{\"txt\": \"x\"}\n")),
        DATA,
        &["c.jsonl:1: has no field 'text', only 'txt'", "task.lm.field"],
    );
    fails(&train(&put("d.txt", b"")), DATA, &["d.txt", "no text"]);
    fails(&train(&put("e.txt", b"one\n")), DATA, &["e.txt: leaves no text to", "on; give a longer text"]);
    let mut short = train(&put("h.txt", "one two\n".repeat(20).as_bytes()));
    short.extend(["task.lm.tokens=words".into(), "task.lm.context=70".into()]);
    fails(&short, DATA, &["h.txt: leaves 54 words to train on, at least 71 are needed", "task.lm.context"]);
    fails(
        &train(&put("f.parquet", b"PAR1")),
        DATA,
        &["f.parquet is a Parquet file".replace(" is", ": is").as_str(), "python3"],
    );
    let directory = wikitext(folder.path());
    fs::remove_file(directory.join("wiki.train.tokens")).unwrap();
    fails(&setting(&directory, "words"), DATA, &["has no wiki.train.tokens", "task.lm.train=FILE"]);
    let long = put("g.txt", "word ".repeat(100).as_bytes());
    let mut many = train(&long);
    many.extend(["task.lm.tokens=words".into(), "train.batch=64".into()]);
    Ended::of(with("train", &many).args(["--out", &out]))
        .failure(USAGE, &["task.lm.batches: streams of 64 rows", "train.batch"]);
    run(["eval", &out, "--stride", "3"]).failure(DATA, &["holds no run"]);
}
