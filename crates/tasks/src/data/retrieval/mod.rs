//! Matching two documents byte by byte: the setting of Long Range Arena's document retrieval.

mod config;
mod films;
mod rows;

use std::collections::HashMap;

use sha2::{Digest, Sha256};

pub use self::config::{RetrievalConfig, RetrievalFormat};
use super::{
    Batch, Batches, DataError, Objective, Shape, Split, SplitBatches, Streams, Task,
    order::{EpochOrder, hold_out},
    padded,
};
use regard_metrics::majority_rate;

/// Token ids: padding and one for each byte.
const VOCABULARY: usize = 257;

/// Labels: 0 for documents that do not belong together, 1 for those that do.
const CLASSES: usize = 2;

/// Number of batches whose pairs are sorted by length together.
const POOL: usize = 32;

/// A batch is padded to its longest document, rounded up to a multiple of this.
const MULTIPLE: usize = 16;

/// Labelled pairs of documents in three splits.
#[derive(Clone, Debug)]
pub struct PairData {
    /// Training split.
    pub train: DocumentPairs,
    /// Validation split, for model selection.
    pub valid: DocumentPairs,
    /// Test split, for reported results.
    pub test: DocumentPairs,
    /// Maximum bytes of a document.
    pub max_length: usize,
    /// Remarks for the user.
    pub notes: Vec<String>,
}

/// Labelled pairs of documents. A document that occurs in several pairs is stored once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentPairs {
    documents: Vec<Box<[u8]>>,
    pairs: Vec<[u32; 2]>,
    labels: Vec<u8>,
}

/// Documents by their digest, while pairs are collected.
#[derive(Debug, Default)]
struct Collector {
    pairs: DocumentPairs,
    known: HashMap<[u8; 32], u32>,
}

impl Collector {
    /// Appends a pair of documents, each of one byte or more.
    fn push(&mut self, documents: [&[u8]; 2], joined: bool) {
        let pair = documents.map(|document| {
            *self.known.entry(Sha256::digest(document).into()).or_insert_with(|| {
                self.pairs.documents.push(document.into());
                self.pairs.documents.len() as u32 - 1
            })
        });
        self.pairs.pairs.push(pair);
        self.pairs.labels.push(joined.into());
    }
}

impl DocumentPairs {
    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Bytes of both documents of pair `i`.
    pub fn documents(&self, i: usize) -> [&[u8]; 2] {
        self.pairs[i].map(|document| &*self.documents[document as usize])
    }

    /// Label of pair `i`: 1 for documents that belong together, else 0.
    pub fn label(&self, i: usize) -> usize {
        usize::from(self.labels[i])
    }

    /// Bytes of the longer document of pair `i`.
    fn length(&self, i: usize) -> usize {
        self.documents(i).map(<[u8]>::len).into_iter().max().unwrap_or(0)
    }

    /// A random `fraction` of two or more pairs, and the others, each in the original order.
    fn hold_out(&self, fraction: f64, seed: u64) -> [Self; 2] {
        hold_out(self.len(), fraction, seed).map(|items| {
            let mut part = Collector::default();
            items.iter().for_each(|&i| part.push(self.documents(i), self.labels[i] == 1));
            part.pairs
        })
    }

    /// Both documents of each pair, one after the other, padded to the longest.
    fn gather(&self, items: &[usize], max_length: usize) -> Batch {
        let documents: Vec<&[u8]> = items.iter().flat_map(|&i| self.documents(i)).collect();
        let lengths: Vec<usize> = documents.iter().map(|document| document.len()).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let length = longest.next_multiple_of(MULTIPLE).min(max_length);
        let mut ids = vec![0; documents.len() * length];
        for (row, document) in ids.chunks_exact_mut(length).zip(documents) {
            row.iter_mut().zip(document).for_each(|(id, byte)| *id = i32::from(*byte) + 1);
        }
        let targets: Vec<i32> = items.iter().map(|&i| i32::from(self.labels[i])).collect();
        Batch { tokens: padded(ids, &lengths, length), targets: targets.into(), source: None, readers: None }
    }
}

impl PairData {
    fn measured(&self, split: Split) -> &DocumentPairs {
        match split {
            Split::Valid => &self.valid,
            Split::Test => &self.test,
        }
    }
}

impl Task for PairData {
    fn shape(&self) -> Shape {
        let objective = Objective::ClassifyPairs { classes: CLASSES };
        Shape { objective, vocabulary: VOCABULARY, max_length: self.max_length }
    }

    /// As for [`TrainBatches`](super::TrainBatches).
    fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError> {
        check_rows(rows)?;
        if self.train.is_empty() {
            return Err(DataError::Value("no batches from a set without pairs".into()));
        }
        let mut order = EpochOrder::new(self.train.len(), rows, POOL, Streams::new(seed, "document order"));
        Ok(Box::new(move |index| {
            let items = order.batch(index, |i| self.train.length(i));
            self.train.gather(items, self.max_length)
        }))
    }

    fn split(&self, split: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
        check_rows(rows)?;
        let pairs = self.measured(split);
        let mut items: Vec<usize> = (0..pairs.len()).collect();
        items.sort_by_key(|&i| pairs.length(i));
        let batches: Vec<Vec<usize>> = items.chunks(rows).map(<[usize]>::to_vec).collect();
        Ok(Box::new(batches.into_iter().map(move |items| pairs.gather(&items, self.max_length))))
    }

    fn setting(&self) -> String {
        format!(
            "{} training pairs of documents of at most {} bytes, {} for validation, {} for the test",
            self.train.len(),
            self.max_length,
            self.valid.len(),
            self.test.len()
        )
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn majority(&self) -> Option<f64> {
        Some(majority_rate(self.test.labels.iter().map(|label| usize::from(*label)), CLASSES))
    }
}

fn check_rows(rows: usize) -> Result<(), DataError> {
    if rows == 0 {
        return Err(DataError::Value("batches of 0 pairs; expected at least 1".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(count: usize) -> PairData {
        let set = |start: usize, count: usize| {
            let mut set = Collector::default();
            for i in start..start + count {
                let documents = [i % 7, i % 5].map(|n| vec![(n as u8).wrapping_add(250); 3 * n + 1 + i % 2]);
                set.push([&documents[0], &documents[1]], i % 3 == 0);
            }
            set.pairs
        };
        PairData { train: set(0, count), valid: set(3, 9), test: set(50, 12), max_length: 24, notes: vec![] }
    }

    #[test]
    fn a_pair_fills_two_rows_and_an_epoch_holds_every_pair_once() {
        let data = data(64);
        assert!(data.train.documents.len() < 30, "documents are stored once");
        let mut batches = data.batches(3, 8).unwrap();
        let all: Vec<Batch> = (0..8).map(&mut batches).collect();
        let mut seen: Vec<(Vec<i32>, Vec<i32>, i32)> = Vec::new();
        for batch in &all {
            assert_eq!((batch.tokens.batch, batch.targets.len(), batch.items()), (16, 8, 8));
            let length = batch.tokens.length;
            let row = |i: usize| {
                let row = &batch.tokens.ids[i * length..(i + 1) * length];
                row.iter().copied().filter(|id| *id > 0).collect::<Vec<i32>>()
            };
            seen.extend((0..8).map(|i| (row(2 * i), row(2 * i + 1), batch.targets[i])));
        }
        let mut expected: Vec<_> = (0..64)
            .map(|i| {
                let [a, b] = data.train.documents(i).map(|d| d.iter().map(|b| i32::from(*b) + 1).collect::<Vec<_>>());
                (a, b, data.train.label(i) as i32)
            })
            .collect();
        seen.sort();
        expected.sort();
        assert_eq!(seen, expected);
        let mut again = data.batches(3, 8).unwrap();
        assert_eq!(again(5).tokens, all[5].tokens);
        assert_ne!(data.batches(4, 8).unwrap()(5).tokens, all[5].tokens);
        assert!(data.batches(3, 0).is_err() && data.split(Split::Test, 0).is_err());
    }

    #[test]
    fn splits_go_from_short_to_long_and_parts_are_disjoint() {
        let data = data(64);
        let batches: Vec<Batch> = data.split(Split::Test, 5).unwrap().collect();
        assert_eq!(batches.iter().map(|batch| batch.targets.len()).collect::<Vec<_>>(), [5, 5, 2]);
        assert!(batches.windows(2).all(|pair| pair[0].tokens.length <= pair[1].tokens.length));
        let [held, rest] = data.train.hold_out(0.1, 4);
        assert_eq!((held.len(), rest.len()), (6, 58));
        assert_ne!(held, data.train.hold_out(0.1, 5)[0]);
    }
}
