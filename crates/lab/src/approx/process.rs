//! The generative process of Scatterbrain (arXiv 2110.15343, section 3.2, process 1): clustered tokens whose attention
//! is low-rank at high temperature, sparse at low temperature, and neither in between (theorem 1).

use regard_kernels::{
    draws,
    features::{RowNorms, RowsDrawn},
    random::{bits, substream},
};
use serde::Serialize;

use super::{dense::Dense, head::Head};

/// Streams of a draw.
const CENTRES: u64 = 0;
const NOISE: u64 = 1;
const VALUES: u64 = 2;
const ORDER: u64 = 3;

/// Tokens around cluster centres. Queries equal keys.
///
/// A centre is `c ~ N(0, I/d)`, of norm about 1; a token is `z = c + r`, `r ~ N(0, spread^2 I/d)`, of distance about
/// `spread` to its centre (the paper's `Delta`). Attention is `exp(beta z_i.z_j)` with the inverse temperature `beta`.
/// Cluster sizes differ by at most one; token order is independent of clusters. Values are standard normal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Process {
    /// Number of tokens `n`.
    pub tokens: usize,
    /// Channels `d`.
    pub width: usize,
    /// Number of clusters.
    pub clusters: usize,
    /// Distance of a token to its centre.
    pub spread: f64,
    /// Random seed.
    pub seed: u64,
}

impl Process {
    /// The attention of draw `draw` at inverse temperature `beta`. All temperatures of one draw have the same tokens.
    pub fn head(&self, beta: f64, draw: u64) -> Head {
        let key = substream(substream(self.seed, PROCESS_STREAM), draw);
        let normal = |rows, stream| -> Vec<f64> {
            let norms = RowNorms::Gaussian;
            let drawn = draws::projection(rows, self.width, RowsDrawn::Iid, norms, substream(key, stream));
            drawn.into_iter().map(f64::from).collect()
        };
        let deviation = (self.width as f64).sqrt().recip();
        let (centres, noise) = (normal(self.clusters, CENTRES), normal(self.tokens, NOISE));
        let mut order: Vec<usize> = (0..self.tokens).collect();
        let order_key = substream(key, ORDER);
        order.sort_by_key(|&t| (bits(order_key, t as u32), t));
        let mut tokens = vec![0.0; self.tokens * self.width];
        for (n, &t) in order.iter().enumerate() {
            let centre = &centres[n % self.clusters * self.width..][..self.width];
            for c in 0..self.width {
                let at = t * self.width + c;
                // Rounded to float32, so that kernels and twin get the same input.
                tokens[at] = f64::from((deviation * (centre[c] + self.spread * noise[at])) as f32);
            }
        }
        let tokens = Dense::new(self.tokens, self.width, tokens);
        let values = Dense::new(self.tokens, self.width, normal(self.tokens, VALUES));
        Head {
            group: format!("beta = {beta}"),
            queries: tokens.clone(),
            keys: tokens,
            values,
            scale: beta,
            causal: false,
        }
    }
}

/// Separates random draws of the process from those of methods with the same seed ("process" in ASCII).
const PROCESS_STREAM: u64 = 0x0070_726f_6365_7373;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_have_the_distances_asked_for() {
        let process = Process { tokens: 300, width: 256, clusters: 30, spread: 0.5, seed: 3 };
        let head = process.head(2.0, 0);
        let distance = |i: usize, j: usize| {
            let pair = head.queries.row(i).iter().zip(head.queries.row(j));
            pair.map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt()
        };
        // Within a cluster sqrt(2) * spread, between clusters sqrt(2 (1 + spread^2)).
        let mut near = vec![0; 300];
        for (i, count) in near.iter_mut().enumerate() {
            for j in (0..300).filter(|&j| j != i) {
                let d = distance(i, j);
                assert!((0.4..1.0).contains(&d) || (1.0..2.2).contains(&d), "{d}");
                *count += usize::from(d < 1.05);
            }
        }
        assert!(near.iter().all(|count| *count == 9), "{near:?}");
        assert_ne!(process.head(2.0, 1).queries, head.queries);
        assert_eq!(process.head(5.0, 0).queries, head.queries);
        assert_eq!(head.scale, 2.0);
    }
}
