//! Verdict on a claim, from numbers and their errors.

use std::{fmt, ops::Not};

use regard_report::Sample;
use serde::{Deserialize, Serialize};

/// Verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The measurement agrees with it beyond its error.
    Holds,
    /// The measurement contradicts it beyond its error.
    DoesNotHold,
    /// The measurement is within its error of the threshold.
    NotDecided,
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::NotDecided => "not decided at this scale",
        })
    }
}

impl Verdict {
    /// Verdict on a statement without measurement error.
    pub fn of(true_or_not: bool) -> Self {
        if true_or_not { Self::Holds } else { Self::DoesNotHold }
    }

    /// Verdict on a conjunction: it fails if any statement fails, and is open if any is open.
    pub fn all(verdicts: impl IntoIterator<Item = Self>) -> Self {
        verdicts.into_iter().fold(Self::Holds, |all, one| match (all, one) {
            (Self::DoesNotHold, _) | (_, Self::DoesNotHold) => Self::DoesNotHold,
            (Self::NotDecided, _) | (_, Self::NotDecided) => Self::NotDecided,
            _ => Self::Holds,
        })
    }
}

/// The verdict on the opposite claim.
impl Not for Verdict {
    type Output = Self;

    fn not(self) -> Self {
        match self {
            Self::Holds => Self::DoesNotHold,
            Self::DoesNotHold => Self::Holds,
            Self::NotDecided => Self::NotDecided,
        }
    }
}

/// A measured difference with its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The difference.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
}

impl Difference {
    /// Required distance from the threshold in standard errors.
    const CLEAR: f64 = 2.0;

    /// Difference `first - second` of two proportions over `count` independent trials each, averaged over runs that
    /// share those trials. The error is that of the trials if there is one run; else the larger of that and the spread
    /// between runs.
    pub fn of_shares(first: &[f64], second: &[f64], count: usize) -> Self {
        let (one, other) = (Sample::of(first), Sample::of(second));
        let binomial = |share: f64| share * (1.0 - share) / count as f64;
        let trials = binomial(one.mean) + binomial(other.mean);
        let runs = one.variance_of_mean().unwrap_or(0.0) + other.variance_of_mean().unwrap_or(0.0);
        Self { value: one.mean - other.mean, error: trials.max(runs).sqrt() }
    }

    /// A rank correlation over `count` pairs, by Fisher's transformation, which has approximately this standard deviation
    /// (Bonett and Wright 2000).
    pub fn of_rank_correlation(spearman: f64, count: usize) -> Self {
        let spearman = spearman.clamp(-0.999_999, 0.999_999);
        Self { value: spearman.atanh(), error: ((1.0 + spearman.powi(2) / 2.0) / (count as f64 - 3.0)).sqrt() }
    }

    /// Whether it is above `border` by two standard errors.
    pub fn above(self, border: f64) -> Verdict {
        let (off, clear) = (self.value - border, Self::CLEAR * self.error);
        match () {
            () if off > clear => Verdict::Holds,
            () if off < -clear => Verdict::DoesNotHold,
            () => Verdict::NotDecided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_must_stand_off_the_border() {
        let of = |value, error| Difference { value, error }.above(0.01);
        assert_eq!(of(0.05, 0.01), Verdict::Holds);
        assert_eq!(of(0.02, 0.01), Verdict::NotDecided);
        assert_eq!(of(-0.02, 0.01), Verdict::DoesNotHold);
        assert_eq!(of(f64::NAN, 0.01), Verdict::NotDecided);
    }

    #[test]
    fn shares_have_the_error_of_their_trials_or_of_their_runs() {
        let one = Difference::of_shares(&[0.5], &[0.4], 100);
        assert!((one.value - 0.1).abs() < 1e-12 && (one.error - 0.0049_f64.sqrt()).abs() < 1e-12);
        let many = Difference::of_shares(&[0.2, 0.8], &[0.4, 0.4], 1_000_000);
        assert!((many.error - 0.3).abs() < 1e-6, "runs differ more than their trials explain: {}", many.error);
    }

    #[test]
    fn claims_stand_together() {
        use Verdict::{DoesNotHold, Holds, NotDecided};
        assert_eq!(Verdict::all([Holds, Holds]), Holds);
        assert_eq!(Verdict::all([Holds, NotDecided]), NotDecided);
        assert_eq!(Verdict::all([NotDecided, DoesNotHold, Holds]), DoesNotHold);
        assert_eq!([!Holds, !DoesNotHold, !NotDecided], [DoesNotHold, Holds, NotDecided]);
    }
}
