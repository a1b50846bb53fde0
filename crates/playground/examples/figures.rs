//! Writes `docs/playground/figures.json`, which `docs/playground/check.mjs` compares with what the WebAssembly module
//! computes: requests, and the numbers of their answers on this machine.

#![allow(clippy::print_stdout)]

use std::path::Path;

use regard_playground::Playground;
use serde_json::{Value, json};

/// A text with several sentences, and a name more than once.
const TEXT: &str = "Once upon a time, there was a little girl named Lily. Lily had a red ball.";

/// Digits of a number that are kept: beyond those of float32.
const DIGITS: f64 = 1e7;

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/playground");
    let file = |name: &str| std::fs::read(folder.join(name)).expect("a file of the playground");
    let load = |model: &str| {
        let [config, weights, tokenizer] =
            ["config.json", "safetensors", "tokenizer.json"].map(|end| file(&format!("{model}.{end}")));
        Playground::new(&config, &weights, &tokenizer).expect("a model of the playground")
    };
    let mut requests = vec![json!({"do": "read", "text": TEXT})];
    let mechanisms = [
        json!({"mechanism": "softmax"}),
        json!({"mechanism": "gaussian"}),
        json!({"mechanism": "cosine"}),
        json!({"mechanism": "linear"}),
        json!({"mechanism": "performer", "budget": 0.5}),
        json!({"mechanism": "sparse", "support": {"kind": "local"}, "budget": 0.25}),
        json!({"mechanism": "sparse", "support": {"kind": "longformer", "globals": 1}, "budget": 0.25}),
        json!({"mechanism": "sparse", "support": {"kind": "smyrf"}, "budget": 0.5}),
        json!({"mechanism": "scatterbrain", "support": {"kind": "local"}, "budget": 0.5}),
        json!({"mechanism": "scatterbrain", "support": {"kind": "smyrf"}, "budget": 0.5}),
    ];
    for (n, options) in mechanisms.iter().enumerate() {
        let (layer, head) = (n % 5, n % 8);
        requests.push(json!({"do": "compare", "layer": layer, "head": head, "options": options, "seed": 1}));
        requests.push(json!({"do": "errors", "options": options, "seed": 1}));
    }
    let mut page = load("stories260k");
    let stories = requests.into_iter().map(|request| figure("stories260k", &mut page, request));
    let mut figures: Vec<Value> = stories.collect();
    let mut page = load("char-lm");
    let local = json!({"mechanism": "sparse", "support": {"kind": "local"}, "budget": 0.25});
    let requests = [
        json!({"do": "read", "text": "ROMEO:\nBut soft, what light through yonder window breaks?"}),
        json!({"do": "compare", "layer": 1, "head": 2, "options": local, "seed": 1}),
        json!({"do": "errors", "options": local, "seed": 1}),
    ];
    figures.extend(requests.into_iter().map(|request| figure("char-lm", &mut page, request)));
    let text: Vec<String> = figures.iter().map(Value::to_string).collect();
    std::fs::write(folder.join("figures.json"), format!("[\n{}\n]\n", text.join(",\n"))).expect("a place for figures");
    println!("{} requests", figures.len());
}

/// A request, and the last numbers of its answer: outputs of kernels, or the logits of the last token.
fn figure(model: &str, page: &mut Playground, request: Value) -> Value {
    let answer = page.answer(&request.to_string()).expect("an answer");
    let kept = answer.numbers.len().saturating_sub(512);
    let rounded = |x: &f32| (f64::from(*x) * DIGITS).round() / DIGITS;
    let numbers: Vec<f64> = answer.numbers[kept..].iter().map(rounded).collect();
    let text: Value = serde_json::from_str(&answer.text).expect("JSON");
    let words =
        json!({"tokens": text["tokens"], "label": text["label"], "sizes": text["sizes"], "entropy": text["entropy"]});
    json!({"model": model, "request": request, "count": answer.numbers.len(), "last": numbers, "words": words})
}
