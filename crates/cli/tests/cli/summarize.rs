//! Summaries from the files of a task to lines of text.

use std::{
    fs::{self, File},
    path::Path,
};

use tempfile::TempDir;

use crate::program::{Ended, argument, regard, run};

const USAGE: i32 = 2;
const DATA: i32 = 3;

const WORDS: [&str; 8] = ["sun", "moon", "tree", "river", "stone", "cloud", "bird", "grass"];

/// `count` documents of two sentences, whose summary is the first.
fn write_documents(folder: &Path, name: &str, count: usize, mut state: u64) {
    let mut draw = |most: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most
    };
    let mut lines = String::new();
    for _ in 0..count {
        let [first, second] = [0, 1].map(|_| format!("{} {}", WORDS[draw(8)], WORDS[draw(8)]));
        lines += &format!("{{\"source\": [\"{first} .\", \"{second} .\"], \"target\": [\"{second}\"]}}\n");
    }
    fs::write(folder.join(format!("{name}.jsonl")), lines).unwrap();
}

#[test]
fn a_model_learns_what_comes_last_and_summarises_files_and_lines() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    for (name, count, state) in [("train", 800, 1), ("dev", 30, 2), ("test", 30, 3)] {
        write_documents(&data, name, count, state);
    }
    let directory = format!("task.summary.directory={}", argument(&data));
    let sets = [
        &*directory,
        "task.summary.vocabulary=300",
        "task.summary.max_document=16",
        "task.summary.max_summary=8",
        "model.width=48",
        "model.layers=1",
        "model.feed_forward=96",
        "model.dropout=0",
        "train.steps=500",
        "train.batch=32",
        "train.evaluate_every=250",
        "train.schedule.warmup=50",
        "train.optimizer.learning_rate=5e-3",
    ];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let out = argument(folder.path().join("run"));
    let train = [&["train", "--preset", "scitldr", "--mechanism", "mgk", "--quiet", "--out", &out], &sets[..]].concat();
    let refused = |further: &str, code: i32, parts: &[&str]| {
        run([&train[..], &["--set", further]].concat()).failure(code, parts);
    };
    refused("train.shortest=9", USAGE, &["shortest is 9", "at most 8"]);
    refused("task.summary.valid=other.jsonl", DATA, &["other.jsonl", "check the path"]);
    refused("cross.mechanism=fastformer", USAGE, &["cross attention", "fastformer"]);
    let broken = data.join("broken.jsonl");
    fs::write(&broken, "{\"source\": [\"sun .\"], \"target\": [\"sun\"]}\n{\"source\": [\"moon").unwrap();
    refused(
        "task.summary.test=broken.jsonl",
        DATA,
        &["broken.jsonl:2: ends in the middle of its JSON", "fetch it again"],
    );

    let printed = run(&train).success();
    assert!(printed.contains("ROUGE       ") && printed.contains("(the first 1 sentence of a document)"), "{printed}");
    let score = |text: &str, name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    assert!(score(&printed, "ROUGE") > 90.0 && score(&printed, "lead") < 50.0, "{printed}");
    let eval = run(["eval", &out]).success();
    let lines = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("ROUGE") || line.starts_with("lead")).map(String::from).collect()
    };
    assert_eq!(lines(&eval), lines(&printed));
    let json = run(["eval", &out, "--split", "valid", "--json"]).json();
    assert!(json["rouge"]["model"]["rouge_l"].as_f64().unwrap() > 90.0 && json["bleu"].is_null(), "{json}");
    let page = fs::read_to_string(folder.path().join("run/report.html")).unwrap();
    assert!(page.contains("test ROUGE-2") && page.contains("test ROUGE-L of the first sentences (1)"));

    // The data may go: the run holds what it takes.
    fs::remove_dir_all(&data).unwrap();
    let input = folder.path().join("lines.txt");
    fs::write(&input, "sun moon . tree river .\n\nbird sun . moon stone .\n").unwrap();
    let summarize = |further: &[&str]| {
        let mut command = regard([&["summarize", &out], further].concat());
        Ended::of(command.stdin(File::open(&input).unwrap()))
    };
    assert_eq!(summarize(&[]).success(), "tree river\n\nmoon stone\n");
    assert_eq!(summarize(&["--beam", "1", "--batch", "1"]).success(), "tree river\n\nmoon stone\n");
    assert_eq!(summarize(&["--json"]).json()["summaries"][2]["summary"], "moon stone");
    let [one, other] = ["one.txt", "other.txt"].map(|name| argument(folder.path().join(name)));
    fs::write(&one, "cloud\nbird .\n\nsun grass .\n").unwrap();
    fs::write(&other, "sun moon . tree river . ".repeat(9)).unwrap();
    let files = summarize(&[&one, &other]);
    assert!(files.stderr.contains("other.txt is longer than the model's 16 tokens and was cut"), "{files:?}");
    assert!(files.success().starts_with("sun grass\n"));
    let json = summarize(&["--json", "--quiet", &one]).json();
    assert_eq!((&json["summaries"][0]["file"], &json["summaries"][0]["summary"]), (&one.into(), &"sun grass".into()));
    let longer = summarize(&["--shortest", "6"]).success();
    assert_ne!(longer.lines().next(), Some("tree river"));
    summarize(&["--shortest", "9"]).failure(USAGE, &["shortest is 9", "at most 8"]);
    summarize(&["absent.txt"]).failure(DATA, &["absent.txt"]);
    run(["translate", &out]).failure(USAGE, &["holds a run of summary", "use regard summarize"]);
}
