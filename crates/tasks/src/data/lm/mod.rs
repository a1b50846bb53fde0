//! Language modelling: texts in three parts, of characters, bytes, subwords or words.
//!
//! Training goes through the text in contiguous streams, one a row, or takes windows at random. Every token of an
//! evaluation split but the first is scored once, in windows that follow one another or overlap (`stride`).

mod config;
mod ids;
mod joined;
mod prepared;
mod source;
mod units;
mod windows;
mod words;

use std::path::{Path, PathBuf};

use rand::Rng;

pub use config::{Batching, LmConfig, TokenKind};
pub use ids::TokenIds;
pub use prepared::{Counts, FileSum, PrepareError, Prepared, SourceFile, prepare};
pub use source::{RowReader, is_wikitext};
pub use units::{TextUnits, VOCABULARY};
pub use words::WordVocabulary;

use windows::Windows;

use super::{
    Batch, Batches, DataError, LanguageBatch, Objective, Progress, Shape, Split, SplitBatches, Streams, Task,
    TextExtent, TextTokenizer, Vocabulary, char_lm::EMBEDDED, file::Meter, tokenizer,
};

/// Texts of a language model.
#[derive(Clone, Debug)]
pub struct LmData {
    /// Training token ids, in order.
    pub train: TokenIds,
    /// Validation token ids.
    pub valid: TokenIds,
    /// Test token ids.
    pub test: TokenIds,
    /// What the ids stand for.
    pub units: TextUnits,
    /// Tokens predicted per window.
    pub context: usize,
    /// How training windows follow one another.
    pub batches: Batching,
    /// Sizes and windows of the validation and the test text.
    extents: [TextExtent; 2],
    /// Remarks for the user.
    pub notes: Vec<String>,
}

/// Windows of `length` predictions from each of `starts`.
fn gather(text: &TokenIds, starts: &[usize], length: usize) -> LanguageBatch {
    let windows = |shift: usize| {
        let mut ids = Vec::with_capacity(starts.len() * length);
        starts.iter().for_each(|start| text.append(start + shift..start + shift + length, &mut ids));
        ids
    };
    LanguageBatch { inputs: windows(0), targets: windows(1), rows: starts.len(), length }
}

/// The order of contiguous streams: an epoch cuts the text into as many equal parts as a batch has rows, and each row goes
/// through its part window by window. The parts begin at another offset in each epoch, so that other tokens stand first in
/// their windows; what is left at the end of a part, less than a window, is passed over.
#[derive(Clone, Debug)]
struct StreamOrder {
    /// Predictions that the text has.
    predictions: usize,
    rows: usize,
    context: usize,
    /// Largest offset.
    slack: usize,
    /// Windows of a row per epoch.
    windows: usize,
    offsets: Streams,
}

impl StreamOrder {
    /// The number of rows that the text is too short for is an error.
    fn new(tokens: usize, context: usize, rows: usize, seed: u64) -> Option<Self> {
        let predictions = tokens.checked_sub(1)?;
        let slack = predictions.checked_sub(rows.checked_mul(context)?)?.min(context - 1);
        let windows = (predictions - slack).checked_div(rows)? / context;
        Some(Self { predictions, rows, context, slack, windows, offsets: Streams::new(seed, "stream offsets") })
    }

    /// Starts of the windows of batch `index`.
    fn starts(&self, index: u64) -> Vec<usize> {
        let (epoch, place) = (index / self.windows as u64, (index % self.windows as u64) as usize);
        let offset = self.offsets.at(epoch).random_range(0..=self.slack as u64) as usize;
        let part = (self.predictions - offset) / self.rows;
        (0..self.rows).map(|row| offset + row * part + place * self.context).collect()
    }
}

impl LmData {
    /// Token ids of a split.
    pub fn text(&self, split: Split) -> &TokenIds {
        match split {
            Split::Valid => &self.valid,
            Split::Test => &self.test,
        }
    }

    fn stream_order(&self, seed: u64, rows: usize) -> Result<StreamOrder, DataError> {
        if rows == 0 {
            return Err(DataError::Value("batches of no rows; give at least one".into()));
        }
        StreamOrder::new(self.train.len(), self.context, rows, seed).ok_or_else(|| {
            let (tokens, context) = (self.train.len(), self.context);
            let problem = format!(
                "streams of {rows} rows, each of {context} tokens and more, from {tokens} training tokens; lower train.batch \
                 or task.lm.context, give a longer text, or take windows"
            );
            DataError::config("lm.batches", problem)
        })
    }
}

impl Task for LmData {
    fn shape(&self) -> Shape {
        let objective = Objective::NextToken { certain: false };
        Shape { objective, vocabulary: self.units.vocabulary(), max_length: self.context }
    }

    fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError> {
        if self.batches == Batching::Streams {
            let order = self.stream_order(seed, rows)?;
            return Ok(Box::new(move |index| gather(&self.train, &order.starts(index), self.context).into()));
        }
        let streams = Streams::new(seed, "windows");
        Ok(Box::new(move |index| {
            let mut stream = streams.at(index);
            let places = (self.train.len() - self.context) as u64;
            let starts: Vec<usize> = (0..rows).map(|_| stream.random_range(0..places) as usize).collect();
            gather(&self.train, &starts, self.context).into()
        }))
    }

    fn split(&self, split: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
        let text = self.text(split);
        let TextExtent { predictions, stride, .. } = self.extents[split as usize];
        let windows = Windows { predictions, context: self.context, stride };
        let batches: Vec<_> = windows.batches(rows.max(1)).collect();
        Ok(Box::new(batches.into_iter().map(move |range| {
            let starts: Vec<usize> = range.clone().map(|window| windows.start(window)).collect();
            let length = windows.length(range.start);
            let mut batch = gather(text, &starts, length);
            for (window, targets) in range.zip(batch.targets.chunks_exact_mut(length)) {
                targets[..windows.seen(window)].fill(-1);
            }
            Batch::from(batch)
        })))
    }

    fn setting(&self) -> String {
        let units = match &self.units {
            TextUnits::Subwords(_) | TextUnits::Words(_) => {
                format!("{} of a vocabulary of {}", self.units.name(), self.units.vocabulary())
            }
            units => units.name().into(),
        };
        let (train, valid, test) = (self.train.len(), self.valid.len(), self.test.len());
        format!("{train} training {units}, {valid} for validation, {test} for testing, context {}", self.context)
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn tokenizer(&self) -> Option<&TextTokenizer> {
        match &self.units {
            TextUnits::Subwords(tokenizer) => Some(tokenizer),
            _ => None,
        }
    }

    fn characters(&self) -> Option<&Vocabulary> {
        match &self.units {
            TextUnits::Characters(characters) => Some(characters),
            _ => None,
        }
    }

    fn units(&self) -> Option<&TextUnits> {
        Some(&self.units)
    }

    fn extent(&self, split: Split) -> Option<TextExtent> {
        Some(self.extents[split as usize])
    }
}

/// That a learned vocabulary is smaller than what was asked for.
fn fewer(config: &LmConfig, units: &TextUnits) -> Option<String> {
    let learned = config.tokenizer.is_none() && units.file().is_some();
    let more = format!("the training text has no more {}", units.name());
    tokenizer::fewer(units.vocabulary(), config.vocabulary, &more).filter(|_| learned)
}

/// Reads the texts, and learns or reads the vocabulary: that of words and subwords from the training text, that of
/// characters from all three. Or opens a prepared text.
fn load(config: &LmConfig, progress: Progress<'_>) -> Result<LmData, DataError> {
    if let Some(folder) = &config.prepared {
        return prepared::open(config, folder);
    }
    let files = source::files(config)?;
    let meter = Meter::new(files.iter().flatten().map(PathBuf::as_path), progress);
    let texts = source::read(config, &meter, &files)?;
    let first = files[0].first().map_or(Path::new(EMBEDDED), PathBuf::as_path);
    let units = match config.tokens {
        TokenKind::Bytes => TextUnits::Bytes,
        TokenKind::Characters => TextUnits::Characters(
            Vocabulary::of(&texts.concat())
                .map_err(|error| DataError::Content { path: first.into(), problem: error.to_string() })?,
        ),
        TokenKind::Words => TextUnits::Words(WordVocabulary::count(&texts[0], config.vocabulary, config.min_count)),
        TokenKind::Subwords => TextUnits::Subwords(match &config.tokenizer {
            Some(path) => TextTokenizer::load(path)?,
            None => TextTokenizer::train(texts[0].lines(), config.vocabulary)?,
        }),
    };
    let embedded = "no task.lm.train, task.lm.directory or task.lm.prepared is given: the text is the embedded plays of Shakespeare";
    let embedded = files[0].is_empty().then(|| embedded.to_owned());
    let notes = embedded.into_iter().chain(fewer(config, &units)).collect();
    let encode = |text: &str| units.encode(text);
    let parts = [encode(&texts[0])?, encode(&texts[1])?, encode(&texts[2])?];
    let unknown = parts.each_ref().map(|ids| match &units {
        TextUnits::Words(words) => ids.iter().filter(|id| **id == words.unknown()).count(),
        _ => 0,
    });
    let extent = |part: usize, stride: Option<usize>| {
        let text = &texts[part];
        TextExtent {
            predictions: parts[part].len().saturating_sub(1),
            stride: stride.unwrap_or(config.context),
            words: text.split_whitespace().count() + text.bytes().filter(|byte| *byte == b'\n').count(),
            characters: text.chars().count(),
            bytes: text.len(),
            of_words: config.tokens == TokenKind::Words,
        }
    };
    let extents = [extent(1, config.valid_stride), extent(2, config.stride)];
    LmData::of(config, first, units, parts.map(TokenIds::from), extents, unknown, notes)
}

impl LmData {
    /// The data of three parts, of which so many words are `unknown`; `first` is their name in errors.
    ///
    /// # Errors
    /// A part that is too short.
    fn of(
        config: &LmConfig,
        first: &Path,
        units: TextUnits,
        parts: [TokenIds; 3],
        extents: [TextExtent; 2],
        unknown: [usize; 3],
        mut notes: Vec<String>,
    ) -> Result<Self, DataError> {
        if let TextUnits::Words(_) = &units {
            let share = |part: usize| 100.0 * unknown[part] as f64 / parts[part].len().max(1) as f64;
            notes.push(format!(
                "unknown words: {:.2} % of the training text, {:.2} % of the validation and {:.2} % of the test text",
                share(0),
                share(1),
                share(2)
            ));
        }
        let least = [config.context + 1, 2, 2];
        for ((part, ids), least) in ["train", "validate", "test"].into_iter().zip(&parts).zip(least) {
            if ids.len() < least {
                return Err(DataError::Content {
                    path: first.into(),
                    problem: format!(
                        "leaves {} {} to {part} on, at least {least} are needed; give longer texts or lower task.lm.context",
                        ids.len(),
                        units.name()
                    ),
                });
            }
        }
        let [train, valid, test] = parts;
        Ok(Self { train, valid, test, units, context: config.context, batches: config.batches, extents, notes })
    }
}

#[cfg(test)]
mod tests;
