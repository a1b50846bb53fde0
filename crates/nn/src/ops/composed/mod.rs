//! Helpers of the composed forms: the formulas of the kernels in tensor operations, for backends without kernels.
//!
//! Composed forms are written to be correct on any backend, with memory linear in the length: scores of pairs go block by
//! block ([`by_rows`]), sums over keys chunk by chunk.

mod rows;
mod visible;

use std::cell::Cell;

use burn::tensor::{Bool, Device, Tensor, TensorData};
use regard_kernels::{Dropout, Mask};

use super::runs_kernels;
pub use rows::set_block_bytes;
pub(super) use rows::{Form, Rows, by_rows, in_blocks};
pub(super) use visible::{Visible, distances};

thread_local! {
    static FORCED: Cell<bool> = const { Cell::new(false) };
    /// Queries of a block, in place of as many as fit.
    #[cfg(test)]
    static QUERIES: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs `task` with composed forms on every device, in blocks of so many queries.
#[cfg(test)]
pub(crate) fn force_blocks<R>(queries: usize, task: impl FnOnce() -> R) -> R {
    QUERIES.set(Some(queries));
    let result = force_composed(task);
    QUERIES.set(None);
    result
}

/// Runs `task`, backward passes included, with composed forms on every device: to measure them, or to hold them against the
/// kernels. Holds for the calling thread.
pub fn force_composed<R>(task: impl FnOnce() -> R) -> R {
    let before = FORCED.replace(true);
    let result = task();
    FORCED.set(before);
    result
}

/// Whether [`force_composed`] holds here.
pub(super) fn is_forced() -> bool {
    FORCED.get()
}

/// Whether an operation on `device` goes to its kernel.
pub(crate) fn uses_kernel(device: &Device) -> bool {
    !is_forced() && runs_kernels(device)
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

/// Padding of this magnitude or more reads as 0, and so does NaN: 2^40, as in the kernels.
const WILD: f64 = (1u64 << 40) as f64;

/// Which keys are padding, `[B,S]` in the given shape; absent where there is none.
pub(super) fn padded<const R: usize>(mask: &Mask, shape: [usize; R], device: &Device) -> Option<Tensor<R, Bool>> {
    let valid = mask.valid.as_ref()?;
    let padded: Vec<bool> = valid.as_slice().iter().map(|&real| real == 0).collect();
    Some(Tensor::from_data(TensorData::new(padded, shape), device))
}

/// Keys or values `[B,S,..]`, with 0 for padding that a product with 0 would not hide, such as infinities and NaN.
pub(super) fn real_keys<const R: usize>(x: Tensor<R>, mask: &Mask) -> Tensor<R> {
    silence(x, |b, _| mask.valid_row(b))
}

/// The same for queries `[B,N,..]`, which the gradients of the keys depend on.
pub(super) fn real_queries<const R: usize>(x: Tensor<R>, mask: &Mask) -> Tensor<R> {
    silence(x, |b, tokens| mask.query_row(b, tokens))
}

fn silence<'m, const R: usize>(x: Tensor<R>, real: impl Fn(usize, usize) -> Option<&'m [u8]>) -> Tensor<R> {
    let dims = x.dims();
    let [batch, tokens] = [dims[0], dims[1]];
    let rows: Option<Vec<&[u8]>> = (0..batch).map(|b| real(b, tokens)).collect();
    let Some(rows) = rows else { return x };
    let padded: Vec<bool> = rows.iter().flat_map(|row| row.iter().map(|&real| real == 0)).collect();
    let mut shape = [1; R];
    shape[..2].copy_from_slice(&[batch, tokens]);
    let padded = Tensor::<R, Bool>::from_data(TensorData::new(padded, shape), &x.device());
    // Comparisons with NaN are false.
    let wild = x.clone().abs().lower_elem(WILD).bool_not();
    x.mask_fill(wild.bool_and(padded.expand(dims)), 0.0)
}

/// `ln sum exp` over the components of `logits [B,H,M,..]`, `[B,H,1,..]`.
pub(super) fn log_sum_exp(logits: Tensor<5>) -> Tensor<5> {
    // Also because Burn 0.22 sums an axis of one element wrongly on wgpu, where the tensor is permuted.
    if logits.dims()[2] == 1 {
        return logits;
    }
    let most = logits.clone().detach().max_dim(2);
    (logits - most.clone()).exp().sum_dim(2).log() + most
}

/// Dropout on `weights [B,H,N,S]` of a block of queries, with the draws of the kernels.
pub(super) fn drop_weights(weights: Tensor<4>, dropout: Option<Dropout>, rows: &Rows) -> Tensor<4> {
    let Some(dropout) = dropout else { return weights };
    let dims = weights.dims();
    let mut factors = Vec::with_capacity(dims.iter().product());
    for head in 0..dims[0] * dims[1] {
        for i in rows.queries.clone() {
            let row = (head * rows.n + i) as u64;
            factors.extend(rows.each_key().map(|j| dropout.factor(row, j)));
        }
    }
    let factors = Tensor::<4>::from_data(TensorData::new(factors, dims), &weights.device());
    weights * factors
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::tensor::Device;
    use regard_kernels::{AttentionOptions, Call, Layout, Mechanism, Padding, mechanism::Score, support::SupportKind};

    use super::*;
    use crate::ops::{Inputs, attention};

    const SHAPE: [usize; 4] = [2, 7, 2, 4];

    /// Numbers of size 1, with `junk` in the last three tokens of the second batch row.
    fn tokens(salt: usize, junk: f32, device: &Device) -> Tensor<4> {
        let [_, n, heads, width] = SHAPE;
        let row = heads * width;
        let number = |i: usize| if i / row >= n + 4 { junk } else { ((i * 31 + salt * 17) % 23) as f32 / 11.5 - 1.0 };
        Tensor::from_data(TensorData::new((0..2 * n * row).map(number).collect::<Vec<f32>>(), SHAPE), device)
    }

    fn numbers<const R: usize>(shape: [usize; R], device: &Device) -> Tensor<R> {
        let count = shape.iter().product::<usize>();
        Tensor::from_data(TensorData::new((0..count).map(|i| (i as f32).sin()).collect::<Vec<f32>>(), shape), device)
    }

    /// Every mechanism that has a composed form of its own, on `q k v`.
    fn attend(name: &str, [q, k, v]: [Tensor<4>; 3], call: Call) -> Tensor<4> {
        let device = q.device();
        let mut options = AttentionOptions { mechanism: name.parse().expect("a mechanism"), ..Default::default() };
        let inputs = Inputs::new(q).with("v", v);
        match options.mechanism {
            Mechanism::Mgk => {
                options.mixture.score = Score::Gaussian;
                let k = Tensor::cat(vec![k.clone().unsqueeze_dim::<5>(2), k.neg().unsqueeze_dim(2)], 2);
                let inputs = inputs.with("k", k).with("log_prior", Tensor::<2>::full([2, 2], -0.7, &device));
                attention(&options, call, &inputs.with("variance", Tensor::<1>::full([2], 2.0, &device)))
            }
            Mechanism::Scatterbrain => {
                options.support.kind = SupportKind::Local;
                options.support.radius = 1;
                attention(&options, call, &inputs.with("k", k).with("projection", numbers([3, 4], &device)))
            }
            Mechanism::Fastformer => {
                let score = || numbers([2, 4], &device);
                let inputs = inputs.with("k", k).with("w_q", score()).with("w_k", score());
                attention::<3>(&options, call, &inputs.with("w_t", numbers([8, 8], &device))).reshape(SHAPE)
            }
            _ => attention(&options, call, &inputs.with("k", k)),
        }
    }

    #[test]
    fn what_padding_holds_never_matters() {
        let device = Device::flex().autodiff();
        let valid = Some(Arc::new(Padding::from_lengths(&[7, 4], 7)));
        // Nobody asks for the outputs of padding.
        let [_, n, heads, width] = SHAPE;
        let asked: Vec<f32> =
            (0..2 * n * heads * width).map(|i| f32::from(u8::from(i < (n + 4) * heads * width))).collect();
        let asked = Tensor::<4>::from_data(TensorData::new(asked, SHAPE), &device);
        for (name, causal) in ["softmax", "linear", "mgk", "scatterbrain", "fastformer"]
            .into_iter()
            .flat_map(|name| [(name, false), (name, true)])
        {
            let run = |junk: f32| {
                let inputs = [1, 2, 3].map(|salt| tokens(salt, junk, &device).require_grad());
                let mask = Mask { causal, ..Mask::none() }.with_valid(valid.clone());
                let call = Call { mask, layout: Layout::TokenFirst, ..Call::default() };
                let out = force_composed(|| attend(name, inputs.clone(), call));
                let out = out.mask_fill(asked.clone().equal_elem(0.0), 0.0);
                let grads = (out.clone() * numbers(SHAPE, &device)).sum().backward();
                // As numbers: a product with padding may be -0.
                let numbers = |tensor: Tensor<4>| tensor.into_data().try_into_vec::<f32>().expect("f32");
                let grads = inputs.map(|input| numbers(input.grad(&grads).expect("a gradient")));
                (numbers(out), grads)
            };
            let clean = run(0.5);
            for junk in [3e38, f32::INFINITY, f32::NAN] {
                assert!(run(junk) == clean, "{name}, causal {causal}, {junk:e} in padding");
            }
        }
    }
}
