//! Text of tokens that come one by one.

use super::{Result, Tokenizer};

/// What a decoder writes where bytes are no text.
const BROKEN: char = '\u{fffd}';

/// Decodes one token after the other. What it gives, put together, is what [`Tokenizer::decode`] gives for all of them, unless
/// the tokenizer changes earlier text by later tokens, as the clean-up of BERT's does.
#[derive(Clone, Debug)]
pub struct TokenStream<'a> {
    tokenizer: &'a Tokenizer,
    /// Tokens from the last ones whose text was given.
    recent: Vec<u32>,
    /// Those of them whose text was given.
    given: usize,
}

impl<'a> TokenStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, recent: Vec::new(), given: 0 }
    }

    /// Takes a token; gives the text that is complete with it, which is empty in the middle of a character.
    ///
    /// # Errors
    /// A number that is no token.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        // Tells a number that is no token before it is kept.
        self.tokenizer.decode(&[id], true)?;
        self.recent.push(id);
        let (before, after) = self.texts()?;
        if after.ends_with(BROKEN) {
            return Ok(String::new());
        }
        self.recent.drain(..self.given);
        self.given = self.recent.len();
        Ok(beyond(&before, &after))
    }

    /// The rest: bytes that never became a character.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(mut self) -> Result<String> {
        let (before, after) = self.texts()?;
        self.recent.clear();
        Ok(beyond(&before, &after))
    }

    /// The text that was given of the recent tokens, and that of all of them.
    fn texts(&self) -> Result<(String, String)> {
        let before = self.tokenizer.decode(&self.recent[..self.given], true)?;
        Ok((before, self.tokenizer.decode(&self.recent, true)?))
    }
}

/// What a text has beyond its beginning.
fn beyond(before: &str, after: &str) -> String {
    let same = before.chars().zip(after.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    after[same..].to_string()
}
