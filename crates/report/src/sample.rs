//! Mean and deviation of a sample.

/// A sample summarised by its mean and spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Number of values.
    pub count: usize,
    /// Mean; NaN for an empty sample.
    pub mean: f64,
    squares: f64,
}

impl Sample {
    /// Summary of these values.
    pub fn of(values: &[f64]) -> Self {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        Self { count, mean, squares: values.iter().map(|value| (value - mean).powi(2)).sum() }
    }

    /// Sample variance (divisor `count - 1`); `None` for fewer than two values.
    pub fn variance(self) -> Option<f64> {
        (self.count > 1).then(|| self.squares / (self.count - 1) as f64)
    }

    /// Sample standard deviation; `None` for fewer than two values.
    pub fn deviation(self) -> Option<f64> {
        self.variance().map(f64::sqrt)
    }

    /// Variance of the mean, assuming independent values; `None` for fewer than two.
    pub fn variance_of_mean(self) -> Option<f64> {
        Some(self.variance()? / self.count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_four_and_of_one() {
        let sample = Sample::of(&[2.0, 4.0, 4.0, 7.0]);
        assert_eq!((sample.count, sample.mean), (4, 4.25));
        assert!((sample.variance().unwrap() - 12.75 / 3.0).abs() < 1e-12);
        assert!((sample.variance_of_mean().unwrap() - 12.75 / 12.0).abs() < 1e-12);
        assert_eq!((Sample::of(&[5.0]).deviation(), Sample::of(&[]).mean.is_nan()), (None, true));
    }
}
