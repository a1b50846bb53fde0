//! Copying: `0 w 0 w` with a random word `w`, whose second occurrence is to be predicted (Kitaev et al. 2020, section
//! 5.1).
//!
//! Only the first word determines the second, so only a model that looks back over half the sequence, to the right
//! token, predicts better than one symbol in `symbols`.

use std::path::Path;

use rand::Rng;
use serde::{Deserialize, Serialize};

use super::{
    Batch, Batches, DataError, LanguageBatch, Objective, Progress, Shape, Split, SplitBatches, Streams, Task, TaskData,
    TaskOptions,
};

/// Maximum number and length of the sequences of a generated split, so that the token count of a split does not
/// overflow.
const MOST_SEQUENCES: usize = 1 << 32;
const LONGEST_COPY: usize = 1 << 30;

/// An ignored target.
const IGNORED: i32 = -1;

/// Sequences `0 w 0 w` of a random word `w`; defaults from Kitaev et al. 2020 (arXiv 2001.04451, section 5.1) and the
/// Scatterbrain paper.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CopyConfig {
    /// Sequence length, even: the word has `length / 2 - 1` symbols.
    pub length: usize,
    /// Number of distinct symbols, `1 ..= symbols`.
    pub symbols: usize,
    /// Number of training sequences.
    pub train: usize,
    /// Number of validation sequences.
    pub valid: usize,
    /// Number of test sequences.
    pub test: usize,
}

impl Default for CopyConfig {
    fn default() -> Self {
        Self { length: 1024, symbols: 127, train: 100_000, valid: 32, test: 64 }
    }
}

impl TaskOptions for CopyConfig {
    fn summary(&self) -> &'static str {
        "copying, generated: the second half of 0 w 0 w from the first"
    }

    fn check(&self) -> Result<(), DataError> {
        let error = |key: &str, problem: String| Err(DataError::config(&format!("copy.{key}"), problem));
        if !(4..=LONGEST_COPY).contains(&self.length) || self.length % 2 == 1 {
            let seen = self.length;
            let expected = format!("0 w 0 w has an even number of tokens, from 4 to {LONGEST_COPY}");
            return error("length", format!("is {seen}; {expected}"));
        }
        // Ids are stored in 16 bits, one of them for the 0.
        if !(1..1 << 16).contains(&self.symbols) {
            return error("symbols", format!("is {}; must be from 1 to 65535 (the papers: 127)", self.symbols));
        }
        for (key, count) in [("train", self.train), ("valid", self.valid), ("test", self.test)] {
            if !(1..=MOST_SEQUENCES).contains(&count) {
                return error(key, format!("is {count}; must be from 1 to {MOST_SEQUENCES}"));
            }
        }
        Ok(())
    }

    fn load(&self, seed: u64, _: Option<&Path>, _: Progress<'_>) -> Result<TaskData, DataError> {
        Ok(Box::new(CopyData::new(self, seed)))
    }

    fn shape(&self) -> Shape {
        Shape {
            objective: Objective::NextToken { certain: true },
            vocabulary: self.symbols + 1,
            max_length: self.length,
        }
    }

    fn smallest_batch(&self, rows: usize) -> [usize; 2] {
        [rows, self.length]
    }
}

/// Random words, generated on demand: sequence `i` of a split is a function of the seed and `i`.
#[derive(Clone, Debug)]
pub struct CopyData {
    config: CopyConfig,
    train: Streams,
    valid: Streams,
    test: Streams,
}

impl CopyData {
    /// `config` must have passed [`TaskOptions::check`].
    pub(super) fn new(config: &CopyConfig, seed: u64) -> Self {
        let streams = |name: &str| Streams::new(seed, &format!("copy {name}"));
        Self { config: config.clone(), train: streams("train"), valid: streams("valid"), test: streams("test") }
    }

    /// Number of sequences of a split.
    fn sequences(&self, split: Split) -> usize {
        match split {
            Split::Valid => self.config.valid,
            Split::Test => self.config.test,
        }
    }

    /// `rows` training sequences sampled by `seed` and `step`.
    pub fn train_batch(&self, seed: u64, step: u64, rows: usize) -> LanguageBatch {
        let mut stream = Streams::new(seed, "copy order").at(step);
        let items = (0..rows).map(|_| stream.random_range(0..self.config.train as u64));
        self.gather(&self.train, items)
    }

    /// The sequences of a split in order, `rows` per batch; the last batch may be smaller.
    pub fn evaluation_batches(&self, split: Split, rows: usize) -> impl ExactSizeIterator<Item = LanguageBatch> + '_ {
        let (count, rows) = (self.sequences(split), rows.max(1));
        let streams = match split {
            Split::Valid => &self.valid,
            Split::Test => &self.test,
        };
        (0..count.div_ceil(rows)).map(move |batch| {
            let items = batch * rows..((batch + 1) * rows).min(count);
            self.gather(streams, items.map(|item| item as u64))
        })
    }

    /// The sequences of `items`. Only the symbols of the second word are targets: the first cannot be predicted, and
    /// the positions of both zeros are fixed.
    fn gather(&self, streams: &Streams, items: impl Iterator<Item = u64>) -> LanguageBatch {
        let CopyConfig { length, symbols, .. } = self.config;
        let half = length / 2;
        let (mut inputs, mut targets, mut rows) = (Vec::new(), Vec::new(), 0);
        for item in items {
            let mut stream = streams.at(item);
            let word: Vec<i32> = (1..half).map(|_| stream.random_range(1..=symbols as i32)).collect();
            for _ in 0..2 {
                inputs.push(0);
                inputs.extend_from_slice(&word);
            }
            // The target of the second 0 is the first symbol.
            targets.resize(targets.len() + half, IGNORED);
            targets.extend_from_slice(&word);
            targets.push(IGNORED);
            rows += 1;
        }
        LanguageBatch { inputs, targets, rows, length }
    }
}

impl Task for CopyData {
    fn shape(&self) -> Shape {
        self.config.shape()
    }

    fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError> {
        Ok(Box::new(move |index| self.train_batch(seed, index, rows).into()))
    }

    fn split(&self, split: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
        Ok(Box::new(self.evaluation_batches(split, rows).map(Batch::from)))
    }

    fn setting(&self) -> String {
        let CopyConfig { length, symbols, test, .. } = self.config;
        format!("0 w 0 w of {length} tokens, words of {symbols} symbols, {test} sequences for the test")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(length: usize, symbols: usize) -> CopyData {
        let config = CopyConfig { length, symbols, train: 50, valid: 5, test: 7 };
        config.check().unwrap();
        CopyData::new(&config, 3)
    }

    #[test]
    fn the_second_word_is_the_first_and_is_all_that_counts() {
        let data = data(12, 9);
        assert_eq!((data.shape().vocabulary, data.shape().max_length), (10, 12));
        let batch = data.train_batch(1, 4, 6);
        assert_eq!((batch.rows, batch.length, batch.inputs.len(), batch.targets.len()), (6, 12, 72, 72));
        for (inputs, targets) in batch.inputs.chunks(12).zip(batch.targets.chunks(12)) {
            let (first, second) = inputs.split_at(6);
            assert_eq!(first, second);
            assert_eq!(first[0], 0);
            assert!(first[1..].iter().all(|symbol| (1..=9).contains(symbol)));
            for (i, &target) in targets.iter().enumerate() {
                let counts = (6..11).contains(&i);
                assert_eq!(target, if counts { inputs[i + 1] } else { -1 }, "target {i}");
            }
        }
    }

    #[test]
    fn batches_depend_on_seed_and_step_and_splits_share_nothing() {
        let data = data(40, 127);
        assert_eq!(data.train_batch(1, 9, 4), data.train_batch(1, 9, 4));
        assert_ne!(data.train_batch(1, 9, 4), data.train_batch(1, 10, 4));
        assert_ne!(data.train_batch(1, 9, 4), data.train_batch(2, 9, 4));
        let all =
            |split, rows| -> Vec<i32> { data.evaluation_batches(split, rows).flat_map(|batch| batch.inputs).collect() };
        let valid = all(Split::Valid, 2);
        assert_eq!(valid, all(Split::Valid, 100));
        assert_eq!((valid.len(), data.evaluation_batches(Split::Valid, 2).len()), (5 * 40, 3));
        let test = all(Split::Test, 3);
        assert_eq!(test.len(), 7 * 40);
        assert!(valid.chunks(40).all(|row| test.chunks(40).all(|other| row != other)));
        // All training sequences occur, and no others.
        let mut seen: Vec<Vec<i32>> = data.train_batch(1, 0, 1000).inputs.chunks(40).map(<[i32]>::to_vec).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 50);
    }

    #[test]
    fn symbols_are_uniform() {
        let data = data(2002, 10);
        let mut counts = [0usize; 11];
        data.train_batch(1, 0, 50).inputs.iter().for_each(|&id| counts[id as usize] += 1);
        let (rows, words) = (50.0, 50.0 * 2000.0);
        assert_eq!(counts[0] as f64, 2.0 * rows);
        // Every symbol occurs twice: 5,000 draws of one in ten from 50,000, twice, with repeated sequences.
        assert!(counts[1..].iter().all(|&count| (count as f64 / words - 0.1).abs() < 0.02), "{counts:?}");
    }
}
