//! Operators on the buffers of Flex tensors.

use burn::backend::{Flex, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};
use regard_kernels::{Operator, Saved, View, memory::arbitrary};

use super::{Call, Kernels, operands::Operands};

impl Kernels for Flex {
    fn run(call: Call, inputs: Operands<Self>) -> FloatTensor<Self> {
        forward(&call, &inputs.into_vec()).0
    }
}

/// Output and what the backward pass needs.
pub(super) fn forward(call: &Call, inputs: &[FlexTensor]) -> (FlexTensor, Saved) {
    let mut out = arbitrary(call.shape.iter().product());
    let saved = with_views(inputs, |views| call.operator.forward(views, &mut out));
    (wrap(out, &call.shape), saved)
}

/// One gradient per input where `wanted`.
pub(super) fn backward(
    operator: &dyn Operator,
    inputs: &[FlexTensor],
    out: Option<&FlexTensor>,
    saved: &Saved,
    grad_out: FlexTensor,
    wanted: &[bool],
) -> Vec<Option<FlexTensor>> {
    let grad_out = dense(grad_out);
    let out = out.map_or(&[][..], slice);
    let grads = with_views(inputs, |views| operator.backward(views, out, saved, slice(&grad_out), wanted));
    assert_eq!(grads.len(), inputs.len(), "{operator:?} returned a wrong number of gradients");
    grads.into_iter().zip(inputs).map(|(grad, input)| Some(wrap(grad?, &input.shape()))).collect()
}

/// Lends the elements of `inputs`, copying only those that do not lie in row-major order.
fn with_views<R>(inputs: &[FlexTensor], task: impl FnOnce(&[View<f32>]) -> R) -> R {
    let inputs: Vec<FlexTensor> = inputs.iter().cloned().map(dense).collect();
    let views: Vec<_> = inputs.iter().map(|input| View::new(slice(input), input.layout().shape())).collect();
    task(&views)
}

/// The same tensor in row-major order.
fn dense(tensor: FlexTensor) -> FlexTensor {
    let layout = tensor.layout();
    if layout.is_contiguous() {
        return tensor;
    }
    // One element seen everywhere, as in the gradient that a plain sum sends back: Burn would gather it step by step.
    let still = layout.shape().iter().zip(layout.strides()).all(|(&size, &stride)| size == 1 || stride == 0);
    if let (true, Some(&value)) = (still, tensor.storage::<f32>().get(layout.start_offset())) {
        return wrap(vec![value; layout.num_elements()], layout.shape());
    }
    tensor.to_contiguous()
}

fn slice(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("f32 in row-major order")
}

/// A tensor around `data`, which is not copied.
fn wrap(data: Vec<f32>, shape: &[usize]) -> FlexTensor {
    assert_eq!(data.len(), shape.iter().product::<usize>(), "a buffer of the wrong size for {shape:?}");
    FlexTensor::new(Bytes::from_elems(data), Layout::contiguous(Shape::from(shape)), DType::F32)
}
