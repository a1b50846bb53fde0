//! Fused operations between attention layers: one kernel each on the CPU, composed of tensor operations elsewhere.
//!
//! Each takes `x` in f32, f16 or bf16 and answers in the same format; its parameters may be in another.

mod composed;

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use regard_kernels::elementwise::{
    Activation, Affine, CrossEntropy, Dropout, Embedding, Gated, LayerNorm, RmsNorm, Rotate,
};

pub use regard_kernels::elementwise::{Curve, IGNORE};

use super::{
    bridge::{apply_forgetting_all, apply_forgetting_output as apply, multiply, runs_kernels, runs_unrecorded},
    single,
};

/// Whether kernels work on this tensor.
fn fused<const D: usize>(x: &Tensor<D>) -> bool {
    matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16) && runs_kernels(&x.device())
}

/// `curve(x + bias)`, element by element, with `x [.., width]` and `bias [width]`.
///
/// # Panics
/// If the bias has another width.
pub fn activation<const D: usize>(x: Tensor<D>, bias: Option<Tensor<1>>, curve: Curve) -> Tensor<D> {
    // Burn's own works in place; our kernel was slower.
    let in_place = curve == Curve::Relu && bias.is_none();
    if in_place || !fused(&x) {
        return composed::activation(x, bias, curve);
    }
    let operator = Arc::new(Activation { curve, bias: bias.is_some() });
    match bias {
        None => apply(operator, &[x.into()]),
        Some(bias) => apply(operator, &[x.into(), bias.into()]),
    }
}

/// `curve(gate) * up`, both `[.., width]`: SwiGLU with [`Curve::Silu`], GeGLU with [`Curve::Gelu`] (Shazeer 2020).
///
/// # Panics
/// If the shapes differ.
pub fn gated<const D: usize>(gate: Tensor<D>, up: Tensor<D>, curve: Curve) -> Tensor<D> {
    if fused(&gate) {
        apply(Arc::new(Gated { curve }), &[gate.into(), up.into()])
    } else {
        composed::activation(gate, None, curve) * up
    }
}

/// `x / sqrt(mean(x^2) + epsilon) * weight` over the rows of `x [.., width]`, with `weight [width]` (Zhang and Sennrich 2019).
///
/// # Panics
/// If the weight has another width.
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f32) -> Tensor<D> {
    if fused(&x) {
        apply(Arc::new(RmsNorm { epsilon }), &[x.into(), weight.into()])
    } else {
        composed::rms_norm(x, weight, epsilon)
    }
}

/// Rotates `x [B,N,..,D]` by the angles of its positions.
///
/// # Panics
/// A position beyond the tables of `rotation`, or channels that do not fit them.
pub fn rotate<const D: usize>(x: Tensor<D>, rotation: Rotate) -> Tensor<D> {
    if fused(&x) { apply_forgetting_all(Arc::new(rotation), x.into()) } else { composed::rotate(x, &rotation) }
}

/// Layer normalisation of the rows of `x [.., width]`, then `weight [width]` and `bias [width]`:
/// `(x - mean) / sqrt(variance + epsilon) * weight + bias`, with the biased variance.
///
/// # Panics
/// If a parameter has another width.
pub fn layer_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, bias: Tensor<1>, epsilon: f32) -> Tensor<D> {
    if fused(&x) {
        apply(Arc::new(LayerNorm { epsilon }), &[x.into(), weight.into(), bias.into()])
    } else {
        composed::layer_norm(x, weight, bias, epsilon)
    }
}

/// Mean cross-entropy of `logits [rows, classes]` with one target class per row, `[1]`. Rows whose target is [`IGNORE`] do
/// not count; 0 where none does. `smoothing` is the share of each target's weight that is spread over all classes.
///
/// # Panics
/// If there are more or fewer targets than rows, a target is not a class, or `smoothing` is not in `[0, 1)`.
pub fn cross_entropy(logits: Tensor<2>, targets: impl Into<Arc<[i32]>>, smoothing: f32) -> Tensor<1> {
    if fused(&logits) {
        apply(Arc::new(CrossEntropy::new(targets.into(), smoothing)), &[logits.into()])
    } else {
        composed::cross_entropy(logits, &targets.into(), smoothing)
    }
}

/// Each element of `x` becomes 0 with probability `rate`, the others grow by `1 / (1 - rate)`. The same key gives the
/// same choice, on every device.
///
/// # Panics
/// If `rate` is not in `[0, 1)`.
pub fn dropout<const D: usize>(x: Tensor<D>, rate: f32, key: u64) -> Tensor<D> {
    let operator = Dropout { rate, key };
    if rate == 0.0 {
        x
    } else if fused(&x) {
        apply_forgetting_all(Arc::new(operator), x.into())
    } else {
        composed::dropout(x, operator)
    }
}

/// Rows of `table [vocabulary, width]` by number: `ids [batch, tokens]`, in row-major order, give `[batch, tokens, width]`, in
/// f32 also of a table in f16 or bf16.
///
/// # Panics
/// If there are not `batch * tokens` ids or one is not in the table.
pub fn embedding(table: Tensor<2>, ids: impl Into<Arc<[i32]>>, [batch, tokens]: [usize; 2]) -> Tensor<3> {
    // The kernel would convert the whole of a table of 16 bits.
    if fused(&table) && table.dtype() == DType::F32 {
        apply(Arc::new(Embedding::new(ids.into(), batch, tokens)), &[table.into()])
    } else {
        single(composed::embedding(table, &ids.into(), [batch, tokens]))
    }
}

/// `x weight + bias` with `x [.., from]`, `weight [from, to]`, `bias [to]`. On the CPU and without autodiff the weight may be in
/// f16 or bf16; when decoding token by token, weights with contiguous columns are the fastest
/// ([`compact_weights`](crate::models::compact_weights)).
///
/// # Panics
/// If the sizes do not fit.
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    if !fused(&x) {
        return composed::linear(x, weight, bias);
    }
    if x.dtype() == DType::F32 && runs_unrecorded(&x.device()) {
        return multiply(x, weight, bias);
    }
    let operator = Arc::new(Affine { bias: bias.is_some() });
    match bias {
        None => apply(operator, &[x.into(), weight.into()]),
        Some(bias) => apply(operator, &[x.into(), weight.into(), bias.into()]),
    }
}

#[cfg(test)]
mod tests;
