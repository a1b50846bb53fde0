//! Byte-pair encoding with bytes for unknown characters, as SentencePiece does it for Llama; or one token per character.

use std::collections::HashMap;

use serde::Deserialize;

/// A word boundary in a piece.
const SPACE: char = '\u{2581}';

/// Pieces of text and their numbers.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    pieces: Vec<String>,
    ids: HashMap<String, u32>,
    /// Pairs of pieces that become one, in order, with the piece that they become; none where a token is a character.
    merges: Option<Vec<([u32; 2], u32)>>,
}

#[derive(Deserialize)]
struct File {
    model: Words,
}

#[derive(Deserialize)]
struct Words {
    vocab: HashMap<String, u32>,
    merges: Option<Vec<[String; 2]>>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json` of Hugging Face with byte-pair encoding, or one without merges whose pieces are characters.
    ///
    /// # Errors
    /// A file without a vocabulary, merges of unknown pieces, a vocabulary with merges and without all bytes, or one without
    /// merges and with pieces of several characters.
    pub fn new(file: &[u8]) -> Result<Self, String> {
        let File { model } = serde_json::from_slice(file).map_err(|error| format!("tokenizer: {error}"))?;
        let ids = model.vocab;
        let mut pieces = vec![String::new(); ids.len()];
        for (piece, &id) in &ids {
            *pieces.get_mut(id as usize).ok_or("tokenizer: ids of the vocabulary are not 0, 1, ..")? = piece.clone();
        }
        let id = |piece: &str| {
            ids.get(piece).copied().ok_or_else(|| format!("tokenizer: '{piece}' is not in the vocabulary"))
        };
        let Some(merges) = model.merges else {
            return match pieces.iter().find(|piece| piece.chars().count() != 1) {
                Some(piece) => Err(format!("tokenizer: '{piece}' without merges, expected one character")),
                None => Ok(Self { pieces, ids, merges: None }),
            };
        };
        (0..=255u8).try_for_each(|byte| id(&byte_piece(byte)).map(drop))?;
        let joined = merges.iter().map(|[a, b]| Ok(([id(a)?, id(b)?], id(&format!("{a}{b}"))?)));
        let merges = Some(joined.collect::<Result<_, String>>()?);
        Ok(Self { pieces, ids, merges })
    }

    /// Number of pieces.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are no pieces.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Characters of `text` that have no token.
    pub fn unknown(&self, text: &str) -> usize {
        let known = |c: char| self.merges.is_some() || self.ids.contains_key(c.encode_utf8(&mut [0; 4]) as &str);
        text.chars().filter(|c| !known(*c)).count()
    }

    /// The tokens of `text`, without a beginning-of-text token and without what has none.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let Some(merges) = &self.merges else {
            return text.chars().filter_map(|c| self.ids.get(c.encode_utf8(&mut [0; 4]) as &str).copied()).collect();
        };
        if text.is_empty() {
            return Vec::new();
        }
        let mut tokens = Vec::new();
        for c in std::iter::once(SPACE).chain(text.chars().map(|c| if c == ' ' { SPACE } else { c })) {
            let mut bytes = [0; 4];
            let c = c.encode_utf8(&mut bytes);
            match self.ids.get(c) {
                Some(&id) => tokens.push(id),
                None => tokens.extend(c.bytes().map(|byte| self.ids[&byte_piece(byte)])),
            }
        }
        // A piece comes before the pieces that contain it, so that one round joins all; should a file have another
        // order, rounds go on until nothing is left to join.
        loop {
            let before = tokens.len();
            merges.iter().for_each(|&(pair, joined)| join(&mut tokens, pair, joined));
            if tokens.len() == before {
                return tokens;
            }
        }
    }

    /// The piece of a token, with spaces; a byte that is no character by itself as `<0x..>`.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn piece(&self, token: u32) -> String {
        let piece = &self.pieces[token as usize];
        match byte_of(piece) {
            _ if self.merges.is_none() => piece.clone(),
            Some(byte) if byte.is_ascii() => char::from(byte).to_string(),
            _ => piece.replace(SPACE, " "),
        }
    }

    /// The text of tokens, without the space before the first word; control tokens such as `<s>` are left out.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn decode(&self, tokens: &[u32]) -> String {
        if self.merges.is_none() {
            return tokens.iter().map(|&token| &self.pieces[token as usize][..]).collect();
        }
        let mut bytes = Vec::new();
        for &token in tokens {
            let piece = &self.pieces[token as usize];
            match byte_of(piece) {
                Some(byte) => bytes.push(byte),
                None if matches!(&piece[..], "<unk>" | "<s>" | "</s>") => {}
                None => bytes.extend(piece.replace(SPACE, " ").bytes()),
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.strip_prefix(' ').map(str::to_owned).unwrap_or(text)
    }
}

/// The piece of one byte.
fn byte_piece(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

fn byte_of(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok()
}

/// Replaces every `pair`, from the left, by `joined`.
fn join(tokens: &mut Vec<u32>, [a, b]: [u32; 2], joined: u32) {
    let mut kept = 0;
    let mut at = 0;
    while at < tokens.len() {
        let is_pair = tokens[at] == a && tokens.get(at + 1) == Some(&b);
        tokens[kept] = if is_pair { joined } else { tokens[at] };
        at += 1 + usize::from(is_pair);
        kept += 1;
    }
    tokens.truncate(kept);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::tokenizer;

    #[test]
    fn text_comes_back() {
        let tokenizer = tokenizer();
        assert_eq!(tokenizer.len(), 512);
        for text in ["Once upon a time", " two  spaces ", "naïve café — 7 €", "日本\n\ttabs", "x", ""] {
            assert_eq!(tokenizer.decode(&tokenizer.encode(text)), text, "{text:?}");
        }
    }

    #[test]
    fn common_words_are_short_and_unknown_characters_are_bytes() {
        let tokenizer = tokenizer();
        let pieces = |text: &str| -> Vec<String> {
            tokenizer.encode(text).into_iter().map(|token| tokenizer.piece(token)).collect()
        };
        assert_eq!(pieces("the and"), [" the", " and"]);
        assert_eq!(pieces("日"), [" ", "<0xE6>", "<0x97>", "<0xA5>"]);
        assert_eq!(pieces("\n"), [" ", "\n"]);
    }

    #[test]
    fn a_token_is_a_character_where_there_are_no_merges() {
        let characters =
            Tokenizer::new(r#"{"model": {"vocab": {"\n": 0, " ": 1, "a": 2, "▁": 3}}}"#.as_bytes()).unwrap();
        assert_eq!(characters.encode(" a\nb▁é"), [1, 2, 0, 3]);
        assert_eq!((characters.unknown(" a\nb▁é"), characters.decode(&[1, 2, 0, 3])), (2, " a\n▁".to_owned()));
        assert_eq!(characters.piece(3), "▁");
        assert_eq!(tokenizer().unknown("日"), 0);
    }

    #[test]
    fn a_pair_is_joined_from_the_left() {
        let mut tokens = vec![1, 1, 1, 2, 1];
        join(&mut tokens, [1, 1], 3);
        assert_eq!(tokens, [3, 1, 2, 1]);
    }

    #[test]
    fn files_that_do_not_fit_are_refused() {
        for (file, words) in [
            ("{}", "missing field `model`"),
            (r#"{"model": {"vocab": {"a": 5}, "merges": []}}"#, "not 0, 1"),
            (r#"{"model": {"vocab": {"ab": 0}}}"#, "'ab' without merges"),
            (r#"{"model": {"vocab": {"a": 0}, "merges": []}}"#, "'<0x00>' is not in the vocabulary"),
        ] {
            let error = Tokenizer::new(file.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
