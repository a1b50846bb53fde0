//! Correlation of two lists of numbers.

use serde::Serialize;

/// Three correlation coefficients in `[-1, 1]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Correlation {
    /// Spearman's `rho`: the correlation of ranks, with mean ranks for ties.
    pub spearman: f64,
    /// Pearson's `r`: the correlation of values.
    pub pearson: f64,
    /// Kendall's `tau-b`: the fraction of concordant minus discordant pairs, corrected for ties.
    pub kendall: f64,
}

impl Correlation {
    /// Correlations of pairs `(x, y)`; `None` for fewer than three, or if one variable is constant.
    pub fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let (x, y): (Vec<f64>, Vec<f64>) =
            pairs.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).unzip();
        if x.len() < 3 {
            return None;
        }
        let correlation = Self { spearman: spearman(&x, &y), pearson: pearson(&x, &y), kendall: kendall(&x, &y) };
        (correlation.pearson.is_finite() && correlation.kendall.is_finite()).then_some(correlation)
    }
}

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
pub(crate) fn ranks(values: &[f64]) -> Vec<f64> {
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

/// Kendall's `tau-b`, as in `scipy.stats.kendalltau`; NaN if one variable is constant.
///
/// # Panics
/// As [`spearman`].
pub fn kendall(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len(), "pairs");
    let (mut same, mut untied_x, mut untied_y) = (0.0, 0.0, 0.0);
    let sign = |a: f64, b: f64| a.partial_cmp(&b).map_or(0.0, |order| order as i8 as f64);
    for i in 0..x.len() {
        for j in 0..i {
            let (a, b) = (sign(x[i], x[j]), sign(y[i], y[j]));
            same += a * b;
            untied_x += a * a;
            untied_y += b * b;
        }
    }
    same / f64::sqrt(untied_x * untied_y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::close;

    #[test]
    fn spearman_is_that_of_scipy() {
        // spearmanr([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) = 0.8207826816681233
        close(spearman(&[1.0, 2.0, 3.0, 4.0, 5.0], &[5.0, 6.0, 7.0, 8.0, 7.0]), 0.820_782_681_668_123_3);
        close(spearman(&[3.0, 1.0, 2.0], &[-30.0, -10.0, -20.0]), -1.0);
        assert_eq!(ranks(&[2.0, 1.0, 2.0, 0.0, 2.0]), [4.0, 2.0, 4.0, 1.0, 4.0]);
        assert!(spearman(&[1.0, 1.0], &[1.0, 2.0]).is_nan());
    }

    fn require(pairs: &[(f64, f64)], spearman: f64, pearson: f64, kendall: f64) {
        let seen = Correlation::of(pairs).unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        let right = near(seen.spearman, spearman) && near(seen.pearson, pearson) && near(seen.kendall, kendall);
        assert!(right, "{seen:?}, expected {spearman} {pearson} {kendall}");
    }

    /// By hand: x = 1 2 3 4, y = 1 3 2 10. Ranks of y 1 3 2 4: squared differences sum to 2, so rho = 1 - 6*2/(4*15) = 0.8.
    /// Deviations of x -1.5 -0.5 0.5 1.5, of y -3 -1 -2 6: products 13, squares 5 and 50. One of six pairs is reversed.
    #[test]
    fn hand_computed_values() {
        require(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 10.0)], 0.8, 13.0 / 250f64.sqrt(), 4.0 / 6.0);
    }

    /// x = 1 1 2, y = 1 2 3. Ranks of x 1.5 1.5 3: deviations -0.5 -0.5 1 against -1 0 1: 1.5 / sqrt(1.5 * 2). Values:
    /// deviations -1/3 -1/3 2/3, products 1, squares 2/3 and 2. Pairs: one tied in x, two in the same order: 2 / sqrt(2 * 3).
    #[test]
    fn ties() {
        let ratio = 1.5 / 3f64.sqrt();
        require(&[(1.0, 1.0), (1.0, 2.0), (2.0, 3.0)], ratio, 1.0 / (4.0f64 / 3.0).sqrt(), 2.0 / 6f64.sqrt());
    }

    #[test]
    fn opposite_order_and_too_little() {
        require(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)], -1.0, -1.0, -1.0);
        assert_eq!(Correlation::of(&[(1.0, 1.0), (2.0, 2.0)]), None);
        assert_eq!(Correlation::of(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(Correlation::of(&[(1.0, 1.0), (2.0, f64::NAN), (3.0, 3.0)]), None);
    }

    /// Figures of SciPy 1.17.1.
    #[test]
    fn coefficients_are_those_of_scipy() {
        let pairs = [(1.0, 3.0), (2.0, 1.0), (3.0, 2.0), (4.0, 2.0), (5.0, 5.0), (5.0, 6.0), (6.0, 4.0)];
        require(&pairs, 0.654_545_454_545_454_5, 0.647_058_823_529_411_9, 0.45);
    }
}
