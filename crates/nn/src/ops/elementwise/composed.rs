//! The same operations composed of tensor operations, for devices without kernels.

use burn::tensor::{Int, Tensor, TensorData, activation as stock};
use regard_kernels::elementwise::{Curve, Dropout, IGNORE, Rotate};

use super::super::{single, stored_as, stored_like};

pub(super) fn activation<const D: usize>(x: Tensor<D>, bias: Option<Tensor<1>>, curve: Curve) -> Tensor<D> {
    let x = match bias {
        None => x,
        Some(bias) => {
            let bias = stored_like(bias, &x);
            x + bias.unsqueeze()
        }
    };
    match curve {
        Curve::Gelu => stock::gelu(x),
        Curve::GeluTanh => stock::gelu_approximate(x),
        Curve::Relu => stock::relu(x),
        Curve::Silu => stock::silu(x),
        Curve::Tanh => stock::tanh(x),
    }
}

pub(super) fn layer_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, bias: Tensor<1>, epsilon: f32) -> Tensor<D> {
    let format = x.dtype().into();
    let x = single(x);
    let (variance, mean) = x.clone().var_mean_bias(D - 1);
    let out = (x - mean) / (variance + epsilon).sqrt() * weight.unsqueeze() + bias.unsqueeze();
    stored_as(out, format)
}

pub(super) fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f32) -> Tensor<D> {
    let format = x.dtype().into();
    let x = single(x);
    let square = x.clone().square().mean_dim(D - 1);
    stored_as(x / (square + epsilon).sqrt() * weight.unsqueeze(), format)
}

pub(super) fn rotate<const D: usize>(x: Tensor<D>, rotation: &Rotate) -> Tensor<D> {
    let dims = x.dims();
    let (width, pairs) = (dims[D - 1], rotation.pairs());
    let mut shape = [1; D];
    (shape[1], shape[D - 1]) = (dims[1], pairs);
    let [cosine, sine] = rotation
        .tables(dims[1])
        .map(|table| stored_like(Tensor::<D>::from_data(TensorData::new(table.to_vec(), shape), &x.device()), &x));
    let first = x.clone().narrow(D - 1, 0, pairs);
    let second = x.clone().narrow(D - 1, pairs, pairs);
    let mut parts =
        vec![first.clone() * cosine.clone() - second.clone() * sine.clone(), second * cosine + first * sine];
    if 2 * pairs < width {
        parts.push(x.narrow(D - 1, 2 * pairs, width - 2 * pairs));
    }
    Tensor::cat(parts, D - 1)
}

pub(super) fn cross_entropy(logits: Tensor<2>, targets: &[i32], smoothing: f32) -> Tensor<1> {
    let [rows, classes] = logits.dims();
    assert_eq!(targets.len(), rows, "one target a row");
    let device = logits.device();
    let counted = targets.iter().filter(|&&target| target != IGNORE).count();
    if counted == 0 {
        return logits.sum() * 0.0;
    }
    let host = |values: Vec<f32>| Tensor::<2>::from_data(TensorData::new(values, [rows, 1]), &device);
    let weight = targets.iter().map(|&target| if target == IGNORE { 0.0 } else { 1.0 / counted as f32 }).collect();
    let class = targets.iter().map(|&target| target.max(0)).collect();
    let class = Tensor::<2, Int>::from_data(TensorData::new::<i32, _>(class, [rows, 1]), &device);
    let log_p = stock::log_softmax(single(logits), 1);
    let mut loss = log_p.clone().gather(1, class) * (smoothing - 1.0);
    if smoothing > 0.0 {
        loss = loss - log_p.sum_dim(1) * (smoothing / classes as f32);
    }
    (loss * host(weight)).sum()
}

pub(super) fn dropout<const D: usize>(x: Tensor<D>, operator: Dropout) -> Tensor<D> {
    let shape = x.dims();
    let kept: Vec<bool> = (0..shape.iter().product()).map(|place| operator.keeps(place)).collect();
    let dropped = Tensor::from_data(TensorData::new(kept, shape), &x.device()).bool_not();
    (x / (1.0 - operator.rate)).mask_fill(dropped, 0.0)
}

pub(super) fn embedding(table: Tensor<2>, ids: &[i32], [batch, tokens]: [usize; 2]) -> Tensor<3> {
    let [_, width] = table.dims();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(ids.to_vec(), [ids.len()]), &table.device());
    table.select(0, ids).reshape([batch, tokens, width])
}

pub(super) fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let mut shape = x.dims();
    let [from, to] = weight.dims();
    shape[D - 1] = to;
    let rows = x.dims().iter().rev().skip(1).product::<usize>();
    let weight = stored_like(weight, &x);
    let out = x.reshape([rows, from]).matmul(weight).reshape(shape);
    match bias {
        None => out,
        Some(bias) => {
            let bias = stored_like(bias, &out);
            out + bias.unsqueeze()
        }
    }
}
