//! Rank measures of an attention matrix.

use serde::Serialize;

use crate::approx::Dense;

/// A singular value counts if it is above this fraction of the largest. The paper counts those above 1e-6; the largest
/// singular value of a matrix whose rows sum to 1 is at least 1, so the two differ little.
pub const RANK_TOLERANCE: f64 = 1e-6;

/// The rank of one attention matrix.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MatrixRank {
    /// Head, from 1.
    pub head: usize,
    /// The smaller of its numbers of rows and columns, the maximum rank.
    pub full: usize,
    /// Singular values above [`RANK_TOLERANCE`] of the largest.
    pub rank: usize,
    /// `exp` of the entropy of the singular values divided by their sum (Roy and Vetterli 2007): 1 if there is one
    /// direction, the full rank if all are equal.
    pub effective: f64,
    /// Number of directions with 90 % of the squared singular values.
    pub directions: usize,
}

impl MatrixRank {
    /// Rank of the matrix of head `head`; none if singular values do not converge.
    pub fn of(head: usize, matrix: &Dense) -> Option<Self> {
        let mut values = matrix.singular_values()?;
        values.sort_by(|a, b| b.total_cmp(a));
        let top = *values.first()?;
        let full = values.len();
        if top <= 0.0 {
            return Some(Self { head, full, rank: 0, effective: 0.0, directions: 0 });
        }
        let sum: f64 = values.iter().sum();
        let entropy: f64 = values.iter().map(|value| value / sum).filter(|p| *p > 0.0).map(|p| -p * p.ln()).sum();
        let energy: f64 = values.iter().map(|value| value * value).sum();
        let mut held = 0.0;
        let enough = values.iter().take_while(|value| {
            let missing = held < 0.9 * energy;
            held += **value * **value;
            missing
        });
        Some(Self {
            head,
            full,
            directions: enough.count(),
            rank: values.iter().filter(|value| **value > RANK_TOLERANCE * top).count(),
            effective: entropy.exp(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eigenvalues of `A A^T` by Jacobi rotations: slow, and nothing like what faer does.
    fn singular_values(matrix: &Dense) -> Vec<f64> {
        let mut a = matrix.product(matrix, true);
        let n = a.rows;
        for _ in 0..60 {
            for (p, q) in (0..n).flat_map(|p| (p + 1..n).map(move |q| (p, q))) {
                let at = |a: &Dense, i: usize, j: usize| a.data[i * n + j];
                if at(&a, p, q).abs() < 1e-300 {
                    continue;
                }
                let angle = 0.5 * (2.0 * at(&a, p, q)).atan2(at(&a, q, q) - at(&a, p, p));
                let (sin, cos) = angle.sin_cos();
                for rows in [false, true] {
                    for i in 0..n {
                        let index = |k: usize| if rows { k * n + i } else { i * n + k };
                        let (x, y) = (a.data[index(p)], a.data[index(q)]);
                        a.data[index(p)] = cos * x - sin * y;
                        a.data[index(q)] = sin * x + cos * y;
                    }
                }
            }
        }
        let mut values: Vec<f64> = (0..n).map(|i| a.data[i * n + i].max(0.0).sqrt()).collect();
        values.sort_by(|x, y| y.total_cmp(x));
        values
    }

    #[test]
    fn rank_against_jacobi() {
        let noise = |i: usize, j: usize| ((i * i * 7 + 31 * j * j + i * j + 13) as f64 * 1.7).sin();
        for rank in [1, 3, 9] {
            let left = Dense::from_fn(9, rank, noise);
            let right = Dense::from_fn(9, rank, |i, j| noise(i + 50, j + 3));
            let matrix = left.product(&right, true);
            let seen = MatrixRank::of(1, &matrix).unwrap();
            let values = singular_values(&matrix);
            let sum: f64 = values[..rank].iter().sum();
            let entropy: f64 = values[..rank].iter().map(|v| -(v / sum) * (v / sum).ln()).sum();
            assert_eq!((seen.rank, seen.full), (rank, 9));
            assert!((seen.effective - entropy.exp()).abs() < 1e-5, "{seen:?}, expected {}", entropy.exp());
            let energy = |k: usize| values[..k].iter().map(|v| v * v).sum::<f64>();
            let directions = (1..=9).find(|k| energy(*k) >= 0.9 * energy(9)).unwrap();
            assert_eq!(seen.directions, directions, "{values:?}");
        }
    }

    #[test]
    fn ends() {
        let uniform = MatrixRank::of(2, &Dense::from_fn(5, 7, |_, _| 1.0 / 7.0)).unwrap();
        assert_eq!((uniform.rank, uniform.full, uniform.directions), (1, 5, 1));
        assert!((uniform.effective - 1.0).abs() < 1e-9);
        let identity = MatrixRank::of(2, &Dense::from_fn(4, 4, |i, j| f64::from(i == j))).unwrap();
        assert_eq!((identity.rank, identity.directions), (4, 4));
        assert!((identity.effective - 4.0).abs() < 1e-12);
        assert_eq!(MatrixRank::of(1, &Dense::from_fn(3, 3, |_, _| 0.0)).unwrap().rank, 0);
    }
}
