//! Which keys each query sees, as tensors of the device.

use std::ops::Range;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use regard_kernels::Mask;

use super::Rows;

/// Which keys each query sees.
#[derive(Clone)]
pub(in crate::ops) struct Visible {
    /// `[B or 1,H or 1,N,S]`, true where hidden; absent where all is seen.
    hidden: Option<Tensor<4, Bool>>,
}

impl Visible {
    /// The keys of `rows` for each of its queries, in each of `batch` rows.
    pub fn new(mask: &Mask, batch: usize, rows: &Rows, device: &Device) -> Self {
        let mut visible = Self { hidden: None };
        if mask.causal || mask.window.is_some() {
            let distances = distances(rows, device);
            if mask.causal {
                visible.hide(distances.clone().greater_elem(0));
            }
            if let Some(window) = mask.window {
                visible.hide(distances.abs().greater_elem(window.min(rows.n + rows.s) as i64));
            }
        }
        if mask.valid.is_some() {
            let row = |b| mask.valid_row(b).expect("padding has all rows");
            let padded: Vec<bool> = (0..batch).flat_map(|b| rows.each_key().map(move |j| row(b)[j] == 0)).collect();
            let shape = [batch, 1, 1, rows.keys_count()];
            visible.hide(Tensor::from_data(TensorData::new(padded, shape), device));
        }
        visible
    }

    /// Hides pairs `[B or 1,H or 1,N or 1,S]` too.
    pub fn hide(&mut self, hidden: Tensor<4, Bool>) {
        self.hidden = Some(match self.hidden.take() {
            None => hidden,
            Some(before) => {
                let (one, other) = (before.dims(), hidden.dims());
                let dims: [usize; 4] = std::array::from_fn(|axis| one[axis].max(other[axis]));
                before.expand(dims).bool_or(hidden.expand(dims))
            }
        });
    }

    /// The pairs that are hidden, of shape `dims`.
    pub fn hidden(&self, dims: [usize; 4]) -> Option<Tensor<4, Bool>> {
        self.hidden.clone().map(|hidden| hidden.expand(dims))
    }

    /// `weights [B,H,N,S]` with hidden ones set to `value`.
    fn fill(&self, weights: Tensor<4>, value: f64) -> Tensor<4> {
        match self.hidden(weights.dims()) {
            Some(hidden) => weights.mask_fill(hidden, value),
            None => weights,
        }
    }

    /// Rows `[B,H,N,S]` of `numerators`, hidden ones 0, each divided by its sum; rows without a visible key are 0.
    pub fn normalize(&self, numerators: Tensor<4>) -> Tensor<4> {
        let numerators = self.fill(numerators, 0.0);
        let sum = numerators.clone().sum_dim(3);
        let none = sum.clone().detach().equal_elem(0.0);
        numerators / sum.mask_fill(none, 1.0)
    }

    /// Softmax of `scores [B,H,N,S]` over visible keys; rows without one are 0.
    pub fn softmax(&self, scores: Tensor<4>) -> Tensor<4> {
        // Far below any score, and finite: a row that is all hidden must not become NaN.
        let scores = self.fill(scores, -1e30);
        let most = scores.clone().detach().max_dim(3);
        self.normalize((scores - most).exp())
    }
}

/// Position of each key less that of each query, `[1,1,N,S]`: positive for later keys.
pub(in crate::ops) fn distances(rows: &Rows, device: &Device) -> Tensor<4, Int> {
    let places = |range: Range<i64>| Tensor::<1, Int>::arange(range, device);
    let (n, s) = (rows.queries.len(), rows.keys_count());
    let keys = rows.keys.iter().map(|range| places(range.start as i64..range.end as i64)).collect();
    let keys = Tensor::cat(keys, 0).reshape([1, 1, 1, s]);
    let offset = rows.s as i64 - rows.n as i64;
    let queries = places(rows.queries.start as i64 + offset..rows.queries.end as i64 + offset).reshape([1, 1, n, 1]);
    keys.expand([1, 1, n, s]) - queries.expand([1, 1, n, s])
}
