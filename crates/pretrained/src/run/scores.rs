//! How good predictions are.

/// Rank correlation (Spearman 1904): the correlation of ranks, equal values sharing the mean of theirs, as in
/// `scipy.stats.spearmanr`. Not a number where one side does not vary.
///
/// # Panics
/// If there are not as many of one as of the other.
pub fn spearman(a: &[f64], b: &[f64]) -> f64 {
    pearson(&ranks(a), &ranks(b))
}

/// Correlation of two lists; not a number where one does not vary.
///
/// # Panics
/// As [`spearman`].
pub fn pearson(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "pairs");
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut both, mut square_a, mut square_b) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a - mean_a, b - mean_b);
        both += a * b;
        square_a += a * a;
        square_b += b * b;
    }
    both / (square_a * square_b).sqrt()
}

/// Places in rising order, from 1; equal values share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let equal = order[start..].iter().take_while(|i| values[**i] == values[order[start]]).count().max(1);
        // The mean of start + 1 to start + equal.
        let rank = start as f64 + (equal as f64 + 1.0) / 2.0;
        order[start..start + equal].iter().for_each(|i| ranks[*i] = rank);
        start += equal;
    }
    ranks
}

/// Discounted gain of a ranking over that of the best one (Järvelin and Kekäläinen 2002), both to the place `depth`; as in
/// `sklearn.metrics.ndcg_score`, gains count as they are. `gains` are those of the ranking from its first place on,
/// `all` those of everything that could have been ranked. 0 where nothing has a gain.
pub fn ndcg(gains: &[f64], all: &[f64], depth: usize) -> f64 {
    let discounted = |gains: &[f64]| -> f64 {
        gains.iter().take(depth).enumerate().map(|(place, gain)| gain / (place as f64 + 2.0).log2()).sum()
    };
    let mut best = all.to_vec();
    best.sort_by(|a, b| b.total_cmp(a));
    let best = discounted(&best);
    if best > 0.0 { discounted(gains) / best } else { 0.0 }
}

/// Mean of the precisions at the places of what is relevant, of which there is so much in all; 0 where there is none.
pub fn average_precision(relevant: &[bool], all: usize) -> f64 {
    let (mut found, mut sum) = (0.0, 0.0);
    for (place, _) in relevant.iter().enumerate().filter(|(_, relevant)| **relevant) {
        found += 1.0;
        sum += found / (place as f64 + 1.0);
    }
    if all == 0 { 0.0 } else { sum / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn close(seen: f64, expected: f64) {
        assert!((seen - expected).abs() < 1e-12, "{seen}, expected {expected}");
    }

    #[test]
    fn spearman_is_that_of_scipy() {
        // spearmanr([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) = 0.8207826816681233
        close(spearman(&[1.0, 2.0, 3.0, 4.0, 5.0], &[5.0, 6.0, 7.0, 8.0, 7.0]), 0.820_782_681_668_123_3);
        close(spearman(&[3.0, 1.0, 2.0], &[-30.0, -10.0, -20.0]), -1.0);
        assert_eq!(ranks(&[2.0, 1.0, 2.0, 0.0, 2.0]), [4.0, 2.0, 4.0, 1.0, 4.0]);
        assert!(spearman(&[1.0, 1.0], &[1.0, 2.0]).is_nan());
    }

    #[test]
    fn ndcg_is_that_of_sklearn() {
        // ndcg_score([[10, 0, 0, 1, 5]], [[0.1, 0.2, 0.3, 4, 70]]) = 0.6956940443813076: the ranking is 5, 1, 0, 0, 10.
        let all = [10.0, 0.0, 0.0, 1.0, 5.0];
        close(ndcg(&[5.0, 1.0, 0.0, 0.0, 10.0], &all, 10), 0.695_694_044_381_307_6);
        // The documentation of sklearn, k = 4: ndcg_score([[10, 0, 0, 1, 5]], [[0.05, 1.1, 1.0, 0.5, 0.0]], k=4) = 0.352...
        let best = 10.0 + 5.0 / 3f64.log2() + 0.5;
        close(ndcg(&[0.0, 0.0, 1.0, 10.0, 5.0], &all, 4), (0.5 + 10.0 / 5f64.log2()) / best);
        close(ndcg(&[0.0], &[0.0], 10), 0.0);
    }

    #[test]
    fn precision_is_averaged_over_what_is_relevant() {
        close(average_precision(&[true, false, true, false], 2), (1.0 + 2.0 / 3.0) / 2.0);
        // One was never ranked.
        close(average_precision(&[false, true], 2), 0.25);
        close(average_precision(&[], 0), 0.0);
    }
}
