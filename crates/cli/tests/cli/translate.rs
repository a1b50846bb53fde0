//! Translation from the files of a task to lines of text, and what the experts of the model do.

use std::{
    fs::{self, File},
    path::Path,
};

use tempfile::TempDir;

use crate::program::{Ended, argument, regard, run, text};

const USAGE: i32 = 2;
const DATA: i32 = 3;

/// A language of ten words, and another.
const WORDS: [(&str, &str); 10] = [
    ("one", "eins"),
    ("two", "zwei"),
    ("three", "drei"),
    ("four", "vier"),
    ("five", "fünf"),
    ("six", "sechs"),
    ("seven", "sieben"),
    ("eight", "acht"),
    ("nine", "neun"),
    ("ten", "zehn"),
];

/// `count` sentences of two to four words, word by word in both languages.
fn write_pairs(folder: &Path, name: &str, count: usize, mut state: u64) {
    let mut draw = |most: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most
    };
    let (mut source, mut target) = (String::new(), String::new());
    for _ in 0..count {
        let words: Vec<_> = (0..2 + draw(3)).map(|_| WORDS[draw(WORDS.len())]).collect();
        source += &(words.iter().map(|word| word.0).collect::<Vec<_>>().join(" ") + "\n");
        target += &(words.iter().map(|word| word.1).collect::<Vec<_>>().join(" ") + "\n");
    }
    fs::write(folder.join(format!("{name}.en")), source).unwrap();
    fs::write(folder.join(format!("{name}.de")), target).unwrap();
}

/// Options of a small translator on the pairs in `data`.
fn options(data: &Path) -> Vec<String> {
    let directory = format!("task.translation.directory={}", argument(data));
    let sets = [
        &*directory,
        "task.translation.test=test",
        "task.translation.vocabulary=320",
        "task.translation.max_length=16",
        "model.width=32",
        "model.layers=1",
        "model.feed_forward=64",
        "model.dropout=0",
        "train.steps=600",
        "train.batch=32",
        "train.evaluate_every=200",
        "train.average=0",
        "train.schedule.warmup=50",
        "train.optimizer.learning_rate=1e-2",
        "moa.experts=6",
        "moa.active=2",
    ];
    sets.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]).collect()
}

#[test]
fn a_translator_learns_ten_words_and_its_experts_can_be_looked_at() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    for (name, count, state) in [("train", 600, 1), ("val", 40, 2), ("test", 40, 3)] {
        write_pairs(&data, name, count, state);
    }
    let out = folder.path().join("run");
    let mut train = regard(["train", "--preset", "translation", "--mechanism", "moa", "--quiet", "--json", "--out"]);
    let result = Ended::of(train.arg(&out).args(options(&data))).json();
    let bleu = result["test"]["bleu"].as_f64().unwrap();
    assert!(bleu > 90.0, "{result}");

    // The data may go: the run holds what it takes.
    let path = argument(&out);
    let eval = run(["eval", &path]).success();
    assert!(eval.contains(&format!("BLEU = {bleu:.2}")) && eval.contains("tok:13a"), "{eval}");
    let input = folder.path().join("lines.txt");
    fs::write(&input, "two nine\n\nseven three one\n").unwrap();
    let translate = |further: &[&str]| {
        let mut command = regard([&["translate", &path], further].concat());
        Ended::of(command.stdin(File::open(&input).unwrap()))
    };
    assert_eq!(translate(&[]).success(), "zwei neun\n\nsieben drei eins\n");
    assert_eq!(translate(&["--beam", "1", "--batch", "1"]).success(), "zwei neun\n\nsieben drei eins\n");
    let json = translate(&["--json"]).json();
    assert_eq!(json["translations"][0]["translation"], "zwei neun");
    #[cfg(target_os = "linux")]
    for json in [&[][..], &["--json"]] {
        let mut command = regard(["translate", &path]);
        command.args(json).stdin(File::open(&input).unwrap()).stdout(crate::program::full());
        Ended::of(&mut command).failure(DATA, &["cannot write to standard output"]);
    }
    translate(&["--beam", "18446744073709551615"]).failure(USAGE, &["beam is 18446744073709551615", "at most 4096"]);
    translate(&["--beam", "0"]).failure(USAGE, &["beam is 0", "at least 1"]);
    fs::write(&input, [0xff, b'\n']).unwrap();
    translate(&[]).failure(DATA, &["standard input:1: is not UTF-8 from byte 0 (0xff)"]);
    fs::write(&input, "\u{feff}two nine\r\nseven three one\r\n").unwrap();
    assert_eq!(translate(&[]).success(), "zwei neun\nsieben drei eins\n");
    fs::write(&input, b"\xff\xfet\0w\0o\0\n\0").unwrap();
    translate(&[]).failure(DATA, &["standard input:1: is UTF-16LE", "iconv -f UTF-16LE -t UTF-8"]);

    let report = folder.path().join("experts");
    let inspected = run(["inspect", &path, "--experts", "--least", "5", "--out", &argument(&report)]).success();
    for part in ["encoder 1", "decoder 1", "decoder 1, cross", "balance loss", "(", "report: "] {
        assert!(inspected.contains(part), "{part} in {inspected}");
    }
    assert!(
        text(report.join("report.html")).contains("Load of experts") && report.join("plots/load-cross.svg").is_file()
    );
    let json = run(["inspect", &path, "--experts", "--json"]).json();
    for router in json["routers"].as_array().unwrap() {
        let shares: Vec<f64> =
            router["load"]["shares"].as_array().unwrap().iter().map(|share| share.as_f64().unwrap()).collect();
        assert!(shares.len() == 6 && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{router}");
    }
    fs::remove_dir_all(&data).unwrap();
    run(["inspect", &path, "--experts"]).failure(DATA, &["train"]);
    run(["inspect", &path]).failure(DATA, &["train"]);
}

#[test]
fn attention_that_cannot_stand_where_it_is_asked_to_is_named_with_its_place() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    for name in ["train", "val", "test"] {
        write_pairs(&data, name, 40, 1);
    }
    let train = |further: &[&str]| {
        let mut command = regard(["train", "--preset", "translation", "--quiet", "--out"]);
        Ended::of(command.arg(folder.path().join("run")).args(options(&data)).args(further))
    };
    let cross = ["--set", "cross.mechanism=fastformer"];
    train(&cross).failure(USAGE, &["cross attention", "fastformer", "second sequence"]);
    train(&["--set", "decoder.mechanism=sparse", "--set", "decoder.support.kind=smyrf"])
        .failure(USAGE, &["decoder attention", "smyrf"]);
    fs::remove_file(data.join("val.de")).unwrap();
    train(&[]).failure(DATA, &["val.de"]);
}
