//! Masked language model: some tokens of a window are masked, to be predicted from the others (Devlin et al. 2019).
//!
//! As in RoBERTa (Liu et al. 2019, section 4): windows of full sentences, which may come from several documents, and
//! masks resampled whenever a window is used. Of the tokens to predict 80 % are replaced by the mask token, 10 % by a
//! random token, 10 % stay.

mod config;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rand::{Rng, seq::index};
use rand_chacha::ChaCha8Rng;
use regard_files::text::decode_text;

pub use config::MaskedLmConfig;

use super::{
    Batch, Batches, DataError, Objective, Progress, Shape, Split, SplitBatches, Streams, Task, TextTokenizer,
    char_lm::{EMBEDDED, shakespeare},
    file::Meter,
    order::EpochOrder,
    padded,
    plain_text::read_lines,
    sentences::{Sentence, sentences},
    tokenizer::{BEGIN, END, FIRST_TOKEN, MASK, PADDING, fewer},
};

/// Fraction of the tokens to predict that are replaced by the mask token ...
const MASKED: f64 = 0.8;
/// ... and the fraction replaced at all: by the mask or by a random token.
const REPLACED: f64 = 0.9;

/// Number of batches whose windows are sorted by length together.
const POOL: usize = 32;

/// Windows of texts in three parts.
#[derive(Clone, Debug)]
pub struct MaskedData {
    /// Training split.
    pub train: Windows,
    /// Validation split.
    pub valid: Windows,
    /// Test split.
    pub test: Windows,
    /// The vocabulary, learned from the training text.
    pub tokenizer: Arc<TextTokenizer>,
    /// Maximum tokens per window.
    pub context: usize,
    /// Fraction of tokens to predict.
    pub mask_fraction: f64,
    /// Seed of the masks in evaluation.
    seed: u64,
    /// Remarks for the user.
    pub notes: Vec<String>,
}

/// Windows of full sentences: begin, sentences, end; another end where a document ends inside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    tokens: Vec<i32>,
    /// Window `i` is `tokens[offsets[i]..offsets[i + 1]]`.
    offsets: Vec<usize>,
}

/// Windows with masked tokens, padded to the longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskedBatch {
    /// Token ids `[rows, length]`, some of them masked.
    pub inputs: Vec<i32>,
    /// The masked tokens, `[rows, length]`; negative where nothing is to be predicted.
    pub targets: Vec<i32>,
    /// Real tokens of each row.
    pub lengths: Vec<usize>,
    /// Index of each row's window.
    pub items: Vec<usize>,
    /// Tokens per row.
    pub length: usize,
}

impl From<MaskedBatch> for Batch {
    fn from(batch: MaskedBatch) -> Self {
        let tokens = padded(batch.inputs, &batch.lengths, batch.length);
        Self { tokens, targets: batch.targets.into(), source: None, readers: None }
    }
}

impl Windows {
    /// Packs sentences, given as (first of its document, ids), into windows of at most `context` tokens. A sentence
    /// longer than a window is truncated.
    fn pack<'s>(sentences: impl Iterator<Item = (bool, &'s [i32])>, context: usize) -> Self {
        let mut windows = Self { tokens: Vec::new(), offsets: vec![0] };
        let mut open: Vec<i32> = vec![BEGIN];
        for (first, ids) in sentences {
            for (part, ids) in ids.chunks(context - 2).enumerate() {
                let boundary = usize::from(first && part == 0 && open.len() > 1);
                if open.len() + boundary + ids.len() + 1 > context {
                    windows.close(&mut open);
                } else if boundary > 0 {
                    open.push(END);
                }
                open.extend_from_slice(ids);
            }
        }
        if open.len() > 1 {
            windows.close(&mut open);
        }
        windows
    }

    fn close(&mut self, open: &mut Vec<i32>) {
        self.tokens.append(open);
        self.tokens.push(END);
        self.offsets.push(self.tokens.len());
        open.push(BEGIN);
    }

    /// Number of windows.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether there is no window.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Token ids of window `i`.
    pub fn tokens(&self, i: usize) -> &[i32] {
        &self.tokens[self.offsets[i]..self.offsets[i + 1]]
    }

    fn length(&self, i: usize) -> usize {
        self.offsets[i + 1] - self.offsets[i]
    }
}

impl MaskedData {
    /// The windows of a split in batches of `rows`, each once, from the shortest to the longest. The masks depend only on
    /// the seed of the data, the split and the window, so that every evaluation uses the same.
    pub fn evaluation_batches(&self, split: Split, rows: usize) -> impl ExactSizeIterator<Item = MaskedBatch> + '_ {
        let (windows, masks) = match split {
            Split::Valid => (&self.valid, "evaluation masks"),
            Split::Test => (&self.test, "test masks"),
        };
        let mut items: Vec<usize> = (0..windows.len()).collect();
        items.sort_by_key(|&i| windows.length(i));
        let batches: Vec<Vec<usize>> = items.chunks(rows.max(1)).map(<[usize]>::to_vec).collect();
        let streams = Streams::new(self.seed, masks);
        batches.into_iter().map(move |items| self.gather(windows, &items, |item| streams.at(item as u64)))
    }

    /// The windows `items`, each masked by its random stream.
    fn gather(&self, windows: &Windows, items: &[usize], stream: impl Fn(usize) -> ChaCha8Rng) -> MaskedBatch {
        let lengths: Vec<usize> = items.iter().map(|&i| windows.length(i)).collect();
        let length = lengths.iter().copied().max().unwrap_or(0);
        let mut inputs = vec![PADDING; items.len() * length];
        let mut targets = vec![-1; items.len() * length];
        let rows = inputs.chunks_exact_mut(length.max(1)).zip(targets.chunks_exact_mut(length.max(1)));
        for ((inputs, targets), &item) in rows.zip(items) {
            let tokens = windows.tokens(item);
            inputs[..tokens.len()].copy_from_slice(tokens);
            self.hide(&mut inputs[..tokens.len()], targets, &mut stream(item));
        }
        MaskedBatch { inputs, targets, lengths, items: items.to_vec(), length }
    }

    /// Masks tokens of a window, at least one if there is one, and records them in `targets`.
    fn hide(&self, inputs: &mut [i32], targets: &mut [i32], stream: &mut ChaCha8Rng) {
        let real: Vec<usize> = (0..inputs.len()).filter(|&i| inputs[i] >= FIRST_TOKEN).collect();
        let count = (real.len() as f64 * self.mask_fraction).round() as usize;
        let count = count.clamp(real.len().min(1), real.len());
        for choice in index::sample(stream, real.len(), count) {
            let place = real[choice];
            targets[place] = inputs[place];
            let draw: f64 = stream.random();
            if draw < MASKED {
                inputs[place] = MASK;
            } else if draw < REPLACED {
                inputs[place] = stream.random_range(FIRST_TOKEN..self.tokenizer.vocabulary() as i32);
            }
        }
    }
}

/// Endless training batches: batch `t`, including its masks, is a pure function of the data, the number of rows, the
/// seed and `t`. Epochs are as in [`TrainBatches`](super::TrainBatches).
#[derive(Clone, Debug)]
pub struct MaskedBatches<'a> {
    data: &'a MaskedData,
    order: EpochOrder,
    rows: usize,
    masks: Streams,
}

impl<'a> MaskedBatches<'a> {
    /// Batches of `rows` windows.
    ///
    /// # Errors
    /// No rows.
    pub fn new(data: &'a MaskedData, rows: usize, seed: u64) -> Result<Self, DataError> {
        if data.train.is_empty() || rows == 0 {
            let problem = format!("batches of {rows} from {} windows; both must be at least 1", data.train.len());
            return Err(DataError::Value(problem));
        }
        let order = EpochOrder::new(data.train.len(), rows, POOL, Streams::new(seed, "window order"));
        Ok(Self { data, order, rows, masks: Streams::new(seed, "masks") })
    }

    /// Batches per epoch, at least 1.
    pub fn steps_per_epoch(&self) -> u64 {
        self.order.steps_per_epoch()
    }

    /// Batch of step `step`, counted from 0 over all epochs.
    pub fn batch(&mut self, step: u64) -> MaskedBatch {
        let windows = &self.data.train;
        let items = self.order.batch(step, |i| windows.length(i));
        // A window occurs once in a batch, so its index determines its stream.
        let place = |item: usize| items.iter().position(|&other| other == item).unwrap_or(0) as u64;
        let first = step.wrapping_mul(self.rows as u64);
        self.data.gather(windows, items, |item| self.masks.at(first.wrapping_add(place(item))))
    }
}

impl Task for MaskedData {
    fn shape(&self) -> Shape {
        Shape { objective: Objective::Fill, vocabulary: self.tokenizer.vocabulary(), max_length: self.context }
    }

    fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError> {
        let mut batches = MaskedBatches::new(self, rows, seed)?;
        Ok(Box::new(move |index| batches.batch(index).into()))
    }

    fn split(&self, split: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
        Ok(Box::new(self.evaluation_batches(split, rows).map(Batch::from)))
    }

    fn setting(&self) -> String {
        format!(
            "{} training windows of at most {} tokens, {} for validation, {} for test, a vocabulary of {}",
            self.train.len(),
            self.context,
            self.valid.len(),
            self.test.len(),
            self.tokenizer.vocabulary()
        )
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn tokenizer(&self) -> Option<&TextTokenizer> {
        Some(&self.tokenizer)
    }
}

/// Reads the texts, learns the vocabulary from the training part, and packs windows.
fn load(config: &MaskedLmConfig, seed: u64, progress: Progress<'_>) -> Result<MaskedData, DataError> {
    let meter =
        Meter::new(config.paths.iter().chain(&config.valid).chain(&config.test).map(PathBuf::as_path), progress);
    let read = |path: &PathBuf| sentences(path, &read_lines(&meter, path)?);
    let mut train = Vec::new();
    for path in &config.paths {
        train.extend(read(path)?);
    }
    if config.paths.is_empty() {
        let bytes = shakespeare()?;
        let text = decode_text(&bytes).map_err(|error| DataError::text(EMBEDDED, &error))?;
        let lines: Vec<String> = text.lines().map(String::from).collect();
        train = sentences(Path::new(EMBEDDED), &lines)?;
    }
    let last = config.paths.last().cloned().unwrap_or(EMBEDDED.into());
    // What is cut off the end of a text leaves something of each part.
    let few = |path: &Path, seen: usize, parts: &str| {
        let files = "give a longer text, or files by task.masked_lm.valid and .test";
        let problem = format!("has {seen} sentences, too few for {parts}; {files}");
        DataError::Content { path: path.into(), problem }
    };
    let mut valid = match &config.valid {
        Some(path) => read(path)?,
        None => {
            let (parts, named) = match &config.test {
                Some(_) => (2, "training and validation"),
                None => (3, "training, validation and test"),
            };
            if train.len() < parts {
                return Err(few(&last, train.len(), named));
            }
            let count = (train.len() as f64 * config.valid_fraction).round() as usize;
            train.split_off(train.len() - count.clamp(parts - 1, train.len() - 1))
        }
    };
    let test = match &config.test {
        Some(path) => read(path)?,
        None if valid.len() < 2 => {
            return Err(few(config.valid.as_ref().unwrap_or(&last), valid.len(), "validation and test"));
        }
        None => valid.split_off(valid.len().div_ceil(2)),
    };
    let tokenizer = TextTokenizer::train(train.iter().map(|sentence| sentence.text.as_str()), config.vocabulary)?;
    let windows = |sentences: &[Sentence]| {
        let texts: Vec<&str> = sentences.iter().map(|sentence| sentence.text.as_str()).collect();
        let ids = tokenizer.encode_all(&texts);
        Windows::pack(sentences.iter().map(|s| s.first).zip(ids.iter().map(Vec::as_slice)), config.context)
    };
    let (train, valid, test) = (windows(&train), windows(&valid), windows(&test));
    let more = "the text has no more pairs of tokens";
    let notes = fewer(tokenizer.vocabulary(), config.vocabulary, more).into_iter().collect();
    let (context, mask_fraction) = (config.context, config.mask_fraction);
    Ok(MaskedData { train, valid, test, tokenizer: Arc::new(tokenizer), context, mask_fraction, seed, notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(context: usize) -> MaskedData {
        let config = MaskedLmConfig { context, vocabulary: 600, ..Default::default() };
        load(&config, 3, &|_, _| {}).unwrap()
    }

    #[test]
    fn windows_hold_whole_sentences_and_mark_documents() {
        let sentences: [(bool, &[i32]); 6] =
            [(true, &[10, 11, 12]), (false, &[13]), (true, &[14]), (false, &[15, 16]), (true, &[]), (true, &[17; 9])];
        let windows = Windows::pack(sentences.into_iter(), 8);
        let all: Vec<&[i32]> = (0..windows.len()).map(|i| windows.tokens(i)).collect();
        let expected: [&[i32]; 4] = [
            &[BEGIN, 10, 11, 12, 13, END, 14, END],
            &[BEGIN, 15, 16, END],
            &[BEGIN, 17, 17, 17, 17, 17, 17, END],
            &[BEGIN, 17, 17, 17, END],
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn the_embedded_text_fills_its_windows() {
        let data = data(64);
        for windows in [&data.train, &data.valid, &data.test] {
            let full = windows.tokens.len() as f64 / (windows.len() * 64) as f64;
            assert!(full > 0.75, "{full} of the windows are tokens");
            for i in 0..windows.len() {
                let tokens = windows.tokens(i);
                assert!(tokens.len() <= 64 && tokens[0] == BEGIN && tokens[tokens.len() - 1] == END);
            }
        }
        let text = data.tokenizer.decode(data.train.tokens(0));
        assert!(text.starts_with("First Citizen: Before we proceed any further, hear me speak. All:"), "{text}");
        let held_out = [&data.valid, &data.test].map(|windows| windows.tokens.len() as f64);
        let all = data.train.tokens.len() as f64 + held_out[0] + held_out[1];
        assert!(held_out.iter().all(|tokens| (tokens / all - 0.05).abs() < 0.02), "{held_out:?} of {all} are held out");
    }

    #[test]
    fn a_share_of_the_tokens_is_hidden_in_three_ways() {
        let data = data(64);
        let (mut masked, mut random, mut kept, mut real) = (0, 0, 0, 0);
        let mut batches = MaskedBatches::new(&data, 16, 7).unwrap();
        for step in 0..60 {
            let batch = batches.batch(step);
            let rows = batch.inputs.chunks_exact(batch.length).zip(batch.targets.chunks_exact(batch.length));
            for ((inputs, targets), (&item, &length)) in rows.zip(batch.items.iter().zip(&batch.lengths)) {
                let tokens = data.train.tokens(item);
                assert_eq!(tokens.len(), length);
                assert!(inputs[length..].iter().all(|&id| id == PADDING) && targets[length..].iter().all(|&t| t == -1));
                for i in 0..length {
                    real += usize::from(tokens[i] >= FIRST_TOKEN);
                    match targets[i] {
                        -1 => assert_eq!(inputs[i], tokens[i]),
                        target => {
                            assert_eq!(target, tokens[i]);
                            assert!(target >= FIRST_TOKEN && (inputs[i] >= FIRST_TOKEN || inputs[i] == MASK));
                            match inputs[i] {
                                MASK => masked += 1,
                                input if input == target => kept += 1,
                                _ => random += 1,
                            }
                        }
                    }
                }
            }
        }
        let hidden = (masked + random + kept) as f64;
        // Four standard errors of some 7,000 draws.
        assert!((hidden / real as f64 - 0.15).abs() < 0.003, "{hidden} of {real}");
        let share = |count: i32, expected: f64| (f64::from(count) / hidden - expected).abs() < 0.02;
        assert!(share(masked, 0.8) && share(random, 0.1) && share(kept, 0.1), "{masked} {random} {kept}");
    }

    #[test]
    fn training_masks_change_with_the_step_and_evaluation_masks_never() {
        let data = data(64);
        let new = |seed| MaskedBatches::new(&data, 4, seed).unwrap();
        let (mut one, mut two) = (new(1), new(1));
        let far = two.batch(1000);
        let epoch = one.steps_per_epoch();
        let all: Vec<MaskedBatch> = (0..2 * epoch).map(|step| one.batch(step)).collect();
        assert_eq!(one.batch(1000), far);
        assert_ne!(new(2).batch(1000), far);
        // The same window in another epoch hides other tokens.
        let first = &all[0];
        let again = all[epoch as usize..].iter().find_map(|batch| {
            let row = batch.items.iter().position(|item| *item == first.items[0])?;
            Some(&batch.targets[row * batch.length..][..first.lengths[0]])
        });
        assert_ne!(again.expect("most windows occur in every epoch"), &first.targets[..first.lengths[0]]);
        let masks = |rows: usize| -> Vec<(usize, Vec<i32>)> {
            let rows = data.evaluation_batches(Split::Valid, rows).flat_map(|batch| {
                let row = |(row, &item): (usize, &usize)| {
                    let real = batch.targets[row * batch.length..][..batch.lengths[row]].to_vec();
                    (item, real)
                };
                batch.items.iter().enumerate().map(row).collect::<Vec<_>>()
            });
            rows.collect()
        };
        assert_eq!(masks(3), masks(50));
        assert_eq!(masks(3).len(), data.valid.len());
    }

    #[test]
    fn files_are_read_with_documents_and_a_validation_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("a"), "One of them. Two of them.\n<|endoftext|>\nThree of them.\n").unwrap();
        std::fs::write(path("b"), "Four of them.\n").unwrap();
        std::fs::write(path("c"), "Five of them. Six of them.\n").unwrap();
        let paths = vec![path("a"), path("b")];
        let config = MaskedLmConfig { paths, valid: Some(path("c")), vocabulary: 300, ..Default::default() };
        let data = load(&config, 1, &|_, _| {}).unwrap();
        assert_eq!((data.train.len(), data.valid.len()), (1, 1));
        let ends = data.train.tokens(0).iter().filter(|id| **id == END).count();
        assert_eq!(ends, 3, "two ends of documents and that of the window");
        assert_eq!(data.tokenizer.decode(data.valid.tokens(0)), "Five of them.");
        assert_eq!(data.tokenizer.decode(data.test.tokens(0)), "Six of them.");
        let apart = MaskedLmConfig { test: Some(path("b")), ..config.clone() };
        let data = load(&apart, 1, &|_, _| {}).unwrap();
        assert_eq!(data.tokenizer.decode(data.valid.tokens(0)), "Five of them. Six of them.");
        assert_eq!(data.tokenizer.decode(data.test.tokens(0)), "Four of them.");
        let config = MaskedLmConfig { valid: None, paths: vec![path("b")], ..config };
        let error = load(&config, 1, &|_, _| {}).unwrap_err().to_string();
        assert!(error.contains("b: has 1 sentences"), "{error}");
    }
}
