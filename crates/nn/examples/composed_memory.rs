//! Peak memory and time of a training step of one attention layer by the composed forms, beside the kernels.
//!
//! ```sh
//! cargo run --release -p regard-nn --example composed_memory -- 2048 4096 8192 16384
//! ```
//!
//! Names after the lengths, such as `linear`, leave the others out. One sequence, 2 heads of 32, forward and backward: peak MiB beyond the inputs, and seconds, first of the composed form,
//! then of the kernel.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use regard_alloc::{CountingAllocator, Peak};
use regard_kernels::{Mechanism, random::bits, support::SupportKind};
use regard_nn::{
    attention::{Attention, AttentionConfig},
    blocks::{Context, Init, Place},
    config::ModelConfig,
    ops::force_composed,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const WIDTH: usize = 64;

fn main() {
    let (lengths, names): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|argument| argument.parse::<usize>().is_ok());
    let lengths: Vec<usize> = lengths.iter().filter_map(|length| length.parse().ok()).collect();
    let lengths = if lengths.is_empty() { vec![2048, 4096, 8192] } else { lengths };
    println!("{:<34} {}", "", lengths.iter().map(|n| format!("{n:>24}")).collect::<String>());
    for (name, options) in cases().into_iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        for causal in [false, true] {
            let options = AttentionConfig { causal, heads: 2, ..options.clone() };
            let of = |&length: &usize| {
                let [composed, kernel] = [true, false].map(|composed| step(&options, length, composed));
                format!("{:>8.1} {:>5.2} {:>5.1} {:>4.2}", composed.0, composed.1, kernel.0, kernel.1)
            };
            println!("{:<34} {}", format!("{name}, causal {causal}"), lengths.iter().map(of).collect::<String>());
        }
    }
}

/// Every mechanism, those with a support with each kind that needs no layout.
fn cases() -> Vec<(String, AttentionConfig)> {
    let mut cases = Vec::new();
    for &mechanism in Mechanism::ALL {
        let options = AttentionConfig { mechanism, ..AttentionConfig::default() };
        if !options.uses_support() {
            cases.push((mechanism.to_string(), options));
            continue;
        }
        for kind in [SupportKind::Local, SupportKind::Longformer, SupportKind::Bigbird, SupportKind::Smyrf] {
            let mut options = options.clone();
            options.support.kind = kind;
            cases.push((format!("{mechanism} {kind:?}").to_lowercase(), options));
        }
    }
    cases
}

/// Peak MiB and seconds of the second of two steps.
fn step(options: &AttentionConfig, length: usize, composed: bool) -> (f64, f64) {
    let device = Device::flex().autodiff();
    let model = ModelConfig { width: WIDTH, ..ModelConfig::default() };
    let layer = Attention::new(&model, options, length, &Init::new(1, &device)).expect("sizes that fit");
    let mut result = (0.0, 0.0);
    for _ in 0..2 {
        let x = input(length, &device).require_grad();
        let (peak, start) = (Peak::start(), Instant::now());
        let pass = || {
            let out = layer.forward(x.clone(), x.clone(), &layer.mask(None), &Context::training(0, 0), Place::Weights);
            let grads = out.powi_scalar(2).sum().backward();
            std::hint::black_box(x.grad(&grads));
        };
        if composed {
            force_composed(pass)
        } else {
            pass()
        }
        let bytes = peak.bytes().expect("the allocator counts");
        result = (bytes as f64 / (1 << 20) as f64, start.elapsed().as_secs_f64());
    }
    result
}

fn input(length: usize, device: &Device) -> Tensor<3> {
    let number = |i: usize| bits(3, i as u32) as f32 / u32::MAX as f32 - 0.5;
    let numbers: Vec<f32> = (0..length * WIDTH).map(number).collect();
    Tensor::from_data(TensorData::new(numbers, [1, length, WIDTH]), device)
}
