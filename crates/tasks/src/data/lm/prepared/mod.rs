//! Prepared texts: token ids in files that are mapped into memory, with sizes and checksums.
//!
//! A prepared folder has a file of ids for each part (`train.bin`, `valid.bin`, `test.bin`; little-endian, 1, 2 or 4 bytes
//! each, the least that hold the vocabulary), the vocabulary, `prepared.json` and `SHA256SUMS`.

mod encode;
mod folder;
mod learn;
mod pieces;
#[cfg(test)]
mod tests;
mod write;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub(in crate::data) use folder::is_prepared;
pub use write::prepare;

pub use crate::digest::FileSum;

use super::{
    LmConfig, LmData, TextUnits, TokenKind, VOCABULARY, WordVocabulary,
    ids::{TokenIds, Width},
};
use crate::{
    Class, Classed,
    data::{DataError, TextExtent, TextTokenizer, Vocabulary},
    train::{TOKENIZER, TrainError},
};

/// The file that describes a folder.
const HEADER: &str = "prepared.json";

/// The checksums of all others.
const SUMS: &str = "SHA256SUMS";

/// Files of ids, by part.
const IDS: [&str; 3] = ["train.bin", "valid.bin", "test.bin"];

/// Every file that a folder may have.
const FILES: [&str; 7] = [HEADER, SUMS, IDS[0], IDS[1], IDS[2], TOKENIZER, VOCABULARY];

/// Version of the format: increment when files of another become unreadable.
const FORMAT: u32 = 1;

/// What a prepared folder says of itself, `prepared.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Prepared {
    /// Version of the format.
    format: u32,
    /// Units of text.
    pub tokens: TokenKind,
    /// Ids are `0 .. vocabulary`.
    pub vocabulary: usize,
    /// The characters behind the ids, where units are characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    characters: Option<String>,
    /// Bytes of the training text from which subwords were learned, if not from all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<usize>,
    /// The training, validation and test text.
    pub parts: [Counts; 3],
    /// Every file but this one and the checksums.
    pub files: BTreeMap<String, FileSum>,
    /// Files that the texts came from.
    pub sources: Vec<SourceFile>,
    /// Remarks for the user.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// The size of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Token ids.
    pub tokens: u64,
    /// Words, separated by white space, and line ends.
    pub words: u64,
    /// Characters.
    pub characters: u64,
    /// Bytes in UTF-8.
    pub bytes: u64,
    /// Words that are not in the vocabulary, where units are words.
    pub unknown: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.tokens, other.tokens),
            (&mut self.words, other.words),
            (&mut self.characters, other.characters),
            (&mut self.bytes, other.bytes),
            (&mut self.unknown, other.unknown),
        ];
        pairs.into_iter().for_each(|(sum, own)| *sum += own);
    }
}

/// A file that a text came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// `train`, `valid` or `test`; parts without files were cut off the end of the training text.
    pub part: String,
    /// Its path when it was read.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
}

/// Why there is no prepared text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// Options that are impossible, or texts that are missing or corrupt.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A folder that another process makes, or that cannot be made.
    #[error(transparent)]
    Directory(#[from] TrainError),
    /// A folder that must not be replaced.
    #[error("{} {problem}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong, and a remedy.
        problem: String,
    },
    /// A file that cannot be written.
    #[error("cannot write {}: {source}; choose another folder or free some space", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Stopped from outside.
    #[error("stopped; nothing was kept")]
    Stopped,
}

impl PrepareError {
    fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        |source| Self::Write { path, source }
    }
}

impl Classed for PrepareError {
    fn class(&self) -> Class {
        match self {
            Self::Data(error) => error.class(),
            Self::Directory(error) => error.class(),
            Self::Folder { .. } => Class::Usage,
            Self::Write { .. } => Class::Data,
            Self::Stopped => Class::Interrupted,
        }
    }
}

/// A prepared folder that cannot be used.
fn damaged(path: &Path, problem: impl std::fmt::Display) -> DataError {
    let problem = format!("{problem}; prepare the text again with 'regard data prepare'");
    DataError::Content { path: path.into(), problem }
}

impl Prepared {
    /// Reads the description of a folder.
    ///
    /// # Errors
    /// A folder that is not there or is none of this format.
    pub fn read(folder: &Path) -> Result<Self, DataError> {
        let path = folder.join(HEADER);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && folder.is_dir() => {
                return Err(damaged(folder, format!("has no {HEADER}, expected a prepared text")));
            }
            read => read.map_err(|source| DataError::read(&path, source))?,
        };
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| damaged(&path, format!("is no JSON ({error})")))?;
        if value["format"] != FORMAT {
            return Err(damaged(&path, format!("has format {}, expected {FORMAT}", value["format"])));
        }
        serde_json::from_value(value).map_err(|error| damaged(&path, format!("does not describe a text ({error})")))
    }

    /// A file of the folder as text, held to its checksum.
    fn text(&self, folder: &Path, name: &str) -> Result<String, DataError> {
        let path = folder.join(name);
        let bytes = fs::read(&path).map_err(|source| DataError::read(&path, source))?;
        let (seen, file) = (FileSum::of(&bytes).sha256, self.files.get(name));
        match file {
            Some(file) if file.sha256 == seen => {}
            _ => {
                let expected = file.map_or("none", |file| file.sha256.as_str());
                return Err(damaged(&path, format!("its SHA-256 is {seen}, expected {expected}")));
            }
        }
        String::from_utf8(bytes).map_err(|_| damaged(&path, "is not UTF-8"))
    }

    /// What the ids stand for.
    fn units(&self, folder: &Path) -> Result<TextUnits, DataError> {
        let units = match self.tokens {
            TokenKind::Bytes => TextUnits::Bytes,
            TokenKind::Characters => {
                let characters = self.characters.iter().flat_map(|characters| characters.chars()).collect();
                let characters = Vocabulary::new(characters);
                TextUnits::Characters(characters.map_err(|error| damaged(&folder.join(HEADER), error))?)
            }
            TokenKind::Words => {
                let words = WordVocabulary::parse(&self.text(folder, VOCABULARY)?);
                TextUnits::Words(words.map_err(|problem| damaged(&folder.join(VOCABULARY), problem))?)
            }
            TokenKind::Subwords => {
                // Held to its checksum before it is read as a tokenizer.
                self.text(folder, TOKENIZER)?;
                TextUnits::Subwords(TextTokenizer::load(&folder.join(TOKENIZER))?)
            }
        };
        if units.vocabulary() != self.vocabulary {
            let problem = format!("has a vocabulary of {}, expected {}", units.vocabulary(), self.vocabulary);
            return Err(damaged(folder, problem));
        }
        Ok(units)
    }

    /// Maps the ids of a part.
    fn ids(&self, folder: &Path, part: usize) -> Result<TokenIds, DataError> {
        let path = folder.join(IDS[part]);
        let size = fs::metadata(&path).map_err(|source| DataError::read(&path, source))?.len();
        let width = Width::of(self.vocabulary);
        let expected = u128::from(self.parts[part].tokens) * width.bytes() as u128;
        if u128::from(size) != expected {
            return Err(damaged(&path, format!("has {size} bytes, expected {expected}")));
        }
        let ids = TokenIds::map(&path, width).map_err(|source| DataError::read(&path, source))?;
        if ids.len() as u64 != self.parts[part].tokens {
            return Err(damaged(&path, "has changed while it was opened"));
        }
        Ok(ids)
    }
}

/// The data of a prepared folder. Sizes are checked, and the sums of small files; those of the ids are checked by
/// `regard data verify`.
pub(super) fn open(config: &LmConfig, folder: &Path) -> Result<LmData, DataError> {
    let prepared = Prepared::read(folder)?;
    let units = prepared.units(folder)?;
    let part = |part| prepared.ids(folder, part);
    let parts = [part(0)?, part(1)?, part(2)?];
    let of_words = prepared.tokens == TokenKind::Words;
    let extent = |counts: &Counts, stride: Option<usize>| TextExtent {
        predictions: counts.tokens.saturating_sub(1) as usize,
        stride: stride.unwrap_or(config.context),
        words: counts.words as usize,
        characters: counts.characters as usize,
        bytes: counts.bytes as usize,
        of_words,
    };
    let extents = [extent(&prepared.parts[1], config.valid_stride), extent(&prepared.parts[2], config.stride)];
    let unknown = prepared.parts.map(|counts| counts.unknown as usize);
    LmData::of(config, folder, units, parts, extents, unknown, Vec::new())
}
