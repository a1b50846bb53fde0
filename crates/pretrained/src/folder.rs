//! A model folder: what it holds, checked before a number is read.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    Architecture, Element, Entry, Generation, Head, PretrainedError, TensorProblem, Tokenizer,
    mapping::{arrange, arrange_bytes, ignorable, mapping},
    shards::{Shards, Stored, read_json},
};

pub(crate) const CONFIG: &str = "config.json";

/// Before the name of a model of the Hugging Face hub, in place of the path of a folder.
pub const HUB: &str = "hf:";

/// The folder itself, or that of a model of the hub in its cache.
fn located(path: &Path) -> Result<PathBuf, PretrainedError> {
    match path.to_str().and_then(|path| path.strip_prefix(HUB)) {
        #[cfg(feature = "hub")]
        Some(name) => crate::hub::fetch(name),
        #[cfg(not(feature = "hub"))]
        Some(_) => {
            let problem =
                "models of the hub are fetched by builds with the feature 'hub' alone; build with it, or give a folder";
            Err(PretrainedError::Text(format!("{}: {problem}", path.display())))
        }
        None => Ok(path.to_path_buf()),
    }
}

/// A Hugging Face model folder, all of whose tensors have a place in the model.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    config: Value,
    architecture: Architecture,
    pub(crate) shards: Shards,
    entries: Vec<Entry>,
    ignored: Vec<String>,
}

impl Folder {
    /// Opens a folder, or with the feature `hub` a model of the Hugging Face hub as `hf:owner/name`, with `config.json` and `model.safetensors`, or the files that `model.safetensors.index.json` lists.
    ///
    /// The files are mapped into memory: they must not be changed or cut while the folder is open.
    ///
    /// # Errors
    /// A file that is missing or damaged, a configuration that is not read, and all tensors that are missing, unexpected, or of
    /// another shape or type than the configuration says.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PretrainedError> {
        Self::open_allowing(path, &[])
    }

    /// The same, with tensors that may be left out: names, or beginnings of names before a final `*`.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn open_allowing(path: impl AsRef<Path>, allowed: &[&str]) -> Result<Self, PretrainedError> {
        let path = located(path.as_ref())?;
        // A missing folder is told as such, not as a missing file of it.
        std::fs::read_dir(&path).map_err(PretrainedError::reading(&path))?;
        let config_path = path.join(CONFIG);
        let config = read_json(&config_path)?;
        let mut architecture = Architecture::from_config(&config).map_err(PretrainedError::config(&config_path))?;
        let shards = Shards::open(&path)?;
        let present = |name: &str| shards.tensors.contains_key(name);
        if architecture.pooler && matches!(architecture.head, Head::None) {
            let entries = mapping(&architecture, present);
            architecture.pooler = entries.iter().any(|e| e.name.starts_with("pooler.") && present(&e.source));
        }
        let entries = mapping(&architecture, present);
        let ignored = check(&architecture, &entries, &shards, allowed)
            .map_err(|problems| PretrainedError::Tensors { path: path.clone(), problems })?;
        Ok(Self { path, config, architecture, shards, entries, ignored })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the model is made of.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// All of `config.json`.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The parameters, and where they lie.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Tensors of the files that are left out.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// The parameters one after the other, each read when it is asked for its numbers.
    pub fn load(&self) -> impl ExactSizeIterator<Item = Parameter<'_>> {
        self.entries.iter().map(|entry| self.found(entry))
    }

    /// The parameter of a name.
    pub fn parameter(&self, name: &str) -> Option<Parameter<'_>> {
        self.entries.iter().find(|entry| entry.name == name).map(|entry| self.found(entry))
    }

    fn found<'a>(&'a self, entry: &'a Entry) -> Parameter<'a> {
        let stored = self.shards.tensors.get(&entry.source).expect("it was there when the folder was opened");
        let element = Element::of(stored.dtype).expect("its type was checked when the folder was opened");
        Parameter { entry, element, source: self.shards.bytes(stored) }
    }

    /// The tokenizer of the folder.
    ///
    /// # Errors
    /// No tokenizer, a broken one, or one with more tokens than the model has rows.
    pub fn tokenizer(&self) -> Result<Tokenizer, PretrainedError> {
        Tokenizer::of_folder(&self.path, &self.architecture)
    }

    /// How texts are continued.
    ///
    /// # Errors
    /// A broken `generation_config.json`.
    pub fn generation(&self) -> Result<Generation, PretrainedError> {
        Generation::of_folder(&self.path, &self.config)
    }
}

/// A parameter where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Parameter<'a> {
    entry: &'a Entry,
    element: Element,
    source: &'a [u8],
}

impl<'a> Parameter<'a> {
    /// Its entry in the mapping.
    pub fn entry(&self) -> &'a Entry {
        self.entry
    }

    /// Our name.
    pub fn name(&self) -> &'a str {
        &self.entry.name
    }

    /// Sizes of its axes; matrices are `[in, out]`.
    pub fn shape(&self) -> &'a [usize] {
        &self.entry.shape
    }

    /// How its numbers are stored.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Its numbers in row-major order of [`Parameter::shape`].
    pub fn values(&self) -> Vec<f32> {
        arrange(self.entry, self.element, self.source)
    }

    /// The same as they are stored, little-endian.
    pub fn bytes(&self) -> Vec<u8> {
        arrange_bytes(self.entry, self.element, self.source)
    }
}

/// Names of the tensors that are left out, or all that is wrong.
fn check(
    architecture: &Architecture,
    entries: &[Entry],
    shards: &Shards,
    allowed: &[&str],
) -> Result<Vec<String>, Vec<TensorProblem>> {
    let mut problems = Vec::new();
    let mut used = BTreeSet::new();
    for entry in entries {
        // Parts of one tensor share its fate.
        if used.insert(entry.source.as_str()) {
            match shards.tensors.get(&entry.source) {
                None => problems
                    .push(TensorProblem::Missing { name: entry.source.clone(), expected: entry.source_shape.clone() }),
                Some(stored) => problems.extend(unfit(&entry.source, stored, &entry.source_shape)),
            }
        }
        for copy in &entry.copies {
            let Some(stored) = shards.tensors.get(copy) else { continue };
            used.insert(copy);
            let Some(source) = shards.tensors.get(&entry.source) else { continue };
            match unfit(copy, stored, &entry.source_shape) {
                Some(problem) => problems.push(problem),
                None if !same(shards, source, stored) => {
                    problems.push(TensorProblem::Untied { name: copy.clone(), other: entry.source.clone() });
                }
                None => {}
            }
        }
    }
    let mut ignored = Vec::new();
    for (name, stored) in &shards.tensors {
        if used.contains(name.as_str()) {
        } else if ignorable(architecture, name) || allowed.iter().any(|pattern| matches(pattern, name)) {
            ignored.push(name.clone());
        } else {
            problems.push(TensorProblem::Unexpected { name: name.clone(), seen: stored.shape.clone() });
        }
    }
    if problems.is_empty() { Ok(ignored) } else { Err(problems) }
}

/// What is wrong with shape or type of a tensor.
fn unfit(name: &str, stored: &Stored, expected: &[usize]) -> Option<TensorProblem> {
    let name = name.to_string();
    if stored.shape != expected {
        Some(TensorProblem::Shape { name, seen: stored.shape.clone(), expected: expected.to_vec() })
    } else if Element::of(stored.dtype).is_none() {
        Some(TensorProblem::Type { name, seen: stored.dtype })
    } else {
        None
    }
}

/// Whether two tensors of one shape hold the same numbers. Damage of the one that counts is told elsewhere.
fn same(shards: &Shards, one: &Stored, other: &Stored) -> bool {
    if one.shape != other.shape {
        return true;
    }
    let (a, b) = (shards.bytes(one), shards.bytes(other));
    match (Element::of(one.dtype), Element::of(other.dtype)) {
        (Some(first), Some(second)) if first != second => {
            (0..a.len() / first.bytes()).all(|i| first.get(a, i) == second.get(b, i))
        }
        (Some(_), Some(_)) => a == b,
        _ => true,
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}
