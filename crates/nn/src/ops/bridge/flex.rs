//! Operators on the buffers of Flex tensors.

use burn::backend::{Flex, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{Bytes, DType, Shape, Tensor};
use burn_flex::{FlexTensor, Layout};
use regard_kernels::{
    Operator, Saved, StoredView, View,
    elementwise::Affine,
    memory::arbitrary,
    stored::{Stored, bf16, f16, narrowed, product, widened},
};

use super::{Call, Kernels, operands::Operands};

impl Kernels for Flex {
    fn run(call: Call, inputs: Operands<Self>) -> FloatTensor<Self> {
        forward(&call, &inputs.into_vec()).0
    }

    fn multiply(inputs: Operands<Self>) -> FloatTensor<Self> {
        let mut inputs = inputs.into_vec().into_iter();
        let (x, weight) = inputs.next().zip(inputs.next()).expect("two operands at least");
        multiply(x, weight, inputs.next())
    }
}

/// `x weight + bias` with `weight [from,to]`, which is read in place if its columns are contiguous.
fn multiply(x: FlexTensor, weight: FlexTensor, bias: Option<FlexTensor>) -> FlexTensor {
    let (x, bias) = (dense(x), bias.map(dense));
    let mut shape = x.layout().shape().to_vec();
    let &[from, to] = &weight.layout().shape()[..] else { panic!("a weight of two axes") };
    let width = shape.last_mut().expect("at least one axis");
    assert_eq!(*width, from, "a row of the weight for each column of x");
    *width = to;
    let mut out = arbitrary(shape.iter().product());
    if weight.dtype() == DType::F32 && weight.layout().is_contiguous() {
        let operator = Affine { bias: bias.is_some() };
        let inputs: Vec<FlexTensor> = [Some(x), Some(weight), bias].into_iter().flatten().collect();
        with_views(&inputs, |views| operator.forward(views, &mut out));
        return wrap(out, &shape);
    }
    let turned = weight.transpose(0, 1);
    let turned = if turned.layout().is_contiguous() { turned } else { turned.to_contiguous() };
    let at = turned.layout().start_offset();
    let place = at..at + from * to;
    let stored = match turned.dtype() {
        DType::F32 => Stored::F32(&turned.storage::<f32>()[place]),
        DType::F16 => Stored::F16(&turned.storage::<f16>()[place]),
        DType::BF16 => Stored::Bf16(&turned.storage::<bf16>()[place]),
        other => panic!("a weight of {other:?}, expected F32, F16 or BF16"),
    };
    let rows = slice(&x).len() / from.max(1);
    product([rows, from, to], slice(&x), stored, bias.as_ref().map(slice), &mut out);
    wrap(out, &shape)
}

/// Output and what the backward pass needs.
pub(super) fn forward(call: &Call, inputs: &[FlexTensor]) -> (FlexTensor, Saved) {
    let mut out = arbitrary(call.shape.iter().product());
    let inputs = all_dense(inputs);
    let direct = with_stored(&inputs, |views| call.operator.forward_stored(views, &mut out));
    let saved = direct.unwrap_or_else(|| with_views(&inputs, |views| call.operator.forward(views, &mut out)));
    (stored(out, &call.shape, inputs[0].dtype()), saved)
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
    let (inputs, grad_out) = (&all_dense(inputs), dense(grad_out));
    let direct = with_stored(inputs, |views| operator.backward_stored(views, numbers(&grad_out), wanted));
    let grads = direct.unwrap_or_else(|| {
        let (grad_out, out) = (single(grad_out), out.cloned().map(single));
        let out = out.as_ref().map_or(&[][..], slice);
        with_views(inputs, |views| operator.backward(views, out, saved, slice(&grad_out), wanted))
    });
    assert_eq!(grads.len(), inputs.len(), "{operator:?} returned a wrong number of gradients");
    grads.into_iter().zip(inputs).map(|(grad, input)| Some(stored(grad?, &input.shape(), input.dtype()))).collect()
}

/// Lends the elements of `inputs`; only tensors that are not f32 in row-major order are copied.
fn with_views<R>(inputs: &[FlexTensor], task: impl FnOnce(&[View<f32>]) -> R) -> R {
    let inputs: Vec<FlexTensor> = inputs.iter().cloned().map(single).collect();
    let views: Vec<_> = inputs.iter().map(|input| View::new(slice(input), input.layout().shape())).collect();
    task(&views)
}

/// The same for inputs in row-major order of which the first is not f32, as they are stored; none where it is.
fn with_stored<R>(inputs: &[FlexTensor], task: impl FnOnce(&[StoredView]) -> Option<R>) -> Option<R> {
    if inputs[0].dtype() == DType::F32 {
        return None;
    }
    let view = |input| StoredView { data: numbers(input), shape: FlexTensor::layout(input).shape() };
    task(&inputs.iter().map(view).collect::<Vec<_>>())
}

/// The elements of a tensor in row-major order.
fn numbers(tensor: &FlexTensor) -> Stored<'_> {
    match tensor.dtype() {
        DType::F16 => Stored::F16(tensor.as_slice().expect("f16 in row-major order")),
        DType::BF16 => Stored::Bf16(tensor.as_slice().expect("bf16 in row-major order")),
        _ => Stored::F32(slice(tensor)),
    }
}

/// Lends the elements of a float32 tensor of Flex, which is copied only if it is not in row-major order. Returns the task
/// for any other tensor.
pub(crate) fn with_dense<const D: usize, R, T: FnOnce(&[f32]) -> R>(tensor: &Tensor<D>, task: T) -> Result<R, T> {
    match tensor.clone().without_autodiff().try_into_primitive::<Flex>() {
        Ok(tensor) if tensor.dtype() == DType::F32 => Ok(task(slice(&dense(tensor)))),
        _ => Err(task),
    }
}

/// The same tensors in row-major order.
fn all_dense(inputs: &[FlexTensor]) -> Vec<FlexTensor> {
    inputs.iter().cloned().map(dense).collect()
}

/// The same tensor in f32 and row-major order.
fn single(tensor: FlexTensor) -> FlexTensor {
    let tensor = dense(tensor);
    let wide = match numbers(&tensor) {
        Stored::F16(numbers) => widened(numbers),
        Stored::Bf16(numbers) => widened(numbers),
        _ => return tensor,
    };
    wrap(wide, tensor.layout().shape())
}

/// A tensor of the elements `data` in the format `kind`.
fn stored(data: Vec<f32>, shape: &[usize], kind: DType) -> FlexTensor {
    let bytes = match kind {
        DType::F16 => Bytes::from_elems(narrowed::<f16>(&data)),
        DType::BF16 => Bytes::from_elems(narrowed::<bf16>(&data)),
        _ => return wrap(data, shape),
    };
    FlexTensor::new(bytes, Layout::contiguous(Shape::from(shape)), kind)
}

/// The same tensor in row-major order.
fn dense(tensor: FlexTensor) -> FlexTensor {
    let layout = tensor.layout();
    if layout.is_contiguous() {
        return tensor;
    }
    // One element broadcast to the whole tensor, as in the gradient of a sum: Burn would gather it element by element.
    let still = layout.shape().iter().zip(layout.strides()).all(|(&size, &stride)| size == 1 || stride == 0);
    if still
        && tensor.dtype() == DType::F32
        && let Some(&value) = tensor.storage::<f32>().get(layout.start_offset())
    {
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
