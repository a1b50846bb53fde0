//! What the tokens of a language model stand for.

use std::borrow::Cow;

use super::WordVocabulary;
use crate::{
    data::{
        DataError, TextTokenizer, Vocabulary,
        tokenizer::{END, FIRST_TOKEN},
    },
    train::TOKENIZER,
};

/// The file of a run directory that lists its words, one a line, by id.
pub const VOCABULARY: &str = "vocabulary.txt";

/// Text to token ids and back, by the kind of token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant)] // One value a data set.
pub enum TextUnits {
    /// Characters.
    Characters(Vocabulary),
    /// Bytes of UTF-8; the id of a byte is its value.
    Bytes,
    /// Byte pairs; the end token stands for a line end, and other white space is normalised.
    Subwords(TextTokenizer),
    /// Words.
    Words(WordVocabulary),
}

impl TextUnits {
    /// Name of several of them.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Characters(_) => "characters",
            Self::Bytes => "bytes",
            Self::Subwords(_) => "subwords",
            Self::Words(_) => "words",
        }
    }

    /// Ids are `0 .. vocabulary`.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Characters(characters) => characters.len(),
            Self::Bytes => 256,
            Self::Subwords(tokenizer) => tokenizer.vocabulary(),
            Self::Words(words) => words.len(),
        }
    }

    /// Token ids of a text.
    ///
    /// # Errors
    /// A character that is not in the vocabulary. The other kinds encode every text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        Ok(match self {
            Self::Characters(characters) => characters.encode(text)?.into_iter().map(u32::from).collect(),
            Self::Bytes => text.bytes().map(u32::from).collect(),
            Self::Words(words) => words.encode(text),
            Self::Subwords(tokenizer) => {
                let lines: Vec<&str> = text.split('\n').collect();
                let mut ids = Vec::new();
                for (number, line) in tokenizer.encode_all(&lines).into_iter().enumerate() {
                    ids.extend((number > 0).then_some(END as u32));
                    ids.extend(line.into_iter().map(|id| id as u32));
                }
                ids
            }
        })
    }

    /// The text of token ids. Ids without a text are skipped, and bytes that are not UTF-8 replaced.
    pub fn decode(&self, ids: &[u32]) -> String {
        match self {
            Self::Characters(characters) => {
                ids.iter().filter_map(|id| characters.characters().get(*id as usize)).collect()
            }
            Self::Bytes => {
                let bytes: Vec<u8> = ids.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::Words(words) => words.decode(ids),
            Self::Subwords(tokenizer) => {
                let line = |ids: &[u32]| tokenizer.decode(&ids.iter().map(|id| *id as i32).collect::<Vec<_>>());
                ids.split(|id| *id == END as u32).map(line).collect::<Vec<_>>().join("\n")
            }
        }
    }

    /// Whether a text may contain this token; the others stand for nothing in texts of this kind.
    pub fn occurs(&self, id: u32) -> bool {
        match self {
            Self::Subwords(_) => id >= FIRST_TOKEN as u32 || id == END as u32,
            _ => true,
        }
    }

    /// An id as shown in a table.
    pub fn piece(&self, id: u32) -> String {
        match self {
            Self::Subwords(tokenizer) => tokenizer.piece(id as i32),
            Self::Words(words) => words.words().get(id as usize).cloned().unwrap_or_default(),
            Self::Characters(_) => format!("{:?}", self.decode(&[id])),
            Self::Bytes => u8::try_from(id).map_or(String::new(), |byte| byte.escape_ascii().to_string()),
        }
    }

    /// What a run directory keeps of them: the name and the content of a file.
    pub fn file(&self) -> Option<(&'static str, Cow<'_, str>)> {
        match self {
            Self::Subwords(tokenizer) => Some((TOKENIZER, tokenizer.json().into())),
            Self::Words(words) => Some((VOCABULARY, words.lines().into())),
            Self::Characters(_) | Self::Bytes => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_gives_its_text_back() {
        let text = "größer als\n\nder Rest, der Rest\n";
        let tokenizer = TextTokenizer::train(text.lines(), 280).unwrap();
        let kinds = [
            TextUnits::Characters(Vocabulary::of(text).unwrap()),
            TextUnits::Bytes,
            TextUnits::Subwords(tokenizer),
            TextUnits::Words(WordVocabulary::count(text, 100, 1)),
        ];
        for units in &kinds {
            let ids = units.encode(text).unwrap();
            assert_eq!(units.decode(&ids), text, "{}", units.name());
            assert!(ids.iter().all(|id| (*id as usize) < units.vocabulary() && units.occurs(*id)), "{}", units.name());
            assert_eq!(units.encode("\n").unwrap().len(), 1, "{}", units.name());
        }
        let [characters, bytes, subwords, words] = kinds.each_ref().map(|units| units.encode(text).unwrap().len());
        assert!((characters, bytes, words) == (31, 33, 9) && (words..characters).contains(&subwords), "{subwords}");
        assert_eq!(
            kinds.each_ref().map(|units| units.file().map(|(name, _)| name)),
            [None, None, Some(TOKENIZER), Some(VOCABULARY)]
        );
        assert_eq!(TextUnits::Bytes.decode(&[0xc3, 0xb6, 0xc3]), "ö\u{fffd}");
        assert_eq!((TextUnits::Bytes.piece(10), kinds[3].piece(1)), ("\\n".into(), "der".into()));
        assert!(!kinds[2].occurs(0) && kinds[2].occurs(END as u32));
    }
}
