//! Helpers of the composed forms: the formulas of the kernels in tensor operations, for backends without kernels.
//!
//! Composed forms are written to be correct on any backend. They may hold `N x S` scores, which the kernels never do.

use burn::tensor::{Bool, Device, Tensor, TensorData};
use regard_kernels::{Dropout, Mask};

use super::runs_kernels;

#[cfg(test)]
thread_local! {
    static FORCED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `task` with composed forms on every device, to hold them against the kernels.
#[cfg(test)]
pub(crate) fn force_composed<R>(task: impl FnOnce() -> R) -> R {
    FORCED.set(true);
    let result = task();
    FORCED.set(false);
    result
}

/// Whether an operation on `device` goes to its kernel.
pub(crate) fn uses_kernel(device: &Device) -> bool {
    #[cfg(test)]
    if FORCED.get() {
        return false;
    }
    runs_kernels(device)
}

/// `x [B,N,H,D]` as `[B,H,N,D]`.
pub(super) fn head_first(x: Tensor<4>) -> Tensor<4> {
    x.swap_dims(1, 2)
}

/// `x [B,Hk,..]` with every key head repeated for each of the `heads / Hk` query heads that read it: `[B,heads,..]`.
pub(super) fn repeat_heads<const R: usize>(x: Tensor<R>, heads: usize) -> Tensor<R> {
    let dims = x.dims();
    let group = heads / dims[1];
    if group == 1 {
        return x;
    }
    let rest: usize = dims[2..].iter().product();
    let mut shape = dims;
    shape[1] = heads;
    x.reshape([dims[0], dims[1], 1, rest]).repeat_dim(2, group).reshape(shape)
}

/// Which keys each query sees.
#[derive(Clone)]
pub(super) struct Visible {
    /// `[B or 1,H or 1,N,S]`, true where hidden.
    hidden: Tensor<4, Bool>,
    /// The same as numbers, 1 where visible.
    visible: Tensor<4>,
    /// `[B or 1,H or 1,N,1]`, 1 for queries without a visible key.
    empty: Tensor<4>,
}

impl Visible {
    /// `n` queries and `s` keys in each of `batch` rows.
    pub fn new(mask: &Mask, batch: usize, n: usize, s: usize, device: &Device) -> Self {
        let batch = if mask.valid.is_some() { batch } else { 1 };
        let mut seen = vec![false; batch * n * s];
        for (row, seen) in seen.chunks_exact_mut(s).enumerate() {
            let range = mask.visible(row % n, n, s);
            let valid = mask.valid_row(row / n);
            for j in range {
                seen[j] = valid.is_none_or(|valid| valid[j] != 0);
            }
        }
        Self::of(seen, [batch, 1, n, s], device)
    }

    /// The pairs that are `seen`, of shape `[B or 1, H or 1, N, S]`.
    pub fn of(seen: Vec<bool>, shape: [usize; 4], device: &Device) -> Self {
        let [batch, heads, n, s] = shape;
        let empty: Vec<f32> = seen.chunks_exact(s).map(|row| f32::from(u8::from(!row.contains(&true)))).collect();
        let visible = Tensor::<4, Bool>::from_data(TensorData::new(seen, shape), device);
        Self {
            hidden: visible.clone().bool_not(),
            visible: visible.float(),
            empty: Tensor::from_data(TensorData::new(empty, [batch, heads, n, 1]), device),
        }
    }

    /// 1 for queries `[B or 1,1,N,1]` that see a key, else 0.
    pub fn any(&self) -> Tensor<4> {
        self.empty.clone().neg().add_scalar(1.0)
    }

    /// `weights [B,H,N,S]` with hidden ones set to 0.
    pub fn keep(&self, weights: Tensor<4>) -> Tensor<4> {
        weights * self.visible.clone()
    }

    /// Rows `[B,H,N,S]` of `numerators`, hidden ones 0, each divided by its sum; rows without a visible key are 0.
    pub fn normalize(&self, numerators: Tensor<4>) -> Tensor<4> {
        let numerators = self.keep(numerators);
        let sum = numerators.clone().sum_dim(3);
        numerators / (sum + self.empty.clone())
    }

    /// Softmax of `scores [B,H,N,S]` over visible keys; rows without one are 0.
    pub fn softmax(&self, scores: Tensor<4>) -> Tensor<4> {
        // Far below any score, and finite: a row that is all hidden must not become NaN.
        let [batch, heads, n, s] = scores.dims();
        let scores = scores.mask_fill(self.hidden.clone().expand([batch, heads, n, s]), -1e30);
        let most = scores.clone().detach().max_dim(3);
        self.normalize((scores - most).exp())
    }
}

/// Dropout on `weights [B,H,N,S]`, with the draws of the kernels.
pub(super) fn drop_weights(weights: Tensor<4>, dropout: Option<Dropout>) -> Tensor<4> {
    let Some(dropout) = dropout else { return weights };
    let dims = weights.dims();
    let rows = (dims[0] * dims[1] * dims[2]) as u64;
    let factors: Vec<f32> = (0..rows).flat_map(|row| (0..dims[3]).map(move |j| dropout.factor(row, j))).collect();
    let factors = Tensor::<4>::from_data(TensorData::new(factors, dims), &weights.device());
    weights * factors
}
