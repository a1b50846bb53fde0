//! A folder written back: the same files, with other numbers where there are some.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use regard_files::{sync_directory, write_synced};
use serde_json::{Map, Value, json};

use crate::{
    Element, Entry, Folder, PretrainedError,
    folder::CONFIG,
    mapping::scatter,
    shards::{INDEX, LENGTH, Shard, Stored},
};

/// Files beside the weights that a folder is not complete without.
pub(crate) const COMPANIONS: [&str; 13] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "README.md",
];

type Result<T> = std::result::Result<T, PretrainedError>;

impl Folder {
    /// Writes a folder of the same layout to `out`, which must be new or empty: whole or not at all.
    ///
    /// `changed` gives new values for a parameter, in the order of its shape, or `None` where they stay; it may be asked more
    /// than once for one that lies in several places. Values are rounded to the type that the file has. Headers, order and tensors
    /// that are left out stay as they were: without changes every file is equal byte for byte.
    ///
    /// # Errors
    /// A folder that is not empty, values of another number or beyond the type of the file, a full disk.
    pub fn save(&self, out: impl AsRef<Path>, changed: impl Fn(&Entry) -> Option<Vec<f32>>) -> Result<()> {
        self.save_whole(out.as_ref(), None, &changed)
    }

    /// The same with all parameters in one type: headers, `dtype` of `config.json` and the size in the index are changed where they
    /// said another one.
    ///
    /// # Errors
    /// As [`Folder::save`].
    pub fn save_as(
        &self,
        out: impl AsRef<Path>,
        element: Element,
        changed: impl Fn(&Entry) -> Option<Vec<f32>>,
    ) -> Result<()> {
        self.save_whole(out.as_ref(), Some(element), &changed)
    }

    fn save_whole(&self, out: &Path, element: Option<Element>, changed: Changed<'_>) -> Result<()> {
        let occupied = match fs::read_dir(out) {
            Ok(mut names) => names.next().is_some(),
            Err(_) => out.symlink_metadata().is_ok(),
        };
        if occupied {
            let problem = "it is there and not an empty folder; choose another one, or remove it";
            return Err(PretrainedError::content(out, problem));
        }
        let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(PretrainedError::writing(parent))?;
        let temporary = temporary(parent)?;
        let written = self.fill(&temporary, element, changed).and_then(|()| {
            // Where a name cannot be given to a second folder, not even an empty one.
            let _ = fs::remove_dir(out);
            fs::rename(&temporary, out).map_err(PretrainedError::writing(out))
        });
        if written.is_err() {
            let _ = fs::remove_dir_all(&temporary);
        }
        written?;
        sync_directory(parent).map_err(PretrainedError::writing(parent))
    }

    /// Writes all files into a folder.
    fn fill(&self, into: &Path, element: Option<Element>, changed: Changed<'_>) -> Result<()> {
        let mut parts: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in self.entries() {
            for name in std::iter::once(&entry.source).chain(&entry.copies) {
                parts.entry(name).or_default().push(entry);
            }
        }
        let mut size = 0;
        let mut retyped = false;
        for (index, shard) in self.shards.files.iter().enumerate() {
            let mut tensors: Vec<Tensor<'_>> = Vec::new();
            for (name, stored) in self.shards.tensors.iter().filter(|(_, stored)| stored.shard == index) {
                let entries = parts.get(name.as_str()).map_or(&[][..], |entries| entries);
                let own = Element::of(stored.dtype);
                let target = element.filter(|_| !entries.is_empty()).or(own);
                tensors.push(Tensor { name, stored, entries, own, target });
            }
            tensors.sort_by_key(|tensor| tensor.stored.range.start);
            let other = tensors.iter().any(|tensor| tensor.own != tensor.target);
            let head = if other { header(shard, &tensors) } else { shard.bytes()[..shard.head].to_vec() };
            retyped |= other;
            size += tensors.iter().map(Tensor::bytes).sum::<usize>();
            let path = into.join(&shard.name);
            let mut file = BufWriter::new(File::create(&path).map_err(PretrainedError::writing(&path))?);
            file.write_all(&head).map_err(PretrainedError::writing(&path))?;
            for tensor in tensors {
                let replaced = tensor.replaced(shard, changed)?;
                let bytes = replaced.as_deref().unwrap_or(&shard.bytes()[tensor.stored.range.clone()]);
                file.write_all(bytes).map_err(PretrainedError::writing(&path))?;
            }
            let file = file.into_inner().map_err(|error| PretrainedError::writing(&path)(error.into_error()))?;
            file.sync_all().map_err(PretrainedError::writing(&path))?;
        }
        for name in COMPANIONS.into_iter().chain(self.shards.index) {
            let from = self.path().join(name);
            if from.is_file() {
                let mut content = fs::read(&from).map_err(PretrainedError::reading(&from))?;
                if let Some(element) = element.filter(|_| retyped) {
                    content = retype(name, content, element, size);
                }
                let to = into.join(name);
                write_synced(&to, &content).map_err(PretrainedError::writing(&to))?;
            }
        }
        sync_directory(into).map_err(PretrainedError::writing(into))
    }
}

/// New values for a parameter, or `None` where they stay.
type Changed<'a> = &'a dyn Fn(&Entry) -> Option<Vec<f32>>;

/// A tensor to be written.
struct Tensor<'a> {
    name: &'a str,
    stored: &'a Stored,
    /// The parameters in it.
    entries: &'a [&'a Entry],
    /// Its type, if it is one of ours, and the one it gets.
    own: Option<Element>,
    target: Option<Element>,
}

impl Tensor<'_> {
    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        match (self.own, self.target) {
            (Some(own), Some(target)) => self.stored.range.len() / own.bytes() * target.bytes(),
            _ => self.stored.range.len(),
        }
    }

    /// Its new bytes, if type or values are others.
    fn replaced(&self, shard: &Shard, changed: Changed<'_>) -> Result<Option<Vec<u8>>> {
        let (Some(own), Some(target)) = (self.own, self.target) else { return Ok(None) };
        let source = &shard.bytes()[self.stored.range.clone()];
        let beyond = || {
            let name = self.name;
            PretrainedError::Text(format!(
                "values of tensor '{name}' are beyond {target:?}; expected smaller ones; save all parameters as F32"
            ))
        };
        let mut bytes: Option<Vec<u8>> = None;
        if own != target {
            let mut converted = vec![0; self.bytes()];
            if !(0..source.len() / own.bytes()).all(|i| target.put(&mut converted, i, own.get(source, i))) {
                return Err(beyond());
            }
            bytes = Some(converted);
        }
        for entry in self.entries {
            let Some(values) = changed(entry) else { continue };
            let expected: usize = entry.shape.iter().product();
            if values.len() != expected {
                let (count, name, shape) = (values.len(), &entry.name, &entry.shape);
                let problem = format!("{count} values for '{name}'; expected {expected}, shape {shape:?}");
                return Err(PretrainedError::Text(problem));
            }
            if !scatter(entry, target, &values, bytes.get_or_insert_with(|| source.to_vec())) {
                return Err(beyond());
            }
        }
        Ok(bytes)
    }
}

/// The beginning of a file whose tensors, in this order, have other types.
fn header(shard: &Shard, tensors: &[Tensor<'_>]) -> Vec<u8> {
    let old: Value = serde_json::from_slice(&shard.bytes()[LENGTH..shard.head]).unwrap_or_default();
    let mut header = Map::new();
    if let Some(metadata) = old.get("__metadata__") {
        header.insert("__metadata__".into(), metadata.clone());
    }
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes();
        let mut info = old.get(tensor.name).cloned().unwrap_or_default();
        if let Some(target) = tensor.target {
            info["dtype"] = target.name().into();
        }
        info["data_offsets"] = json!([start, end]);
        header.insert(tensor.name.into(), info);
        start = end;
    }
    let mut text = Value::Object(header).to_string();
    // So that tensors are aligned, as the format asks for.
    text.push_str(&" ".repeat(text.len().next_multiple_of(LENGTH) - text.len()));
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A companion that says type or size of the tensors, or as it was.
fn retype(name: &str, content: Vec<u8>, element: Element, size: usize) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(&content) else { return content };
    match name {
        CONFIG => {
            for key in ["dtype", "torch_dtype"] {
                if let Some(dtype) = value.get_mut(key) {
                    *dtype = element.torch_name().into();
                }
            }
        }
        INDEX => {
            if let Some(total) = value.pointer_mut("/metadata/total_size") {
                *total = size.into();
            }
        }
        _ => return content,
    }
    serde_json::to_vec_pretty(&value).unwrap_or(content)
}

/// A new folder beside the one that it will replace.
fn temporary(parent: &Path) -> Result<PathBuf> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!(".regard-model-{}-{number}.tmp", std::process::id()));
        match fs::create_dir(&path) {
            // Of a process that was killed.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path.clone()).map_err(PretrainedError::writing(&path)),
        }
    }
}
