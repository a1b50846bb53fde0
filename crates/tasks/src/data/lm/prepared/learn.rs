//! Vocabularies of large texts, learned in bounded memory.

use std::collections::HashMap;

use rayon::prelude::*;

use super::{super::WordVocabulary, pieces::Piece};
use crate::data::{DataError, TextTokenizer};

/// Most distinct words that are counted at a time: with their bytes and the table some 400 MB. English texts of some billions
/// of words have fewer.
const MOST_WORDS: usize = 1 << 22;

/// Most bytes of distinct words.
const MOST_BYTES: usize = 1 << 27;

/// Part of a text from which byte pairs are learned: of every piece of the text the first lines, as many as keep its share.
#[derive(Debug)]
pub(super) struct Sample {
    text: String,
    /// Most bytes of it.
    most: u64,
    /// Bytes of the text.
    of: u64,
}

impl Sample {
    /// At most `most` bytes of a text of `of` bytes; all of it if it has no more.
    pub fn new(most: u64, of: u64) -> Self {
        // A text that grows takes up to twice its size.
        Self { text: String::with_capacity(most.min(of) as usize), most, of }
    }

    /// Whether it is the whole text.
    pub fn is_whole(&self) -> bool {
        self.of <= self.most
    }

    /// Takes lines of the next piece.
    pub fn add(&mut self, piece: &Piece) {
        if self.is_whole() {
            return self.text.push_str(&piece.text);
        }
        let due = (u128::from(self.most) * u128::from(piece.end()) / u128::from(self.of)) as usize;
        for line in piece.text.split_inclusive('\n') {
            // A line that is too long now has its turn in a later piece, or never.
            if self.text.len() + line.len() > due {
                break;
            }
            self.text.push_str(line);
        }
    }

    /// Takes the end of the text, after its pieces, if the sample is the whole text.
    pub fn add_rest(&mut self, rest: &str) {
        if self.is_whole() {
            self.text.push_str(rest);
        }
    }

    /// Bytes of the sample.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Byte pairs of the sample.
    pub fn tokenizer(self, vocabulary: usize) -> Result<TextTokenizer, DataError> {
        TextTokenizer::train(self.text.lines(), vocabulary)
    }
}

/// Counts of words. When there are too many of them, those that occurred least are forgotten (lossy counting, Manku and
/// Motwani 2002): at least half of the words at a time, all with the same count alike.
#[derive(Debug)]
pub(super) struct WordCounts {
    counts: HashMap<String, u64>,
    /// Bytes of the words.
    bytes: usize,
    /// Line ends.
    lines: u64,
    /// Occurrences of words that were forgotten.
    forgotten: u64,
    /// By how much a count may be too low.
    short: u64,
    most: usize,
}

impl Default for WordCounts {
    fn default() -> Self {
        Self { counts: HashMap::new(), bytes: 0, lines: 0, forgotten: 0, short: 0, most: MOST_WORDS }
    }
}

impl WordCounts {
    /// Counts words and line ends.
    pub fn add(&mut self, texts: &[&str]) {
        let count = |text: &&'_ str| {
            let mut counts: HashMap<String, u64> = HashMap::new();
            for word in text.split_whitespace() {
                match counts.get_mut(word) {
                    Some(count) => *count += 1,
                    None => drop(counts.insert(word.to_owned(), 1)),
                }
            }
            (counts, text.bytes().filter(|byte| *byte == b'\n').count() as u64)
        };
        let counted: Vec<_> = texts.par_iter().map(count).collect();
        for (counts, lines) in counted {
            self.lines += lines;
            for (word, count) in counts {
                let length = word.len();
                let known = self.counts.entry(word).or_default();
                self.bytes += if *known == 0 { length } else { 0 };
                *known += count;
            }
        }
        while self.counts.len() > self.most || self.bytes > MOST_BYTES {
            self.forget();
        }
    }

    fn forget(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        let middle = counts.len() / 2;
        let (_, most, _) = counts.select_nth_unstable(middle);
        let most = *most;
        self.counts.retain(|word, count| {
            let stays = *count > most;
            if !stays {
                self.bytes -= word.len();
                self.forgotten += *count;
            }
            stays
        });
        self.short += most;
    }

    /// By how much a count may be too low: 0 if none is.
    pub fn short(&self) -> u64 {
        self.short
    }

    /// The vocabulary, as [`WordVocabulary::count`] has it where nothing was forgotten.
    pub fn vocabulary(&self, most: usize, least: usize) -> WordVocabulary {
        let counts = self.counts.iter().map(|(word, count)| (word.as_str(), *count)).collect();
        WordVocabulary::choose(counts, self.lines, self.forgotten, most, least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(lines: usize) -> Vec<Piece> {
        let mut start = 0;
        let piece = |number: usize| {
            let text: String = (0..10).map(|line| format!("{number} {line}\n")).collect();
            let piece = Piece { start, text };
            start = piece.end();
            piece
        };
        (0..lines / 10).map(piece).collect()
    }

    #[test]
    fn a_sample_has_a_share_of_every_piece_and_no_more_than_its_bound() {
        let pieces = pieces(2000);
        let of = pieces.last().unwrap().end();
        let sampled = |most: u64| {
            let mut sample = Sample::new(most, of);
            pieces.iter().for_each(|piece| sample.add(piece));
            sample.add_rest("rest\n");
            sample.text
        };
        let whole: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
        assert_eq!(sampled(of), whole.clone() + "rest\n");
        for most in [of - 1, of / 2, of / 7, of / 40] {
            let text = sampled(most);
            assert!(text.len() as u64 <= most && text.len() as u64 > most * 9 / 10, "{} of {most}", text.len());
            let early =
                text.lines().filter(|line| line.split(' ').next().unwrap().parse::<usize>().unwrap() < 100).count();
            let share = early as f64 / text.lines().count() as f64;
            assert!((0.4..0.6).contains(&share), "{share} of the first half");
        }
        // Lines that are longer than the share of a piece are taken when there is room for them.
        let mut long = Sample::new(100, 1000);
        for start in (0..1000).step_by(50) {
            long.add(&Piece { start, text: "x".repeat(49) + "\n" });
        }
        assert_eq!(long.text.len(), 100);
    }

    #[test]
    fn words_are_counted_as_in_memory() {
        let text = "b a b <unk> c\n\nb a d\n <eos> ö\n";
        let mut counts = WordCounts::default();
        text.split_inclusive('\n').for_each(|line| counts.add(&[line]));
        for (most, least) in [(100, 1), (4, 1), (100, 2)] {
            assert_eq!(counts.vocabulary(most, least), WordVocabulary::count(text, most, least));
        }
        assert_eq!(counts.short(), 0);
    }

    #[test]
    fn rare_words_are_forgotten_where_there_are_too_many() {
        let mut counts = WordCounts { most: 100, ..WordCounts::default() };
        for round in 0..50 {
            let rare: String = (0..30).map(|word| format!("rare-{round}-{word} ")).collect();
            counts.add(&[&rare, "often often now often\n"]);
            assert!(counts.counts.len() <= 100);
        }
        assert!(counts.short() > 0 && counts.short() < 50, "{}", counts.short());
        assert_eq!(counts.counts["often"], 150);
        let total: u64 = counts.counts.values().sum::<u64>() + counts.forgotten;
        assert_eq!(total, 50 * 34);
        assert_eq!(counts.bytes, counts.counts.keys().map(String::len).sum::<usize>());
        assert_eq!(counts.vocabulary(4, 1).words(), ["<unk>", "often", "<eos>", "now"]);
    }
}
