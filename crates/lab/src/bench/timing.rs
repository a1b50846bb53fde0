//! Statistics of the times of several runs.

use serde::{Deserialize, Serialize};

/// Times of several runs in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Timing {
    /// The median.
    pub median: f64,
    /// 10th percentile.
    pub p10: f64,
    /// 90th percentile.
    pub p90: f64,
    /// The fastest run.
    pub fastest: f64,
    /// The slowest run.
    pub slowest: f64,
}

/// The stored form: older files have only the extremes.
#[derive(Deserialize)]
struct Stored {
    median: f64,
    fastest: f64,
    slowest: f64,
    p10: Option<f64>,
    p90: Option<f64>,
}

impl From<Stored> for Timing {
    /// The extremes replace unknown deciles: an interval that is too wide never claims a false difference.
    fn from(stored: Stored) -> Self {
        let Stored { median, fastest, slowest, p10, p90 } = stored;
        Self { median, p10: p10.unwrap_or(fastest), p90: p90.unwrap_or(slowest), fastest, slowest }
    }
}

/// Ratio of two times: ratio of medians, with bounds from their deciles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeRatio {
    /// Median over median.
    pub median: f64,
    /// The 10th percentile over the other's 90th.
    pub low: f64,
    /// The 90th percentile over the other's 10th.
    pub high: f64,
}

impl Timing {
    /// This time over `other`. The interval contains 1 if and only if the intervals of the two times overlap
    /// ([`Timing::apart`]).
    pub fn over(&self, other: &Self) -> TimeRatio {
        TimeRatio { median: self.median / other.median, low: self.p10 / other.p90, high: self.p90 / other.p10 }
    }

    /// Statistics of some runs; `None` if empty.
    pub fn of(mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let (&fastest, &slowest) = (times.first()?, times.last()?);
        let [p10, median, p90] = [0.1, 0.5, 0.9].map(|share| quantile(&times, share));
        Some(Self { median, p10, p90, fastest, slowest })
    }

    /// Whether the p10 to p90 intervals are disjoint.
    pub fn apart(&self, other: &Self) -> bool {
        self.p90 < other.p10 || other.p90 < self.p10
    }
}

/// The linearly interpolated quantile of ascending values (type 7 of Hyndman and Fan 1996).
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + place.fract() * (above - below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_on_the_line_between_neighbours() {
        let times = Timing::of((0..=10).rev().map(f64::from).collect()).unwrap();
        assert_eq!(times, Timing { median: 5.0, p10: 1.0, p90: 9.0, fastest: 0.0, slowest: 10.0 });
        let times = Timing::of(vec![4.0, 1.0, 2.0, 9.0]).unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(times.median == 3.0 && near(times.p10, 1.3) && near(times.p90, 7.5), "{times:?}");
        assert_eq!(Timing::of(vec![7.0]).unwrap().p10, 7.0);
        assert_eq!(Timing::of(Vec::new()), None);
    }

    #[test]
    fn intervals_are_apart_when_they_do_not_touch() {
        let timing = |p10, p90| Timing { median: p10, p10, p90, fastest: p10, slowest: p90 };
        let middle = timing(2.0, 3.0);
        assert!(middle.apart(&timing(0.0, 1.9)) && middle.apart(&timing(3.1, 9.0)));
        for other in [timing(0.0, 2.0), timing(2.5, 2.6), timing(0.0, 9.0), timing(3.0, 4.0)] {
            assert!(!middle.apart(&other) && !other.apart(&middle));
        }
        assert_eq!(timing(4.0, 8.0).over(&timing(2.0, 4.0)), TimeRatio { median: 2.0, low: 1.0, high: 4.0 });
        for other in [timing(1.0, 1.9), timing(3.1, 9.0), timing(2.5, 2.6), timing(1.0, 2.0), timing(3.0, 4.0)] {
            let TimeRatio { low, high, .. } = middle.over(&other);
            assert_eq!(middle.apart(&other), high < 1.0 || low > 1.0, "{other:?}");
        }
    }

    #[test]
    fn older_files_have_the_ends_for_deciles() {
        let old: Timing = serde_json::from_str(r#"{"fastest": 1.0, "median": 2.0, "slowest": 5.0}"#).unwrap();
        assert_eq!((old.p10, old.p90), (1.0, 5.0));
        let new: Timing = serde_json::from_str(&serde_json::to_string(&Timing { p10: 1.5, ..old }).unwrap()).unwrap();
        assert_eq!((new.p10, new.p90), (1.5, 5.0));
    }
}
