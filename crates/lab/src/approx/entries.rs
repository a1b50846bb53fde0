//! Errors of single entries against the size of `q.k` (Scatterbrain, arXiv 2110.15343, figure 4).

use serde::Serialize;

use super::{dense::Dense, head::Head, method::Method};

/// Bins of equal width between the smallest and the largest `tau q.k` of a group.
const BINS: usize = 16;
/// The methods of the paper's figure.
const METHODS: [Method; 3] = [Method::Performer, Method::Smyrf, Method::Scatterbrain];

/// Mean squared errors of the entries of `exp(tau q.k)` of a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryErrors {
    /// The group.
    pub group: String,
    /// One curve per method.
    pub curves: Vec<EntryCurve>,
}

/// The curve of one method.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryCurve {
    /// The method.
    pub method: Method,
    /// Middle of each bin that has entries, in units of `tau q.k`, and the mean squared error there.
    pub points: Vec<(f64, f64)>,
}

/// Sums of squared errors by bin, one set per method.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    low: f64,
    width: f64,
    sums: Vec<(Method, [f64; BINS], [u64; BINS])>,
}

impl Tally {
    /// Bins over the logits of these heads.
    pub fn over<'a>(heads: impl Iterator<Item = &'a Head>, methods: &[Method]) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for head in heads {
            for x in head.logits().data.into_iter().filter(|x| x.is_finite()) {
                (low, high) = (low.min(x), high.max(x));
            }
        }
        let sums = METHODS.into_iter().filter(|method| methods.contains(method));
        let sums = sums.map(|method| (method, [0.0; BINS], [0; BINS])).collect();
        Self { low, width: (high - low) / BINS as f64, sums }
    }

    /// Adds the entries of one estimate.
    pub fn take(&mut self, method: Method, logits: &Dense, logs: &Dense) {
        let (low, width) = (self.low, self.width);
        let Some((_, sums, counts)) = self.sums.iter_mut().find(|(own, ..)| *own == method) else { return };
        for (&exact, &seen) in logits.data.iter().zip(&logs.data).filter(|(exact, _)| exact.is_finite()) {
            let bin = (((exact - low) / width) as usize).min(BINS - 1);
            sums[bin] += (seen.exp() - exact.exp()).powi(2);
            counts[bin] += 1;
        }
    }

    /// Adds the sums of another.
    pub fn add(&mut self, other: &Self) {
        for ((_, sums, counts), (_, more, further)) in self.sums.iter_mut().zip(&other.sums) {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            counts.iter_mut().zip(further).for_each(|(count, further)| *count += further);
        }
    }

    /// The means; `None` if no method was measured.
    pub fn errors(self, group: &str) -> Option<EntryErrors> {
        let curve = |(method, sums, counts): &(Method, [f64; BINS], [u64; BINS])| {
            let bins = (0..BINS).filter(|&bin| counts[bin] > 0);
            let point = |bin| (self.low + (bin as f64 + 0.5) * self.width, sums[bin] / counts[bin] as f64);
            EntryCurve { method: *method, points: bins.map(point).collect() }
        };
        let curves: Vec<EntryCurve> = self.sums.iter().map(curve).collect();
        (!curves.is_empty()).then(|| EntryErrors { group: group.to_owned(), curves })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squared_errors_are_averaged_by_bin() {
        let queries = Dense::new(2, 1, vec![0.0, 1.0]);
        let head = Head {
            group: "a".into(),
            keys: Dense::new(2, 1, vec![0.0, 16.0]),
            values: queries.clone(),
            queries,
            scale: 0.1,
            causal: false,
        };
        let mut tally = Tally::over([&head].into_iter(), &[Method::Smyrf, Method::TopK]);
        let logits = head.logits();
        assert_eq!(logits.data, [0.0, 0.0, 0.0, 1.6]);
        tally.take(Method::Smyrf, &logits, &Dense::new(2, 2, vec![0.0, f64::NEG_INFINITY, 0.0, 1.6]));
        tally.take(Method::TopK, &logits, &logits);
        let mut both = tally.clone();
        both.add(&tally);
        let errors = both.errors("a").unwrap();
        assert_eq!(errors.curves.len(), 1);
        // One of three entries of exp(0) = 1 was left out.
        let points = &errors.curves[0].points;
        assert!((points[0].0 - 0.05).abs() < 1e-12 && (points[0].1 - 1.0 / 3.0).abs() < 1e-12, "{points:?}");
        assert!((points[1].0 - 1.55).abs() < 1e-12 && points[1].1 == 0.0, "{points:?}");
        assert_eq!(Tally::over([&head].into_iter(), &[Method::TopK]).errors("a"), None);
    }
}
