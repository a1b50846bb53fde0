//! Copying: `0 w 0 w` with a random word `w`, of which the second one is to be predicted (Kitaev et al. 2020, section 5.1).
//!
//! Nothing in a sequence but the first word tells what the second will be, so only a model that looks back over half the
//! sequence, to the right token, predicts better than one symbol in `symbols`.

use rand::Rng;

use super::{CopyConfig, LanguageBatch, Streams};

/// A target that does not count.
const IGNORED: i32 = -1;

/// Random words, made when they are asked for: sequence `i` of a split is a function of the seed and `i`.
#[derive(Clone, Debug)]
pub struct CopyData {
    config: CopyConfig,
    train: Streams,
    valid: Streams,
    test: Streams,
}

/// A part to evaluate on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopySplit {
    /// To choose a model by.
    Valid,
    /// To report results on.
    Test,
}

impl CopyData {
    /// `config` must have passed [`CopyConfig::check`].
    pub(super) fn new(config: &CopyConfig, seed: u64) -> Self {
        let streams = |name: &str| Streams::new(seed, &format!("copy {name}"));
        Self { config: config.clone(), train: streams("train"), valid: streams("valid"), test: streams("test") }
    }

    /// Tokens of a sequence.
    pub fn length(&self) -> usize {
        self.config.length
    }

    /// Different symbols of words; a guess is right once in so many.
    pub fn symbols(&self) -> usize {
        self.config.symbols
    }

    /// Training sequences.
    pub fn train_sequences(&self) -> usize {
        self.config.train
    }

    /// Sequences of a split.
    pub fn sequences(&self, split: CopySplit) -> usize {
        match split {
            CopySplit::Valid => self.config.valid,
            CopySplit::Test => self.config.test,
        }
    }

    /// Token ids are `0 ..= symbols`.
    pub fn vocabulary(&self) -> usize {
        self.config.symbols + 1
    }

    /// `rows` training sequences drawn by `seed` and `step`.
    pub fn train_batch(&self, seed: u64, step: u64, rows: usize) -> LanguageBatch {
        let mut stream = Streams::new(seed, "copy order").at(step);
        let items = (0..rows).map(|_| stream.random_range(0..self.config.train as u64));
        self.gather(&self.train, items)
    }

    /// The sequences of a split in order, `rows` per batch, the last one smaller where they do not divide.
    pub fn evaluation_batches(
        &self,
        split: CopySplit,
        rows: usize,
    ) -> impl ExactSizeIterator<Item = LanguageBatch> + '_ {
        let (count, rows) = (self.sequences(split), rows.max(1));
        let streams = match split {
            CopySplit::Valid => &self.valid,
            CopySplit::Test => &self.test,
        };
        (0..count.div_ceil(rows)).map(move |batch| {
            let items = batch * rows..((batch + 1) * rows).min(count);
            self.gather(streams, items.map(|item| item as u64))
        })
    }

    /// The sequences of `items`. Targets are the symbols of the second word alone: the first cannot be predicted, and both
    /// zeros stand where they always do.
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
        assert_eq!((data.vocabulary(), data.length()), (10, 12));
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
        let valid = all(CopySplit::Valid, 2);
        assert_eq!(valid, all(CopySplit::Valid, 100));
        assert_eq!((valid.len(), data.evaluation_batches(CopySplit::Valid, 2).len()), (5 * 40, 3));
        let test = all(CopySplit::Test, 3);
        assert_eq!(test.len(), 7 * 40);
        assert!(valid.chunks(40).all(|row| test.chunks(40).all(|other| row != other)));
        // Every one of the training sequences turns up, and no other.
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
        // Every symbol stands twice: 5,000 draws of one in ten from 50,000, twice, with repetition of sequences.
        assert!(counts[1..].iter().all(|&count| (count as f64 / words - 0.1).abs() < 0.02), "{counts:?}");
    }
}
