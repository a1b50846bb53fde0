//! Rows of the attention matrices of mechanisms, whether or not a kernel ever forms them.

use std::fmt;

/// What is averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Averaged {
    /// Values: `out_i = sum_j W_ij v_j`, the attention matrix.
    Values,
    /// Queries: the weights `alpha` of a global query (Fastformer).
    Queries,
    /// Products of keys with the global query: the weights `beta` of a global key (Fastformer).
    Keys,
}

/// The weight matrix `[N,S]` of one head, from its float64 twin, computed row by row: only data shared by all rows is
/// kept.
///
/// A row sums to 1, or is 0 where the query sees no key. Dropout is left out.
pub struct Weights<'a> {
    /// What is averaged.
    pub averaged: Averaged,
    /// Rows `N`.
    pub queries: usize,
    /// Columns `S`.
    pub keys: usize,
    row: Box<dyn Fn(usize) -> Vec<f64> + Sync + Send + 'a>,
}

impl<'a> Weights<'a> {
    pub(crate) fn new(
        averaged: Averaged,
        [queries, keys]: [usize; 2],
        row: impl Fn(usize) -> Vec<f64> + Sync + Send + 'a,
    ) -> Self {
        Self { averaged, queries, keys, row: Box::new(row) }
    }

    /// Row `i`, `[S]`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, i: usize) -> Vec<f64> {
        assert!(i < self.queries, "row {i} of {}", self.queries);
        (self.row)(i)
    }
}

impl fmt::Debug for Weights<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { averaged, queries, keys, .. } = self;
        write!(f, "Weights {{ {averaged:?}, {queries} x {keys} }}")
    }
}
