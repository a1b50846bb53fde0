//! Scaling of the loss, so that small gradients do not vanish in f16.

use serde::{Deserialize, Serialize};

/// The factor at first: gradients of 16 bits reach down to 6e-8 (Micikevicius et al. 2018, section 3.2).
const START: f64 = 65_536.0;

/// Updates without overflow after which the factor is doubled.
const PATIENCE: usize = 2000;

/// Below this a gradient overflows because of what it is, not because of the factor.
const LEAST: f64 = 1.0;

/// What the loss is multiplied by before the backward pass, and gradients divided by after it: as large as they bear.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// A power of two, so that no gradient is rounded by it.
    pub factor: f64,
    /// Updates since the factor was last changed.
    pub steady: usize,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { factor: START, steady: 0 }
    }
}

impl LossScale {
    /// Half of it, for gradients that overflowed; none where that cannot help.
    #[must_use]
    pub(super) fn after_overflow(self) -> Option<Self> {
        let factor = self.factor / 2.0;
        (factor >= LEAST).then_some(Self { factor, steady: 0 })
    }

    /// After an update with finite gradients.
    #[must_use]
    pub(super) fn after_update(self) -> Self {
        match self.steady + 1 {
            PATIENCE => Self { factor: 2.0 * self.factor, steady: 0 },
            steady => Self { steady, ..self },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_when_nothing_overflows_and_gives_up_at_one() {
        let grown = (0..PATIENCE).fold(LossScale::default(), |scale, _| scale.after_update());
        assert_eq!(grown, LossScale { factor: 2.0 * START, steady: 0 });
        let mut scale = LossScale { factor: 4.0, steady: 7 };
        scale = scale.after_overflow().unwrap();
        assert_eq!(scale, LossScale { factor: 2.0, steady: 0 });
        assert_eq!(scale.after_overflow().unwrap().after_overflow(), None);
    }
}
