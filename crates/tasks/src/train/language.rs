//! What the loss of a language model means for its text, and how it depends on the position in a window.

use serde::{Deserialize, Deserializer, Serialize};

use crate::data::TextExtent;

/// Figures of a language model on a split.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LanguageFigures {
    /// Tokens predicted per window, without context before the window.
    pub context: usize,
    /// Distance between the starts of neighbouring windows; below `context` each window but the first scores its last tokens,
    /// so many.
    pub stride: usize,
    /// `exp` of the loss of the whole text over its words and line ends, which the figures of word models are; absent where
    /// tokens are words, or where only a part of the split was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity_per_word: Option<f64>,
    /// Loss of the whole text over its characters, in bits; absent likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits_per_character: Option<f64>,
    /// Loss of the whole text over its bytes in UTF-8, in bits; absent likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits_per_byte: Option<f64>,
    /// Loss by the number of tokens before a token in its window.
    pub positions: Vec<PositionLoss>,
}

/// Tokens with a similar number of others before them in their window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PositionLoss {
    /// Fewest tokens before one, a power of two.
    pub from: usize,
    /// Most of them: below the next power, or the context.
    pub to: usize,
    /// Tokens that were scored.
    pub tokens: usize,
    /// `exp` of their mean loss.
    #[serde(deserialize_with = "or_infinity")]
    pub perplexity: f64,
}

/// `exp` of a loss above 709 nats is infinite, which JSON has no number for: it is written as null.
fn or_infinity<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// Losses so far.
#[derive(Debug, Default)]
pub(super) struct LanguageTally {
    /// Tokens and total loss by the logarithm of the number of tokens before.
    buckets: Vec<(usize, f64)>,
    tokens: usize,
    nats: f64,
}

impl LanguageTally {
    /// Adds the losses of a batch, in nats, of its targets that are not negative, in order.
    pub fn add(&mut self, targets: &[i32], length: usize, nats: &[f64]) {
        let counted = (0..targets.len()).filter(|at| targets[*at] >= 0);
        for (at, nats) in counted.zip(nats) {
            let bucket = (at % length + 1).ilog2() as usize;
            self.buckets.resize(self.buckets.len().max(bucket + 1), (0, 0.0));
            self.buckets[bucket].0 += 1;
            self.buckets[bucket].1 += nats;
            self.tokens += 1;
            self.nats += nats;
        }
    }

    /// The figures of a text, read in windows of `context`.
    pub fn finish(self, context: usize, extent: TextExtent) -> LanguageFigures {
        let TextExtent { predictions, stride, words, characters, bytes, of_words } = extent;
        let whole = self.tokens == predictions && !of_words;
        let each = |count: usize| whole.then(|| self.nats / count.max(1) as f64);
        let bits = |count: usize| each(count).map(|nats| nats / std::f64::consts::LN_2);
        let buckets = (0..).zip(&self.buckets).filter(|(_, (tokens, _))| *tokens > 0);
        let positions = buckets.map(|(power, (tokens, nats))| PositionLoss {
            from: 1 << power,
            to: ((2 << power) - 1usize).min(context),
            tokens: *tokens,
            perplexity: (nats / *tokens as f64).exp(),
        });
        LanguageFigures {
            context,
            stride,
            perplexity_per_word: each(words).map(f64::exp),
            bits_per_character: bits(characters),
            bits_per_byte: bits(bytes),
            positions: positions.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_shared_among_positions_words_characters_and_bytes() {
        let mut tally = LanguageTally::default();
        tally.add(&[1, 2, 3, 4, -1, -1, -1, 5], 4, &[1.0, 2.0, 4.0, 3.0, 5.0]);
        let extent = TextExtent { predictions: 5, stride: 1, words: 3, characters: 10, bytes: 12, of_words: false };
        let figures = tally.finish(4, extent);
        let positions: Vec<_> = figures.positions.iter().map(|p| (p.from, p.to, p.tokens, p.perplexity.ln())).collect();
        assert_eq!(positions[0], (1, 1, 1, 1.0));
        assert_eq!((positions[1].0, positions[1].1, positions[1].2), (2, 3, 2));
        assert!((positions[1].3 - 3.0).abs() < 1e-12 && (positions[2].3 - 4.0).abs() < 1e-12);
        assert_eq!((positions[2].0, positions[2].1, positions[2].2), (4, 4, 2));
        assert!((figures.perplexity_per_word.unwrap() - 5f64.exp()).abs() < 1e-9);
        assert!((figures.bits_per_character.unwrap() - 1.5 / std::f64::consts::LN_2).abs() < 1e-12);
        assert!((figures.bits_per_byte.unwrap() - 1.25 / std::f64::consts::LN_2).abs() < 1e-12);

        // A loss without a perplexity is read back as it was written.
        let mut far = LanguageTally::default();
        far.add(&[1], 4, &[800.0]);
        let far = far.finish(4, TextExtent { predictions: 2, ..extent });
        assert_eq!(far.positions[0].perplexity, f64::INFINITY);
        assert_eq!(serde_json::from_str::<LanguageFigures>(&serde_json::to_string(&far).unwrap()).unwrap(), far);

        // A part of the text says nothing of the whole, and words are not spelled.
        for extent in [TextExtent { predictions: 6, ..extent }, TextExtent { of_words: true, ..extent }] {
            let mut tally = LanguageTally::default();
            tally.add(&[1, 2, 3, 4, 5], 4, &[1.0; 5]);
            let figures = tally.finish(4, extent);
            assert_eq!((figures.perplexity_per_word, figures.bits_per_byte), (None, None));
        }
    }
}
