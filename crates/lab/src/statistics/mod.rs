//! Tests of differences by their p values: Student's t on pairs, McNemar's exact test, and Holm's correction for many of
//! them. What decides a claim of a paper has intervals instead: see [`crate::reproduce::Estimate`].

pub(crate) mod distribution;

use regard_report::Sample;

use distribution::{beta, heads_at_most, student as quantile};

/// A test of paired differences against 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paired {
    /// Mean difference.
    pub mean: f64,
    /// Ends of its 95 % interval.
    pub interval: [f64; 2],
    /// Probability of a mean at least as far from 0 if there were no difference.
    pub p: f64,
}

/// Student's t on paired `differences`, two-sided; `None` for fewer than two, and for equal ones that are not 0: their
/// spread is unknown, not 0.
pub fn paired(differences: &[f64]) -> Option<Paired> {
    let sample = Sample::of(differences);
    let error = sample.variance_of_mean()?.sqrt();
    let (mean, degrees) = (sample.mean, (sample.count - 1) as f64);
    if !mean.is_finite() || !error.is_finite() {
        return None;
    }
    // What is left by rounding of equal differences.
    if error <= 1e-12 * mean.abs() {
        return (mean == 0.0).then_some(Paired { mean, interval: [0.0, 0.0], p: 1.0 });
    }
    let half = error * quantile(0.975, degrees);
    Some(Paired { mean, interval: [mean - half, mean + half], p: student(mean / error, degrees) })
}

/// Two-sided p value of a t statistic.
pub fn student(t: f64, degrees: f64) -> f64 {
    beta(degrees / 2.0, 0.5, degrees / (degrees + t * t))
}

/// McNemar's exact test, two-sided: of the items on which just one of two models is right, `first` were those of the first
/// and `second` those of the second. With equal models each would be a throw of a fair coin.
pub fn mcnemar(first: usize, second: usize) -> f64 {
    let (few, all) = (first.min(second), first + second);
    if 2 * few == all {
        return 1.0;
    }
    (2.0 * heads_at_most(few, all)).min(1.0)
}

/// Holm's step-down correction: p values that may each be held against the same level, so that the chance of any wrong
/// rejection among them stays below it.
pub fn holm(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let (mut corrected, mut least) = (vec![0.0; values.len()], 0f64);
    for (rank, &index) in order.iter().enumerate() {
        least = least.max((values.len() - rank) as f64 * values[index]).min(1.0);
        corrected[index] = least;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(seen: f64, expected: f64, relative: f64) {
        assert!((seen - expected).abs() <= relative * expected.abs(), "{seen}, expected {expected}");
    }

    /// Expected values: SciPy 1.17.1, `ttest_rel` and `ttest_1samp` with `confidence_interval`.
    #[test]
    fn paired_differences_agree_with_an_independent_library() {
        let long: Vec<f64> = (0..2000).map(|i| (f64::from((i * 7919) % 13) - 5.9) / 10.0).collect();
        let eight = [1.0, 1.1, 0.9, 1.05, 0.97, 1.2, 1.3, 0.8];
        for (differences, p, low) in [
            (&[0.01, 0.02, 0.015][..], 0.035_098_718_645_984_656, 0.002_579_311_441_248_349),
            (&[0.5, -0.2, 0.1, 0.3], 0.325_765_710_534_952_85, -0.300_151_773_998_646),
            (&eight, 3.584_920_338_574_192_6e-7, 0.905_715_156_029_480_2),
            (&long, 0.251_413_057_643_289_75, -0.006_810_505_642_231_891),
        ] {
            let seen = paired(differences).unwrap();
            near(seen.p, p, 1e-9);
            near(seen.interval[0], low, 1e-9);
            near(seen.interval[0] + seen.interval[1], 2.0 * seen.mean, 1e-9);
        }
        // `2 * t.sf`.
        for (t, degrees, p) in [
            (12.7, 1.0, 0.050_024_327_689_344_165),
            (0.1, 2.0, 0.929_465_438_414_140_2),
            (8.0, 2000.0, 2.086_436_538_160_837_7e-15),
            (40.0, 5.0, 1.841_196_217_177_295_4e-7),
        ] {
            near(student(t, degrees), p, 1e-9);
        }
    }

    #[test]
    fn equal_differences_decide_nothing_unless_they_are_none() {
        assert_eq!(paired(&[0.1 + 0.2, 0.3, 0.3]), None);
        assert_eq!((paired(&[0.5]), paired(&[]), paired(&[f64::NAN, 1.0])), (None, None, None));
        assert_eq!(paired(&[0.0; 3]).unwrap().p, 1.0);
    }

    /// Expected values: SciPy 1.17.1, `binomtest(first, first + second)`.
    #[test]
    fn the_exact_test_agrees_with_an_independent_library() {
        for (first, second, p) in [
            (1, 0, 1.0),
            (7, 7, 1.0),
            (0, 0, 1.0),
            (0, 8, 0.007_812_5),
            (3, 12, 0.035_156_25),
            (10, 25, 0.016_673_847_800_120_715),
            (250, 330, 0.001_020_086_625_398_855_4),
            (5000, 5400, 9.116_949_314_541_157e-5),
        ] {
            near(mcnemar(first, second), p, 1e-9);
            near(mcnemar(second, first), p, 1e-9);
        }
    }

    #[test]
    fn the_smallest_of_many_p_values_is_multiplied_by_their_number_and_so_on_down() {
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        assert!(
            corrected.iter().zip(expected).all(|(seen, expected)| (seen - expected).abs() < 1e-12),
            "{corrected:?}"
        );
        assert_eq!(holm(&[0.6, 0.7]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }
}
