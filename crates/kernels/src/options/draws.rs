//! Random draws of mechanisms, independent of the tokens: feature projections, directions and rotations for hashing,
//! random blocks of a support.
//!
//! Every number is a function of a key and its index ([`random`](crate::random)), so any draw can be repeated at any
//! time by any thread. Draws of different kinds with one key are independent, as are draws of one kind with different
//! keys.

use crate::{
    features::{RowNorms, RowsDrawn},
    random::{bits, normal, substream},
};

/// Streams of one key, one for every kind of draw.
#[derive(Clone, Copy)]
enum Stream {
    Projection,
    Norms,
    Directions,
    Rotations,
    Blocks,
}

impl Stream {
    fn under(self, key: u64) -> u64 {
        substream(key, self as u64)
    }
}

/// Projection `[rows, width]` of random features (Choromanski et al. 2021, section 3).
///
/// Orthogonal rows come in blocks of `width`, the last truncated at `rows`: each block is a Haar-random matrix with its
/// rows rescaled to `norms`, and blocks are independent. Independent rows are Gaussian whatever `norms` is.
pub fn projection(rows: usize, width: usize, drawn: RowsDrawn, norms: RowNorms, key: u64) -> Vec<f32> {
    let gaussian = Stream::Projection.under(key);
    let mut projection = Vec::with_capacity(rows * width);
    match drawn {
        RowsDrawn::Iid => projection.extend(normals(gaussian, rows * width).map(|x| x as f32)),
        RowsDrawn::Orthogonal => {
            let fresh = Stream::Norms.under(key);
            for first in (0..rows).step_by(width) {
                let block = haar(width.min(rows - first), width, substream(gaussian, first as u64));
                for (n, direction) in block.chunks_exact(width).enumerate() {
                    let norm = match norms {
                        RowNorms::Gaussian => norm(normals(substream(fresh, (first + n) as u64), width)),
                        RowNorms::SqrtWidth => (width as f64).sqrt(),
                    };
                    projection.extend(direction.iter().map(|x| (norm * x) as f32));
                }
            }
        }
    }
    projection
}

/// Directions `[rounds, width + 2]` along which SMYRF sorts the lifted queries and keys of heads of `width`: standard
/// normal.
pub fn directions(rounds: usize, width: usize, key: u64) -> Vec<f32> {
    normals(Stream::Directions.under(key), rounds * (width + 2)).map(|x| x as f32).collect()
}

/// Rotations `[rounds, width, hash_values / 2]` of LSH for heads of `width`: standard normal.
pub fn rotations(rounds: usize, width: usize, hash_values: usize, key: u64) -> Vec<f32> {
    normals(Stream::Rotations.under(key), rounds * width * (hash_values / 2)).map(|x| x as f32).collect()
}

/// The random key blocks of BigBird for query block `query_block`: `count` distinct ones of `key_blocks`, or all if
/// there are fewer, in ascending order. Every choice is equally likely.
pub fn random_blocks(seed: u64, query_block: usize, key_blocks: usize, count: usize) -> Vec<usize> {
    let stream = substream(Stream::Blocks.under(seed), query_block as u64);
    let mut blocks = Vec::with_capacity(count.min(key_blocks));
    // Floyd's algorithm (Bentley and Floyd 1987): the new end replaces a block that is already chosen.
    for end in key_blocks.saturating_sub(count)..key_blocks {
        let choice = (u64::from(bits(stream, end as u32)) * (end as u64 + 1)) >> 32;
        let choice = choice as usize;
        blocks.push(if blocks.contains(&choice) { end } else { choice });
    }
    blocks.sort_unstable();
    blocks
}

/// The first `count` standard normal numbers of stream `key`.
fn normals(key: u64, count: usize) -> impl Iterator<Item = f64> {
    // In (0, 1]: the logarithm of the first is finite.
    let uniform = move |index: usize| (f64::from(bits(key, index as u32)) + 1.0) / 4_294_967_296.0;
    (0..count).map(move |n| normal(uniform(2 * n), uniform(2 * n + 1)))
}

/// The first `rows` rows of a Haar-random orthogonal matrix `[width, width]`.
///
/// Gram-Schmidt on the rows of a Gaussian matrix is its triangular decomposition with a positive diagonal, the only one
/// whose orthogonal factor is Haar-distributed (Mezzadri 2007, section 4).
fn haar(rows: usize, width: usize, key: u64) -> Vec<f64> {
    let mut matrix: Vec<f64> = normals(key, rows * width).collect();
    for n in 0..rows {
        let (done, rest) = matrix.split_at_mut(n * width);
        let row = &mut rest[..width];
        // Twice, to remove what rounding left of the previous rows.
        for _ in 0..2 {
            for unit in done.chunks_exact(width) {
                let along: f64 = row.iter().zip(unit).map(|(x, u)| x * u).sum();
                row.iter_mut().zip(unit).for_each(|(x, u)| *x -= along * u);
            }
        }
        let norm = norm(row.iter().copied());
        row.iter_mut().for_each(|x| *x /= norm);
    }
    matrix
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|x| x * x).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 4_000;

    /// Mean of `draws`, in units of its standard deviation.
    fn deviation(draws: impl Iterator<Item = f64>, mean: f64) -> f64 {
        let draws: Vec<f64> = draws.collect();
        let count = draws.len() as f64;
        let seen = draws.iter().sum::<f64>() / count;
        let variance = draws.iter().map(|x| (x - seen).powi(2)).sum::<f64>() / (count - 1.0);
        (seen - mean) / (variance / count).sqrt()
    }

    fn require(what: &str, deviation: f64) {
        assert!(deviation.abs() < 4.5, "{what}: {deviation:.1} standard deviations off");
    }

    fn dot(x: &[f32], y: &[f32]) -> f64 {
        x.iter().zip(y).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    }

    #[test]
    fn rows_of_a_block_are_orthogonal_and_blocks_are_not() {
        for (rows, width) in [(11, 8), (70, 32), (3, 5), (64, 64), (4, 1)] {
            for norms in [RowNorms::Gaussian, RowNorms::SqrtWidth] {
                let drawn = projection(rows, width, RowsDrawn::Orthogonal, norms, 5);
                assert_eq!(drawn.len(), rows * width);
                let row = |a: usize| &drawn[a * width..(a + 1) * width];
                let cosine =
                    |a: usize, b: usize| dot(row(a), row(b)) / (dot(row(a), row(a)) * dot(row(b), row(b))).sqrt();
                for (a, b) in (0..rows).flat_map(|a| (0..a).map(move |b| (a, b))) {
                    let orthogonal = cosine(a, b).abs() < 1e-6;
                    assert_eq!(orthogonal, a / width == b / width, "rows {a} and {b} of {rows} x {width}");
                }
            }
        }
    }

    #[test]
    fn norms_are_those_asked_for() {
        let width = 6;
        let squares = |drawn, norms| -> Vec<f64> {
            projection(DRAWS, width, drawn, norms, 1).chunks_exact(width).map(|row| dot(row, row)).collect()
        };
        let fixed = squares(RowsDrawn::Orthogonal, RowNorms::SqrtWidth);
        assert!(fixed.iter().all(|s| (s - 6.0).abs() < 1e-5));
        for drawn in [RowsDrawn::Orthogonal, RowsDrawn::Iid] {
            // Chi-squared with D degrees of freedom: mean D, variance 2 D.
            let squares = squares(drawn, RowNorms::Gaussian);
            require("mean of |w|^2", deviation(squares.iter().copied(), 6.0));
            require("variance of |w|^2", deviation(squares.iter().map(|s| (s - 6.0).powi(2)), 12.0));
        }
    }

    #[test]
    fn orthogonal_matrices_have_the_haar_measure() {
        for width in [2, 3, 5] {
            let draws: Vec<Vec<f64>> = (0..DRAWS).map(|n| haar(width, width, substream(9, n as u64))).collect();
            let traces = || draws.iter().map(|q| (0..width).map(|a| q[a * (width + 1)]).sum::<f64>());
            // Diaconis and Shahshahani 1994: the first moments of the trace are those of a standard normal. A
            // decomposition with the signs of the usual reflections has a negative trace on average.
            require("trace", deviation(traces(), 0.0));
            require("squared trace", deviation(traces().map(|t| t * t), 1.0));
            for entry in 0..width * width {
                require("entry", deviation(draws.iter().map(|q| q[entry]), 0.0));
                require("squared entry", deviation(draws.iter().map(|q| q[entry].powi(2)), 1.0 / width as f64));
            }
        }
        let determinants = (0..DRAWS).map(|n| {
            let q = haar(2, 2, substream(10, n as u64));
            q[0] * q[3] - q[1] * q[2]
        });
        require("determinant", deviation(determinants, 0.0));
    }

    #[test]
    fn numbers_are_normal() {
        let draws: Vec<f64> = normals(3, 40_000).collect();
        for (power, moment) in [(1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0), (6, 15.0)] {
            require("moment", deviation(draws.iter().map(|x| x.powi(power)), moment));
        }
        require("neighbours", deviation(draws.windows(2).map(|pair| pair[0] * pair[1]), 0.0));
    }

    #[test]
    fn kinds_and_keys_are_independent_streams() {
        let width = 10;
        let draws = |key: u64| {
            [
                projection(40, width, RowsDrawn::Iid, RowNorms::Gaussian, key),
                projection(40, width, RowsDrawn::Orthogonal, RowNorms::Gaussian, key),
                directions(50, width - 2, key),
                rotations(10, width, 8, key),
            ]
        };
        assert_eq!(draws(7), draws(7), "the same key, the same draws");
        let all: Vec<Vec<f32>> = [7, 8, 1 << 40].into_iter().flat_map(draws).collect();
        for (a, b) in (0..all.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
            let products = all[a].iter().zip(&all[b]).map(|(x, y)| f64::from(x * y));
            require(&format!("product of draws {a} and {b}"), deviation(products, 0.0));
        }
        assert_eq!(all[2].len(), 50 * width);
        assert_eq!(all[3].len(), 10 * width * 4);
    }

    #[test]
    fn blocks_are_different_sorted_and_equally_likely() {
        let mut hits = [0usize; 9];
        for query_block in 0..DRAWS {
            let blocks = random_blocks(4, query_block, 9, 3);
            assert_eq!(blocks.len(), 3);
            assert!(blocks.windows(2).all(|pair| pair[0] < pair[1]) && blocks[2] < 9, "{blocks:?}");
            blocks.iter().for_each(|&block| hits[block] += 1);
        }
        let expected = DRAWS as f64 / 3.0;
        let spread = (expected * 2.0 / 3.0).sqrt();
        assert!(hits.iter().all(|&count| (count as f64 - expected).abs() < 4.5 * spread), "{hits:?}");

        assert_eq!(random_blocks(4, 0, 2, 3), [0, 1]);
        assert!(random_blocks(4, 0, 5, 0).is_empty());
        assert!(random_blocks(4, 0, 0, 3).is_empty());
        assert_eq!(random_blocks(4, 1, 40, 6), random_blocks(4, 1, 40, 6));
        assert_ne!(random_blocks(4, 1, 40, 6), random_blocks(4, 2, 40, 6));
        assert_ne!(random_blocks(4, 1, 40, 6), random_blocks(5, 1, 40, 6));
    }
}
