//! The tensors of one or several safetensors files, where they lie.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    ops::Range,
    path::{Path, PathBuf},
};

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;

use crate::{PretrainedError, keys::Keys};

type Result<T> = std::result::Result<T, PretrainedError>;

pub(crate) const WHOLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Bytes of the length of the header.
pub(crate) const LENGTH: usize = 8;

/// How an element is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of a single.
    Bf16,
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The name in safetensors files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        }
    }

    /// The name in `config.json`.
    pub(crate) fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    pub(crate) fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::F16 => Some(Self::F16),
            Dtype::BF16 => Some(Self::Bf16),
            _ => None,
        }
    }

    /// The element at a place of a buffer.
    pub(crate) fn get(self, bytes: &[u8], index: usize) -> f32 {
        let at = index * self.bytes();
        match self {
            Self::F32 => f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]),
            Self::F16 => f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
            Self::Bf16 => bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        }
    }

    /// Writes the nearest value to a place of a buffer; says whether a number stayed one.
    pub(crate) fn put(self, bytes: &mut [u8], index: usize, value: f32) -> bool {
        let at = index * self.bytes();
        match self {
            Self::F32 => bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()),
            Self::F16 => bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            Self::Bf16 => bytes[at..at + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
        self.get(bytes, index).is_finite() || !value.is_finite()
    }
}

/// A file.
#[derive(Debug)]
pub(crate) struct Shard {
    /// Its name in the folder.
    pub name: String,
    map: Mmap,
    /// Bytes before those of tensors.
    pub head: usize,
}

impl Shard {
    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

/// A tensor as it lies in a file.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub shard: usize,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Its bytes in the file.
    pub range: Range<usize>,
}

/// The tensors of a folder by the names of its files.
#[derive(Debug)]
pub(crate) struct Shards {
    pub files: Vec<Shard>,
    pub tensors: BTreeMap<String, Stored>,
    /// The file that says where each tensor lies, if there is one.
    pub index: Option<&'static str>,
}

impl Shards {
    /// Maps the files of a folder.
    pub fn open(folder: &Path) -> Result<Self> {
        let mut shards = Self { files: Vec::new(), tensors: BTreeMap::new(), index: None };
        if folder.join(WHOLE).exists() {
            shards.add(folder, WHOLE)?;
        } else if folder.join(INDEX).exists() {
            shards.index = Some(INDEX);
            shards.open_indexed(folder)?;
        } else {
            return Err(none(folder));
        }
        Ok(shards)
    }

    fn open_indexed(&mut self, folder: &Path) -> Result<()> {
        let path = folder.join(INDEX);
        let places = places(&path, &read_json(&path)?)?;
        let mut names: Vec<&str> = places.values().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let missing: Vec<_> = names.iter().filter(|name| !folder.join(name).is_file()).copied().collect();
        if !missing.is_empty() {
            let problem = format!("{} of {} files are missing: {}", missing.len(), names.len(), missing.join(", "));
            return Err(PretrainedError::content(&path, format!("{problem}; fetch them into the same folder")));
        }
        for name in names {
            self.add(folder, name)?;
        }
        for (tensor, file) in &places {
            let seen = self.tensors.get(tensor).map(|stored| &self.files[stored.shard].name);
            if seen != Some(file) {
                let seen = seen.map_or_else(|| "in no file".into(), |seen| format!("in {seen}"));
                let problem = format!("tensor '{tensor}' is {seen}; expected in {file}; fetch index and files anew");
                return Err(PretrainedError::content(&path, problem));
            }
        }
        if let Some((tensor, stored)) = self.tensors.iter().find(|(name, _)| !places.contains_key(*name)) {
            let file = &self.files[stored.shard].name;
            let problem = format!("tensor '{tensor}' of {file} is not listed; fetch index and files anew");
            return Err(PretrainedError::content(&path, problem));
        }
        Ok(())
    }

    /// Maps one file.
    fn add(&mut self, folder: &Path, name: &str) -> Result<()> {
        let path = folder.join(name);
        let file = File::open(&path).map_err(PretrainedError::reading(&path))?;
        let length = file.metadata().map_err(PretrainedError::reading(&path))?.len();
        if length < LENGTH as u64 {
            let problem = format!("{length} bytes, expected a safetensors file; fetch it again");
            return Err(PretrainedError::content(&path, problem));
        }
        // SAFETY: the map is only read. That nobody else changes the file meanwhile is asked of the caller of `Folder::open`.
        let map = unsafe { Mmap::map(&file) }.map_err(PretrainedError::reading(&path))?;
        let (header, metadata) = match SafeTensors::read_metadata(&map) {
            Ok(read) => read,
            Err(error) => return Err(PretrainedError::content(&path, unsound(&map, &error))),
        };
        let head = LENGTH + header;
        let shard = self.files.len();
        for (tensor, info) in metadata.tensors() {
            let range = head + info.data_offsets.0..head + info.data_offsets.1;
            let stored = Stored { shard, dtype: info.dtype, shape: info.shape.clone(), range };
            if let Some(other) = self.tensors.insert(tensor.clone(), stored) {
                let problem = format!("tensor '{tensor}' is in {} too, expected once", self.files[other.shard].name);
                return Err(PretrainedError::content(&path, format!("{problem}; fetch index and files anew")));
            }
        }
        self.files.push(Shard { name: name.into(), map, head });
        Ok(())
    }

    /// The bytes of a tensor.
    pub fn bytes(&self, stored: &Stored) -> &[u8] {
        &self.files[stored.shard].map[stored.range.clone()]
    }
}

/// The file of each tensor.
pub(crate) fn places(path: &Path, index: &Value) -> Result<BTreeMap<String, String>> {
    let keys = Keys::of(index).map_err(PretrainedError::config(path))?;
    let expected = "an object that names the file of each tensor";
    let map = keys.get("weight_map").and_then(Value::as_object).filter(|map| !map.is_empty());
    let map = map.ok_or_else(|| PretrainedError::config(path)(keys.problem("weight_map", expected)))?;
    let place = |(tensor, file): (&String, &Value)| {
        let plain = |name: &&str| name.ends_with(".safetensors") && Path::new(name).file_name() == Some(name.as_ref());
        match file.as_str().filter(plain) {
            Some(name) => Ok((tensor.clone(), name.to_string())),
            None => {
                let problem =
                    format!("the file of tensor '{tensor}' is {file}; expected a *.safetensors of this folder");
                Err(PretrainedError::content(path, problem))
            }
        }
    };
    map.iter().map(place).collect()
}

/// Why a file is not taken.
fn unsound(bytes: &[u8], error: &SafeTensorError) -> String {
    let length = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
    let beyond = length.checked_add(LENGTH as u64).is_none_or(|end| end > bytes.len() as u64);
    match error {
        SafeTensorError::InvalidHeaderLength | SafeTensorError::HeaderTooLarge if beyond => format!(
            "{} bytes, of which its first eight claim {length} for the header: no safetensors file, or cut off; fetch it again",
            bytes.len()
        ),
        SafeTensorError::MetadataIncompleteBuffer => {
            format!("{} bytes, not what its header asks for: cut off or damaged; fetch it again", bytes.len())
        }
        error => format!("not a sound safetensors file: {error}; fetch it again"),
    }
}

/// What is wrong with a folder without weights.
fn none(folder: &Path) -> PretrainedError {
    let pickles =
        ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.bin", "tf_model.h5", "flax_model.msgpack"];
    let problem = match pickles.iter().find(|name| folder.join(name).exists()) {
        Some(name) => format!(
            "weights only in {name}, expected {WHOLE} or {INDEX}; fetch the safetensors files, or write them with \
             save_pretrained of transformers (reading a pickle would run the code in it)"
        ),
        None => format!("no weights, expected {WHOLE} or {INDEX}; check the path, or fetch them"),
    };
    PretrainedError::content(folder, problem)
}

/// Reads a JSON file.
pub(crate) fn read_json(path: &Path) -> Result<Value> {
    let bytes = fs::read(path).map_err(PretrainedError::reading(path))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| PretrainedError::content(path, format!("not sound JSON: {error}; fetch it again")))
}

/// Reads a JSON file that may be missing.
pub(crate) fn read_optional_json(path: PathBuf) -> Result<Option<(PathBuf, Value)>> {
    if !path.exists() {
        return Ok(None);
    }
    let value = read_json(&path)?;
    Ok(Some((path, value)))
}
