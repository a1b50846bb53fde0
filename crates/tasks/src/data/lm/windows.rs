//! Evaluation windows: every prediction of a text is scored once.

use std::ops::Range;

/// Windows of `context` predictions that begin every `stride` predictions. In each but the first only those count that the
/// window before did not reach: the last `stride`, each with at least `context - stride` tokens before it. With a stride of
/// 1 the last position of each window is scored (Peng et al. 2021, as in the paper on mixtures of Gaussian keys).
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    /// Predictions that the text has, at least 1: one less than its tokens.
    pub predictions: usize,
    /// Predictions of a window.
    pub context: usize,
    /// From the start of one window to that of the next, from 1 to `context`.
    pub stride: usize,
}

impl Windows {
    /// Number of windows.
    pub fn len(self) -> usize {
        1 + self.predictions.saturating_sub(self.context).div_ceil(self.stride)
    }

    /// The first prediction of a window.
    pub fn start(self, window: usize) -> usize {
        window * self.stride
    }

    /// Predictions of a window; the last may be shorter than the others.
    pub fn length(self, window: usize) -> usize {
        self.context.min(self.predictions - self.start(window))
    }

    /// Predictions at the beginning of a window that the one before has scored.
    pub fn seen(self, window: usize) -> usize {
        if window == 0 { 0 } else { self.context - self.stride }
    }

    /// Batches of at most `rows` windows of one length, in order.
    pub fn batches(self, rows: usize) -> impl Iterator<Item = Range<usize>> {
        let last = self.len() - 1;
        let whole = if self.length(last) == self.context { self.len() } else { last };
        let batches = (0..whole).step_by(rows).map(move |first| first..(first + rows).min(whole));
        batches.chain((whole == last).then_some(last..last + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prediction_is_scored_once_with_the_context_that_the_stride_leaves() {
        for (predictions, context, stride, rows) in [
            (23, 8, 8, 3),
            (24, 8, 8, 2),
            (23, 8, 3, 2),
            (50, 16, 1, 7),
            (5, 8, 8, 1),
            (5, 8, 2, 4),
            (1, 4, 1, 1),
            (9, 1, 1, 2),
        ] {
            let windows = Windows { predictions, context, stride };
            let mut scored = Vec::new();
            let mut next = 0;
            for range in windows.batches(rows) {
                assert!(range.start == next && range.len() <= rows && !range.is_empty());
                next = range.end;
                for window in range.clone() {
                    assert_eq!(windows.length(window), windows.length(range.start));
                    let (start, seen) = (windows.start(window), windows.seen(window));
                    scored.extend(start + seen..start + windows.length(window));
                    assert!(window == 0 || seen == context - stride);
                }
            }
            assert_eq!(next, windows.len());
            assert_eq!(scored, (0..predictions).collect::<Vec<_>>(), "{windows:?}");
        }
    }
}
