//! Verdict on a claim.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval of the measurement agrees with it.
    Holds,
    /// The whole interval contradicts it.
    DoesNotHold,
    /// The interval contains the border, or there is none.
    NotDecided,
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::NotDecided => "not decided",
        })
    }
}

impl Verdict {
    /// Verdict on a statement without measurement error.
    pub fn of(true_or_not: bool) -> Self {
        if true_or_not { Self::Holds } else { Self::DoesNotHold }
    }

    /// Verdict on a conjunction: it fails if any statement fails, and is open if any is open; `None` of nothing.
    pub fn all(verdicts: impl IntoIterator<Item = Self>) -> Option<Self> {
        verdicts.into_iter().reduce(|all, one| match (all, one) {
            (Self::DoesNotHold, _) | (_, Self::DoesNotHold) => Self::DoesNotHold,
            (Self::NotDecided, _) | (_, Self::NotDecided) => Self::NotDecided,
            _ => Self::Holds,
        })
    }

    /// The verdict on an entry, which has none where the paper claims nothing.
    pub fn said(verdict: Option<Self>) -> String {
        verdict.map_or_else(|| "observed".to_owned(), |verdict| verdict.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_stand_together() {
        use Verdict::{DoesNotHold, Holds, NotDecided};
        assert_eq!(Verdict::all([Holds, Holds]), Some(Holds));
        assert_eq!(Verdict::all([Holds, NotDecided]), Some(NotDecided));
        assert_eq!(Verdict::all([NotDecided, DoesNotHold, Holds]), Some(DoesNotHold));
        assert_eq!((Verdict::all([]), Verdict::said(None)), (None, "observed".into()));
    }
}
