//! Time of a layer of the mixture of attention heads beside multi-head attention of the same multiply-adds in attention.
//!
//! ```sh
//! RAYON_NUM_THREADS=2 cargo run --release -p regard-nn --example attention_cost -- 8 512 512 32 8
//! ```
//!
//! Arguments: batch, length, width, experts, active experts, which are also the heads of the other layer. The layers take
//! turns; printed are medians in milliseconds, and the median of the ratios of neighbouring runs.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::{Mechanism, mechanism::Position, random::bits, routing::MoaOptions};
use regard_nn::{
    attention::{Attention, AttentionConfig},
    blocks::{Context, Init, Place},
    models::ModelConfig,
};

const RUNS: usize = 21;

fn main() {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let argument = |n: usize, default| given.get(n).copied().unwrap_or(default);
    let shape @ [_, length, width] = [argument(0, 8), argument(1, 512), argument(2, 512)];
    let (experts, active) = (argument(3, 32), argument(4, 8));

    let model = ModelConfig { width, bias: false, ..ModelConfig::default() };
    let plain = AttentionConfig { heads: active, position: Position::None, ..AttentionConfig::default() };
    let moa = MoaOptions { experts, active, ..MoaOptions::default() };
    let mixture = AttentionConfig { mechanism: Mechanism::Moa, moa, ..plain.clone() };
    println!("{shape:?}, {experts} experts, {active} a token");
    for (name, device) in [("forward", Device::flex()), ("both", Device::flex().autodiff())] {
        let layer = |options| Attention::new(&model, options, length, &Init::new(1, &device)).expect("sizes that fit");
        let layers = [layer(&plain), layer(&mixture)];
        let (x, weights) = (uniform(shape, 1, &device), uniform(shape, 2, &device));
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..RUNS {
            for (layer, times) in layers.iter().zip(&mut times) {
                times.push(milliseconds(layer, &x, &weights));
            }
        }
        let ratios = times[0].iter().zip(&times[1]).map(|(plain, mixture)| mixture / plain).collect();
        let [plain, mixture] = times.map(median);
        println!("{name:<8} softmax {plain:.1} ms, moa {mixture:.1} ms, ratio {:.2}", median(ratios));
    }
}

/// Time of one pass: with its gradients where the tensors have any.
fn milliseconds(layer: &Attention, x: &Tensor<3>, weights: &Tensor<3>) -> f64 {
    let (mask, start) = (layer.mask(None), Instant::now());
    if x.device().is_autodiff() {
        let x = x.clone().require_grad();
        let out = layer.forward(x.clone(), x.clone(), &mask, &Context::training(0, 0), Place::Weights);
        let grads = (out * weights.clone()).sum().backward();
        std::hint::black_box(x.grad(&grads));
    } else {
        let out = layer.forward(x.clone(), x.clone(), &mask, &Context::evaluation(), Place::Weights);
        std::hint::black_box(out);
    }
    start.elapsed().as_secs_f64() * 1e3
}

/// Numbers in `[-1, 1)`.
fn uniform(shape: [usize; 3], key: u64, device: &Device) -> Tensor<3> {
    let values = (0..shape.iter().product::<usize>()).map(|i| bits(key, i as u32) as f32 / 2f32.powi(31) - 1.0);
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), device)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
