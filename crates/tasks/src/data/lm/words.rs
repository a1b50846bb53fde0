//! A closed vocabulary of words.

use std::collections::{HashMap, HashSet};

/// Stands for every word that is not in the vocabulary.
pub const UNKNOWN_WORD: &str = "<unk>";
/// Stands after the last word of a line.
pub const END_OF_LINE: &str = "<eos>";

/// The words behind token ids, the most frequent first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordVocabulary {
    words: Vec<String>,
    ids: HashMap<String, u32>,
    unknown: u32,
    end: u32,
}

impl WordVocabulary {
    /// The words of a text, separated by white space, that occur `least` times, at most `most` with `<unk>` and `<eos>`: the
    /// most frequent first, which `<unk>` and `<eos>` are too, as often as they stand for something; equally frequent ones
    /// in the order of their characters.
    pub fn count(text: &str, most: usize, least: usize) -> Self {
        let mut counts: HashMap<&str, u64> = HashMap::new();
        for word in text.split_whitespace() {
            *counts.entry(word).or_default() += 1;
        }
        let lines = text.bytes().filter(|byte| *byte == b'\n').count() as u64;
        Self::choose(counts, lines, 0, most, least)
    }

    /// The same from counts of words, the number of line ends, and how often a word occurred that is not counted.
    pub(super) fn choose(
        mut counts: HashMap<&str, u64>,
        lines: u64,
        uncounted: u64,
        most: usize,
        least: usize,
    ) -> Self {
        let mut unknown = counts.remove(UNKNOWN_WORD).unwrap_or(0) + uncounted;
        let ends = counts.remove(END_OF_LINE).unwrap_or(0) + lines;
        let mut sorted: Vec<(&str, u64)> = counts.into_iter().collect();
        let by_count = |words: &mut Vec<(&str, u64)>| words.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        by_count(&mut sorted);
        let frequent = sorted.partition_point(|(_, count)| *count >= least as u64);
        unknown += sorted.drain(frequent.min(most.saturating_sub(2))..).map(|(_, count)| count).sum::<u64>();
        sorted.extend([(UNKNOWN_WORD, unknown), (END_OF_LINE, ends)]);
        by_count(&mut sorted);
        Self::of(sorted.into_iter().map(|(word, _)| word.to_owned()).collect())
    }

    /// The words of a `vocabulary.txt`, or the problem as a sentence.
    pub(super) fn parse(lines: &str) -> Result<Self, String> {
        let words: Vec<String> = lines.lines().map(str::to_owned).collect();
        let mut seen = HashSet::new();
        if let Some(word) =
            words.iter().find(|word| word.split_whitespace().next() != Some(word) || !seen.insert(*word))
        {
            return Err(format!("has the line '{word}', expected a word that no other line has"));
        }
        if let Some(missing) = [UNKNOWN_WORD, END_OF_LINE].into_iter().find(|word| !seen.contains(&(*word).to_owned()))
        {
            return Err(format!("has no line '{missing}', expected the vocabulary of a prepared text"));
        }
        Ok(Self::of(words))
    }

    /// Both special words are among `words`.
    fn of(words: Vec<String>) -> Self {
        let ids: HashMap<String, u32> = words.iter().cloned().zip(0..).collect();
        let (unknown, end) = (ids[UNKNOWN_WORD], ids[END_OF_LINE]);
        Self { words, ids, unknown, end }
    }

    /// The vocabulary that [`WordVocabulary::lines`] wrote.
    ///
    /// # Errors
    /// A text without the special words, as a sentence.
    pub fn of_lines(text: &str) -> Result<Self, String> {
        let words: Vec<String> = text.split_terminator('\n').map(str::to_owned).collect();
        match [UNKNOWN_WORD, END_OF_LINE].into_iter().find(|special| !words.iter().any(|word| word == special)) {
            None => Ok(Self::of(words)),
            Some(special) => {
                Err(format!("no vocabulary ('{special}' is missing); expected the vocabulary.txt of a run"))
            }
        }
    }

    /// Words, with `<unk>` and `<eos>`.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The words, by id.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// The id of `<unk>`.
    pub fn unknown(&self) -> u32 {
        self.unknown
    }

    /// Ids of a text; every line end is `<eos>`, and every word outside the vocabulary `<unk>`.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        for (number, line) in text.split('\n').enumerate() {
            if number > 0 {
                ids.push(self.end);
            }
            ids.extend(line.split_whitespace().map(|word| self.ids.get(word).copied().unwrap_or(self.unknown)));
        }
        ids
    }

    /// Words separated by spaces, `<eos>` being a line end. Ids outside the vocabulary are skipped.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut text = String::new();
        for &id in ids {
            let Some(word) = self.words.get(id as usize) else { continue };
            if id == self.end {
                text.push('\n');
                continue;
            }
            if !text.is_empty() && !text.ends_with('\n') {
                text.push(' ');
            }
            text.push_str(word);
        }
        text
    }

    /// A word a line, the content of `vocabulary.txt`.
    pub fn lines(&self) -> String {
        self.words.iter().map(|word| format!("{word}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_words_come_first_and_rare_ones_are_unknown() {
        let text = "b a b <unk> c\n\nb a d\n";
        let all = WordVocabulary::count(text, 100, 1);
        // <eos> ends three lines, as often as b occurs.
        assert_eq!(all.words(), ["<eos>", "b", "a", "<unk>", "c", "d"]);
        assert_eq!(all.encode("a x\nd\n"), [2, 3, 0, 5, 0]);
        assert_eq!(all.encode("\n"), [0]);
        assert_eq!(all.decode(&[1, 2, 0, 0, 3, 99]), "b a\n\n<unk>");
        // c and d are unknown, and <unk> as frequent as b.
        for few in [WordVocabulary::count(text, 4, 1), WordVocabulary::count(text, 100, 2)] {
            assert_eq!(few.words(), ["<eos>", "<unk>", "b", "a"]);
            assert_eq!(few.encode("c a"), [1, 3]);
        }
        assert_eq!(WordVocabulary::count("a\n", 100, 1).words(), ["<eos>", "a", "<unk>"]);
        assert_eq!(WordVocabulary::of_lines(&all.lines()).unwrap(), all);
        assert!(WordVocabulary::of_lines("a\n<unk>\n").unwrap_err().contains("'<eos>' is missing"));
    }
}
