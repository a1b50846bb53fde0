//! ROUGE of a summary against a reference (Lin 2004), as the package `rouge-score` computes it without stemming.
//!
//! Words are the runs of ASCII letters and digits of the text in lower case. Scores of many summaries are averaged.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Shares of words that two texts have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// Over those of the summary.
    pub precision: f64,
    /// Over those of the reference.
    pub recall: f64,
    /// Harmonic mean of both; 0 where both are.
    pub f1: f64,
}

impl Overlap {
    fn of(shared: usize, summary: usize, reference: usize) -> Self {
        let share = |of: usize| shared as f64 / of.max(1) as f64;
        let (precision, recall) = (share(summary), share(reference));
        let f1 = if shared > 0 { 2.0 * precision * recall / (precision + recall) } else { 0.0 };
        Self { precision, recall, f1 }
    }
}

/// ROUGE of a summary, or the mean over many; each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rouge {
    /// Of single words.
    pub one: Overlap,
    /// Of pairs of words.
    pub two: Overlap,
    /// Of the longest common subsequence of words.
    pub l: Overlap,
    /// Of the union of the longest common subsequences of the sentences, one a line.
    pub l_sum: Overlap,
}

impl Rouge {
    /// Of one summary.
    pub fn of(summary: &str, reference: &str) -> Self {
        let mut names = HashMap::new();
        let (summary, reference) = (lines(summary, &mut names), lines(reference, &mut names));
        let (all, expected) = (summary.concat(), reference.concat());
        let common = Table::of(&expected, &all).length();
        Self {
            one: grams(&all, &expected, 1),
            two: grams(&all, &expected, 2),
            l: Overlap::of(common, all.len(), expected.len()),
            l_sum: Overlap::of(union(&expected, &reference, &all, &summary), all.len(), expected.len()),
        }
    }

    /// Of one summary that has several references: all scores are those with the reference of the largest F1 of single words,
    /// the first of equals, as in the program of Cachola et al. 2020. `None` without references.
    pub fn best<'a>(summary: &str, references: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let scores = references.into_iter().map(|reference| Self::of(summary, reference));
        scores.reduce(|best, other| if other.one.f1 > best.one.f1 { other } else { best })
    }

    /// Mean over summaries; `None` of none.
    pub fn mean<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        Self::average(pairs.into_iter().map(|(summary, reference)| Self::of(summary, reference)))
    }

    /// Mean of scores; `None` of none.
    pub fn average(scores: impl IntoIterator<Item = Self>) -> Option<Self> {
        let (mut sum, mut count) = (Self::default(), 0.0);
        for one in scores {
            sum = sum.merge(one, |a, b| a + b);
            count += 1.0;
        }
        (count > 0.0).then(|| sum.merge(sum, |a, _| a / count))
    }

    fn merge(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        let merge = |a: Overlap, b: Overlap| Overlap {
            precision: f(a.precision, b.precision),
            recall: f(a.recall, b.recall),
            f1: f(a.f1, b.f1),
        };
        Self {
            one: merge(self.one, other.one),
            two: merge(self.two, other.two),
            l: merge(self.l, other.l),
            l_sum: merge(self.l_sum, other.l_sum),
        }
    }
}

/// Words of each line, as numbers that `names` gives.
fn lines(text: &str, names: &mut HashMap<String, u32>) -> Vec<Vec<u32>> {
    let mut words = |line: &str| -> Vec<u32> {
        let lower = line.to_lowercase();
        let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words
            .map(|word| {
                let next = names.len() as u32;
                *names.entry(word.to_owned()).or_insert(next)
            })
            .collect()
    };
    text.split('\n').map(&mut words).collect()
}

/// Overlap of runs of `order` words, each as often as both texts have it.
fn grams(summary: &[u32], reference: &[u32], order: usize) -> Overlap {
    let mut left: HashMap<&[u32], usize> = HashMap::new();
    reference.windows(order).for_each(|gram| *left.entry(gram).or_default() += 1);
    let shared = summary.windows(order).filter(|gram| match left.get_mut(gram) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    });
    let count = |words: &[u32]| (words.len() + 1).saturating_sub(order);
    Overlap::of(shared.count(), count(summary), count(reference))
}

/// Words of the reference that are in the longest common subsequence with some sentence of the summary, none more often
/// than the summary has it.
fn union(expected: &[u32], reference: &[Vec<u32>], all: &[u32], summary: &[Vec<u32>]) -> usize {
    let counts = |words: &[u32]| {
        let mut counts: HashMap<u32, usize> = HashMap::new();
        words.iter().for_each(|word| *counts.entry(*word).or_default() += 1);
        counts
    };
    let (mut left, mut left_expected) = (counts(all), counts(expected));
    let mut hits = 0;
    for sentence in reference {
        let mut found = vec![false; sentence.len()];
        summary.iter().for_each(|other| Table::of(sentence, other).mark(&mut found));
        for word in sentence.iter().zip(found).filter_map(|(word, found)| found.then_some(word)) {
            if let (Some(a @ 1..), Some(b @ 1..)) = (left.get_mut(word), left_expected.get_mut(word)) {
                *a -= 1;
                *b -= 1;
                hits += 1;
            }
        }
    }
    hits
}

/// Lengths of the longest common subsequences of all beginnings of two texts.
struct Table<'a> {
    reference: &'a [u32],
    summary: &'a [u32],
    /// `[reference + 1, summary + 1]`.
    lengths: Vec<u32>,
}

impl<'a> Table<'a> {
    fn of(reference: &'a [u32], summary: &'a [u32]) -> Self {
        let width = summary.len() + 1;
        let mut lengths = vec![0; (reference.len() + 1) * width];
        for (i, word) in reference.iter().enumerate() {
            for (j, other) in summary.iter().enumerate() {
                let at = (i + 1) * width + j + 1;
                lengths[at] = match word == other {
                    true => lengths[at - width - 1] + 1,
                    false => lengths[at - width].max(lengths[at - 1]),
                };
            }
        }
        Self { reference, summary, lengths }
    }

    fn length(&self) -> usize {
        self.lengths[self.lengths.len() - 1] as usize
    }

    /// Marks the words of the reference in one longest common subsequence: of several, the one that `rouge-score` takes.
    fn mark(&self, found: &mut [bool]) {
        let width = self.summary.len() + 1;
        let (mut i, mut j) = (self.reference.len(), self.summary.len());
        while i > 0 && j > 0 {
            let at = i * width + j;
            if self.reference[i - 1] == self.summary[j - 1] {
                found[i - 1] = true;
                (i, j) = (i - 1, j - 1);
            } else if self.lengths[at - 1] > self.lengths[at - width] {
                j -= 1;
            } else {
                i -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Precision, recall and F1 of ROUGE-1, -2, -L and -Lsum.
    type Scores = [[f64; 3]; 4];

    fn scores(rouge: Rouge) -> Scores {
        [rouge.one, rouge.two, rouge.l, rouge.l_sum].map(|overlap| [overlap.precision, overlap.recall, overlap.f1])
    }

    /// Figures of rouge-score 0.1.2: summary, reference, scores.
    #[test]
    fn scores_are_those_of_rouge_score() {
        let cases: [(&str, &str, Scores); 9] = [
            (
                "the cat sat on the mat",
                "the cat lay on the mat",
                [
                    [0.833333333333333, 0.833333333333333, 0.833333333333333],
                    [0.6, 0.6, 0.6],
                    [0.833333333333333, 0.833333333333333, 0.833333333333333],
                    [0.833333333333333, 0.833333333333333, 0.833333333333333],
                ],
            ),
            (
                "The quick brown fox jumped over the lazy dog.",
                "A quick-brown fox: it jumped over 2 lazy dogs, twice.",
                [
                    [0.666666666666667, 0.545454545454545, 0.6],
                    [0.375, 0.3, 0.333333333333333],
                    [0.666666666666667, 0.545454545454545, 0.6],
                    [0.666666666666667, 0.545454545454545, 0.6],
                ],
            ),
            ("", "nothing here", [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
            (
                "police killed the gunman",
                "police kill the gunman\nthe gunman police killed",
                [
                    [1.0, 0.5, 0.666666666666667],
                    [0.666666666666667, 0.285714285714286, 0.4],
                    [0.75, 0.375, 0.5],
                    [0.75, 0.375, 0.5],
                ],
            ),
            (
                "We propose a model.\nIt attends to words.\nIt is fast, and small.",
                "The model attends to few words.\n\nIt is small and it is fast.\nWe propose it.",
                [
                    [0.923076923076923, 0.75, 0.827586206896552],
                    [0.416666666666667, 0.333333333333333, 0.37037037037037],
                    [0.538461538461538, 0.4375, 0.482758620689655],
                    [0.769230769230769, 0.625, 0.689655172413793],
                ],
            ),
            (
                "a b c d e f g\nh a b",
                "b a c e d g f\na a b h b",
                [
                    [1.0, 0.833333333333333, 0.909090909090909],
                    [0.111111111111111, 0.090909090909091, 0.1],
                    [0.6, 0.5, 0.545454545454545],
                    [0.6, 0.5, 0.545454545454545],
                ],
            ),
            (
                "naïve Café costs 3.50€",
                "naive cafe costs 350",
                [
                    [0.166666666666667, 0.25, 0.2],
                    [0.0, 0.0, 0.0],
                    [0.166666666666667, 0.25, 0.2],
                    [0.166666666666667, 0.25, 0.2],
                ],
            ),
            ("one", "one", [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]),
            (
                "x y x y x y",
                "y x y x",
                [
                    [0.666666666666667, 1.0, 0.8],
                    [0.6, 1.0, 0.75],
                    [0.666666666666667, 1.0, 0.8],
                    [0.666666666666667, 1.0, 0.8],
                ],
            ),
        ];
        for (summary, reference, expected) in cases {
            let seen = scores(Rouge::of(summary, reference));
            for (seen, expected) in seen.iter().flatten().zip(expected.iter().flatten()) {
                assert!((seen - expected).abs() < 1e-12, "{summary:?}: {seen}, expected {expected}");
            }
        }
    }

    #[test]
    fn many_summaries_have_the_mean_of_their_scores() {
        let mean = Rouge::mean([("a b", "a b"), ("c", "d")]).expect("two");
        assert_eq!(scores(mean), [[0.5; 3]; 4]);
        assert_eq!(Rouge::mean([]), None);
    }

    #[test]
    fn of_several_references_the_one_with_most_words_in_common_counts() {
        let summary = "the cat sat on the mat";
        // The second has more pairs of words and a longer subsequence in common, but fewer words.
        let references = ["on the mat the sat cat", "the cat sat on a b c", "mat the on sat cat the"];
        let best = Rouge::best(summary, references).expect("three");
        assert_eq!(best, Rouge::of(summary, references[0]));
        assert!(best.one.f1 == 1.0 && best.two.f1 < Rouge::of(summary, references[1]).two.f1);
        assert_eq!(Rouge::best(summary, []), None);
    }
}
