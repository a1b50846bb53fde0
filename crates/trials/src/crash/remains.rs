//! What a run leaves that must not depend on what happened to it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// Keys that tell of time, memory and what follows from them.
const OF_THE_MACHINE: [&str; 11] = [
    "peak memory",
    "inference",
    "milliseconds",
    "tokens_per_second",
    "peak_bytes",
    "seconds",
    "sequences_per_second",
    "milliseconds_per_step",
    "train_seconds",
    "environment",
    "sha256",
];

/// Files by name below a directory, without what tells of the machine.
pub fn remains(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    gather(directory, directory, &mut all);
    all
}

fn gather(root: &Path, directory: &Path, all: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && name != "plots" {
            gather(root, &path, all);
        }
        let leftover = name.ends_with(".tmp") || name == ".lock";
        let kept = ["metrics.jsonl", "config.toml", "results.json", "result.json", "state.json", "last", "best"]
            .contains(&&*name)
            || name.ends_with(".safetensors");
        if leftover || kept && path.is_file() {
            let bytes = fs::read(&path).unwrap_or_default();
            let bytes = if name.contains(".json") { of_the_model(&bytes) } else { bytes };
            all.insert(path.strip_prefix(root).expect("below").into(), bytes);
        }
    }
}

/// JSON, a value or one per line, without what tells of the machine.
fn of_the_model(bytes: &[u8]) -> Vec<u8> {
    let values = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
    let text = values.map(|value| match value {
        Ok(mut value) => {
            strip(&mut value);
            value.to_string()
        }
        Err(error) => error.to_string(),
    });
    text.collect::<Vec<_>>().join("\n").into_bytes()
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            // A digest of tensors tells of the model, but the tensors are compared themselves.
            map.retain(|key, value| {
                let time_of_a_step = key == "step" && value.is_object();
                !OF_THE_MACHINE.contains(&key.as_str()) && key != "command" && !time_of_a_step
            });
            map.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

/// The first difference, as a sentence.
pub fn difference(seen: &Path, expected: &Path) -> Option<String> {
    let [seen, expected] = [seen, expected].map(remains);
    let beyond = |all: &BTreeMap<PathBuf, Vec<u8>>, other: &BTreeMap<PathBuf, Vec<u8>>| {
        all.keys().find(|name| !other.contains_key(*name)).map(|name| name.display().to_string())
    };
    if let Some(name) = beyond(&seen, &expected) {
        return Some(format!("{name} should not be there"));
    }
    if let Some(name) = beyond(&expected, &seen) {
        return Some(format!("{name} is missing"));
    }
    let (name, _) = seen.iter().find(|(name, bytes)| expected[*name] != **bytes)?;
    Some(format!("{} differs", name.display()))
}
