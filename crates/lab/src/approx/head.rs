//! One attention matrix: its source and exact values.

use super::dense::Dense;

/// Queries, keys and values of one head on one sequence, without padding.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// The group it is averaged in: a temperature, a layer, a file.
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

    /// Whether queries equal keys, as LSH attention requires.
    pub fn shares_keys(&self) -> bool {
        self.queries == self.keys
    }

    /// `tau q_i.k_j` for visible keys, else negative infinity.
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
