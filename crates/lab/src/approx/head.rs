//! One attention matrix: where it comes from and what it is exactly.

use super::dense::Dense;

/// Queries, keys and values of one head on one sequence, without padding.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// What it is averaged with: a temperature, a layer, a file.
    pub group: String,
    /// `[N, D]`.
    pub queries: Dense,
    /// `[S, D]`.
    pub keys: Dense,
    /// `[S, Dv]`.
    pub values: Dense,
    /// Score scale `tau`; the inverse temperature of the generative process.
    pub scale: f64,
    /// Query `i` sees keys up to `i + S - N`.
    pub causal: bool,
}

impl Head {
    /// Whether query `i` sees key `j`.
    pub fn sees(&self, i: usize, j: usize) -> bool {
        !self.causal || j + self.queries.rows <= i + self.keys.rows
    }

    /// Whether the queries are the keys, as LSH attention needs them.
    pub fn shares_keys(&self) -> bool {
        self.queries == self.keys
    }

    /// `tau q_i.k_j` where the query sees the key, else negative infinity.
    pub fn logits(&self) -> Dense {
        self.logits_with(&self.keys)
    }

    /// The same with other keys.
    pub(super) fn logits_with(&self, keys: &Dense) -> Dense {
        let product = self.queries.product(keys, true);
        Dense::from_fn(product.rows, product.columns, |i, j| {
            if self.sees(i, j) { self.scale * product.data[i * product.columns + j] } else { f64::NEG_INFINITY }
        })
    }
}
