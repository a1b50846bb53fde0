//! Token ids of pieces, written as they come.

use std::{
    collections::HashMap,
    fs::File,
    io::Write,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::{
    super::{TextUnits, ids::Width},
    Counts, FileSum, PrepareError,
};
use crate::{
    data::{DataError, TextTokenizer, tokenizer::END},
    digest::hexadecimal,
};

/// Most words whose byte pairs are remembered: with their ids some 5 MB a thread.
const REMEMBERED: usize = 1 << 16;

/// Bytes of the longest of them.
const LONGEST: usize = 48;

/// The byte pairs of words: subwords of a text are those of its words.
#[derive(Default)]
struct Memory {
    places: HashMap<Box<str>, (u32, u32)>,
    ids: Vec<u32>,
}

impl Memory {
    fn encode(&mut self, tokenizer: &TextTokenizer, word: &str, out: &mut Vec<u32>) {
        if let Some(&(start, end)) = self.places.get(word) {
            return out.extend_from_slice(&self.ids[start as usize..end as usize]);
        }
        let first = out.len();
        out.extend(tokenizer.encode(word).into_iter().map(|id| id as u32));
        if word.len() <= LONGEST {
            if self.places.len() == REMEMBERED {
                *self = Self::default();
            }
            let start = self.ids.len() as u32;
            self.ids.extend_from_slice(&out[first..]);
            self.places.insert(word.into(), (start, self.ids.len() as u32));
        }
    }
}

/// Encodes pieces on all threads.
pub(super) struct Encoder<'a> {
    units: &'a TextUnits,
    width: Width,
    memories: Mutex<Vec<Memory>>,
}

/// Ids of a piece as they stand in the file, and what they were.
pub(super) struct Encoded {
    bytes: Vec<u8>,
    counts: Counts,
    /// Whether it begins with white space, ends with it, and ends with a line end.
    space: [bool; 3],
    /// Whether it is nothing but white space.
    blank: bool,
}

impl<'a> Encoder<'a> {
    pub fn new(units: &'a TextUnits) -> Self {
        Self { units, width: Width::of(units.vocabulary()), memories: Mutex::default() }
    }

    /// Ids of texts, each by itself.
    pub fn encode_all(&self, texts: Vec<String>) -> Result<Vec<Encoded>, DataError> {
        texts.into_par_iter().map(|text| self.encode(text)).collect()
    }

    fn encode(&self, text: String) -> Result<Encoded, DataError> {
        let lines = text.bytes().filter(|byte| *byte == b'\n').count();
        let mut counts = Counts {
            tokens: text.len() as u64,
            words: (text.split_whitespace().count() + lines) as u64,
            characters: text.chars().count() as u64,
            bytes: text.len() as u64,
            unknown: 0,
        };
        let space = [text.starts_with(char::is_whitespace), text.ends_with(char::is_whitespace), text.ends_with('\n')];
        let blank = text.trim_start().is_empty();
        if let TextUnits::Bytes = self.units {
            return Ok(Encoded { bytes: text.into_bytes(), counts, space, blank });
        }
        let ids = match self.units {
            TextUnits::Subwords(tokenizer) => self.subwords(tokenizer, &text),
            units => units.encode(&text)?,
        };
        counts.tokens = ids.len() as u64;
        if let TextUnits::Words(words) = self.units {
            counts.unknown = ids.iter().filter(|id| **id == words.unknown()).count() as u64;
        }
        let mut bytes = Vec::with_capacity(ids.len() * self.width.bytes());
        self.width.write(&ids, &mut bytes);
        Ok(Encoded { bytes, counts, space, blank })
    }

    fn subwords(&self, tokenizer: &TextTokenizer, text: &str) -> Vec<u32> {
        let memories = || self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        let mut memory = memories().pop().unwrap_or_default();
        let mut ids = Vec::new();
        for (number, line) in text.split('\n').enumerate() {
            ids.extend((number > 0).then_some(END as u32));
            line.split_whitespace().for_each(|word| memory.encode(tokenizer, word, &mut ids));
        }
        memories().push(memory);
        ids
    }
}

/// The file of a part.
pub(super) struct PartWriter {
    path: PathBuf,
    file: File,
    hash: Sha256,
    counts: Counts,
    /// Whether it ends within a word, and with a line end.
    in_word: bool,
    ended: bool,
    blank: bool,
}

impl PartWriter {
    pub fn create(path: PathBuf) -> Result<Self, PrepareError> {
        let file = File::create(&path).map_err(PrepareError::writing(&path))?;
        Ok(Self {
            path,
            file,
            hash: Sha256::new(),
            counts: Counts::default(),
            in_word: false,
            ended: true,
            blank: true,
        })
    }

    /// Appends a piece.
    pub fn write(&mut self, encoded: &Encoded) -> Result<(), PrepareError> {
        self.file.write_all(&encoded.bytes).map_err(PrepareError::writing(&self.path))?;
        self.hash.update(&encoded.bytes);
        self.counts.add(&encoded.counts);
        let [begins, ends, ended] = encoded.space;
        // A word across the border was counted in both.
        self.counts.words -= u64::from(self.in_word && !begins);
        (self.in_word, self.ended) = (!ends, ended);
        self.blank &= encoded.blank;
        Ok(())
    }

    /// Whether nothing but white space was written.
    pub fn is_blank(&self) -> bool {
        self.blank
    }

    /// Ends the last line, and puts the file on the disk.
    pub fn finish(mut self, encoder: &Encoder<'_>) -> Result<(Counts, FileSum), PrepareError> {
        if !self.ended {
            self.in_word = false;
            let end = encoder.encode("\n".into())?;
            self.write(&end)?;
        }
        self.file.sync_all().map_err(PrepareError::writing(&self.path))?;
        let bytes = self.counts.tokens * encoder.width.bytes() as u64;
        Ok((self.counts, FileSum { bytes, sha256: hexadecimal(&self.hash.finalize()) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subwords_of_words_are_those_of_the_text() {
        let text = "der Runner's 1,024 größer\u{a0}größte don't  <mask> re-run!\n\n\u{301}e\u{301} \t漢字 🦀 'S ''ll x'y\n'a 'b".repeat(3);
        let long = format!("{} {}", "longer".repeat(20), "longer".repeat(20));
        let tokenizer = TextTokenizer::train(text.lines(), 320).unwrap();
        let units = TextUnits::Subwords(tokenizer.clone());
        let encoder = Encoder::new(&units);
        for text in [text.as_str(), "", "\n", " ", &long] {
            for _ in 0..2 {
                assert_eq!(encoder.subwords(&tokenizer, text), units.encode(text).unwrap(), "{text:?}");
            }
        }
        let mut memory = Memory::default();
        for number in 0..2 * REMEMBERED + 5 {
            let (word, mut ids) = (number.to_string(), Vec::new());
            memory.encode(&tokenizer, &word, &mut ids);
            assert!(memory.places.len() <= REMEMBERED);
            if number % 9973 == 0 {
                memory.encode(&tokenizer, &word, &mut ids);
                let once: Vec<u32> = tokenizer.encode(&word).into_iter().map(|id| id as u32).collect();
                assert_eq!(ids, [once.clone(), once].concat());
            }
        }
    }
}
