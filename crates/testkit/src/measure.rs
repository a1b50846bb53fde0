//! How far two tensors are apart, and a list of everything that is too far.

use std::fmt::Display;

/// Smallest bound for float32 against float64, relative to the largest element: about 17 roundings.
pub const FLOAT32_FLOOR: f64 = 2e-6;

/// A reference below this is 0 but for its own rounding, and the error is taken absolutely.
const VANISHING: f64 = 1e-12;

/// `max|a - b| / max|b|`, or `max|a|` where the reference `b` vanishes. Infinite if either holds a NaN or an infinity.
///
/// # Panics
/// If the lengths differ.
pub fn error(seen: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(seen.len(), expected.len(), "tensors of {} and {} elements compared", seen.len(), expected.len());
    let largest = largest(expected);
    if largest < VANISHING {
        return self::largest(seen);
    }
    let differences: Vec<f64> = seen.iter().zip(expected).map(|(a, b)| a - b).collect();
    self::largest(&differences) / largest
}

/// The same numbers in f64.
pub fn wide(data: &[f32]) -> Vec<f64> {
    data.iter().map(|&x| f64::from(x)).collect()
}

/// The same numbers rounded to f32.
pub fn narrow(data: &[f64]) -> Vec<f32> {
    data.iter().map(|&x| x as f32).collect()
}

/// `max|x|`, infinite if there is a NaN.
pub fn largest(data: &[f64]) -> f64 {
    // `f64::max` forgets a NaN.
    data.iter().map(|x| if x.is_nan() { f64::INFINITY } else { x.abs() }).fold(0.0, f64::max)
}

/// Fair bound for a float32 kernel where the same dense formula in float32 errs by `float32_error`.
pub fn float32_bound(float32_error: f64) -> f64 {
    (10.0 * float32_error).max(FLOAT32_FLOOR)
}

/// Collects failures so that a test reports every one of them, not the first.
#[derive(Debug, Default)]
#[must_use = "call finish"]
pub struct Report {
    checked: usize,
    failures: Vec<String>,
}

impl Report {
    /// Nothing checked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a failure unless `holds`.
    pub fn require(&mut self, holds: bool, what: impl Display) {
        self.checked += 1;
        if !holds {
            self.failures.push(what.to_string());
        }
    }

    /// Notes a failure unless `error(seen, expected) <= bound`.
    pub fn compare(&mut self, what: impl Display, seen: &[f64], expected: &[f64], bound: f64) {
        if seen.len() != expected.len() {
            return self.require(false, format_args!("{what}: {} elements, not {}", seen.len(), expected.len()));
        }
        let error = error(seen, expected);
        self.require(error <= bound, format_args!("{what}: error {error:.2e} above {bound:.1e}"));
    }

    /// Notes a failure unless all elements are equal, bit for bit but for the sign of 0; a NaN equals nothing.
    pub fn same(&mut self, what: impl Display, seen: &[f64], expected: &[f64]) {
        let different = seen.iter().zip(expected).filter(|(a, b)| a != b).count();
        self.require(
            different == 0 && seen.len() == expected.len(),
            format_args!("{what}: {different} of {} elements differ", seen.len()),
        );
    }

    /// Failures so far.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Ends the test.
    ///
    /// # Panics
    /// If anything failed, or nothing was checked.
    pub fn finish(self) {
        assert!(self.checked > 0, "nothing was checked");
        let (failed, checked) = (self.failures.len(), self.checked);
        assert!(failed == 0, "{failed} of {checked} checks failed:\n  {}", self.failures.join("\n  "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_relative_unless_the_reference_vanishes() {
        assert_eq!(error(&[1.0, 4.5], &[1.0, 5.0]), 0.1);
        assert_eq!(error(&[0.25, -0.5], &[0.0, 0.0]), 0.5);
        assert_eq!(error(&[0.5], &[1e-17]), 0.5);
        assert_eq!(error(&[f64::NAN, 0.0], &[1.0, 0.0]), f64::INFINITY);
        assert_eq!(error(&[f64::NAN], &[0.0]), f64::INFINITY);
    }

    #[test]
    fn a_report_lists_every_failure() {
        let mut report = Report::new();
        report.compare("near", &[1.0], &[1.0], 1e-9);
        report.compare("far", &[1.1], &[1.0], 1e-9);
        report.compare("short", &[], &[1.0], 1e-9);
        report.same("zeros", &[0.0], &[-0.0]);
        report.same("nan", &[f64::NAN], &[f64::NAN]);
        let names: Vec<_> = report.failures().iter().map(|f| f.split(':').next().unwrap()).collect();
        assert_eq!(names, ["far", "short", "nan"]);
    }

    #[test]
    #[should_panic(expected = "nothing was checked")]
    fn a_report_of_nothing_fails() {
        Report::new().finish();
    }
}
