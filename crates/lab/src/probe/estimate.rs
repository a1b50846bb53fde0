//! Means of independent estimates with confidence intervals.

use regard_report::Cell;
use serde::Serialize;

use crate::moments::Moments;

/// Mean of independent estimates with half the width of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval, by Student's t; `None` for a single estimate.
    pub half: Option<f64>,
    /// Number of estimates.
    pub count: usize,
}

impl Estimate {
    /// Mean of these estimates.
    pub fn of(values: &[f64]) -> Self {
        let moments = Moments::of(values);
        let error = |deviation: f64| deviation / (values.len() as f64).sqrt();
        let half = moments.deviation().map(|deviation| student(values.len() - 1) * error(deviation));
        Self { mean: moments.mean, half, count: values.len() }
    }

    /// Standard error of the mean.
    pub fn standard_error(&self) -> Option<f64> {
        self.half.map(|half| half / student(self.count - 1))
    }

    /// The estimate times a factor.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { mean: self.mean * factor, half: self.half.map(|half| half * factor.abs()), ..self }
    }

    /// Whether the interval contains `value`, to what numbers in f32 can tell.
    pub fn holds(&self, value: f64) -> bool {
        let rounding = f64::from(f32::EPSILON) * value.abs();
        self.half.is_some_and(|half| (self.mean - value).abs() <= half + rounding)
    }
}

/// The mean with half the width of the interval.
impl From<Estimate> for Cell {
    fn from(estimate: Estimate) -> Self {
        Self::Estimate { mean: estimate.mean, deviation: estimate.half }
    }
}

/// The 0.975 quantile of Student's t: to four digits for few degrees of freedom, by its expansion in their inverse
/// (Fisher and Cornish 1960) for more.
pub fn student(degrees: usize) -> f64 {
    const FEW: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    const Z: f64 = 1.959_964;
    if let Some(value) = degrees.checked_sub(1).and_then(|at| FEW.get(at)) {
        return *value;
    }
    let n = degrees.max(1) as f64;
    let second = (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / (96.0 * n * n);
    let third = (3.0 * Z.powi(7) + 19.0 * Z.powi(5) + 17.0 * Z.powi(3) - 15.0 * Z) / (384.0 * n.powi(3));
    Z + (Z.powi(3) + Z) / (4.0 * n) + second + third
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_widen_with_few_estimates() {
        let of = |count: usize| Estimate::of(&(0..count).map(|i| (i % 2) as f64).collect::<Vec<_>>());
        assert_eq!(of(1).half, None);
        let two = of(2);
        assert!((two.half.unwrap() - 12.706 * 0.5).abs() < 1e-9 && two.holds(3.0) && !two.holds(7.0));
        assert!((of(1000).half.unwrap() - 1.9623 * 0.5 / 999f64.sqrt()).abs() < 1e-4);
        assert!((student(11) - 2.201).abs() < 1e-3 && (student(30) - 2.042).abs() < 1e-3);
    }
}
