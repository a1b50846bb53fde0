//! Entropy of attention rows.

use serde::{Serialize, Serializer, ser::SerializeSeq};

use crate::moments::Moments;

/// Maximum position bins for charts and files.
const MOST_POSITIONS: usize = 64;

/// Entropy of the rows of one head over many sequences.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Entropy {
    /// `-sum_j w_ij ln w_ij` in nats, for rows that see a key.
    pub nats: Moments,
    /// The same divided by `ln` of the number of visible keys, for rows that see at least two: 0 if a query attends to
    /// one key, 1 if it attends to all equally.
    pub normalised: Moments,
    /// The normalised entropy by position of the query.
    #[serde(serialize_with = "by_parts")]
    pub by_position: Vec<Moments>,
}

impl Entropy {
    /// Adds the [`row_entropy`] of the query at `position` with `visible` keys.
    pub(super) fn add(&mut self, position: usize, entropy: f64, visible: usize) {
        if visible == 0 {
            return;
        }
        self.nats.add(entropy);
        if visible < 2 {
            return;
        }
        let normalised = entropy / (visible as f64).ln();
        self.normalised.add(normalised);
        if self.by_position.len() <= position {
            self.by_position.resize(position + 1, Moments::default());
        }
        self.by_position[position].add(normalised);
    }

    /// Mean normalised entropy in at most 64 equal position bins, as (bin centre, mean).
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let part = self.by_position.len().div_ceil(MOST_POSITIONS).max(1);
        let mean = |(number, part_of): (usize, &[Moments])| {
            let count: u64 = part_of.iter().map(|moments| moments.count).sum();
            let sum: f64 = part_of.iter().map(|moments| moments.count as f64 * moments.mean).sum();
            let middle = (number * part) as f64 + (part_of.len() as f64 - 1.0) / 2.0;
            (count > 0).then(|| (middle, sum / count as f64))
        };
        self.by_position.chunks(part).enumerate().filter_map(mean).collect()
    }
}

fn by_parts<S: Serializer>(positions: &[Moments], serializer: S) -> Result<S::Ok, S::Error> {
    let entropy = Entropy { by_position: positions.to_vec(), ..Entropy::default() };
    let curve = entropy.curve();
    let mut list = serializer.serialize_seq(Some(curve.len()))?;
    curve.iter().try_for_each(|point| list.serialize_element(point))?;
    list.end()
}

/// `-sum w ln w` in nats of weights that sum to 1; NaN, which moments skip, for a row without any.
pub(super) fn row_entropy(row: &[f64]) -> f64 {
    let mut seen = row.iter().filter(|w| **w > 0.0).peekable();
    if seen.peek().is_none() { f64::NAN } else { seen.map(|w| -w * w.ln()).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_by_hand() {
        let mut entropy = Entropy::default();
        let rows = [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.5, 0.25, 0.25, 0.0], [0.0; 4]];
        for (position, (row, visible)) in rows.iter().zip([1, 2, 3, 0]).enumerate() {
            entropy.add(position, row_entropy(row), visible);
        }
        assert!(row_entropy(&rows[3]).is_nan());
        let (half, third) = (2f64.ln(), 1.5 * 2f64.ln());
        assert_eq!((entropy.nats.count, entropy.normalised.count), (3, 2));
        assert!((entropy.nats.mean - (half + third) / 3.0).abs() < 1e-15);
        assert!((entropy.normalised.mean - (1.0 + third / 3f64.ln()) / 2.0).abs() < 1e-15);
        let curve = entropy.curve();
        assert_eq!(curve.iter().map(|point| point.0).collect::<Vec<_>>(), [1.0, 2.0]);
        assert!((curve[1].1 - third / 3f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn many_positions_become_parts() {
        let mut entropy = Entropy::default();
        for position in 0..130 {
            entropy.add(position, 2f64.ln(), if position < 65 { 2 } else { 4 });
        }
        let curve = entropy.curve();
        assert_eq!((curve.len(), curve[0]), (44, (1.0, 1.0)));
        assert!((curve[43].1 - 0.5).abs() < 1e-15);
    }
}
