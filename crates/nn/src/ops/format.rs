//! Formats of floating-point numbers.

use burn::tensor::{DType, FloatDType, Tensor};

use super::{Inputs, Operand, bridge::each_rank};

/// `x` in another format.
pub(crate) fn stored_as<const D: usize>(x: Tensor<D>, format: FloatDType) -> Tensor<D> {
    if x.dtype() == DType::from(format) { x } else { x.cast(format) }
}

/// `x` in the format of `other`: Burn's operations want the same of both.
pub(crate) fn stored_like<const D: usize, const R: usize>(x: Tensor<D>, other: &Tensor<R>) -> Tensor<D> {
    stored_as(x, other.dtype().into())
}

/// `x` in f32.
pub(crate) fn single<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    stored_as(x, FloatDType::F32)
}

impl Operand {
    /// The same in another format.
    pub(crate) fn stored_as(self, format: FloatDType) -> Self {
        each_rank!(self, tensor => stored_as(tensor, format).into())
    }
}

impl Inputs {
    /// The same in f32.
    #[must_use]
    pub(crate) fn single(&self) -> Self {
        self.map(|_, input| input.clone().stored_as(FloatDType::F32))
    }
}
