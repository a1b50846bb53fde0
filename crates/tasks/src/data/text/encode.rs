//! Rows of texts to symbols.

use std::path::Path;

use super::TextConfig;
use crate::{
    data::{
        DataError, TextTokenizer, TextUnits, TokenKind, VOCABULARY, WordVocabulary, plain_text::read_text,
        tokenizer::END,
    },
    train::TOKENIZER,
};

/// One text, or two as one sequence: the first, a separator, the second.
#[derive(Clone, Debug)]
pub struct TextEncoder {
    units: TextUnits,
    pairs: bool,
    max_length: usize,
}

/// A row as symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Symbols; token ids are higher by [`TextEncoder::first_id`].
    pub symbols: Vec<u16>,
    /// Symbols of the first text and the separator; of a single text all of them.
    pub first: usize,
    /// Tokens at the ends of texts that did not fit.
    pub dropped: usize,
}

impl TextEncoder {
    /// Learns the units of training rows of one text each, or of two.
    ///
    /// # Errors
    /// A vocabulary that is too small.
    pub(super) fn learn(config: &TextConfig, rows: &[Vec<Box<[u8]>>], pairs: bool) -> Result<Self, DataError> {
        let texts = || rows.iter().flatten().map(|text| String::from_utf8_lossy(text).into_owned());
        let units = match config.tokens {
            TokenKind::Bytes | TokenKind::Characters => TextUnits::Bytes,
            TokenKind::Words => {
                let words: Vec<String> = texts().map(|text| words_of(&text)).collect();
                // Id 0 is padding, and a word its place in the vocabulary plus 1; the last one is the separator of pairs.
                let most = config.vocabulary - 1 - usize::from(pairs);
                TextUnits::Words(WordVocabulary::count(&words.join(" "), most, 1))
            }
            TokenKind::Subwords => {
                let texts: Vec<String> = texts().collect();
                TextUnits::Subwords(TextTokenizer::train(texts.iter().map(String::as_str), config.vocabulary)?)
            }
        };
        Ok(Self { units, pairs, max_length: config.max_length })
    }

    /// The encoder of a run with these options, from the vocabulary in its directory.
    ///
    /// # Errors
    /// A vocabulary that is missing or damaged.
    pub fn of_run(config: &TextConfig, directory: &Path) -> Result<Self, DataError> {
        let units = match config.tokens {
            TokenKind::Bytes | TokenKind::Characters => TextUnits::Bytes,
            TokenKind::Subwords => TextUnits::Subwords(TextTokenizer::load(&directory.join(TOKENIZER))?),
            TokenKind::Words => {
                let path = directory.join(VOCABULARY);
                let words = WordVocabulary::of_lines(&read_text(&path)?);
                TextUnits::Words(words.map_err(|problem| DataError::Content { path, problem })?)
            }
        };
        Ok(Self { units, pairs: config.has_pairs(), max_length: config.max_length })
    }

    /// Whether rows have two texts.
    pub fn has_pairs(&self) -> bool {
        self.pairs
    }

    /// Tokens kept of a row.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// What the ids stand for.
    pub fn units(&self) -> &TextUnits {
        &self.units
    }

    /// Token id of symbol 0: 1 where id 0 is padding, 0 where the units have an id for padding.
    pub fn first_id(&self) -> i32 {
        i32::from(!matches!(self.units, TextUnits::Subwords(_)))
    }

    /// Token ids are `0 .. vocabulary`.
    pub fn vocabulary(&self) -> usize {
        let separator = self.pairs && !matches!(self.units, TextUnits::Subwords(_));
        self.units.vocabulary() + self.first_id() as usize + usize::from(separator)
    }

    /// Between the texts of a pair.
    fn separator(&self) -> u16 {
        match &self.units {
            TextUnits::Subwords(_) => END as u16,
            other => other.vocabulary() as u16,
        }
    }

    /// Symbols of a text, as many as there are.
    fn symbols(&self, text: &[u8]) -> Vec<u16> {
        match &self.units {
            TextUnits::Bytes => text.iter().map(|byte| u16::from(*byte)).collect(),
            TextUnits::Words(words) => {
                let text = words_of(&String::from_utf8_lossy(text));
                words.encode(&text).into_iter().map(|id| id as u16).collect()
            }
            TextUnits::Subwords(tokenizer) => {
                // A row has no line ends: what looks like one is white space.
                let ids = tokenizer.encode(&String::from_utf8_lossy(text));
                ids.into_iter().map(|id| id as u16).collect()
            }
            TextUnits::Characters(_) => Vec::new(),
        }
    }

    /// Symbols of a row of one text, or of two. Of two that are too long together the longer one is cut, as in Devlin et al.
    /// 2019.
    pub fn encode<T: AsRef<[u8]>>(&self, texts: &[T]) -> Encoded {
        let mut parts = texts.iter().map(|text| self.symbols(text.as_ref()));
        let mut symbols = parts.next().unwrap_or_default();
        let Some(mut second) = parts.next().filter(|_| self.pairs) else {
            let dropped = symbols.len().saturating_sub(self.max_length);
            symbols.truncate(self.max_length);
            return Encoded { first: symbols.len(), symbols, dropped };
        };
        let room = self.max_length.saturating_sub(1);
        let dropped = (symbols.len() + second.len()).saturating_sub(room);
        let half = room.div_ceil(2);
        symbols.truncate(half.max(room.saturating_sub(second.len())));
        second.truncate(room - symbols.len());
        symbols.push(self.separator());
        let first = symbols.len();
        symbols.extend(second);
        Encoded { symbols, first, dropped }
    }
}

/// The words and punctuation marks of a text in lower case, separated by spaces.
pub(in crate::data) fn words_of(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len() + text.len() / 8);
    let mut inside = false;
    for c in text.to_lowercase().chars() {
        let word = c.is_alphanumeric();
        if !c.is_whitespace() {
            if !(spaced.is_empty() || word && inside) {
                spaced.push(' ');
            }
            spaced.push(c);
        }
        inside = word;
    }
    spaced
}
