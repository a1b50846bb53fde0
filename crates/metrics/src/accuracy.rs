//! Accuracy, and cross entropy in other units.

/// Rows of `logits` (`[rows, classes]`) whose largest entry is at the row's label; of equal entries the first counts.
/// A row with a NaN counts as wrong.
///
/// # Panics
/// If `logits` does not have `labels.len() * classes` entries.
pub fn count_correct(logits: &[f32], labels: &[i32], classes: usize) -> usize {
    assert_eq!(logits.len(), labels.len() * classes, "logits are not [{}, {classes}]", labels.len());
    let is = |(best, label): &(Option<usize>, &i32)| best.is_some_and(|best| i64::from(**label) == best as i64);
    predicted(logits, classes).zip(labels).filter(is).count()
}

/// The largest entry of each row of `logits` (`[rows, classes]`); of equal entries the first. `None` for a row with a
/// NaN.
pub fn predicted(logits: &[f32], classes: usize) -> impl Iterator<Item = Option<usize>> {
    logits.chunks_exact(classes.max(1)).map(|row| {
        let best = (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        (!row.iter().any(|logit| logit.is_nan())).then_some(best)
    })
}

/// Share of `correct` among `total`; NaN of none.
pub fn accuracy(correct: usize, total: usize) -> f64 {
    correct as f64 / total as f64
}

/// Accuracy of always answering the most frequent label; NaN without labels. Labels lie in `0 .. classes`.
pub fn majority_rate(labels: impl IntoIterator<Item = usize>, classes: usize) -> f64 {
    let mut counts = vec![0usize; classes];
    labels.into_iter().for_each(|label| counts[label] += 1);
    accuracy(counts.iter().copied().max().unwrap_or(0), counts.iter().sum())
}

/// Perplexity of a mean cross entropy in nats per token: `exp(loss)`.
pub fn perplexity(loss: f64) -> f64 {
    loss.exp()
}

/// A mean cross entropy in bits per token (bits per character, where tokens are characters), from nats per token.
pub fn bits(loss: f64) -> f64 {
    loss / std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_logit_decides() {
        let logits = [0.1, 0.9, 0.0, 2.0, 2.0, -1.0, f32::NAN, 5.0, 0.0, -3.0, -2.0, -1.0];
        assert_eq!(count_correct(&logits, &[1, 0, 1, 2], 3), 3);
        assert_eq!(count_correct(&logits, &[0, 1, 0, 1], 3), 0);
        assert_eq!(count_correct(&[], &[], 3), 0);
        assert_eq!(accuracy(3, 4), 0.75);
    }

    #[test]
    fn the_majority_class_is_counted() {
        assert_eq!(majority_rate([0, 2, 2, 1], 3), 0.5);
        assert!(majority_rate([], 3).is_nan());
    }

    #[test]
    fn a_uniform_guess_over_eight_tokens_costs_three_bits() {
        let loss = 8f64.ln();
        assert!((perplexity(loss) - 8.0).abs() < 1e-12);
        assert!((bits(loss) - 3.0).abs() < 1e-12);
    }
}
