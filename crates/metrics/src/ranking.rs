//! How well a ranking puts what is relevant first.

use crate::correlation::ranks;

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

/// Mean over the relevant ones of one over their place in a ranking, as in the MIND challenge; 0 where none is.
pub fn reciprocal_rank(relevant: &[bool]) -> f64 {
    let places = relevant.iter().enumerate().filter(|(_, relevant)| **relevant);
    let (sum, count) =
        places.fold((0.0, 0.0), |(sum, count), (place, _)| (sum + 1.0 / (place as f64 + 1.0), count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// Area under the ROC curve: the share of pairs of a relevant and another one in which the relevant one has the higher
/// score, equal scores counting half. `None` unless there are both.
///
/// # Panics
/// If there are not as many scores as items.
pub fn area_under_curve(relevant: &[bool], scores: &[f64]) -> Option<f64> {
    assert_eq!(relevant.len(), scores.len(), "scores");
    let found = relevant.iter().filter(|relevant| **relevant).count() as f64;
    let others = relevant.len() as f64 - found;
    let ranks = ranks(scores).into_iter().zip(relevant);
    let sum: f64 = ranks.filter_map(|(rank, relevant)| relevant.then_some(rank)).sum();
    (found > 0.0 && others > 0.0).then(|| (sum - found * (found + 1.0) / 2.0) / (found * others))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::close;

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

    /// `roc_auc_score` of scikit-learn 1.9.1.
    #[test]
    fn equal_scores_share_the_area() {
        let relevant = [true, false, false, true, false, true, false];
        let area = area_under_curve(&relevant, &[0.9, 0.8, 0.3, 0.3, 0.1, 0.7, 0.7]);
        close(area.expect("both kinds"), 2.0 / 3.0);
        assert_eq!(area_under_curve(&[true, true], &[0.1, 0.2]), None);
    }

    #[test]
    fn reciprocal_ranks_are_averaged_over_what_is_relevant() {
        close(reciprocal_rank(&[false, true, false, true]), (0.5 + 0.25) / 2.0);
        close(reciprocal_rank(&[false]), 0.0);
    }
}
