//! Numerically stable mean and variance.

use regard_report::Cell;
use serde::{Serialize, Serializer, ser::SerializeStruct};

/// Block size of pairwise summation.
const RUN: usize = 32;

/// Count, mean and sum of squared deviations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// Number of values.
    pub count: u64,
    /// Mean; 0 if empty.
    pub mean: f64,
    /// Sum of squared deviations from the mean.
    pub squares: f64,
}

/// As `{"count", "mean", "deviation"}`, with `null` for undefined values.
impl Serialize for Moments {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Moments", 3)?;
        fields.serialize_field("count", &self.count)?;
        fields.serialize_field("mean", &self.value())?;
        fields.serialize_field("deviation", &self.deviation())?;
        fields.end()
    }
}

impl Moments {
    /// Moments of these numbers: pairwise sums, deviations in a second pass.
    pub fn of<T: Copy + Into<f64>>(values: &[T]) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        let mean = pairwise(values, &|x: T| x.into()) / values.len() as f64;
        Self { count: values.len() as u64, mean, squares: pairwise(values, &|x: T| (x.into() - mean).powi(2)) }
    }

    /// Moments of the finite numbers among these.
    pub fn of_finite(values: impl IntoIterator<Item = f64>) -> Self {
        let mut moments = Self::default();
        values.into_iter().for_each(|value| moments.add(value));
        moments
    }

    /// Moments of `count` numbers with this mean and mean square.
    pub fn from_means(count: u64, mean: f64, mean_square: f64) -> Self {
        Self { count, mean, squares: (count as f64 * (mean_square - mean * mean)).max(0.0) }
    }

    /// Adds a value (Welford 1962); non-finite values are skipped.
    pub fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// Moments of both sets combined (Chan, Golub and LeVeque 1979).
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if other.count == 0 {
            return self;
        }
        let (own, more) = (self.count as f64, other.count as f64);
        let step = other.mean - self.mean;
        Self {
            count: self.count + other.count,
            mean: self.mean + step * more / (own + more),
            squares: self.squares + other.squares + step * step * own * more / (own + more),
        }
    }

    /// Moments of all of these combined.
    pub fn joined<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        all.into_iter().copied().fold(Self::default(), Self::and)
    }

    /// Mean squared deviation from the mean.
    pub fn variance(&self) -> f64 {
        self.squares / self.count as f64
    }

    /// The sample standard deviation (n - 1); none for fewer than two values.
    pub fn deviation(&self) -> Option<f64> {
        (self.count > 1).then(|| (self.squares / (self.count - 1) as f64).sqrt())
    }

    /// The mean, if there are values.
    pub fn value(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }
}

/// Mean and deviation; empty without values.
impl From<&Moments> for Cell {
    fn from(moments: &Moments) -> Self {
        moments.value().map_or(Self::Empty, |mean| Self::Estimate { mean, deviation: moments.deviation() })
    }
}

/// Pairwise sum of `f` over the values.
fn pairwise<T: Copy>(values: &[T], f: &impl Fn(T) -> f64) -> f64 {
    if values.len() <= RUN {
        return values.iter().map(|x| f(*x)).sum();
    }
    let (low, high) = values.split_at(values.len() / 2);
    pairwise(low, f) + pairwise(high, f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation() {
        let moments = Moments::of_finite([1.0, 2.0, f64::NAN, 6.0]);
        assert_eq!((moments.count, moments.mean), (3, 3.0));
        assert!((moments.deviation().unwrap() - 7f64.sqrt()).abs() < 1e-12);
        let parts = [Moments::of_finite([1.0]), Moments::default(), Moments::of_finite([2.0, 6.0])];
        let joined = Moments::joined(&parts);
        assert_eq!((joined.count, joined.mean), (3, 3.0));
        assert!((joined.deviation().unwrap() - 7f64.sqrt()).abs() < 1e-12);
        assert_eq!((Moments::of_finite([2.0]).deviation(), Moments::default().value()), (None, None));
    }

    #[test]
    fn moments_of_parts_are_those_of_the_whole_far_from_zero() {
        let values: Vec<f64> = (0..1000).map(|i| 1e8 + f64::from(i % 7)).collect();
        let whole = Moments::of(&values);
        let parts = values.chunks(37).map(Moments::of).fold(Moments::default(), Moments::and);
        let exact = values.iter().map(|x| x - 1e8).collect::<Vec<_>>();
        let mean = exact.iter().sum::<f64>() / 1000.0;
        let variance = exact.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1000.0;
        for moments in [whole, parts] {
            assert_eq!(moments.count, 1000);
            assert!((moments.mean - 1e8 - mean).abs() < 1e-6, "{moments:?}");
            assert!((moments.variance() / variance - 1.0).abs() < 1e-7, "{moments:?} {variance}");
        }
    }
}
