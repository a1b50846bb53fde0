//! Means and variances without cancellation, and means of independent estimates with their confidence.

use serde::Serialize;

/// Numbers summed one after the other before pairs of sums are added.
const RUN: usize = 32;

/// Count, mean and sum of squared deviations of some numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// How many.
    pub count: f64,
    /// Their mean.
    pub mean: f64,
    /// Sum of squared deviations from the mean.
    pub squares: f64,
}

impl Moments {
    /// Of these numbers: sums in pairs, deviations in a second pass.
    pub fn of<T: Copy + Into<f64>>(values: &[T]) -> Self {
        let count = values.len() as f64;
        if values.is_empty() {
            return Self::default();
        }
        let mean = pairwise(values, &|x: T| x.into()) / count;
        Self { count, mean, squares: pairwise(values, &|x: T| (x.into() - mean).powi(2)) }
    }

    /// Of `count` numbers with this mean and mean square.
    pub fn from_means(count: f64, mean: f64, mean_square: f64) -> Self {
        Self { count, mean, squares: (count * (mean_square - mean * mean)).max(0.0) }
    }

    /// Of both sets together (Chan, Golub and LeVeque 1979).
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let count = self.count + other.count;
        if count == 0.0 {
            return self;
        }
        let step = other.mean - self.mean;
        Self {
            count,
            mean: self.mean + step * other.count / count,
            squares: self.squares + other.squares + step * step * self.count * other.count / count,
        }
    }

    /// Mean squared deviation from the mean.
    pub fn variance(&self) -> f64 {
        self.squares / self.count
    }
}

/// Sum of `f` over the numbers, halves added to each other.
fn pairwise<T: Copy>(values: &[T], f: &impl Fn(T) -> f64) -> f64 {
    if values.len() <= RUN {
        return values.iter().map(|x| f(*x)).sum();
    }
    let (low, high) = values.split_at(values.len() / 2);
    pairwise(low, f) + pairwise(high, f)
}

/// Mean of independent estimates with half the width of its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval, by Student's t; `None` of a single estimate.
    pub half: Option<f64>,
    /// Estimates.
    pub count: usize,
}

impl Estimate {
    /// Of these estimates.
    pub fn of(values: &[f64]) -> Self {
        let Moments { count, mean, squares } = Moments::of(values);
        let error = (squares / (count - 1.0) / count).sqrt();
        let half = (values.len() > 1).then(|| student(values.len() - 1) * error);
        Self { mean, half, count: values.len() }
    }

    /// Standard error of the mean.
    pub fn standard_error(&self) -> Option<f64> {
        self.half.map(|half| half / student(self.count - 1))
    }

    /// Whether the interval holds `value`.
    pub fn holds(&self, value: f64) -> bool {
        self.half.is_some_and(|half| (self.mean - value).abs() <= half)
    }
}

/// The 0.975 quantile of Student's t: to four digits for few degrees of freedom, by its expansion in their inverse (Fisher and
/// Cornish 1960) beyond.
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
    fn moments_of_parts_are_those_of_the_whole_far_from_zero() {
        let values: Vec<f64> = (0..1000).map(|i| 1e8 + f64::from(i % 7)).collect();
        let whole = Moments::of(&values);
        let parts = values.chunks(37).map(Moments::of).fold(Moments::default(), Moments::and);
        let exact = values.iter().map(|x| x - 1e8).collect::<Vec<_>>();
        let mean = exact.iter().sum::<f64>() / 1000.0;
        let variance = exact.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1000.0;
        for moments in [whole, parts] {
            assert_eq!(moments.count, 1000.0);
            assert!((moments.mean - 1e8 - mean).abs() < 1e-6, "{moments:?}");
            assert!((moments.variance() / variance - 1.0).abs() < 1e-7, "{moments:?} {variance}");
        }
    }

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
