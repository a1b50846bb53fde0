//! Byte-pair encoding (Sennrich et al. 2016), using the `tokenizers` crate.
//!
//! Words are split as in GPT-2 and start with their space; the alphabet is the 256 bytes, so that every text can be
//! encoded and decoded. Whitespace is normalised: one space between words, none at the ends.

use std::{fmt, path::Path};

use rayon::prelude::*;
use tokenizers::{
    AddedToken, Tokenizer, TokenizerBuilder, TokenizerImpl,
    decoders::DecoderWrapper,
    models::{
        ModelWrapper,
        bpe::{BPE, BpeTrainer},
    },
    normalizers::NormalizerWrapper,
    pre_tokenizers::byte_level::ByteLevel,
    processors::PostProcessorWrapper,
};

pub use regard_nn::models::special::{BEGIN, END, MASK, PADDING, UNKNOWN};

use super::{DataError, plain_text::read_text};

/// Text of the special ids, in order.
const SPECIAL: [&str; 5] = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"];

/// The first id that is not special.
pub const FIRST_TOKEN: i32 = SPECIAL.len() as i32;

/// Minimum vocabulary: special ids and bytes.
pub const SMALLEST_VOCABULARY: usize = SPECIAL.len() + 256;

/// A pair that occurs only once is not worth an id.
const LEAST_OCCURRENCES: u64 = 2;

/// Model and pre-tokenizer types for training.
type InTraining = TokenizerImpl<BPE, NormalizerWrapper, ByteLevel, PostProcessorWrapper, ByteLevel>;

/// Text to token ids and back. Ids 0 to 4 are padding, begin, end, unknown and mask; no text encodes to them.
#[derive(Clone)]
pub struct TextTokenizer {
    inner: Tokenizer,
    /// The content of `tokenizer.json`.
    json: String,
}

impl TextTokenizer {
    /// Learns a vocabulary of at most `vocabulary` ids from texts. The same texts give the same vocabulary, in any
    /// order and with any number of threads.
    ///
    /// # Errors
    /// A vocabulary below [`SMALLEST_VOCABULARY`].
    pub fn train<'t>(texts: impl Iterator<Item = &'t str> + Send, vocabulary: usize) -> Result<Self, DataError> {
        if vocabulary < SMALLEST_VOCABULARY {
            return Err(DataError::Value(format!(
                "a vocabulary of {vocabulary} ids; the special ids and the bytes alone are {SMALLEST_VOCABULARY}"
            )));
        }
        let failed = |error| DataError::Value(format!("no byte pairs from these texts: {error}"));
        let special = SPECIAL.map(|token| AddedToken::from(token, true)).to_vec();
        let mut trainer = BpeTrainer::builder()
            .vocab_size(vocabulary)
            .min_frequency(LEAST_OCCURRENCES)
            .special_tokens(special)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .show_progress(false)
            .build();
        let bytes = ByteLevel::new(true, false, true);
        let mut untrained: InTraining = TokenizerBuilder::new()
            .with_model(BPE::default())
            .with_normalizer(None)
            .with_pre_tokenizer(Some(bytes))
            .with_post_processor(None)
            .with_decoder(Some(bytes))
            .build()
            .map_err(failed)?;
        let json = untrained
            .train(&mut trainer, texts.map(normalized))
            .and_then(|trained| trained.to_string(true))
            .map_err(failed)?;
        Self::of(json).map_err(DataError::Value)
    }

    /// Reads the output of [`TextTokenizer::json`].
    ///
    /// # Errors
    /// A file that cannot be read or is not such a tokenizer.
    pub fn load(path: &Path) -> Result<Self, DataError> {
        Self::of(read_text(path)?).map_err(|problem| DataError::Content { path: path.into(), problem })
    }

    /// A tokenizer from the content of its file, or the problem as a sentence.
    fn of(json: String) -> Result<Self, String> {
        // Parsed twice: the crate panics on invalid JSON.
        let syntax = serde_json::from_str::<serde_json::Value>(&json).map_err(tokenizers::Error::from);
        let mut inner: Tokenizer = syntax
            .and_then(|_| json.parse())
            .map_err(|error| format!("not a tokenizer ({error}); expected the tokenizer.json of a run"))?;
        for (id, token) in (0..).zip(SPECIAL) {
            if inner.token_to_id(token) != Some(id) {
                let seen = inner.token_to_id(token).map_or("no id".into(), |id| format!("id {id}"));
                return Err(format!("'{token}' has {seen}, expected {id}; give the tokenizer.json of a run"));
            }
        }
        let bytes = matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
        if !bytes || !matches!(inner.get_model(), ModelWrapper::BPE(_)) {
            return Err("not a byte-pair encoding of bytes; give the tokenizer.json of a run".into());
        }
        // Text that looks like a special token is ordinary text.
        inner.set_encode_special_tokens(true);
        Ok(Self { inner, json })
    }

    /// The content of `tokenizer.json`, in the format of Hugging Face's `tokenizers`.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Ids are `0 .. vocabulary`.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Ids of a text, none of them special.
    pub fn encode(&self, text: &str) -> Vec<i32> {
        let text = normalized(text);
        if text.is_empty() {
            return Vec::new();
        }
        // With all bytes in the vocabulary, which `of` checks, encoding cannot fail.
        let encoding = self.inner.encode_fast(text, false);
        encoding.map_or(Vec::new(), |encoding| encoding.get_ids().iter().map(|&id| id as i32).collect())
    }

    /// Ids of many texts, in parallel.
    pub fn encode_all<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Vec<Vec<i32>> {
        texts.par_iter().map(|text| self.encode(text.as_ref())).collect()
    }

    /// The text of ids; special ids and those outside the vocabulary are skipped.
    pub fn decode(&self, ids: &[i32]) -> String {
        let ids: Vec<u32> = ids.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        self.inner.decode(&ids, true).map_or(String::new(), |text| normalized(&text))
    }

    /// An id as shown in a table: its text with `▁` for the space before a word, or the name of a special id.
    pub fn piece(&self, id: i32) -> String {
        let Ok(number) = u32::try_from(id) else { return String::new() };
        if let Some(name) = SPECIAL.get(number as usize) {
            return (*name).to_owned();
        }
        self.inner.decode(&[number], false).map_or(String::new(), |text| text.replace(' ', "▁"))
    }
}

/// That a vocabulary is smaller than what was asked for, since a text has no more; `None` if it is not.
pub(super) fn fewer(seen: usize, asked: usize, has_no_more: &str) -> Option<String> {
    (seen < asked).then(|| format!("a vocabulary of {seen}, not {asked}: {has_no_more}"))
}

impl fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextTokenizer").field("vocabulary", &self.vocabulary()).finish_non_exhaustive()
    }
}

impl PartialEq for TextTokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

/// Words separated by single spaces.
fn normalized(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;
    use crate::data::Streams;

    fn texts() -> Vec<String> {
        let mut stream = Streams::new(1, "texts").at(0);
        let words = ["Straße", "der", "running", "runner", "run", "größer", "größte", "don't", "1,024", "naïve"];
        let mut sentence = || (0..12).map(|_| words[stream.random_range(0..words.len())]).collect::<Vec<_>>().join(" ");
        (0..400).map(|_| sentence()).collect()
    }

    fn trained() -> TextTokenizer {
        TextTokenizer::train(texts().iter().map(String::as_str), 320).unwrap()
    }

    #[test]
    fn a_file_that_was_cut_or_changed_is_an_error() {
        let json = trained().json;
        for place in (0..json.len()).step_by(7).chain(json.len() - 700..json.len() - 1) {
            let cut: String = json.bytes().take(place).map(char::from).collect();
            assert!(TextTokenizer::of(cut).is_err(), "cut at {place}");
            let mut changed = json.clone().into_bytes();
            changed[place] = b'\x01';
            // A changed word of the vocabulary may still be one.
            let _ = String::from_utf8(changed).map(TextTokenizer::of);
        }
    }

    #[test]
    fn training_gives_the_same_vocabulary_every_time() {
        let (reference, mut texts) = (trained(), texts());
        assert!((SMALLEST_VOCABULARY + 10..=320).contains(&reference.vocabulary()), "{reference:?}");
        for threads in [1, 2, 7] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            texts.reverse();
            let again = pool.install(|| TextTokenizer::train(texts.iter().map(String::as_str), 320).unwrap());
            assert!(again == reference, "{threads} threads");
        }
    }

    #[test]
    fn any_text_comes_back_but_for_its_white_space() {
        let tokenizer = trained();
        for text in [
            "der runner  runs\tin größerer Straße\n",
            "\"Quote\" (1,024.5 %) <b>&amp;</b> it's re-run...",
            "漢字 🦀 \u{301}e\u{301} \u{0}\u{1} ﷽",
            "a <mask> and <s> are </s> words <pad> <unk>",
            "",
            "  \n ",
        ] {
            let ids = tokenizer.encode(text);
            assert!(ids.iter().all(|&id| id >= FIRST_TOKEN && (id as usize) < tokenizer.vocabulary()), "{text:?}");
            assert_eq!(tokenizer.decode(&ids), text.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        assert!(tokenizer.encode(" running").len() <= 2, "frequent words are few tokens");
        assert_eq!(tokenizer.encode("run Straße"), [tokenizer.encode("run"), tokenizer.encode("Straße")].concat());
        assert_eq!(tokenizer.encode_all(&["run", "der"]), [tokenizer.encode("run"), tokenizer.encode("der")]);
    }

    #[test]
    fn arbitrary_text_and_ids_never_panic() {
        let tokenizer = trained();
        let mut stream = Streams::new(0, "fuzz").at(0);
        for _ in 0..500 {
            let text: String = (0..stream.random_range(0..30)).map(|_| stream.random::<char>()).collect();
            assert_eq!(tokenizer.decode(&tokenizer.encode(&text)), normalized(&text));
            let ids: Vec<i32> = (0..8).map(|_| stream.random_range(-5..400)).collect();
            let _ = tokenizer.decode(&ids);
        }
        for long in ["run der ".repeat(100_000), "x".repeat(300_000), "!?".repeat(100_000), "\u{301}".repeat(100_000)] {
            assert!(tokenizer.decode(&tokenizer.encode(&long)) == long.trim_end());
        }
    }

    #[test]
    fn special_ids_are_the_first_and_are_no_text() {
        let tokenizer = trained();
        let ids = [BEGIN, tokenizer.encode("der")[0], END, PADDING, MASK, UNKNOWN, -1, 100_000];
        assert_eq!(tokenizer.decode(&ids), tokenizer.decode(&ids[1..2]));
        let names = [PADDING, BEGIN, END, UNKNOWN, MASK].map(|id| tokenizer.piece(id));
        assert_eq!(names, SPECIAL);
        let pieces: String = tokenizer.encode("der Runner").iter().map(|&id| tokenizer.piece(id)).collect();
        assert_eq!(pieces, "▁der▁Runner");
        assert_eq!((tokenizer.piece(-3), tokenizer.piece(9999)), (String::new(), String::new()));
    }

    #[test]
    fn a_file_gives_the_same_ids_and_another_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokenizer.json");
        let tokenizer = trained();
        std::fs::write(&path, tokenizer.json()).unwrap();
        let again = TextTokenizer::load(&path).unwrap();
        assert!(again == tokenizer);
        for text in texts() {
            assert_eq!(again.encode(&text), tokenizer.encode(&text));
        }
        for (content, expected) in [
            ("{", "not a tokenizer"),
            ("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "'<pad>' has no id, expected 0"),
            (&tokenizer.json().replace("ByteLevel", "Fuse"), "not"),
        ] {
            std::fs::write(&path, content).unwrap();
            let error = TextTokenizer::load(&path).unwrap_err().to_string();
            assert!(error.contains("tokenizer.json") && error.contains(expected), "{error}");
        }
        assert!(
            TextTokenizer::load(&directory.path().join("none")).unwrap_err().to_string().contains("check the path")
        );
        assert!(TextTokenizer::train(["a"].into_iter(), 100).is_err());
    }
}
