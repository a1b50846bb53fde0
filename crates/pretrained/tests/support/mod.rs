//! Folders of the tests.
#![allow(dead_code, reason = "each file of tests uses its part")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tempfile::TempDir;

/// The models of `make.py`.
pub const MODELS: [&str; 11] = [
    "albert",
    "bert-classifier",
    "bert-masked",
    "bert-sentences",
    "dinov2",
    "dinov2-classifier",
    "gpt2",
    "llama-grouped",
    "llama-tied",
    "roberta",
    "vit",
];

/// A file of the golden data.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Llama with 260 thousand parameters, trained on short stories.
pub fn stories() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories260k")
}

/// All model folders.
pub fn folders() -> Vec<PathBuf> {
    MODELS.iter().map(|name| golden(name)).chain([stories()]).collect()
}

/// Files of a folder, by name.
pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A copy of a folder, to be broken.
pub fn copy(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in names(folder) {
        fs::write(copy.path().join(&name), fs::read(folder.join(&name)).unwrap()).unwrap();
    }
    copy
}

/// Changes a JSON file of a folder.
pub fn edit(folder: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let path = folder.join(file);
    let mut value =
        fs::read(&path).map_or_else(|_| serde_json::json!({}), |bytes| serde_json::from_slice(&bytes).unwrap());
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// A safetensors file with another header, after the same numbers.
pub fn edit_header(path: &Path, change: impl FnOnce(&mut Value)) {
    let bytes = fs::read(path).unwrap();
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&bytes[8..end]).unwrap();
    change(&mut header);
    let header = header.to_string().into_bytes();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(path, [&length[..], &header, &bytes[end..]].concat()).unwrap();
}

/// Writes a file anew. Emptying the old one would have some file systems wait for the disk.
pub fn put(path: &Path, content: impl AsRef<[u8]>) {
    let _ = fs::remove_file(path);
    fs::write(path, content).unwrap();
}

/// Tensors of a golden file.
pub struct Golden(pub BTreeMap<String, (Vec<usize>, Vec<f64>)>);

impl Golden {
    /// All tensors of a file.
    pub fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let tensor = |(name, view): (&str, safetensors::tensor::TensorView)| {
            let words = view.data().as_chunks::<8>().0.iter();
            let data = match view.dtype() {
                Dtype::F64 => words.map(|b| f64::from_le_bytes(*b)).collect(),
                Dtype::I64 => words.map(|b| i64::from_le_bytes(*b) as f64).collect(),
                other => panic!("{other:?}"),
            };
            (name.to_string(), (view.shape().to_vec(), data))
        };
        Self(SafeTensors::deserialize(&bytes).unwrap().iter().map(tensor).collect())
    }
}
