//! Oracles, the best approximations that see the whole matrix: largest entries of each row, largest singular values, and
//! robust PCA (sparse plus low-rank).

use faer::Mat;

use super::dense::Dense;

/// Robust PCA ends when `|M - L - S|_F` is at most this fraction of `|M|_F`.
const TOLERANCE: f64 = 1e-7;

/// `U diag(values) V^T`, values in descending order.
struct Singular {
    u: Mat<f64>,
    values: Vec<f64>,
    v: Mat<f64>,
}

impl Singular {
    fn of(matrix: &Dense) -> Option<Self> {
        let svd = matrix.view().thin_svd().ok()?;
        let values: Vec<f64> = svd.S().column_vector().iter().copied().collect();
        Some(Self { u: svd.U().to_owned(), values, v: svd.V().to_owned() })
    }

    /// The matrix with its first singular values replaced by these and the others by 0.
    fn with(&self, values: &[f64]) -> Dense {
        let (rows, columns, rank) = (self.u.nrows(), self.v.nrows(), values.len());
        let scaled = Mat::from_fn(rows, rank, |i, r| self.u[(i, r)] * values[r]);
        let product = &scaled * self.v.subcols(0, rank).transpose();
        Dense::from_fn(rows, columns, |i, j| product[(i, j)])
    }
}

/// The nearest matrix of a rank (Eckart and Young 1936); `None` if the singular values did not converge.
pub fn truncate_to_rank(matrix: &Dense, rank: usize) -> Option<Dense> {
    let singular = Singular::of(matrix)?;
    Some(singular.with(&singular.values[..rank.min(singular.values.len())]))
}

/// The `count` entries of largest magnitude in each row, 0 elsewhere; ties go to the first.
pub fn keep_in_rows(matrix: &Dense, count: usize) -> Dense {
    let kept = (0..matrix.rows).flat_map(|i| keep_largest(matrix.row(i), count)).collect();
    Dense::new(matrix.rows, matrix.columns, kept)
}

/// The `count` entries of largest magnitude, 0 elsewhere; ties go to the first.
pub fn keep_in_all(matrix: &Dense, count: usize) -> Dense {
    Dense::new(matrix.rows, matrix.columns, keep_largest(&matrix.data, count))
}

fn keep_largest(values: &[f64], count: usize) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()));
    let mut kept = vec![0.0; values.len()];
    order.into_iter().take(count).for_each(|at| kept[at] = values[at]);
    kept
}

/// A matrix as the sum of a low-rank and a sparse one.
#[derive(Clone, Debug)]
pub struct RobustPca {
    /// `L`.
    pub low_rank: Dense,
    /// `S`.
    pub sparse: Dense,
    /// Iterations.
    pub rounds: usize,
    /// `|M - L - S|_F / |M|_F` at the end.
    pub residual: f64,
}

/// Robust PCA: principal component pursuit, `min |L|_* + lambda |S|_1` subject to `L + S = M`, by augmented Lagrangian with
/// alternating directions (Candès et al. 2011, section 5; Scatterbrain, arXiv 2110.15343, section 3).
///
/// `lambda = 1/sqrt(max(n1, n2))`, `mu = n1 n2 / (4 |M|_1)`. From `S = Y = 0`, each round takes
/// `L = D_{1/mu}(M - S + Y/mu)` (singular values shrunk by `1/mu`), `S = shrink_{lambda/mu}(M - L + Y/mu)`,
/// `Y += mu (M - L - S)`, until `|M - L - S|_F <= 1e-7 |M|_F`, or for `most_rounds`. `None` if
/// singular values do not converge.
pub fn robust_pca(matrix: &Dense, most_rounds: usize) -> Option<RobustPca> {
    let (rows, columns) = (matrix.rows, matrix.columns);
    let zero = Dense::new(rows, columns, vec![0.0; rows * columns]);
    let total: f64 = matrix.data.iter().map(|x| x.abs()).sum();
    if total == 0.0 {
        return Some(RobustPca { low_rank: zero.clone(), sparse: zero, rounds: 0, residual: 0.0 });
    }
    let lambda = (rows.max(columns) as f64).sqrt().recip();
    let mu = (rows * columns) as f64 / (4.0 * total);
    let norm = matrix.norm();
    let (mut low_rank, mut sparse, mut dual) = (zero.clone(), zero.clone(), zero);
    let (mut rounds, mut residual) = (0, 1.0);
    while rounds < most_rounds && residual > TOLERANCE {
        let target = matrix.zip(&sparse, |m, s| m - s).zip(&dual, |x, y| x + y / mu);
        let singular = Singular::of(&target)?;
        let shrunk: Vec<f64> = singular.values.iter().map(|value| value - 1.0 / mu).take_while(|x| *x > 0.0).collect();
        low_rank = singular.with(&shrunk);
        let rest = matrix.zip(&low_rank, |m, l| m - l);
        sparse = rest.zip(&dual, |x, y| shrink(x + y / mu, lambda / mu));
        let left = rest.zip(&sparse, |x, s| x - s);
        dual = dual.zip(&left, |y, x| y + mu * x);
        residual = left.norm() / norm;
        rounds += 1;
    }
    Some(RobustPca { low_rank, sparse, rounds, residual })
}

/// `x` moved towards 0 by `by`.
fn shrink(x: f64, by: f64) -> f64 {
    x.signum() * (x.abs() - by).max(0.0)
}

impl RobustPca {
    /// The same within a budget: `L` truncated to its `rank` largest singular values, and at the positions of the
    /// `entries` largest magnitudes of `S` the exact entries of `M`, as on the support of Scatterbrain.
    ///
    /// A rank counts one entry per row, as a feature does, so that rank and entries per row add up like budgets of
    /// Scatterbrain.
    pub fn within(&self, rank: usize, entries: usize) -> Option<Dense> {
        let low_rank = truncate_to_rank(&self.low_rank, rank)?;
        let sparse = keep_in_all(&self.sparse, entries);
        let whole = self.low_rank.zip(&self.sparse, |l, s| l + s);
        let mut joined = low_rank;
        for (at, place) in sparse.data.iter().enumerate() {
            if *place != 0.0 {
                joined.data[at] = whole.data[at];
            }
        }
        Some(joined)
    }
}

#[cfg(test)]
mod tests {
    use regard_testkit::golden;

    use super::*;

    #[test]
    fn robust_pca_gives_the_golden_parts() {
        let case = golden::cases().into_iter().find(|case| case.mechanism == "robust-pca").expect("in the manifest");
        let tensors = case.load();
        let read = |name: &str| {
            let tensor = tensors.tensor(name);
            Dense::new(tensor.shape[0], tensor.shape[1], tensor.f64().to_vec())
        };
        let found = robust_pca(&read("matrix"), 20_000).unwrap();
        for (name, found) in [("low_rank", &found.low_rank), ("sparse", &found.sparse)] {
            let want = read(name);
            let top = want.data.iter().fold(0.0f64, |top, x| top.max(x.abs()));
            let error = found.zip(&want, |x, y| (x - y).abs() / top).data.into_iter().fold(0.0, f64::max);
            assert!(error <= 1e-5, "{name}: {error:e}");
        }
        assert!(found.rounds > 10 && found.residual <= 1e-7, "{} {}", found.rounds, found.residual);
    }

    #[test]
    fn a_low_rank_matrix_with_large_entries_comes_apart() {
        let low = Dense::from_fn(40, 30, |i, j| ((i * 7 + 3) % 11) as f64 * 0.1 + ((j * 5) % 7) as f64 * 0.1);
        let spikes = Dense::from_fn(40, 30, |i, j| if (i * 30 + j) % 37 == 5 { 10.0 } else { 0.0 });
        let found = robust_pca(&low.zip(&spikes, |x, y| x + y), 20_000).unwrap();
        assert!(found.low_rank.relative_error(&low) < 1e-4 && found.sparse.relative_error(&spikes) < 1e-4);
        // Rank 2 and 33 entries are exact; fewer entries are not enough.
        let whole = low.zip(&spikes, |x, y| x + y);
        assert!(found.within(2, 33).unwrap().relative_error(&whole) < 1e-4);
        assert!(found.within(2, 20).unwrap().relative_error(&whole) > 0.1);
    }

    #[test]
    fn zero_comes_apart_into_zeros() {
        let found = robust_pca(&Dense::new(2, 2, vec![0.0; 4]), 5).unwrap();
        assert_eq!((found.low_rank.norm(), found.sparse.norm(), found.rounds), (0.0, 0.0, 0));
    }

    #[test]
    fn truncated_singular_values_leave_the_rest_of_the_norm() {
        // Singular values 5, 3 and 1 on rotated axes.
        let diagonal = Dense::new(3, 4, vec![0.0, 0.0, 3.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]);
        let near = truncate_to_rank(&diagonal, 2).unwrap();
        let want = [0.0, 0.0, 3.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert!(near.data.iter().zip(want).all(|(x, y)| (x - y).abs() < 1e-12), "{near:?}");
        assert!(truncate_to_rank(&diagonal, 9).unwrap().relative_error(&diagonal) < 1e-12);
    }

    #[test]
    fn the_largest_entries_stay() {
        let matrix = Dense::new(2, 3, vec![1.0, -4.0, 2.0, 3.0, 3.0, 3.0]);
        assert_eq!(keep_in_rows(&matrix, 2).data, [0.0, -4.0, 2.0, 3.0, 3.0, 0.0]);
        assert_eq!(keep_in_all(&matrix, 2).data, [0.0, -4.0, 0.0, 3.0, 0.0, 0.0]);
    }
}
