//! Texts as tokens and back.

mod chat;
mod guard;
mod pairs;
mod settings;
mod stream;
mod words;

use std::path::Path;

use tokenizers::{Encoding, TruncationDirection};

use self::{chat::ChatTemplate, guard::guarded, settings::Settings, words::Cut};
pub use self::{chat::Message, settings::SpecialTokens, stream::TokenStream};
use crate::{Architecture, Family, PretrainedError};

type Result<T> = std::result::Result<T, PretrainedError>;

const TOKENIZER: &str = "tokenizer.json";
const WORDS: &str = "vocab.txt";
const PAIRS: [&str; 2] = ["vocab.json", "merges.txt"];

/// The tokenizer of a model: `tokenizer.json`, the `vocab.txt` of a BERT or an ALBERT, or `vocab.json`
/// and `merges.txt` of a GPT-2 or a RoBERTa, with `tokenizer_config.json`.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    size: usize,
    settings: Settings,
    special: SpecialTokens,
    template: Option<ChatTemplate>,
}

/// A text, or two, as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Numbers of the tokens.
    pub ids: Vec<u32>,
    /// The segment of each: 0, or 1 for the second text.
    pub types: Vec<u32>,
    /// Tokens of the text that did not fit.
    pub dropped: usize,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Tokenizer").field("size", &self.size).field("special", &self.special).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Opens the tokenizer of a folder, for a model of any kind.
    ///
    /// # Errors
    /// No tokenizer, a broken one, a broken `tokenizer_config.json` or chat template.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::read(folder.as_ref(), Cut::Words)
    }

    fn read(folder: &Path, cut: Cut) -> Result<Self> {
        let settings = Settings::of_folder(folder)?;
        let (file, words, pairs) = (folder.join(TOKENIZER), folder.join(WORDS), PAIRS.map(|name| folder.join(name)));
        let mut inner = if file.exists() {
            let bytes = std::fs::read(&file).map_err(PretrainedError::reading(&file))?;
            let broken = |error: String| {
                PretrainedError::content(&file, format!("not a tokenizer that is read: {error}; fetch it again"))
            };
            // The library itself does not tell all that is no JSON.
            serde_json::from_slice::<serde_json::Value>(&bytes).map_err(|error| broken(error.to_string()))?;
            guarded(|| tokenizers::Tokenizer::from_bytes(bytes)).map_err(broken)?
        } else if words.exists() {
            words::read(&words, &settings, cut)?
        } else if pairs.iter().all(|file| file.exists()) {
            let [vocabulary, merges] = &pairs;
            guarded(|| Ok(pairs::read([vocabulary, merges], &settings)))
                .map_err(|error| PretrainedError::content(merges, error))??
        } else {
            let problem = "no tokenizer, expected tokenizer.json, vocab.txt of a BERT, or vocab.json and merges.txt; fetch it, \
                           or give token numbers";
            return Err(PretrainedError::content(folder, problem));
        };
        // How much is cut and filled up is said with each text, not in a file.
        inner.with_padding(None);
        let _ = inner.with_truncation(None);
        let special = settings.special(&inner);
        let template = settings.template.clone().map(|(path, source)| ChatTemplate::new(&path, source)).transpose()?;
        let size = inner.get_vocab(true).values().max().map_or(0, |last| *last as usize + 1);
        Ok(Self { inner, size, settings, special, template })
    }

    /// The same, for a model.
    pub(crate) fn of_folder(folder: &Path, architecture: &Architecture) -> Result<Self> {
        let cut = match architecture.family {
            Family::Bert => Some(Cut::Words),
            // One of words has the model of sentencepiece beside it; a list alone is of symbols.
            Family::Albert => Some(Cut::Anywhere),
            _ => None,
        };
        if cut.is_none() && !folder.join(TOKENIZER).exists() && folder.join(WORDS).exists() {
            let problem = format!(
                "vocab.txt of a {} model, which does not say how texts are cut; expected tokenizer.json; write it with \
                 save_pretrained of transformers, or give token numbers",
                architecture.family.name()
            );
            return Err(PretrainedError::content(folder, problem));
        }
        let tokenizer = Self::read(folder, cut.unwrap_or(Cut::Words))?;
        if architecture.vocabulary > 0 && tokenizer.size > architecture.vocabulary {
            let problem = format!(
                "the tokenizer has {} tokens; expected at most vocab_size = {} of config.json; fetch both from one place",
                tokenizer.size, architecture.vocabulary
            );
            return Err(PretrainedError::content(folder, problem));
        }
        Ok(tokenizer)
    }

    /// Tokens, or one more than the largest number where there are gaps.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Tokens with a meaning of their own.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The number of tokens that the model takes, where `tokenizer_config.json` says it.
    pub fn length(&self) -> Option<usize> {
        self.settings.length
    }

    /// The number of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token of a number, as it stands in the vocabulary.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Cuts a text into tokens, with those that the model expects around it if `special`.
    ///
    /// With a `limit`, no more than so many come back; those of the text that did not fit are counted in [`Encoded::dropped`].
    ///
    /// # Errors
    /// A text that the tokenizer has no tokens for, or a limit that leaves no room beside the special tokens.
    pub fn encode(&self, text: &str, special: bool, limit: Option<usize>) -> Result<Encoded> {
        let text = self.cut(text)?;
        self.finish(text, None, special, limit)
    }

    /// Cuts two texts into the tokens of one row; the longer one is shortened first.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_pair(&self, first: &str, second: &str, limit: Option<usize>) -> Result<Encoded> {
        let (first, mut second) = (self.cut(first)?, self.cut(second)?);
        second.set_type_ids(vec![1; second.len()]);
        self.finish(first, Some(second), true, limit)
    }

    /// The tokens of a text alone.
    fn cut(&self, text: &str) -> Result<Encoding> {
        guarded(|| self.inner.encode(text, false))
            .map_err(|error| PretrainedError::Text(format!("cannot encode the text: {error}")))
    }

    fn finish(
        &self,
        mut first: Encoding,
        mut second: Option<Encoding>,
        special: bool,
        limit: Option<usize>,
    ) -> Result<Encoded> {
        let broken = |error: String| PretrainedError::Text(format!("cannot add special tokens to the text: {error}"));
        let around = if special {
            // What is added to nothing, with the beginning that only settings ask for.
            let empty = second.is_some().then(Encoding::default);
            let added = guarded(|| self.inner.post_process(Encoding::default(), empty, true)).map_err(broken)?;
            self.begun(added.get_ids().to_vec(), added.get_type_ids().to_vec()).0.len()
        } else {
            0
        };
        let before = first.len() + second.as_ref().map_or(0, Encoding::len);
        if let Some(limit) = limit {
            let Some(room) = limit.checked_sub(around).filter(|room| *room > 0 || before == 0) else {
                return Err(PretrainedError::Text(format!(
                    "a limit of {limit} tokens leaves no room beside {around} special tokens; expected at least {}",
                    around + 1
                )));
            };
            let (left, right) = shares(first.len(), second.as_ref().map_or(0, Encoding::len), room);
            first.truncate(left, 0, TruncationDirection::Right);
            if let Some(second) = &mut second {
                second.truncate(right, 0, TruncationDirection::Right);
            }
        }
        let dropped = before - first.len() - second.as_ref().map_or(0, Encoding::len);
        let whole = guarded(|| self.inner.post_process(first, second, special)).map_err(broken)?;
        let (ids, types) = (whole.get_ids().to_vec(), whole.get_type_ids().to_vec());
        let (ids, types) = if special { self.begun(ids, types) } else { (ids, types) };
        Ok(Encoded { ids, types, dropped })
    }

    /// The same with the first token that `add_bos_token` asks for.
    fn begun(&self, mut ids: Vec<u32>, mut types: Vec<u32>) -> (Vec<u32>, Vec<u32>) {
        if let (Some(add), Some(bos)) = (self.settings.add_bos, self.special.bos) {
            let there = ids.first() == Some(&bos);
            if add && !there {
                ids.insert(0, bos);
                types.insert(0, 0);
            } else if !add && there && self.settings.llama {
                ids.remove(0);
                types.remove(0);
            }
        }
        (ids, types)
    }

    /// The text of tokens; special ones are left out unless `special`.
    ///
    /// # Errors
    /// A number that is no token.
    pub fn decode(&self, ids: &[u32], special: bool) -> Result<String> {
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.size) {
            return Err(PretrainedError::Text(format!("token {id}; expected numbers below {}", self.size)));
        }
        guarded(|| self.inner.decode(ids, !special))
            .map_err(|error| PretrainedError::Text(format!("cannot decode the tokens: {error}")))
    }

    /// A decoder that is given one token after the other; special ones are left out.
    pub fn stream(&self) -> TokenStream<'_> {
        TokenStream::new(self)
    }

    /// Whether a token is left out of texts.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.inner.get_added_tokens_decoder().get(&id).is_some_and(|token| token.special)
    }

    /// Whether the folder has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// A conversation as the text that the model was trained on. Encode it without special tokens: they are in the text.
    ///
    /// With `answer`, the text ends with the beginning of the model's turn.
    ///
    /// # Errors
    /// No chat template, or a conversation that it refuses.
    pub fn chat(&self, messages: &[Message], answer: bool) -> Result<String> {
        let template = self.template.as_ref().ok_or_else(|| {
            PretrainedError::Text(
                "the folder has no chat template; expected chat_template in tokenizer_config.json, or chat_template.jinja; \
                 give the text itself"
                    .into(),
            )
        })?;
        template.render(messages, answer, &self.settings.tokens)
    }
}

/// Tokens of two texts that fit together: the longer one gives way first. Of an odd room, the second has the larger part where
/// it is as long as the first or longer, as in the tokenizers of Hugging Face.
fn shares(first: usize, second: usize, room: usize) -> (usize, usize) {
    if first + second <= room {
        return (first, second);
    }
    let half = room / 2;
    if first <= half {
        (first, room - first)
    } else if second <= half {
        (room - second, second)
    } else if first > second {
        (room - half, half)
    } else {
        (half, room - half)
    }
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn the_longer_text_gives_way() {
        for (first, second) in (0..9).flat_map(|a| (0..9).map(move |b| (a, b))) {
            for room in 0..18 {
                let (a, b) = shares(first, second, room);
                assert!(a <= first && b <= second, "{first} {second} {room}: {a} {b}");
                assert_eq!(a + b, room.min(first + second), "{first} {second} {room}: {a} {b}");
                assert!(a == first || b == second || a.abs_diff(b) <= 1, "{first} {second} {room}: {a} {b}");
            }
        }
        // As `tokenizers` 0.23 truncates the longest first.
        assert_eq!([shares(6, 10, 11), shares(10, 6, 11), shares(6, 6, 11)], [(5, 6), (6, 5), (5, 6)]);
    }
}
