//! One backend extension for every operator.

mod apart;
mod autodiff;
mod flex;
mod operands;

use std::sync::Arc;

use burn::backend::{Backend, Dispatch, DispatchDevice, TensorMetadata, backend_extension, tensor::FloatTensor};
use burn::tensor::{DType, Device, Tensor};
use regard_kernels::{Error, Operator};

pub(crate) use apart::{Pullback, entered, takes_results};
pub(crate) use flex::with_dense;
use operands::Operands;
pub(crate) use operands::each_rank;
pub use operands::{MOST_OPERANDS, Operand};

/// Backends that run operators.
#[backend_extension(Flex, Autodiff)]
trait Kernels: Backend {
    /// The output of the call's operator for `inputs`, which have passed [`Operator::out_shape`].
    fn run(call: Call, #[extension_type] inputs: Operands<Self>) -> FloatTensor<Self>;

    /// [`multiply`] for tensors without autodiff.
    fn multiply(#[extension_type] inputs: Operands<Self>) -> FloatTensor<Self>;
}

/// An operator about to run.
struct Call {
    operator: Arc<dyn Operator>,
    /// Shape of its output.
    shape: Vec<usize>,
    /// What a recorded call holds for the backward pass.
    keep: Keep,
}

/// What a recorded call holds for the backward pass beside what the operator saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    InputsAndOutput,
    /// The backward pass gets an empty output.
    Inputs,
    /// And, where an input was, the gradient of the output.
    Neither,
}

/// Whether tensors of this device can go through [`apply`]: those of Flex, with or without autodiff.
pub fn runs_kernels(device: &Device) -> bool {
    match device.as_dispatch() {
        DispatchDevice::Flex(_) => true,
        DispatchDevice::Autodiff(device) => matches!(**device, DispatchDevice::Flex(_)),
        #[allow(unreachable_patterns)] // Depends on which backends Burn was built with.
        _ => false,
    }
}

/// Whether tensors of this device can go through [`multiply`]: those of Flex without autodiff.
pub(crate) fn runs_unrecorded(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Flex(_))
}

/// `x weight + bias` for inference, `x [..,from]` and `bias [to]` in f32, `weight [from,to]` in f32, f16 or bf16. A weight with
/// contiguous columns is read in place.
///
/// # Panics
/// If the sizes do not fit, or for a device of which [`runs_unrecorded`] is not true.
pub(super) fn multiply<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let inputs = [Some(Operand::from(x)), Some(weight.into()), bias.map(Operand::from)];
    let inputs = Operands::from_vec(inputs.into_iter().flatten().map(|input| input.0).collect());
    Tensor::from_dispatch(Dispatch::multiply(inputs))
}

/// The output of `operator`, differentiable in every input but its constants.
///
/// Inputs may be stored in f32, f16 or bf16, each in its own; the output has the format of the first, a gradient that of its
/// input. Sums are in f32.
///
/// # Errors
/// Inputs that do not fit the operator or each other, are of another format, or whose output has not `D` axes.
pub fn try_apply<const D: usize>(operator: Arc<dyn Operator>, inputs: &[Operand]) -> Result<Tensor<D>, Error> {
    run(operator, inputs, Keep::InputsAndOutput)
}

/// The output of `operator`, differentiable in every input but its constants: [`try_apply`] for layers, which know their shapes.
///
/// # Panics
/// Where [`try_apply`] fails.
pub fn apply<const D: usize>(operator: Arc<dyn Operator>, inputs: &[Operand]) -> Tensor<D> {
    try_apply(operator, inputs).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`apply`], for operators whose backward pass never looks at the output: it gets an empty one, so that the output's
/// memory is free as soon as nobody else holds it, and whoever holds it alone may write into it.
pub(super) fn apply_forgetting_output<const D: usize>(operator: Arc<dyn Operator>, inputs: &[Operand]) -> Tensor<D> {
    run(operator, inputs, Keep::Inputs).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`apply`], for operators whose output is of the shape and format of their one input and whose backward pass looks at the
/// values of neither: what went in is free as soon as nobody else holds it.
pub(super) fn apply_forgetting_all<const D: usize>(operator: Arc<dyn Operator>, input: Operand) -> Tensor<D> {
    run(operator, &[input], Keep::Neither).unwrap_or_else(|error| panic!("{error}"))
}

fn run<const D: usize>(operator: Arc<dyn Operator>, inputs: &[Operand], keep: Keep) -> Result<Tensor<D>, Error> {
    let names = operator.inputs();
    if names.len() != inputs.len() || inputs.is_empty() || inputs.len() > MOST_OPERANDS {
        let expected = format!("{} ({}), at most {MOST_OPERANDS}", names.len(), names.join(", "));
        return Err(Error::option("number of inputs", inputs.len(), expected));
    }
    for (name, input) in names.iter().zip(inputs) {
        let kind = input.0.dtype();
        if !matches!(kind, DType::F32 | DType::F16 | DType::BF16) {
            return Err(Error::option(format!("element type of '{name}'"), format!("{kind:?}"), "F32, F16 or BF16"));
        }
    }
    let shapes: Vec<Vec<usize>> = inputs.iter().map(Operand::shape).collect();
    let shape = operator.out_shape(&shapes.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    if shape.len() != D {
        return Err(Error::rank("out", &shape, D));
    }
    let inputs = Operands::from_vec(inputs.iter().map(|input| input.0.clone()).collect());
    Ok(Tensor::from_dispatch(Dispatch::run(Call { operator, shape, keep }, inputs)))
}

#[cfg(test)]
mod tests;
