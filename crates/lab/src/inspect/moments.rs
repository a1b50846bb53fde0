//! Mean and deviation of values that come one by one.

use serde::{Serialize, Serializer, ser::SerializeStruct};

/// Number, mean and sample deviation of values (Welford 1962).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// Values so far.
    pub count: u64,
    /// Their mean; 0 of none.
    pub mean: f64,
    /// Sum of squared differences from the mean.
    squares: f64,
}

/// As `{"count", "mean", "deviation"}`, `null` what there is not.
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
    /// Adds a value; one that is not finite is left out.
    pub fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// Of all these values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut moments = Self::default();
        values.into_iter().for_each(|value| moments.add(value));
        moments
    }

    /// Adds all values of another (Chan et al. 1983).
    pub fn join(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        let (own, more) = (self.count as f64, other.count as f64);
        let apart = other.mean - self.mean;
        self.count += other.count;
        self.mean += apart * more / (own + more);
        self.squares += other.squares + apart * apart * own * more / (own + more);
    }

    /// Of all values of these.
    pub fn joined<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut joined = Self::default();
        all.into_iter().for_each(|moments| joined.join(moments));
        joined
    }

    /// The sample deviation (n - 1); none of fewer than two values.
    pub fn deviation(&self) -> Option<f64> {
        (self.count > 1).then(|| (self.squares / (self.count - 1) as f64).sqrt())
    }

    /// The mean, where there are values.
    pub fn value(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation() {
        let moments = Moments::of([1.0, 2.0, f64::NAN, 6.0]);
        assert_eq!((moments.count, moments.mean), (3, 3.0));
        assert!((moments.deviation().unwrap() - 7f64.sqrt()).abs() < 1e-12);
        let parts = [Moments::of([1.0]), Moments::default(), Moments::of([2.0, 6.0])];
        let joined = Moments::joined(&parts);
        assert_eq!((joined.count, joined.mean), (3, 3.0));
        assert!((joined.deviation().unwrap() - 7f64.sqrt()).abs() < 1e-12);
        assert_eq!((Moments::of([2.0]).deviation(), Moments::default().value()), (None, None));
    }
}
