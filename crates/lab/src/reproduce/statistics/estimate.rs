//! Estimates with the interval that decides on them.

use regard_report::{Sample, number::significant};
use serde::{Deserialize, Serialize};

use crate::statistics::distribution::{heads_at_most, noncentrality, probability, student};

/// Fewest trained models of a kind, each from a seed of its own, on which a verdict can rest.
pub const SEEDS: usize = 3;

/// Probability with which an effect of [`Estimate::smallest`] would have been seen.
const POWER: f64 = 0.8;

/// Fewest units of a mean with an interval.
fn least(units: &str) -> usize {
    if units == "seeds" { SEEDS } else { 2 }
}

/// An estimate with its interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// Ends of the two-sided interval; `None` where the sample is too small for one.
    pub interval: Option<[f64; 2]>,
    /// Confidence of the interval; 0 of one by deciles.
    pub confidence: f64,
    /// The distance from a border that the run would have told from it in four of five repetitions.
    pub smallest: Option<f64>,
    /// Number of independent units.
    pub count: usize,
    /// What a unit is: seeds, draws, test items.
    pub units: String,
}

impl Estimate {
    /// The mean of independent values, with an interval by Student's t. Units that are trained models ("seeds") have an
    /// interval from [`SEEDS`] of them on.
    pub fn mean(values: &[f64], confidence: f64, units: &str) -> Self {
        let sample = Sample::of(values);
        let error = sample.variance_of_mean().filter(|_| values.len() >= least(units)).map(f64::sqrt);
        Self::of_error(sample.mean, error, values.len() as f64 - 1.0, confidence, units)
    }

    /// The mean of paired differences `first - second`.
    pub fn paired(first: &[f64], second: &[f64], confidence: f64, units: &str) -> Self {
        let differences: Vec<f64> = first.iter().zip(second).map(|(first, second)| first - second).collect();
        Self::mean(&differences, confidence, units)
    }

    /// The difference of two means of independent values with variances of their own (Welch 1947).
    pub fn unpaired(first: &[f64], second: &[f64], confidence: f64, units: &str) -> Self {
        let samples = [first, second].map(Sample::of);
        let value = samples[0].mean - samples[1].mean;
        let enough = first.len().min(second.len()) >= least(units);
        let parts = samples.map(|sample| sample.variance_of_mean().filter(|_| enough).unwrap_or(f64::NAN));
        let error = (parts[0] + parts[1]).sqrt();
        let shares = [(parts[0], first.len()), (parts[1], second.len())];
        let degrees =
            error.powi(4) / shares.map(|(part, count)| part * part / (count as f64 - 1.0)).iter().sum::<f64>();
        let own = Self::of_error(value, Some(error), degrees, confidence, units);
        Self { count: first.len() + second.len(), ..own }
    }

    /// The share of right answers of one model less that of another over the same items. The interval is that of
    /// McNemar's exact test: given the items on which just one of them is right, the first is right on a binomial number
    /// of these. So it excludes 0 just where the test rejects equality.
    pub fn right_or_wrong(first: &[bool], second: &[bool], confidence: f64) -> Self {
        let only =
            |one: &[bool], other: &[bool]| one.iter().zip(other).filter(|(one, other)| **one && !**other).count();
        let (won, lost, all) = (only(first, second), only(second, first), first.len().min(second.len()));
        let told = (won + lost) as f64 / all as f64;
        let interval = probability(won, won + lost, confidence).map(|share| (2.0 * share - 1.0) * told);
        let value = (won as f64 - lost as f64) / all as f64;
        let interval = if won + lost == 0 { None } else { Some(interval) };
        Self::of_interval(value, interval, all, confidence, "test items")
    }

    /// The mean over seeds and test items of `differences[seed][item]`. Seeds are the units of replication; the items, the
    /// same for every seed, add the variance of their mean over seeds, which no number of seeds makes smaller.
    pub fn of_seeds(differences: &[Vec<f64>], confidence: f64) -> Self {
        let means: Vec<f64> = differences.iter().map(|items| Sample::of(items).mean).collect();
        let seeds = Sample::of(&means);
        let items = differences.first().map_or(0, Vec::len);
        let over_seeds = |item: usize| differences.iter().map(|own| own[item]).sum::<f64>() / means.len() as f64;
        let of_items = Sample::of(&(0..items).map(over_seeds).collect::<Vec<_>>()).variance_of_mean();
        let error = seeds.variance_of_mean().filter(|_| means.len() >= SEEDS);
        let error = error.map(|error| (error + of_items.unwrap_or(0.0)).sqrt());
        Self::of_error(seeds.mean, error, means.len() as f64 - 1.0, confidence, "seeds")
    }

    /// The median, with the interval of the sign test: it assumes nothing of the tails.
    pub fn median(values: &[f64], confidence: f64, units: &str) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (count, half) = (sorted.len(), sorted.len() / 2);
        let median = match count {
            0 => f64::NAN,
            _ if count % 2 == 1 => sorted[half],
            _ => 0.5 * (sorted[half - 1] + sorted[half]),
        };
        // The largest number of values that may be left out at each end.
        let left_out = (0..half).rev().find(|rank| 2.0 * heads_at_most(*rank, count) <= 1.0 - confidence);
        let interval = left_out.map(|rank| [sorted[rank], sorted[count - 1 - rank]]);
        Self::of_interval(median, interval, count, confidence, units)
    }

    /// A rank correlation over independent pairs, by Fisher's transformation, whose standard error is that of Bonett and
    /// Wright (2000).
    pub fn rank_correlation(spearman: f64, pairs: usize, confidence: f64, units: &str) -> Self {
        let most = 0.999_999;
        let transformed = spearman.clamp(-most, most).atanh();
        let error = ((1.0 + spearman.powi(2) / 2.0) / (pairs as f64 - 3.0)).sqrt();
        let Self { interval, .. } = Self::of_error(transformed, Some(error), 1e6, confidence, units);
        Self::of_interval(spearman, interval.map(|ends| ends.map(f64::tanh)), pairs, confidence, units)
    }

    /// An estimate with a standard error of this many degrees of freedom.
    pub fn of_error(value: f64, error: Option<f64>, degrees: f64, confidence: f64, units: &str) -> Self {
        let error = error.filter(|error| error.is_finite() && degrees > 0.0);
        let reached = error.map(|error| (student(0.5 + confidence / 2.0, degrees), error));
        let interval = reached.map(|(reach, error)| [value - reach * error, value + reach * error]);
        let smallest = reached.map(|(reach, error)| noncentrality(reach, degrees, POWER) * error);
        Self { smallest, ..Self::of_interval(value, interval, degrees.max(0.0) as usize + 1, confidence, units) }
    }

    /// An estimate with this interval; the smallest effect as if it were a normal one.
    pub fn of_interval(value: f64, interval: Option<[f64; 2]>, count: usize, confidence: f64, units: &str) -> Self {
        let normal = |share| student(share, 1e6);
        let reach = 1.0 + normal(POWER) / normal(0.5 + confidence / 2.0);
        let interval = interval.filter(|ends| ends.iter().all(|end| end.is_finite()));
        let smallest = interval.map(|[low, high]| reach * (high - low) / 2.0);
        Self { value, interval, confidence, smallest, count, units: units.into() }
    }

    /// A ratio of times within those of their deciles: repetitions of one program on one machine are no independent draws, so
    /// that no confidence can be named.
    pub fn of_deciles(value: f64, interval: Option<[f64; 2]>, count: usize) -> Self {
        Self { confidence: 0.0, smallest: None, ..Self::of_interval(value, interval, count, 0.8, "runs") }
    }

    /// With every number times a positive factor, as from shares to points.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            interval: self.interval.map(|ends| ends.map(|end| end * factor)),
            smallest: self.smallest.map(|smallest| smallest * factor),
            ..self
        }
    }

    /// As text: the value, its interval, and the number of units.
    pub fn said(&self) -> String {
        let number = |value: f64| significant(value, 3);
        let Self { value, count, units, .. } = self;
        let measured = match self.interval {
            Some([low, high]) => {
                let percent = (1e4 * self.confidence).round() / 100.0;
                let sure = if percent > 0.0 { format!("at {percent} %") } else { "by deciles".into() };
                format!("{} ({} to {} {sure}", number(*value), number(low), number(high))
            }
            None => format!("{} (too few for an interval", number(*value)),
        };
        let units = if *count == 1 { units.trim_end_matches('s') } else { units };
        format!("{measured}; {count} {units})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(seen: Option<[f64; 2]>, expected: [f64; 2]) {
        let seen = seen.expect("an interval");
        let close = |i: usize| (seen[i] - expected[i]).abs() < 1e-9;
        assert!(close(0) && close(1), "{seen:?}, expected {expected:?}");
    }

    /// Expected interval: SciPy 1.17.1, `t.interval` with `sem`.
    #[test]
    fn means_have_the_interval_of_student() {
        let of = |units| Estimate::mean(&[0.3, -0.1, 0.5, 0.2, 0.4], 0.95, units);
        let five = of("draws");
        near(five.interval, [-0.025_852_519_098_702_342, 0.545_852_519_098_702_2]);
        assert_eq!(five, Estimate { units: "draws".into(), ..of("seeds") });
        // 3.761060 standard errors: where a noncentral t of four degrees of freedom is beyond the quantile in four of five cases.
        let error = 0.285_852_519_098_702_2 / 2.776_445_105_197_793;
        assert!((five.smallest.unwrap() - 3.761_060_261_004_304 * error).abs() < 1e-5);
    }

    /// Expected: SciPy 1.17.1, `ttest_ind(.., equal_var=False).confidence_interval(0.95)`.
    #[test]
    fn unpaired_means_keep_their_own_variances() {
        let unpaired = Estimate::unpaired(&[0.3, -0.1, 0.5, 0.2, 0.4], &[1.0, 3.0, 1.5, 2.2], 0.95, "seeds");
        near(unpaired.interval, [-3.008563991795838, -0.32143600820416207]);
        assert_eq!(unpaired.count, 9);
        assert_eq!(Estimate::unpaired(&[0.3, -0.1], &[1.0, 3.0, 1.5], 0.95, "seeds").interval, None);
    }

    #[test]
    fn two_models_are_too_few() {
        assert_eq!(Estimate::mean(&[1.0, 1.1], 0.95, "seeds").interval, None);
        assert!(Estimate::mean(&[1.0, 1.1], 0.95, "draws").interval.is_some());
        assert_eq!(Estimate::of_seeds(&vec![vec![0.5; 10]; 2], 0.95).interval, None);
        assert_eq!(Estimate::mean(&[1.0], 0.95, "draws").interval, None);
        assert!(Estimate::mean(&[1.0], 0.95, "draws").said().contains("too few"));
    }

    /// 42 of 100 items told apart, 30 of them won: `binomtest(30, 42).proportion_ci()` of SciPy is 0.5542 to 0.8428.
    #[test]
    fn right_and_wrong_answers_are_paired_by_item() {
        let first: Vec<bool> = (0..100).map(|item| item < 60).collect();
        let second: Vec<bool> = (0..100).map(|item| (30..72).contains(&item)).collect();
        let paired = Estimate::right_or_wrong(&first, &second, 0.95);
        assert!((paired.value - 0.18).abs() < 1e-12);
        near(paired.interval, [0.554_161_196_692_031_1, 0.842_808_533_234_261_5].map(|p| 0.42 * (2.0 * p - 1.0)));
        assert_eq!(Estimate::right_or_wrong(&first, &first, 0.95).interval, None, "nothing tells them apart");
    }

    /// By hand: seed means 0.2, 0.3, 0.4 have variance 0.01, over 3 seeds 0.01 / 3. Item means over seeds 0, 0.6: variance
    /// 0.18, over 2 items 0.09. With 2 degrees of freedom the 0.975 quantile is 4.302653.
    #[test]
    fn items_shared_by_seeds_add_their_own_variance() {
        let estimate = Estimate::of_seeds(&[vec![0.0, 0.4], vec![-0.1, 0.7], vec![0.1, 0.7]], 0.95);
        let half = 4.302_652_729_749_462 * (0.01_f64 / 3.0 + 0.09).sqrt();
        near(estimate.interval, [0.3 - half, 0.3 + half]);
        assert_eq!((estimate.count, estimate.units.as_str()), (3, "seeds"));
    }

    /// Tables of the sign test: of 15 sorted values the 4th and the 12th, of 11 the 2nd and the 10th; none of 5.
    #[test]
    fn medians_have_the_interval_of_the_sign_test() {
        let of = |count: i32| (0..count).map(|i| f64::from(i * 7 % count).powi(9)).collect::<Vec<_>>();
        let fifteen = Estimate::median(&of(15), 0.95, "draws");
        assert_eq!((fifteen.value, fifteen.interval), (7f64.powi(9), Some([3f64.powi(9), 11f64.powi(9)])));
        let eleven = Estimate::median(&of(11), 0.95, "draws");
        assert_eq!(eleven.interval, Some([1.0, 9f64.powi(9)]));
        assert_eq!(Estimate::median(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95, "draws").interval, None);
        assert_eq!(Estimate::median(&[4.0, 1.0], 0.95, "draws").value, 2.5);
    }

    /// By hand: artanh(0.5) = 0.549306, error sqrt(1.125 / 27) = 0.204124; 0.549306 -+ 1.959964 x 0.204124 are 0.149230 and
    /// 0.949382, whose tanh are 0.148132 and 0.739503.
    #[test]
    fn rank_correlations_are_transformed() {
        let [low, high] = Estimate::rank_correlation(0.5, 30, 0.95, "matrices").interval.expect("30 pairs");
        assert!((low - 0.148_132).abs() < 2e-6 && (high - 0.739_503).abs() < 2e-6, "{low} {high}");
        assert_eq!(Estimate::rank_correlation(0.5, 3, 0.95, "matrices").interval, None);
    }

    #[test]
    fn factors_scale_every_number() {
        let points = Estimate::mean(&[0.01, 0.02, 0.03], 0.95, "seeds").times(100.0);
        let same = Estimate::mean(&[1.0, 2.0, 3.0], 0.95, "seeds");
        near(points.interval, same.interval.unwrap());
        assert!((points.smallest.unwrap() - same.smallest.unwrap()).abs() < 1e-9);
    }
}
