use super::*;
use burn::tensor::{Device, FloatDType, TensorData};
use regard_kernels::random;

/// Values in `(-2, 2)`, tracked.
fn draw<const D: usize>(shape: [usize; D], key: u64) -> Tensor<D> {
    let value = |i| random::bits(key, i) as f32 / 2f32.powi(30) - 2.0;
    let values: Vec<f32> = (0..shape.iter().product::<usize>() as u32).map(value).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff()).require_grad()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

fn assert_close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1.0f32, |scale, want| scale.max(want.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() < 1e-5 * scale, "{what}[{i}] is {got}, expected {want}");
    }
}

/// The value of `form` and the gradient of its weighted sum in each parameter.
macro_rules! run {
    ($form:expr, $($parameter:ident),+) => {{
        let out = $form;
        let weights = draw(out.dims(), 77).detach();
        let grads = (out.clone() * weights).sum().backward();
        (values(out.inner()), vec![$(values($parameter.grad(&grads).expect(stringify!($parameter)))),+])
    }};
}

/// Holds the fused and the composed form together, in value and gradients.
macro_rules! agree {
    ($fused:expr, $composed:expr, $($parameter:ident),+) => {{
        let (fused, fused_grads) = run!($fused, $($parameter),+);
        let (composed, composed_grads) = run!($composed, $($parameter),+);
        assert_close("value", &fused, &composed);
        let names = [$(stringify!($parameter)),+];
        for ((name, got), want) in names.into_iter().zip(&fused_grads).zip(&composed_grads) {
            assert_close(name, got, want);
        }
    }};
}

#[test]
fn activations_agree_with_their_composed_form() {
    let (x, bias) = (draw([3, 5, 8], 1), draw([8], 2));
    for &curve in Curve::ALL {
        agree!(activation(x.clone(), None, curve), composed::activation(x.clone(), None, curve), x);
    }
    let shift = || Some(bias.clone());
    for curve in [Curve::Gelu, Curve::Relu] {
        agree!(activation(x.clone(), shift(), curve), composed::activation(x.clone(), shift(), curve), x, bias);
    }
}

#[test]
fn gated_activations_agree_with_their_composed_form() {
    let (gate, up) = (draw([3, 5, 8], 1), draw([3, 5, 8], 2));
    let composed = composed::activation(gate.clone(), None, Curve::Silu) * up.clone();
    agree!(gated(gate.clone(), up.clone(), Curve::Silu), composed.clone(), gate, up);
}

#[test]
fn rms_norm_agrees_with_its_composed_form() {
    let (x, weight) = (draw([2, 7, 24], 3), draw([24], 4));
    agree!(rms_norm(x.clone(), weight.clone(), 1e-5), composed::rms_norm(x.clone(), weight.clone(), 1e-5), x, weight);
}

#[test]
fn rotation_agrees_with_its_composed_form() {
    let x = draw([2, 3, 4, 7], 3);
    let table = |f: fn(f32) -> f32| (0..5 * 2).map(|i| f(i as f32 * 0.3)).collect::<Vec<_>>().into();
    let rotation = Rotate::new(table(f32::cos), table(f32::sin), 2, 2);
    agree!(rotate(x.clone(), rotation.clone()), composed::rotate(x.clone(), &rotation), x);
}

#[test]
fn layer_norm_agrees_with_its_composed_form() {
    let (x, weight, bias) = (draw([2, 7, 24], 3), draw([24], 4), draw([24], 5));
    agree!(
        layer_norm(x.clone(), weight.clone(), bias.clone(), 1e-5),
        composed::layer_norm(x.clone(), weight.clone(), bias.clone(), 1e-5),
        x,
        weight,
        bias
    );
}

#[test]
fn cross_entropy_agrees_with_its_composed_form() {
    let logits = draw([6, 11], 6);
    for smoothing in [0.0, 0.2] {
        for targets in [[0, 10, 3, 3, 7, 1], [IGNORE, 10, 3, IGNORE, 7, 1], [IGNORE; 6]] {
            agree!(
                cross_entropy(logits.clone(), targets, smoothing),
                composed::cross_entropy(logits.clone(), &targets, smoothing),
                logits
            );
        }
    }
}

#[test]
fn dropout_agrees_with_its_composed_form_to_the_bit_of_the_mask() {
    let x = draw([4, 9, 10], 7);
    let operator = Dropout { rate: 0.3, key: 12 };
    agree!(dropout(x.clone(), operator.rate, operator.key), composed::dropout(x.clone(), operator), x);
    assert_eq!(values(dropout(x.clone(), 0.0, 1).inner()), values(x.inner()));
}

#[test]
fn embedding_agrees_with_its_composed_form() {
    let table = draw([5, 6], 8);
    let ids = [4, 0, 0, 2, 4, 0];
    agree!(embedding(table.clone(), ids, [2, 3]), composed::embedding(table.clone(), &ids, [2, 3]), table);
}

#[test]
fn linear_agrees_with_its_composed_form() {
    let (x, weight, bias) = (draw([3, 4, 10], 9), draw([10, 7], 10), draw([7], 11));
    agree!(
        linear(x.clone(), weight.clone(), Some(bias.clone())),
        composed::linear(x.clone(), weight.clone(), Some(bias.clone())),
        x,
        weight,
        bias
    );
    agree!(linear(x.clone(), weight.clone(), None), composed::linear(x.clone(), weight.clone(), None), x, weight);
    let (row, flat) = (draw([10], 12), bias.clone());
    agree!(
        linear(row.clone(), weight.clone(), Some(flat.clone())),
        composed::linear(row.clone(), weight.clone(), Some(flat.clone())),
        row,
        weight,
        flat
    );
}

#[test]
fn other_element_types_take_the_composed_form() {
    let x = draw([2, 8], 13).detach().cast(DType::F64);
    assert_eq!(activation(x, None, Curve::Gelu).dtype(), DType::F64);
}

#[test]
fn linear_reads_weights_as_they_are_stored() {
    let device = Device::flex();
    let plain = |tensor: Tensor<2>| tensor.without_autodiff();
    for (shape, to) in [([1, 1, 40], 70), ([2, 3, 33], 130), ([1, 300, 64], 48), ([1, 1, 1], 1)] {
        let from = shape[2];
        let (x, weight) = (draw(shape, 1).without_autodiff(), plain(draw([to, from], 2)));
        for kind in [FloatDType::F32, FloatDType::F16, FloatDType::BF16] {
            let stored = weight.clone().cast(kind);
            let exact = stored.clone().cast(FloatDType::F32).transpose();
            for bias in [None, Some(draw([to], 3).without_autodiff())] {
                let expected = values(composed::linear(x.clone(), exact.clone(), bias.clone()));
                // Turned in place, and with its rows side by side.
                let dense = Tensor::<2>::from_data(exact.clone().into_data(), &device).cast(kind);
                for weight in [stored.clone().transpose(), dense] {
                    let seen = values(linear(x.clone(), weight, bias.clone()));
                    assert_close(&format!("{shape:?} {to} {kind:?}"), &seen, &expected);
                }
            }
        }
        let table = weight.cast(FloatDType::F16);
        let rows = embedding(table.clone(), vec![0, to as i32 - 1], [1, 2]);
        let expected = values(table.cast(FloatDType::F32));
        assert_eq!(values(rows)[from..], expected[(to - 1) * from..]);
    }
}
