//! The attention mask: key padding, causality and a window, in any combination.

use std::{ops::Range, sync::Arc};

use crate::{AttentionShape, Error};

/// Which tokens of a padded batch are real: `[batch, length]`, 1 = real.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padding {
    batch: usize,
    length: usize,
    real: Vec<u8>,
}

impl Padding {
    /// `real` is `[batch, length]` row by row; any nonzero byte is a real token.
    ///
    /// # Errors
    /// A length other than `batch * length`.
    pub fn new(batch: usize, length: usize, real: Vec<u8>) -> Result<Self, Error> {
        if real.len() != batch * length {
            return Err(Error::shape("valid", &[real.len()], format!("{batch} x {length} entries")));
        }
        Ok(Self { batch, length, real })
    }

    /// Row `b` holds `lengths[b]` real tokens, then padding up to `length`.
    ///
    /// # Panics
    /// If a length exceeds `length`.
    pub fn from_lengths(lengths: &[usize], length: usize) -> Self {
        let mut real = vec![0; lengths.len() * length];
        for (row, &tokens) in real.chunks_exact_mut(length.max(1)).zip(lengths) {
            row[..tokens].fill(1);
        }
        Self { batch: lengths.len(), length, real }
    }

    /// Batch rows.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Tokens per row, padding included.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Row `b`, one byte per token, non-zero = real.
    pub fn row(&self, b: usize) -> &[u8] {
        &self.real[b * self.length..(b + 1) * self.length]
    }

    /// All rows.
    pub fn as_slice(&self) -> &[u8] {
        &self.real
    }
}

/// Attention mask: the keys that each query may attend to.
///
/// Query `i` is at the position `p = i + S - N` among the keys, so that the last query is at the last key; an `offset`
/// moves all queries. Under causality it sees key `j` iff `j <= p`, a window of `w` keeps the keys with `|j - p| <= w`. A
/// masked key enters no numerator and no denominator; a query without a visible key outputs 0 and contributes gradient 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mask {
    /// Hides keys after the query's own position.
    pub causal: bool,
    /// Largest distance between a query's position and a visible key.
    pub window: Option<usize>,
    /// Added to the position of every query: where queries and keys are parts of longer sequences, their last ones need
    /// not be at one position.
    pub offset: isize,
    /// Real keys, `[B, S]`.
    pub valid: Option<Arc<Padding>>,
    /// Real queries, `[B, N]`, where they matter and differ from the keys.
    pub query_valid: Option<Arc<Padding>>,
}

impl Mask {
    /// No mask: every query sees every key.
    pub fn none() -> Self {
        Self::default()
    }

    /// A causal mask.
    pub fn causal() -> Self {
        Self { causal: true, ..Self::default() }
    }

    /// This mask with key padding.
    #[must_use]
    pub fn with_valid(mut self, valid: Option<Arc<Padding>>) -> Self {
        self.valid = valid;
        self
    }

    /// Checks the padding against the sizes of a call.
    ///
    /// # Errors
    /// Padding with another batch size or length.
    pub fn check(&self, shape: &AttentionShape) -> Result<(), Error> {
        let fits = |name, padding: &Option<Arc<Padding>>, length| match padding {
            Some(p) => Error::check_shape(name, &[p.batch, p.length], &[shape.batch, length]),
            None => Ok(()),
        };
        fits("valid", &self.valid, shape.keys)?;
        fits("query_valid", &self.query_valid, shape.queries)
    }

    /// Position of query `i` of `n` among `s` keys, signed: N > S puts the first queries before key 0.
    #[inline(always)]
    pub fn position(&self, i: usize, n: usize, s: usize) -> isize {
        i as isize + s as isize - n as isize + self.offset
    }

    /// Refuses an offset, for mechanisms whose queries and keys are the tokens of one sequence or sums over all of them.
    pub(crate) fn check_aligned(&self) -> Result<(), Error> {
        match self.offset {
            0 => Ok(()),
            offset => Err(Error::option(
                "offset",
                offset,
                "0: only exact attention and a band of it take parts of a sequence",
            )),
        }
    }

    /// Keys visible to query `i` of `n` among `s`, ignoring padding.
    #[inline(always)]
    pub fn visible(&self, i: usize, n: usize, s: usize) -> Range<usize> {
        let position = self.position(i, n, s);
        let clamp = |x: isize| x.clamp(0, s as isize) as usize;
        let reach = self.window.map(|w| w.min(isize::MAX as usize / 4) as isize);
        let start = reach.map_or(0, |w| clamp(position - w));
        let end = match (self.causal, reach) {
            (true, _) => clamp(position + 1),
            (false, Some(w)) => clamp(position + w + 1),
            (false, None) => s,
        };
        start..end.max(start)
    }

    /// Keys visible to any query of `rows` among `s`, ignoring padding: the hull of [`Mask::visible`] over the rows.
    pub fn visible_to(&self, rows: Range<usize>, n: usize, s: usize) -> Range<usize> {
        if rows.is_empty() {
            return 0..0;
        }
        let first = self.visible(rows.start, n, s);
        let last = self.visible(rows.end - 1, n, s);
        let start = first.start.min(last.start);
        start..last.end.max(first.end).max(start)
    }

    /// Real keys of batch row `b`, where there is padding.
    pub fn valid_row(&self, b: usize) -> Option<&[u8]> {
        self.valid.as_deref().map(|p| p.row(b))
    }

    /// Real queries of batch row `b`: `query_valid`, or in self-attention (`N = S`) the real keys.
    pub fn query_row(&self, b: usize, queries: usize) -> Option<&[u8]> {
        match (&self.query_valid, &self.valid) {
            (Some(p), _) => Some(p.row(b)),
            (None, Some(p)) if p.length == queries => Some(p.row(b)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causal_is_aligned_bottom_right() {
        let mask = Mask::causal();
        assert_eq!(mask.visible(0, 3, 5), 0..3);
        assert_eq!(mask.visible(2, 3, 5), 0..5);
        assert!(mask.visible(0, 5, 3).is_empty(), "the first N - S queries see nothing");
        assert_eq!(mask.visible(2, 5, 3), 0..1);
    }

    #[test]
    fn window_reaches_both_ways_unless_causal() {
        let both = Mask { window: Some(1), ..Mask::none() };
        assert_eq!(both.visible(3, 8, 8), 2..5);
        assert_eq!(both.visible(0, 8, 8), 0..2);
        let causal = Mask { window: Some(1), ..Mask::causal() };
        assert_eq!(causal.visible(3, 8, 8), 2..4);
        assert_eq!(causal.visible_to(2..5, 8, 8), 1..5);
    }

    #[test]
    fn an_offset_cuts_a_part_out_of_a_longer_call() {
        // Queries 4..7 and keys 2..6 of a call of 9 queries and 8 keys.
        for whole in
            [Mask::causal(), Mask { window: Some(2), ..Mask::none() }, Mask { window: Some(1), ..Mask::causal() }]
        {
            let part = Mask { offset: whole.position(4, 9, 8) - 2 - (4 - 3), ..whole.clone() };
            for i in 0..3 {
                let seen: Vec<_> = whole.visible(4 + i, 9, 8).filter(|j| (2..6).contains(j)).map(|j| j - 2).collect();
                assert_eq!(part.visible(i, 3, 4).collect::<Vec<_>>(), seen, "{whole:?}, query {i}");
            }
        }
    }
}
