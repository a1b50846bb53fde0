//! A folder written back: the same files, with other numbers where there are some.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use regard_files::{sync_directory, write_synced};

use crate::{
    Element, Entry, Folder, PretrainedError,
    mapping::scatter,
    shards::{Shard, Stored},
};

/// Files beside the weights that a folder is not complete without.
const COMPANIONS: [&str; 13] = [
    "config.json",
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
        let out = out.as_ref();
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
        let written = self.fill(&temporary, &changed).and_then(|()| {
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
    fn fill(&self, into: &Path, changed: &dyn Fn(&Entry) -> Option<Vec<f32>>) -> Result<()> {
        for name in COMPANIONS.into_iter().chain(self.shards.index) {
            let from = self.path().join(name);
            if from.is_file() {
                let content = fs::read(&from).map_err(PretrainedError::reading(&from))?;
                let to = into.join(name);
                write_synced(&to, &content).map_err(PretrainedError::writing(&to))?;
            }
        }
        let mut parts: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in self.entries() {
            for name in std::iter::once(&entry.source).chain(&entry.copies) {
                parts.entry(name).or_default().push(entry);
            }
        }
        for (index, shard) in self.shards.files.iter().enumerate() {
            let mut tensors: Vec<(&str, &Stored)> = self
                .shards
                .tensors
                .iter()
                .filter(|(_, stored)| stored.shard == index)
                .map(|(name, stored)| (name.as_str(), stored))
                .collect();
            tensors.sort_by_key(|(_, stored)| stored.range.start);
            let path = into.join(&shard.name);
            let mut file = BufWriter::new(File::create(&path).map_err(PretrainedError::writing(&path))?);
            file.write_all(&shard.bytes()[..shard.head]).map_err(PretrainedError::writing(&path))?;
            for (name, stored) in tensors {
                let entries = parts.get(name).map_or(&[][..], |entries| entries);
                let replaced = replaced(shard, name, stored, entries, changed)?;
                let bytes = replaced.as_deref().unwrap_or(&shard.bytes()[stored.range.clone()]);
                file.write_all(bytes).map_err(PretrainedError::writing(&path))?;
            }
            let file = file.into_inner().map_err(|error| PretrainedError::writing(&path)(error.into_error()))?;
            file.sync_all().map_err(PretrainedError::writing(&path))?;
        }
        sync_directory(into).map_err(PretrainedError::writing(into))
    }
}

/// The new bytes of a tensor, if one of its parameters has changed.
fn replaced(
    shard: &Shard,
    name: &str,
    stored: &Stored,
    entries: &[&Entry],
    changed: &dyn Fn(&Entry) -> Option<Vec<f32>>,
) -> Result<Option<Vec<u8>>> {
    let Some(element) = Element::of(stored.dtype) else { return Ok(None) };
    let mut bytes: Option<Vec<u8>> = None;
    for entry in entries {
        let Some(values) = changed(entry) else { continue };
        let expected: usize = entry.shape.iter().product();
        if values.len() != expected {
            let problem =
                format!("{} values for '{}'; expected {expected}, shape {:?}", values.len(), entry.name, entry.shape);
            return Err(PretrainedError::Text(problem));
        }
        let bytes = bytes.get_or_insert_with(|| shard.bytes()[stored.range.clone()].to_vec());
        if !scatter(entry, element, &values, bytes) {
            let problem = format!(
                "'{}' has values beyond {element:?}, the type of tensor '{name}'; expected smaller ones; write a folder whose \
                 tensors are F32",
                entry.name
            );
            return Err(PretrainedError::Text(problem));
        }
    }
    Ok(bytes)
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
