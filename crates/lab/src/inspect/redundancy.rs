//! Redundancy of the heads of a layer.

use serde::Serialize;

use crate::{approx::Dense, moments::Moments};

/// Two heads of one attention over many sequences.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Redundancy {
    /// The heads, from 1.
    pub heads: [usize; 2],
    /// Root mean square over queries of `|a_i - b_i|`, the Euclidean distance of their rows of weights; at most `sqrt 2`.
    pub distance: Moments,
    /// Pearson's correlation of their weights on all visible pairs, each minus the weight `1 / visible` of a uniform
    /// row.
    pub correlation: Moments,
    /// Similarity of their outputs; empty if values are not averaged.
    pub outputs: OutputSimilarity,
}

/// Two heads' outputs `O, P [N, Dv]`, over many sequences.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OutputSimilarity {
    /// Mean over queries of `|o_i - p_i|`.
    pub distance: Moments,
    /// `|O - P|_F / sqrt((|O|_F^2 + |P|_F^2) / 2)`: 0 for equal outputs, `sqrt 2` for orthogonal ones.
    pub relative: Moments,
    /// Pearson's correlation of all their elements.
    pub correlation: Moments,
    /// Linear centred kernel alignment (Kornblith et al. 2019), which is invariant to rotations of one head's channels:
    /// 1 if one is a rotated and scaled copy of the other.
    pub alignment: Moments,
}

/// Sums over the rows of two heads on one sequence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PairSums {
    rows: usize,
    difference: f64,
    products: [f64; 3],
}

impl PairSums {
    /// Adds the rows `a` and `b` of one query, restricted to visible keys; rows with an empty support are skipped.
    pub fn add(&mut self, a: &[f64], b: &[f64]) {
        if [a, b].iter().any(|row| row.iter().all(|weight| *weight == 0.0)) {
            return;
        }
        self.rows += 1;
        let even = 1.0 / a.len() as f64;
        for (a, b) in a.iter().zip(b) {
            let (x, y) = (a - even, b - even);
            self.difference += (a - b) * (a - b);
            for (sum, product) in self.products.iter_mut().zip([x * y, x * x, y * y]) {
                *sum += product;
            }
        }
    }

    /// Adds the sums over another part of the rows.
    pub fn join(&mut self, other: &Self) {
        self.rows += other.rows;
        self.difference += other.difference;
        self.products.iter_mut().zip(other.products).for_each(|(sum, more)| *sum += more);
    }
}

impl Redundancy {
    /// Redundancy of two heads, numbered from 1.
    pub fn new(heads: [usize; 2]) -> Self {
        let (distance, correlation) = (Moments::default(), Moments::default());
        Self { heads, distance, correlation, outputs: OutputSimilarity::default() }
    }

    /// Adds a sequence: the sums over its rows, and the outputs of both heads if there are any.
    pub(super) fn add(&mut self, sums: &PairSums, outputs: Option<[&Dense; 2]>) {
        self.distance.add((sums.difference / sums.rows as f64).sqrt());
        let [xy, xx, yy] = sums.products;
        // A uniform row has no correlation.
        self.correlation.add(if xx > 0.0 && yy > 0.0 { xy / (xx * yy).sqrt() } else { f64::NAN });
        if let Some([a, b]) = outputs {
            self.outputs.add(a, b);
        }
    }
}

impl OutputSimilarity {
    fn add(&mut self, a: &Dense, b: &Dense) {
        let difference = a.zip(b, |x, y| x - y);
        let norm = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
        self.distance.add((0..a.rows).map(|i| norm(difference.row(i))).sum::<f64>() / a.rows as f64);
        let scale = ((a.norm().powi(2) + b.norm().powi(2)) / 2.0).sqrt();
        self.relative.add(difference.norm() / scale);
        let centre = |x: &Dense| {
            let mean = x.data.iter().sum::<f64>() / x.data.len() as f64;
            x.map(|x| x - mean)
        };
        let (x, y) = (centre(a), centre(b));
        self.correlation.add(x.zip(&y, |x, y| x * y).data.iter().sum::<f64>() / (x.norm() * y.norm()));
        self.alignment.add(alignment(a, b));
    }
}

/// `|Y^T X|_F^2 / (|X^T X|_F |Y^T Y|_F)` of centred columns.
fn alignment(a: &Dense, b: &Dense) -> f64 {
    // Channels as rows, so that products are over tokens.
    let channels = |x: &Dense| {
        let mean = |c: usize| (0..x.rows).map(|i| x.row(i)[c]).sum::<f64>() / x.rows as f64;
        let means: Vec<f64> = (0..x.columns).map(mean).collect();
        Dense::from_fn(x.columns, x.rows, |c, i| x.row(i)[c] - means[c])
    };
    let (x, y) = (channels(a), channels(b));
    y.product(&x, true).norm().powi(2) / (x.product(&x, true).norm() * y.product(&y, true).norm())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two heads, three causal queries: rows 1; 1/2 1/2 against 3/4 1/4; 1/3 1/3 1/3 against 0 0 1.
    #[test]
    fn weights_by_hand() {
        let mut sums = PairSums::default();
        let rows: [(&[f64], &[f64]); 3] =
            [(&[1.0], &[1.0]), (&[0.5, 0.5], &[0.75, 0.25]), (&[0.5, 0.25, 0.25], &[0.0, 0.0, 1.0])];
        let mut first = PairSums::default();
        first.add(rows[0].0, rows[0].1);
        first.add(rows[1].0, rows[1].1);
        sums.join(&first);
        sums.add(rows[2].0, rows[2].1);
        sums.add(&[], &[]);
        sums.add(&[0.0; 2], &[0.5; 2]);
        let mut pair = Redundancy::new([1, 2]);
        pair.add(&sums, None);
        let difference: f64 = 2.0 * 0.0625 + 0.25 + 0.0625 + 0.5625;
        assert!((pair.distance.mean - (difference / 3.0).sqrt()).abs() < 1e-15);
        // Deviations from even rows: 0 0 and 1/4 -1/4; 1/6 -1/12 -1/12 and -1/3 -1/3 2/3.
        let xy = -1.0 / 18.0 + 1.0 / 36.0 - 1.0 / 18.0;
        let (xx, yy): (f64, f64) = (1.0 / 36.0 + 2.0 / 144.0, 0.125 + 6.0 / 9.0);
        assert!((pair.correlation.mean - xy / (xx * yy).sqrt()).abs() < 1e-14, "{pair:?}");
        assert_eq!(pair.outputs.distance.count, 0);
    }

    #[test]
    fn outputs_by_hand() {
        let a = Dense::new(3, 2, vec![1.0, 0.0, 0.0, 1.0, 2.0, 5.0]);
        let mut same = OutputSimilarity::default();
        same.add(&a, &a);
        let all = [same.distance, same.relative, same.correlation, same.alignment].map(|m| m.mean);
        assert!(all.iter().zip([0.0, 0.0, 1.0, 1.0]).all(|(x, y)| (x - y).abs() < 1e-14), "{all:?}");
        // Channels rotated by 90 degrees and doubled: distant element by element, but equal up to a rotation.
        let turned = Dense::from_fn(3, 2, |i, c| if c == 0 { -2.0 * a.row(i)[1] } else { 2.0 * a.row(i)[0] });
        let mut other = OutputSimilarity::default();
        other.add(&a, &turned);
        assert!((other.alignment.mean - 1.0).abs() < 1e-14);
        let lengths = [5f64.sqrt(), 5f64.sqrt(), 145f64.sqrt()];
        assert!((other.distance.mean - lengths.iter().sum::<f64>() / 3.0).abs() < 1e-14);
        assert!((other.relative.mean - 155f64.sqrt() / (155.0f64 / 2.0).sqrt()).abs() < 1e-14);
        let (x, y) = (&a.data, &turned.data);
        let mean = |v: &[f64]| v.iter().sum::<f64>() / 6.0;
        let sum = |f: &dyn Fn(f64, f64) -> f64| x.iter().zip(y).map(|(p, q)| f(p - mean(x), q - mean(y))).sum::<f64>();
        let expected = sum(&|p, q| p * q) / (sum(&|p, _| p * p) * sum(&|_, q| q * q)).sqrt();
        assert!((other.correlation.mean - expected).abs() < 1e-14);
    }
}
