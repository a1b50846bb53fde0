//! What is fuzzed: for each parser valid samples, the words of its format, and a call.

mod attend;
mod configuration;
mod data;
mod records;
mod run_directory;
mod view;

use std::path::{Path, PathBuf};

use rand::{Rng, seq::IndexedRandom};
use regard_tasks::data::Streams;
use tempfile::TempDir;

use crate::mutate::{Stream, mutated};

/// Makes an input from valid parts.
type Make = Box<dyn Fn(&mut Stream) -> Vec<u8>>;

/// Tries an input.
type Call = Box<dyn Fn(&[u8]) -> bool>;

/// One target. A call returns whether the input was accepted; it must never panic.
pub struct Target {
    /// Its name on the command line and in tables.
    pub name: &'static str,
    samples: Vec<Vec<u8>>,
    words: Vec<&'static str>,
    /// Makes an input that knows the format, where bytes alone would rarely get far.
    make: Option<Make>,
    call: Call,
}

impl Target {
    fn new(
        name: &'static str,
        samples: Vec<Vec<u8>>,
        words: &[&'static str],
        call: impl Fn(&[u8]) -> bool + 'static,
    ) -> Self {
        Self { name, samples, words: words.to_vec(), make: None, call: Box::new(call) }
    }

    fn making(self, make: impl Fn(&mut Stream) -> Vec<u8> + 'static) -> Self {
        Self { make: Some(Box::new(make)), ..self }
    }

    /// Input `index` of a seed.
    pub fn input(&self, seed: u64, index: u64) -> Vec<u8> {
        let mut stream = Streams::new(seed, self.name).at(index);
        // The first inputs are the samples as they are: a target that refuses them all tries nothing.
        if let Some(sample) = self.samples.get(index as usize) {
            return sample.clone();
        }
        match &self.make {
            Some(make) if stream.random_bool(0.8) => make(&mut stream),
            _ => {
                let sample = self.samples.choose(&mut stream).expect("samples");
                mutated(&mut stream, sample, &self.samples, &self.words)
            }
        }
    }

    /// Tries an input.
    pub fn run(&self, input: &[u8]) -> bool {
        (self.call)(input)
    }
}

/// Makes a target, with what it needs on the disk.
type Build = fn() -> Target;

/// All targets by name.
pub const ALL: &[(&str, Build)] = &[
    ("attend", attend::target),
    ("config", configuration::toml),
    ("set", configuration::assignments),
    ("run-directory", run_directory::target),
    ("tensors", records::tensors),
    ("metrics", records::metrics),
    ("result", records::result),
    ("outcome", records::outcome),
    ("tokenizer", records::tokenizer),
    ("lines", data::lines),
    ("listops", data::listops),
    ("cache", data::cache),
    ("text", data::text),
    ("text-csv", data::text_csv),
    ("text-json", data::text_json),
    ("char-lm", data::char_lm),
    ("gzip", data::gzip),
    ("bzip2", data::bzip2),
    ("masked-lm", data::masked_lm),
    ("translation", data::translation),
    ("summary", data::summary),
    ("lm", data::lm),
    ("json-lines", data::json_lines),
    ("news", data::news),
    ("behaviors", data::behaviors),
    ("view", view::target),
];

/// A directory for files that are written a thousand times a second: in memory, where the system has such a place.
fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    TempDir::with_prefix_in("regard-trials-", base).expect("a temporary directory")
}

/// Writes a file of a target.
fn put(directory: &TempDir, name: &str, content: &[u8]) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, content).expect("a file in a temporary directory");
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_built_by_its_name_and_accepts_its_samples() {
        let mut refused = Vec::new();
        for (name, build) in ALL {
            let target = build();
            assert_eq!(target.name, *name);
            let samples = target.samples.iter().enumerate();
            refused.extend(samples.filter(|(_, sample)| !target.run(sample)).map(|(i, _)| format!("{name} {i}")));
        }
        assert_eq!(refused, [""; 0]);
    }
}
