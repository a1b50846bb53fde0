//! Character language model on an embedded public-domain text or any UTF-8 file.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;
use rand::Rng;
use regard_files::text::decode_text;
use regard_nn::models::TokenBatch;
use serde::{Deserialize, Serialize};

use super::{
    Batch, Batches, DataError, Objective, Progress, Shape, Split, SplitBatches, Streams, Task, TaskData, TaskOptions,
    config::{check_file, check_fraction},
    file::Meter,
};

/// Plays of Shakespeare, gzip: see `data/README.md` for source and licence.
const SHAKESPEARE: &[u8] = include_bytes!("../../data/tinyshakespeare.txt.gz");

/// Used instead of its path in messages.
pub(super) const EMBEDDED: &str = "embedded text";

/// Characters of the embedded text.
const CHARACTERS: usize = 65;

/// Character language model on one text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CharLmConfig {
    /// A UTF-8 file (plain, gzip or bzip2); absent: the embedded text (the works of Shakespeare, 1,115,394 characters).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Fraction of the text, at its end, held out, in (0, 1): its first half for validation, its second for test.
    pub valid_fraction: f64,
    /// Characters predicted per window, each from those before it in the window.
    pub context: usize,
}

impl Default for CharLmConfig {
    fn default() -> Self {
        Self { path: None, valid_fraction: 0.1, context: 256 }
    }
}

/// One text in three parts.
#[derive(Clone, Debug)]
pub struct LanguageData {
    /// Training token ids, in order.
    pub train: Vec<u16>,
    /// Validation token ids, in order.
    pub valid: Vec<u16>,
    /// Test token ids, in order.
    pub test: Vec<u16>,
    /// The characters behind the ids.
    pub vocabulary: Vocabulary,
    /// Tokens predicted per window.
    pub context: usize,
}

/// The characters behind token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// Ascending; the id of a character is its index.
    characters: Vec<char>,
}

impl Vocabulary {
    /// The distinct characters of `text`, ascending.
    ///
    /// # Errors
    /// More than 65,536 of them.
    pub fn of(text: &str) -> Result<Self, DataError> {
        let mut seen = vec![false; char::MAX as usize + 1];
        text.chars().for_each(|c| seen[c as usize] = true);
        let present = seen.iter().zip(0u32..).filter(|(seen, _)| **seen);
        Self::new(present.filter_map(|(_, code)| char::from_u32(code)).collect())
    }

    /// From given characters, as stored in a checkpoint.
    ///
    /// # Errors
    /// Characters that do not ascend; more than 65,536 of them.
    pub fn new(characters: Vec<char>) -> Result<Self, DataError> {
        if let Some(pair) = characters.windows(2).find(|pair| pair[0] >= pair[1]) {
            let (before, after) = (pair[0], pair[1]);
            return Err(DataError::Value(format!(
                "a vocabulary with {after:?} after {before:?}; its characters must ascend, each occurring once"
            )));
        }
        if characters.len() > 1 << 16 {
            let seen = characters.len();
            return Err(DataError::Value(format!("a vocabulary of {seen} characters; at most 65536 are supported")));
        }
        Ok(Self { characters })
    }

    /// Number of characters.
    pub fn len(&self) -> usize {
        self.characters.len()
    }

    /// Whether there is no character.
    pub fn is_empty(&self) -> bool {
        self.characters.is_empty()
    }

    /// The characters, ascending.
    pub fn characters(&self) -> &[char] {
        &self.characters
    }

    /// Token ids of a text.
    ///
    /// # Errors
    /// A character that is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<u16>, DataError> {
        let id = |(place, c): (usize, char)| match self.characters.binary_search(&c) {
            Ok(id) => Ok(id as u16),
            Err(_) => Err(DataError::Value(format!(
                "character {c:?} (U+{:04X}, number {} of the text) is not among the {} characters of the vocabulary; \
                 leave it out or train on a text that has it",
                c as u32,
                place + 1,
                self.len()
            ))),
        };
        text.chars().enumerate().map(id).collect()
    }

    /// The text of token ids.
    ///
    /// # Errors
    /// An id that is not below [`Vocabulary::len`].
    pub fn decode(&self, ids: &[u16]) -> Result<String, DataError> {
        let character = |&id: &u16| {
            self.characters.get(usize::from(id)).ok_or_else(|| {
                let size = self.len();
                DataError::Value(format!("token id {id} is out of range; a vocabulary of {size} has ids below {size}"))
            })
        };
        ids.iter().map(character).collect()
    }
}

/// Windows of a text, or sequences, in which each token is predicted from those before it in its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LanguageBatch {
    /// Token ids `[rows, length]`.
    pub inputs: Vec<i32>,
    /// The token after each of `inputs`, `[rows, length]`; negative if ignored.
    pub targets: Vec<i32>,
    /// Windows.
    pub rows: usize,
    /// Tokens per window.
    pub length: usize,
}

impl From<LanguageBatch> for Batch {
    fn from(batch: LanguageBatch) -> Self {
        let tokens = TokenBatch {
            ids: batch.inputs.into(),
            batch: batch.rows,
            length: batch.length,
            padding: None,
            types: None,
        };
        Self { tokens, targets: batch.targets.into(), source: None, readers: None }
    }
}

impl LanguageBatch {
    /// Windows of `length` predictions from each of `starts`.
    fn gather(text: &[u16], starts: &[usize], length: usize) -> Self {
        let windows = |shift: usize| {
            let window = |&start: &usize| text[start + shift..][..length].iter().map(|&id| i32::from(id));
            starts.iter().flat_map(window).collect()
        };
        Self { inputs: windows(0), targets: windows(1), rows: starts.len(), length }
    }
}

impl LanguageData {
    /// `rows` windows at random positions of the training text, a pure function of `seed` and `step`.
    ///
    /// # Panics
    /// If the training text is not longer than `context`; that of loaded data always is.
    pub fn train_batch(&self, seed: u64, step: u64, rows: usize) -> LanguageBatch {
        let mut stream = Streams::new(seed, "windows").at(step);
        // A window of `context` predictions needs one more token.
        let places = (self.train.len() - self.context) as u64;
        let starts: Vec<usize> = (0..rows).map(|_| stream.random_range(0..places) as usize).collect();
        LanguageBatch::gather(&self.train, &starts, self.context)
    }

    /// The text of a split.
    pub fn part(&self, split: Split) -> &[u16] {
        match split {
            Split::Valid => &self.valid,
            Split::Test => &self.test,
        }
    }

    /// A split in consecutive windows, `rows` per batch: every token after the first is predicted exactly once. The last
    /// window may be shorter and is then a separate batch.
    pub fn evaluation_batches(&self, split: Split, rows: usize) -> impl ExactSizeIterator<Item = LanguageBatch> + '_ {
        let text = self.part(split);
        let predictions = text.len().saturating_sub(1);
        let (whole, rest) = (predictions / self.context, predictions % self.context);
        let rows = rows.max(1);
        let batches = whole.div_ceil(rows);
        (0..batches + usize::from(rest > 0)).map(move |batch| {
            if batch == batches {
                return LanguageBatch::gather(text, &[whole * self.context], rest);
            }
            let windows = batch * rows..((batch + 1) * rows).min(whole);
            let starts: Vec<usize> = windows.map(|window| window * self.context).collect();
            LanguageBatch::gather(text, &starts, self.context)
        })
    }
}

impl TaskOptions for CharLmConfig {
    fn summary(&self) -> &'static str {
        "character language model on an embedded public-domain text or any UTF-8 file"
    }

    fn check(&self) -> Result<(), DataError> {
        if self.context == 0 {
            return Err(DataError::config("char_lm.context", "is 0; must be at least 1"));
        }
        check_fraction("char_lm.valid_fraction", self.valid_fraction)?;
        self.path.as_deref().map_or(Ok(()), check_file)
    }

    fn load(&self, _: u64, _: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        Ok(Box::new(load(self, progress)?))
    }

    fn shape(&self) -> Shape {
        Shape { objective: Objective::NextToken { certain: false }, vocabulary: CHARACTERS, max_length: self.context }
    }

    fn smallest_batch(&self, rows: usize) -> [usize; 2] {
        [rows, self.context]
    }
}

impl Task for LanguageData {
    fn shape(&self) -> Shape {
        let objective = Objective::NextToken { certain: false };
        Shape { objective, vocabulary: self.vocabulary.len(), max_length: self.context }
    }

    fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError> {
        Ok(Box::new(move |index| self.train_batch(seed, index, rows).into()))
    }

    fn split(&self, split: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
        Ok(Box::new(self.evaluation_batches(split, rows).map(Batch::from)))
    }

    fn setting(&self) -> String {
        let (train, valid, test) = (self.train.len(), self.valid.len(), self.test.len());
        format!("{train} training characters, {valid} for validation, {test} for test, context {}", self.context)
    }

    fn characters(&self) -> Option<&Vocabulary> {
        Some(&self.vocabulary)
    }
}

/// Reads the text and splits it: the first part is for training, the rest in halves for validation and test. The
/// vocabulary is that of the whole text.
fn load(config: &CharLmConfig, progress: Progress<'_>) -> Result<LanguageData, DataError> {
    let path = config.path.as_deref();
    let mut bytes = Vec::new();
    match path {
        Some(path) => {
            let meter = Meter::new([path], progress);
            meter.open(path)?.read_to_end(&mut bytes).map_err(|source| DataError::read(path, source))?;
        }
        None => bytes = shakespeare()?,
    }
    split(&bytes, path.unwrap_or(Path::new(EMBEDDED)), config)
}

/// The embedded text.
pub(super) fn shakespeare() -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    GzDecoder::new(SHAKESPEARE).read_to_end(&mut bytes).map_err(|source| DataError::read(EMBEDDED, source))?;
    Ok(bytes)
}

fn split(bytes: &[u8], path: &Path, config: &CharLmConfig) -> Result<LanguageData, DataError> {
    let text = decode_text(bytes).map_err(|error| DataError::text(path, &error))?;
    let content = |problem| DataError::Content { path: path.into(), problem };
    let vocabulary = Vocabulary::of(&text).map_err(|error| content(error.to_string()))?;
    let mut train = vocabulary.encode(&text)?;
    let characters = train.len();
    let mut valid = train.split_off((characters as f64 * (1.0 - config.valid_fraction)).round() as usize);
    let test = valid.split_off(valid.len().div_ceil(2));
    if train.len() <= config.context || test.len() < 2 {
        return Err(content(format!(
            "has {characters} characters, {} to train on, {} to validate on and {} to test on; a context of {} needs at \
             least {}, 2 and 2; give a longer text, lower task.char_lm.context or change task.char_lm.valid_fraction",
            train.len(),
            valid.len(),
            test.len(),
            config.context,
            config.context.saturating_add(1)
        )));
    }
    Ok(LanguageData { train, valid, test, vocabulary, context: config.context })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str, context: usize) -> Result<LanguageData, DataError> {
        let config = CharLmConfig { context, ..CharLmConfig::default() };
        split(text.as_bytes(), Path::new("text"), &config)
    }

    #[test]
    fn the_embedded_text_is_the_one_others_report_on() {
        let data = load(&CharLmConfig::default(), &|_, _| {}).unwrap();
        assert_eq!((data.vocabulary.len(), data.train.len()), (65, 1_003_855));
        assert_eq!((data.valid.len(), data.test.len()), (55_770, 55_769));
        assert!(data.vocabulary.decode(&data.train[..14]).unwrap() == "First Citizen:");
    }

    #[test]
    fn encoding_is_undone_by_decoding_and_names_the_unknown_character() {
        let vocabulary = Vocabulary::of("größer\n").unwrap();
        assert_eq!(vocabulary.characters(), ['\n', 'e', 'g', 'r', 'ß', 'ö']);
        let ids = vocabulary.encode("großer").unwrap_err().to_string();
        assert!(ids.contains("'o' (U+006F, number 3 of the text)"), "{ids}");
        let ids = vocabulary.encode("eßgröße").unwrap();
        assert_eq!(vocabulary.decode(&ids).unwrap(), "eßgröße");
        assert!(vocabulary.decode(&[6]).unwrap_err().to_string().contains("token id 6"));
        assert!(Vocabulary::new(vec!['b', 'a']).is_err());
    }

    #[test]
    fn training_windows_depend_on_seed_and_step_and_reach_both_ends() {
        let text: String = ('a'..='z').take(20).chain("abcd".chars()).collect();
        let config = CharLmConfig { context: 5, valid_fraction: 0.2, ..CharLmConfig::default() };
        let data = split(text.as_bytes(), Path::new("text"), &config).unwrap();
        assert_eq!(data.train.len(), 19);
        assert_eq!(data.train_batch(1, 9, 4), data.train_batch(1, 9, 4));
        assert_ne!(data.train_batch(1, 9, 4), data.train_batch(1, 10, 4));
        assert_ne!(data.train_batch(1, 9, 4), data.train_batch(2, 9, 4));
        let batch = data.train_batch(1, 0, 500);
        assert_eq!((batch.rows, batch.length, batch.inputs.len()), (500, 5, 2500));
        assert!(batch.inputs.iter().zip(&batch.targets).all(|(input, target)| target - input == 1));
        assert_eq!((batch.inputs.iter().min(), batch.targets.iter().max()), (Some(&0), Some(&18)));
    }

    #[test]
    fn evaluation_predicts_every_token_after_the_first_of_its_part_once() {
        let text: String = ('\u{100}'..).take(450).collect();
        let data = data(&text, 4).unwrap();
        for rows in [1, 2, 3, 100] {
            for (split, expected) in [(Split::Valid, 406..428), (Split::Test, 429..450)] {
                let batches: Vec<_> = data.evaluation_batches(split, rows).collect();
                assert_eq!(batches.len(), data.evaluation_batches(split, rows).len());
                let targets: Vec<i32> = batches.iter().flat_map(|batch| batch.targets.clone()).collect();
                assert_eq!(targets, expected.collect::<Vec<_>>());
                assert!(batches.iter().all(|b| b.inputs.len() == b.rows * b.length && b.rows <= rows));
            }
        }
    }

    /// Files of other systems give the same tokens.
    #[test]
    fn a_byte_order_mark_and_other_line_ends_change_nothing() {
        let text = "first line\nsecond line\nthird line\nfourth line\n";
        let other = format!("\u{feff}{}", text.replace('\n', "\r\n"));
        let (plain, other) = (data(text, 5).unwrap(), data(&other, 5).unwrap());
        assert_eq!((other.vocabulary, other.train, other.test), (plain.vocabulary, plain.train, plain.test));
    }

    #[test]
    fn unusable_texts_are_refused_with_the_place() {
        let error = data("too short", 9).unwrap_err();
        assert!(!error.is_config() && error.to_string().contains("has 9 characters, 8 to train on"), "{error}");
        let config = CharLmConfig::default();
        let error = split(b"one\ntwo\xff\n", Path::new("text"), &config).unwrap_err().to_string();
        assert!(error.starts_with("text:2: is not UTF-8"), "{error}");
    }
}
