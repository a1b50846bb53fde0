//! Files that runs leave and later commands read.

use std::path::Path;

use regard_lab::{
    compare::{Comparison, RunResult},
    record::Shown,
    reproduce::{self, ENTRIES, Outcome, Scale},
};
use regard_tasks::{
    data::TextTokenizer,
    train::{
        Environment, Evaluation, HostTensor, HostTensors, Record, Split, StepReport, decode_tensors, encode_tensors,
    },
};
use serde_json::{Value, json};

use super::{Target, put, scratch};

const JSON: [&str; 14] =
    ["{", "}", "[", "]", ":", ",", "\"", "null", "true", "-", "e9", "\\u0000", "\\ud800", "{\"a\":"];

/// Tensors of checkpoints.
pub fn tensors() -> Target {
    let tensor = |shape: &[usize]| HostTensor { shape: shape.to_vec(), data: vec![1.5; shape.iter().product()] };
    let all = HostTensors::from([
        ("layers.0.attention.w_q".into(), tensor(&[2, 3])),
        ("empty".into(), tensor(&[0, 4])),
        ("scalar".into(), tensor(&[])),
    ]);
    let samples = vec![encode_tensors(&all)];
    let words = [&JSON[..], &["F32", "F64", "BF16", "data_offsets", "shape", "__metadata__"]].concat();
    Target::new("tensors", samples, &words, |input| decode_tensors(Path::new("fuzz"), input).is_ok())
}

/// Lines of `metrics.jsonl`.
pub fn metrics() -> Target {
    let directory = scratch();
    let step = StepReport {
        step: 1,
        loss: 0.3,
        learning_rate: 1e-3,
        gradient_norm: 2.0,
        milliseconds: 1.5,
        tokens_per_second: 10.0,
        peak_bytes: Some(7),
        loss_scale: Some(65_536.0),
        bytes_sent: Some(9),
        routers: Vec::new(),
    };
    let evaluation = Evaluation {
        step: 1,
        split: Split::Valid,
        loss: 0.3,
        accuracy: Some(0.25),
        classes: None,
        values: None,
        perplexity: None,
        bleu: None,
        rouge: None,
        ranking: None,
        averaged: None,
        language: None,
        items: 4,
        sequences: 4,
        seconds: 0.5,
    };
    let line = |record: &Record| serde_json::to_string(record).expect("plain numbers") + "\n";
    let sample = line(&Record::Step(step)) + &line(&Record::Evaluation(evaluation)) + "{\"kind\":";
    Target::new("metrics", vec![sample.into_bytes()], &JSON, move |input| {
        Record::read(&put(&directory, "metrics.jsonl", input)).is_ok()
    })
}

/// The result of a run of a comparison, and the tables made of it.
pub fn result() -> Target {
    let sample = json!({
        "label": "mgk", "seed": 1, "steps": 20, "test_accuracy": 0.5, "test_loss": 1.5, "test_perplexity": null,
        "parameters": 1000, "multiply_adds": 1e6, "milliseconds_per_step": 2.5, "peak_bytes": 1000,
        "sequences_per_second": 10.0, "train_seconds": 1.0, "curve": [[10, 0.4], [20, 0.5]], "training_loss": [[1, 2.0]]
    });
    let samples = vec![serde_json::to_vec_pretty(&sample).expect("JSON")];
    Target::new("result", samples, &JSON, |input| {
        let Ok(result) = serde_json::from_slice::<RunResult>(input) else { return false };
        let comparison = Comparison {
            labels: vec![result.label.clone()],
            results: vec![result],
            task: "listops".into(),
            setting: String::new(),
            majority: None,
            differences: None,
            command: String::new(),
            config: String::new(),
            environment: Environment::capture(None),
        };
        let _ = (comparison.table().to_text(), comparison.to_json());
        true
    })
}

/// The outcome of an entry of `reproduce`, and the page made of it.
pub fn outcome() -> Target {
    let directory = scratch();
    let entry = &ENTRIES[0];
    let folder = Outcome::directory(directory.path(), entry, Scale::Paper);
    std::fs::create_dir_all(&folder).expect("a directory");
    let environment = serde_json::to_value(Environment::capture(None)).expect("strings and numbers");
    let sample = json!({
        "name": entry.name, "scale": "paper", "paper_setting": "p", "setting": "s", "differences": ["d"], "verdict": "holds",
        "clauses": [{
            "text": "t", "of_paper": true, "verdict": "holds", "border": {"within": {"centre": 1.0, "margin": 0.1}}, "note": "n",
            "estimate": {
                "value": 1.0, "interval": [0.95, 1.05], "confidence": 0.95, "smallest": 0.07, "count": 3, "units": "seeds"
            }
        }],
        "statement": "x", "seconds": 1.0,
        "command": "c", "environment": environment, "tables": [Value::Null], "markdown": ["| a |"], "pictures": ["plots/a.svg"]
    });
    let samples = vec![serde_json::to_vec_pretty(&sample).expect("JSON")];
    Target::new("outcome", samples, &JSON, move |input| {
        std::fs::write(folder.join("outcome.json"), input).expect("a file in a temporary directory");
        let page = reproduce::page(directory.path(), "results").is_ok();
        let _ = reproduce::listing(directory.path()).map(|table| table.to_text());
        page && matches!(Outcome::read(directory.path(), entry, Scale::Paper), Ok(Some(_)))
    })
}

/// `tokenizer.json`, and texts through it.
pub fn tokenizer() -> Target {
    let directory = scratch();
    let texts = ["one two größer", "one two three one two"];
    let tokenizer = TextTokenizer::train(texts.into_iter(), 264).expect("a vocabulary");
    let words =
        [&JSON[..], &["BPE", "ByteLevel", "<pad>", "<s>", "added_tokens", "vocab", "merges", "Ġ", "id"]].concat();
    Target::new("tokenizer", vec![tokenizer.json().into()], &words, move |input| {
        let Ok(tokenizer) = TextTokenizer::load(&put(&directory, "tokenizer.json", input)) else { return false };
        let ids = tokenizer.encode("one two größer\0 <s>");
        let _ = (
            tokenizer.decode(&ids),
            tokenizer.decode(&[-1, 0, i32::MAX]),
            tokenizer.piece(i32::MAX),
            tokenizer.vocabulary(),
        );
        true
    })
}
