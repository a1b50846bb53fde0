//! What an entry decides on: the clauses of a paper's claim, and observations of our own.

use std::fmt;

use regard_report::number::significant;
use serde::{Deserialize, Serialize};

use super::{Estimate, Verdict};

/// Where an estimate must lie for a clause to hold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Border {
    /// Above this.
    Above(f64),
    /// Below this.
    Below(f64),
    /// No farther from `centre` than `margin`.
    Within {
        /// The value claimed.
        centre: f64,
        /// What counts as equal.
        margin: f64,
    },
}

impl fmt::Display for Border {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Above(border) => write!(out, "above {border}"),
            Self::Below(border) => write!(out, "below {border}"),
            Self::Within { centre, margin } => write!(out, "within {margin} of {centre}"),
        }
    }
}

impl Border {
    /// Lowest and highest value at which the clause is true.
    fn ends(self) -> [f64; 2] {
        match self {
            Self::Above(border) => [border, f64::INFINITY],
            Self::Below(border) => [f64::NEG_INFINITY, border],
            Self::Within { centre, margin } => [centre - margin, centre + margin],
        }
    }

    /// The verdict: the whole interval must lie on one side.
    fn judge(self, estimate: &Estimate) -> Verdict {
        let ([least, most], Some([low, high])) = (self.ends(), estimate.interval) else { return Verdict::NotDecided };
        match () {
            () if low > least && high < most => Verdict::Holds,
            () if high < least || low > most => Verdict::DoesNotHold,
            () => Verdict::NotDecided,
        }
    }
}

/// One statement with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clause {
    /// What is said.
    pub text: String,
    /// Whether the paper says it; what it does not say is an observation, and no part of the verdict on it.
    pub of_paper: bool,
    /// The verdict.
    pub verdict: Verdict,
    /// The deciding estimate, where there is one.
    pub estimate: Option<Estimate>,
    /// Where it must lie.
    pub border: Option<Border>,
    /// Anything else that the verdict rests on.
    pub note: Option<String>,
}

impl Clause {
    /// What the paper says, so far without a verdict.
    pub fn paper(text: impl Into<String>) -> Self {
        let (text, verdict) = (text.into(), Verdict::NotDecided);
        Self { text, of_paper: true, verdict, estimate: None, border: None, note: None }
    }

    /// What the paper does not say, so far without a verdict.
    pub fn ours(text: impl Into<String>) -> Self {
        Self { of_paper: false, ..Self::paper(text) }
    }

    /// Decided by an estimate above a border.
    #[must_use]
    pub fn above(self, estimate: Estimate, border: f64) -> Self {
        self.decided(estimate, Border::Above(border))
    }

    /// Decided by an estimate below a border.
    #[must_use]
    pub fn below(self, estimate: Estimate, border: f64) -> Self {
        self.decided(estimate, Border::Below(border))
    }

    /// Decided by an estimate within a margin of a value.
    #[must_use]
    pub fn within(self, estimate: Estimate, centre: f64, margin: f64) -> Self {
        self.decided(estimate, Border::Within { centre, margin })
    }

    /// Decided by an estimate and a border.
    #[must_use]
    pub fn decided(self, estimate: Estimate, border: Border) -> Self {
        // What is not a number would not come back from a file.
        if !estimate.value.is_finite() {
            return Self { border: Some(border), ..self }.note("not measured");
        }
        Self { verdict: border.judge(&estimate), estimate: Some(estimate), border: Some(border), ..self }
    }

    /// Decided by what has no error: a count, a closed form.
    #[must_use]
    pub fn exactly(self, true_or_not: bool) -> Self {
        Self { verdict: Verdict::of(true_or_not), ..self }
    }

    /// With this verdict, reached in another way.
    #[must_use]
    pub fn judged(self, verdict: Verdict) -> Self {
        Self { verdict, ..self }
    }

    /// With a note.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// What decided, in one line: the estimate, its border and what else could have been seen; empty if nothing is known.
    pub fn grounds(&self) -> String {
        let estimate = self.estimate.as_ref();
        let smallest = estimate.and_then(|estimate| estimate.smallest);
        let parts = [
            estimate.map(Estimate::said),
            self.border.map(|border| format!("must be {border}")),
            smallest.map(|smallest| format!("an effect of {} would be seen", significant(smallest, 2))),
            self.note.clone(),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(low: f64, high: f64) -> Estimate {
        Estimate::of_interval((low + high) / 2.0, Some([low, high]), 9, 0.95, "draws")
    }

    #[test]
    fn the_whole_interval_decides() {
        use Verdict::{DoesNotHold, Holds, NotDecided};
        let above = |low, high| Clause::paper("x").above(between(low, high), 1.0).verdict;
        assert_eq!([above(1.1, 2.0), above(0.5, 2.0), above(0.0, 0.9)], [Holds, NotDecided, DoesNotHold]);
        let below = |low, high| Clause::paper("x").below(between(low, high), 1.0).verdict;
        assert_eq!([below(1.1, 2.0), below(0.5, 2.0), below(0.0, 0.9)], [DoesNotHold, NotDecided, Holds]);
        let within = |low, high| Clause::paper("x").within(between(low, high), -1.0, 0.1).verdict;
        assert_eq!(
            [within(-1.05, -0.95), within(-1.05, -0.85), within(-0.85, 0.0), within(-3.0, 3.0), within(-2.0, -1.2)],
            [Holds, NotDecided, DoesNotHold, NotDecided, DoesNotHold]
        );
        let open = Clause::paper("x").above(Estimate::mean(&[3.0, 3.1], 0.95, "seeds"), 0.0);
        assert_eq!(open.verdict, NotDecided);
        assert!(open.grounds().contains("too few for an interval; 2 seeds"), "{}", open.grounds());
    }

    #[test]
    fn what_was_not_measured_is_open_and_survives_a_file() {
        let clause = Clause::paper("x").above(Estimate::mean(&[], 0.95, "draws"), 0.0);
        assert_eq!((clause.verdict, clause.estimate.is_none()), (Verdict::NotDecided, true));
        let text = serde_json::to_string(&clause).expect("JSON");
        assert_eq!(serde_json::from_str::<Clause>(&text).expect("a clause"), clause);
        let told = Clause::paper("y").within(between(1.0, 2.0), 1.5, 0.1);
        let text = serde_json::to_string(&told).expect("JSON");
        assert_eq!(serde_json::from_str::<Clause>(&text).expect("a clause"), told);
    }

    #[test]
    fn grounds_say_what_decided() {
        let clause = Clause::ours("x").above(between(1.0, 2.0), 0.5).note("one layer");
        let grounds = clause.grounds();
        for part in ["1.50 (1.00 to 2.00 at 95 %; 9 draws)", "must be above 0.5", "would be seen", "one layer"] {
            assert!(grounds.contains(part), "{part} in {grounds}");
        }
        assert_eq!(Clause::paper("x").exactly(true).grounds(), "");
    }
}
