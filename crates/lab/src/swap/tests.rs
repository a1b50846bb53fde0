use std::path::Path;

use burn::tensor::Device;
use regard_kernels::Storage;
use regard_nn::models::TokenBatch;
use regard_pretrained::{Folder, LoadOptions, Pretrained};

use super::*;

const LENGTH: usize = 96;

fn stories() -> Folder {
    Folder::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../pretrained/tests/stories260k")).expect("a model")
}

fn model(device: &Device) -> Pretrained {
    stories().model(LoadOptions { context: Some(LENGTH), stretch: false }, device).expect("a model")
}

/// A story, cut to the length.
fn sample() -> Vec<Example> {
    let text = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she \
                saw a big, red ball. She wanted to play with it, but it was too high. Lily's mom said, \"Lily, let's go \
                to the park.\" Lily was sad and didn't know what to do. She said, \"I want to play with your ball, but I \
                can't find it.\" Lily was sad and didn't know what to do.";
    let tokenizer = stories().tokenizer().expect("a tokenizer");
    let ids = tokenizer.encode(text, true, Some(LENGTH)).expect("a text").ids;
    assert_eq!(ids.len(), LENGTH);
    let ids: Vec<i32> = ids.into_iter().map(|id| id as i32).collect();
    vec![Example::Text(TokenBatch::full(ids, 1).expect("tokens"))]
}

#[test]
fn gradients_predict_what_a_swap_does_to_the_loss() {
    let candidates = candidates(&[Kind::Window, Kind::Drop], &[2, 4], true, LENGTH, 8, 2);
    let trained = model(&Device::flex().autodiff()).frozen();
    let measured = measure(&trained, &sample(), &candidates, 1, &|_, _| Ok(())).expect("measured");
    assert_eq!(measured.len(), 5 * 4);
    let exact = loss(&model(&Device::flex()), &sample()).expect("a loss");
    assert!(exact < 1.5, "{exact}");
    let (mut close, mut seen) = (0, 0);
    for (at, group) in measured.iter().enumerate() {
        assert_eq!(group.effects[0], Effect::default(), "exact attention changes nothing");
        assert!(group.entropy > 0.0 && group.entropy < 1.0, "{group:?}");
        // A narrower window errs more.
        assert!(group.effects[1].error < group.effects[2].error, "{group:?}");
        assert!((group.effects[3].error - 1.0).abs() < 1e-9, "{group:?}");
        let mut chosen = vec![0; measured.len()];
        chosen[at] = 1;
        let plan = plan(5, 1, &measured, &candidates, &chosen);
        let swapped = model(&Device::flex()).with_plan(&plan).expect("a plan that fits");
        let change = loss(&swapped, &sample()).expect("a loss") - exact;
        let first = group.effects[1].first;
        if first > 1e-4 {
            seen += 1;
            close += usize::from((change.abs() / first).ln().abs() < 0.7);
        }
    }
    assert!(seen >= 5 && 3 * close >= 2 * seen, "{close} of {seen} changes are as predicted");
}

#[test]
fn a_plan_keeps_to_its_budget() {
    let candidates = candidates(&[Kind::Window, Kind::Scatterbrain, Kind::Drop], &[2, 4, 8], true, LENGTH, 8, 2);
    let trained = model(&Device::flex().autodiff()).frozen();
    let measured = measure(&trained, &sample(), &candidates, 1, &|_, _| Ok(())).expect("measured");
    let price = |candidate| price(candidate, LENGTH, 8, Storage::F32, 1).expect("a price");
    let prices: Vec<Price> = candidates.iter().map(price).collect();
    assert_eq!(prices[0].bytes, (LENGTH * 2 * 8 * 4) as f64);
    let choices = choices(&measured, &prices, Predictor::Fisher);
    let exact = total(&choices, &vec![0; choices.len()]);
    assert_eq!((exact.loss, exact.bytes, exact.seconds), (0.0, 1.0, 1.0));
    let bytes = 0.5 * prices[0].bytes * measured.len() as f64;
    let chosen = solve(&choices, Limits { bytes: Some(bytes), seconds: None }).expect("a solution");
    let mixed = total(&choices, &chosen);
    assert!(mixed.bytes <= 0.5, "{mixed:?}");
    // Never worse than the same candidate everywhere.
    for (at, candidate) in candidates.iter().enumerate() {
        let all = total(&choices, &vec![at; choices.len()]);
        assert!(
            all.bytes > 0.5 || all.loss >= mixed.loss - 1e-12,
            "{} loses {}, the mix {}",
            candidate.name,
            all.loss,
            mixed.loss
        );
    }
    let plan = plan(5, 1, &measured, &candidates, &chosen);
    let swapped = model(&Device::flex()).with_plan(&plan).expect("a plan that fits");
    let loss = |pretrained: &Pretrained| loss(pretrained, &sample()).expect("a loss");
    assert!(loss(&swapped) - loss(&model(&Device::flex())) < 0.3);
}

#[test]
fn an_interrupt_ends_the_measurement() {
    let candidates = candidates(&[Kind::Drop], &[], true, LENGTH, 8, 2);
    let trained = model(&Device::flex().autodiff()).frozen();
    let stop = |done: usize, _: usize| if done == 2 { Err(SwapError::Interrupted) } else { Ok(()) };
    assert!(matches!(measure(&trained, &sample(), &candidates, 1, &stop), Err(SwapError::Interrupted)));
}
