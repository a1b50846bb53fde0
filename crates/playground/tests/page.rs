//! What lies in `docs/playground` is what these sources make.

use std::{fs, path::PathBuf};

use regard_playground::Playground;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Of numbers that are at most 1 in magnitude, relative to larger ones; `check.mjs` has the same for the module.
const BOUND: f64 = 1e-5;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/playground"))
}

/// The module is a binary that is made where there is a compiler for it: what it computes is compared with `figures.json` by
/// `check.mjs`, and that file with these sources here.
#[test]
fn figures_are_what_these_sources_compute() {
    let file = |name: &str| fs::read(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let figures: Vec<Value> = serde_json::from_slice(&file("figures.json")).unwrap();
    let mut loaded: Option<(String, Playground)> = None;
    for figure in &figures {
        let (model, request) = (figure["model"].as_str().unwrap(), &figure["request"]);
        if loaded.as_ref().is_none_or(|(name, _)| name != model) {
            let [config, weights, tokenizer] =
                ["config.json", "safetensors", "tokenizer.json"].map(|end| file(&format!("{model}.{end}")));
            loaded = Some((model.to_owned(), Playground::new(&config, &weights, &tokenizer).unwrap()));
        }
        let answer = loaded.as_mut().unwrap().1.answer(&request.to_string()).unwrap();
        let words: Value = serde_json::from_str(&answer.text).unwrap();
        for key in ["tokens", "label", "sizes"] {
            assert!(
                figure["words"][key].is_null() || figure["words"][key] == words[key],
                "{key} of {request}: {words}"
            );
        }
        assert_eq!(figure["count"], answer.numbers.len(), "{request}");
        let last = figure["last"].as_array().unwrap();
        for (want, seen) in last.iter().zip(&answer.numbers[answer.numbers.len() - last.len()..]) {
            let (want, seen) = (want.as_f64().unwrap(), f64::from(*seen));
            let error = (seen - want).abs() / want.abs().max(1.0);
            assert!(
                error < BOUND,
                "{seen}, expected {want} of {request}; rebuild by docs/playground/build and the example figures"
            );
        }
    }
    assert!(figures.len() > 20);
}

#[test]
fn the_module_is_of_these_sources() {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let mut paths: Vec<PathBuf> = fs::read_dir(sources).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut digest = Sha256::new();
    paths.iter().for_each(|path| digest.update(fs::read(path).unwrap()));
    let seen: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let recorded = fs::read_to_string(folder().join("playground.sources")).unwrap();
    assert_eq!(recorded.trim(), seen, "playground.wasm.gz is of other sources; rebuild by docs/playground/build");
}
