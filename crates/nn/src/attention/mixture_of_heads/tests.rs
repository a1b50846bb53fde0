use std::collections::BTreeMap;

use burn::tensor::{Device, TensorData};
use regard_kernels::{
    Mechanism, Operator, View,
    reference::{mixture_of_heads::product_gradients, routing::loss_gradient},
    routing::{GateKind, LossScale, MoaOptions, RouterCoefficients},
};
use regard_testkit::{Random, Report};

use super::*;
use crate::{
    blocks::{Positions, RouterLog, Stack},
    models::{ModelConfig, load_parameters, named_parameters},
};

const WIDTH: usize = 12;
const LENGTH: usize = 9;
const NO_LOSSES: MoaOptions = MoaOptions {
    experts: 5,
    active: 2,
    head_width: Some(4),
    gates: GateKind::Paper,
    router: RouterStart::Normal,
    noise: 0.0,
    sampled: 0,
    balance: 0.0,
    z: 0.0,
    cv: 0.0,
    losses: LossScale::Mean,
};

/// A layer whose router has made up its mind.
fn layer(moa: MoaOptions, device: &Device) -> MixtureOfHeads {
    let options = AttentionConfig { mechanism: Mechanism::Moa, moa, ..AttentionConfig::default() };
    let model = ModelConfig { width: WIDTH, ..ModelConfig::default() };
    let layer = MixtureOfHeads::new(Heads::new(&model, &options, LENGTH, 1.0), &Init::new(5, device)).unwrap();
    let mut random = Random::new(9);
    let parameters = named_parameters(&layer).into_iter().map(|parameter| {
        let values = parameter.values.iter().map(|_| (0.4 * random.normal()) as f32).collect();
        (parameter.name, (parameter.shape, values))
    });
    let parameters = parameters.collect();
    load_parameters(layer, parameters).unwrap()
}

fn input(seed: u64, length: usize, device: &Device) -> Tensor<3> {
    let values: Vec<f32> = Random::new(seed).normals(2 * length * WIDTH).into_iter().map(|x| x as f32).collect();
    Tensor::from_data(TensorData::new(values, [2, length, WIDTH]), device)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

fn doubles<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    values(tensor).into_iter().map(f64::from).collect()
}

fn padding() -> Arc<Padding> {
    Arc::new(Padding::from_lengths(&[LENGTH, 5], LENGTH))
}

/// Output and gradients of one pass, by the names of the operator.
fn pass(layer: &MixtureOfHeads, mask: &Mask, context: &Context) -> BTreeMap<&'static str, Vec<f64>> {
    let device = Device::flex().autodiff();
    let x = input(1, LENGTH, &device).require_grad();
    let out = layer.attend(x.clone(), layer.project_keys(x.clone(), Positions::START), mask, context, Place::Weights);
    let grads = (out.clone() * input(2, LENGTH, &device)).sum().backward();
    let of2 = |param: &Param<Tensor<2>>| doubles(param.val().grad(&grads).unwrap());
    let of3 = |param: &Param<Tensor<3>>| doubles(param.val().grad(&grads).unwrap());
    BTreeMap::from([
        ("out", doubles(out)),
        ("x", doubles(x.grad(&grads).unwrap())),
        ("w_gate", of2(&layer.w_gate)),
        ("w_query", of3(&layer.w_query)),
        ("w_key", of2(&layer.w_key)),
        ("w_value", of2(&layer.w_value)),
        ("w_out", of3(&layer.w_out)),
    ])
}

#[test]
fn the_layer_is_the_composite_operator() {
    let device = Device::flex().autodiff();
    let mut report = Report::new();
    for gates in [GateKind::Paper, GateKind::Released] {
        for mask in [Mask::none(), Mask::causal().with_valid(Some(padding()))] {
            let layer = layer(MoaOptions { gates, ..NO_LOSSES }, &device);
            let seen = pass(&layer, &mask, &Context::training(0, 0));
            let operator = regard_kernels::MixtureOfHeads { mask, active: 2, gates, ..Default::default() };
            let x = (values(input(1, LENGTH, &device)), vec![2, LENGTH, WIDTH]);
            let two = |param: &Param<Tensor<2>>| (values(param.val()), param.val().dims().to_vec());
            let three = |param: &Param<Tensor<3>>| (values(param.val()), param.val().dims().to_vec());
            let inputs = [
                x,
                two(&layer.w_gate),
                three(&layer.w_query),
                two(&layer.w_key),
                two(&layer.w_value),
                three(&layer.w_out),
            ];
            let views: Vec<_> = inputs.iter().map(|(data, shape)| View::new(data, shape)).collect();
            let mut out = vec![0.0; seen["out"].len()];
            let saved = operator.forward(&views, &mut out);
            let grad_out = values(input(2, LENGTH, &device));
            let grads = operator.backward(&views, &out, &saved, &grad_out, &[true; 6]);
            let wide = |data: &[f32]| data.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
            report.compare(format_args!("{gates:?} out"), &seen["out"], &wide(&out), 1e-6);
            for (name, grad) in operator.inputs().into_iter().zip(grads) {
                report.compare(format_args!("{gates:?} {name}"), &seen[name], &wide(&grad.unwrap()), 2e-6);
            }
        }
    }
    report.finish();
}

#[test]
fn training_adds_the_gradient_of_the_losses_times_the_scale_of_the_loss() {
    let device = Device::flex().autodiff();
    let mut report = Report::new();
    for (losses, divisor) in [(LossScale::Mean, 1.0), (LossScale::Released, (LENGTH + 5) as f64)] {
        let layer = layer(MoaOptions { balance: 0.5, z: 0.25, cv: 0.125, losses, ..NO_LOSSES }, &device);
        let mask = Mask::none().with_valid(Some(padding()));
        let context = Context::training(0, 0).with_loss_scale(3.0);
        let (with, without) = (pass(&layer, &mask, &context), pass(&layer, &mask, &Context::evaluation()));

        let (x, w_gate) = (doubles(input(1, LENGTH, &device)), doubles(layer.w_gate.val()));
        let (x_shape, w_shape) = ([2, LENGTH, WIDTH], [WIDTH, 5]);
        let (x, w_gate) = (View::new(&x[..], &x_shape), View::new(&w_gate[..], &w_shape));
        let logits = regard_kernels::reference::mixture_of_heads::product(x, w_gate);
        let routing = Routing::new(&logits, [2, LENGTH, 5], 2, None, Some(padding())).unwrap();
        let scale = 3.0 / divisor;
        let coefficients = RouterCoefficients { balance: 0.5 * scale, z: 0.25 * scale, cv: 0.125 * scale };
        let (of_x, of_w) = product_gradients(x, w_gate, &loss_gradient(&routing, &logits, coefficients));
        for (name, wanted) in [("x", of_x), ("w_gate", of_w)] {
            let added: Vec<f64> = with[name].iter().zip(&without[name]).map(|(a, b)| a - b).collect();
            // Differences of float32 numbers that are larger than what is looked for.
            report.compare(format_args!("{losses:?} {name}"), &added, &wanted, 1e-4);
        }
        for name in ["out", "w_query", "w_key", "w_value", "w_out"] {
            report.same(name, &with[name], &without[name]);
        }
    }
    report.finish();
}

#[test]
fn a_log_gets_what_the_router_did() {
    let device = Device::flex();
    let layer = layer(NO_LOSSES, &device);
    let x = input(1, LENGTH, &device);
    let mask = Mask::none().with_valid(Some(padding()));
    let log = Arc::new(RouterLog::with_choices());
    let context = Context::evaluation().with_router_log(log.clone()).in_stack(Stack::Decoder).at_layer(3);
    layer.attend(x.clone(), layer.project_keys(x.clone(), Positions::START), &mask, &context, Place::Weights);
    let cross = Mask { query_valid: Some(padding()), ..Mask::none() };
    layer.attend(
        x.clone(),
        layer.project_keys(input(4, 4, &device), Positions::START),
        &cross,
        &context,
        Place::CrossWeights,
    );
    let records = log.take();
    assert!(log.take().is_empty(), "taken");
    assert_eq!(records.len(), 2);
    let record = &records[0];
    assert_eq!((record.stack, record.layer, record.place), (Stack::Decoder, 3, Place::Weights));
    assert_eq!((record.tokens, record.load.len()), (LENGTH + 5, 5));
    assert!((record.load.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert_eq!(record.chosen.as_ref().unwrap().len(), 2 * LENGTH * 2);
    let logits = values(layer.logits(x));
    let routing = Routing::new(&logits, [2, LENGTH, 5], 2, None, Some(padding())).unwrap();
    let losses = router_losses(&routing, &logits);
    assert_eq!((record.balance, record.z, record.cv), (losses.balance, losses.z, losses.cv));
    assert!(0.0 < record.entropy && record.entropy <= 5f64.ln());
    // The same queries, wherever keys come from.
    assert_eq!(records[1], RouterRecord { place: Place::CrossWeights, ..record.clone() });
}

#[test]
fn noise_and_draws_act_in_training_alone_and_by_key() {
    let device = Device::flex();
    let x = input(1, LENGTH, &device);
    let options = [
        MoaOptions { noise: 1.0, ..NO_LOSSES },
        MoaOptions { sampled: 1, ..NO_LOSSES },
        MoaOptions { sampled: 2, ..NO_LOSSES },
    ];
    let chosen = |moa: &MoaOptions, context: Context| {
        let layer = layer(moa.clone(), &device);
        let log = Arc::new(RouterLog::with_choices());
        let context = context.with_router_log(log.clone());
        layer.attend(
            x.clone(),
            layer.project_keys(x.clone(), Positions::START),
            &Mask::none(),
            &context,
            Place::Weights,
        );
        log.take().remove(0).chosen.unwrap()
    };
    let plain = chosen(&NO_LOSSES, Context::training(1, 2));
    for moa in options {
        let first = chosen(&moa, Context::training(1, 2));
        assert_eq!(first, chosen(&moa, Context::training(1, 2)), "{moa:?}");
        assert_ne!(first, chosen(&moa, Context::training(1, 3)), "{moa:?}");
        assert_ne!(first, plain, "{moa:?}");
        assert_eq!(chosen(&moa, Context::evaluation()), plain, "{moa:?}");
        assert!(first.chunks_exact(2).all(|two| two[0] != two[1]), "{moa:?}");
    }
}

#[test]
fn a_released_router_starts_with_the_first_experts() {
    let device = Device::flex();
    let options = |router| AttentionConfig {
        mechanism: Mechanism::Moa,
        moa: MoaOptions { router, ..NO_LOSSES },
        ..AttentionConfig::default()
    };
    let model = ModelConfig { width: WIDTH, ..ModelConfig::default() };
    let loads = [RouterStart::Released, RouterStart::Normal].map(|router| {
        let layer =
            MixtureOfHeads::new(Heads::new(&model, &options(router), LENGTH, 1.0), &Init::new(5, &device)).unwrap();
        let (routing, _) = ops::route(&layer.logits(input(1, LENGTH, &device)), 2, None, None);
        routing.load()
    });
    assert_eq!(loads[0], [0.5, 0.5, 0.0, 0.0, 0.0]);
    assert!(loads[1].iter().filter(|load| **load > 0.0).count() > 2, "{:?}", loads[1]);
}
