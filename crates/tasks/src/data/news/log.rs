//! Titles, and who was offered which and clicked on what.

use std::ops::Range;

/// Lists of any lengths in one piece of memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Lists<T> {
    all: Vec<T>,
    /// List `i` is `all[offsets[i]..offsets[i + 1]]`.
    offsets: Vec<usize>,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self { all: Vec::new(), offsets: vec![0] }
    }
}

impl<T> Lists<T> {
    pub fn push(&mut self, list: impl IntoIterator<Item = T>) {
        self.all.extend(list);
        self.offsets.push(self.all.len());
    }

    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    pub fn list(&self, i: usize) -> &[T] {
        &self.all[self.range(i)]
    }

    pub fn range(&self, i: usize) -> Range<usize> {
        self.offsets[i]..self.offsets[i + 1]
    }
}

/// What the readers of some news were offered. Pieces of news are numbers from 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImpressionLog {
    /// Token ids of each title.
    pub(super) titles: Lists<i32>,
    /// Pieces of news that someone has read, the oldest first. A history is stored once for all impressions that follow it.
    pub(super) histories: Lists<u32>,
    /// Number of its history, for each impression.
    pub(super) history_of: Vec<u32>,
    /// Number of its reader, for each impression, by first occurrence.
    pub(super) readers: Vec<u32>,
    /// What was offered in each impression.
    pub(super) offered: Lists<u32>,
    /// Whether each of it was clicked on, for all impressions in a row.
    pub(super) clicked: Vec<bool>,
    /// The probability of each click, where the log was generated.
    pub(super) probabilities: Option<Vec<f32>>,
}

/// One impression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impression<'a> {
    /// What the reader had read, the oldest first.
    pub history: &'a [u32],
    /// What was offered: two pieces of news or more.
    pub offered: &'a [u32],
    /// Whether each was clicked on: at least one was, and one was not.
    pub clicked: &'a [bool],
    /// The probability of each click, where it is known.
    pub probabilities: Option<&'a [f32]>,
}

impl ImpressionLog {
    /// Number of impressions.
    pub fn len(&self) -> usize {
        self.offered.len()
    }

    /// Whether there is no impression.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pieces of news.
    pub fn news(&self) -> usize {
        self.titles.len()
    }

    /// Token ids of the title of a piece of news.
    pub fn title(&self, news: usize) -> &[i32] {
        self.titles.list(news)
    }

    /// Impression `i`.
    pub fn impression(&self, i: usize) -> Impression<'_> {
        let range = self.offered.range(i);
        Impression {
            history: self.histories.list(self.history_of[i] as usize),
            offered: self.offered.list(i),
            clicked: &self.clicked[range.clone()],
            probabilities: self.probabilities.as_ref().map(|all| &all[range]),
        }
    }

    /// Number of readers.
    pub(super) fn reader_count(&self) -> usize {
        self.readers.iter().max().map_or(0, |last| *last as usize + 1)
    }
}

/// Some impressions of a log.
#[derive(Clone, Copy, Debug)]
pub struct ImpressionPart<'a> {
    /// The log.
    pub log: &'a ImpressionLog,
    /// Numbers of the impressions.
    pub chosen: &'a [u32],
}
