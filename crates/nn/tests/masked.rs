//! Masked models: what they see, and that their head sees the masked positions alone.

mod common;

use std::sync::Arc;

use burn::tensor::Device;
use common::{VOCABULARY, attention, batch, doubles, gradients, small, values};
use regard_kernels::Mechanism;
use regard_nn::{
    attention::AttentionConfig,
    blocks::Context,
    models::{MaskedModel, ModelConfig, TokenBatch, named_parameters},
};
use regard_testkit::Report;

const CONTEXT: usize = 10;

fn masked(config: &ModelConfig, options: &AttentionConfig, device: &Device) -> MaskedModel {
    MaskedModel::new(config, options, VOCABULARY, CONTEXT, 3, device).unwrap()
}

/// Five masked positions of rows of seven and four tokens.
fn targets() -> Vec<i32> {
    let mut targets = vec![-1; 14];
    for (at, target) in [(0, 3), (4, 10), (6, 0), (7, 5), (10, 3)] {
        targets[at] = target;
    }
    targets
}

#[test]
fn the_head_of_the_masked_positions_gives_the_rows_of_the_whole() {
    let tokens = batch(&[7, 4], 7, 0);
    for &mechanism in Mechanism::ALL {
        for tied_head in [false, true] {
            let model = masked(&ModelConfig { tied_head, ..small() }, &attention(mechanism), &Device::flex());
            let context = Context::evaluation();
            let whole = doubles(model.forward(&tokens, &context));
            let (some, kept) = model.forward_counted(&tokens, &targets(), &context);
            assert_eq!(kept.to_vec(), [3, 10, 0, 5, 3]);
            let mut report = Report::new();
            let rows: Vec<f64> =
                [0, 4, 6, 7, 10].iter().flat_map(|&i| whole[i * VOCABULARY..][..VOCABULARY].to_vec()).collect();
            report.compare(format!("{mechanism} {tied_head}"), &doubles(some), &rows, 1e-6);
            let mut total = 0.0;
            for (row, &target) in rows.chunks_exact(VOCABULARY).zip(kept.iter()) {
                total += row.iter().map(|z| z.exp()).sum::<f64>().ln() - row[target as usize];
            }
            let loss = doubles(model.loss(&tokens, targets().into(), 0.0, &context));
            report.compare(format!("{mechanism} loss"), &loss, &[total / 5.0], 1e-5);
            report.finish();
        }
    }
}

#[test]
fn it_looks_both_ways_and_at_no_padding() {
    for &mechanism in Mechanism::ALL {
        let options = AttentionConfig { causal: true, ..attention(mechanism) };
        let model = masked(&small(), &options, &Device::flex());
        assert!(!model.attention().causal);
        let logits = |tokens: &TokenBatch| values(model.forward(tokens, &Context::evaluation()));
        let (one, other) = (logits(&batch(&[7, 4], 7, 0)), logits(&batch(&[7, 4], 7, 9)));
        assert_eq!(one[..11 * VOCABULARY], other[..11 * VOCABULARY], "{mechanism}: padding");
        let mut changed = batch(&[7, 4], 7, 0).ids.to_vec();
        changed[6] = (changed[6] + 1) % VOCABULARY as i32;
        let changed = TokenBatch { ids: changed.into(), ..batch(&[7, 4], 7, 0) };
        assert_ne!(one[..VOCABULARY], logits(&changed)[..VOCABULARY], "{mechanism}: the last token shows in the first");
    }
}

#[test]
fn every_parameter_learns_and_positions_that_do_not_count_teach_nothing() {
    let device = Device::flex().autodiff();
    let tokens = batch(&[7, 4], 7, 0);
    for &mechanism in Mechanism::ALL {
        // Key biases of softmax shift all scores of a query alike: their gradient is what rounding leaves of 0.
        let softmax = matches!(mechanism, Mechanism::Softmax | Mechanism::Sparse | Mechanism::Scatterbrain);
        let model = masked(&small(), &attention(mechanism), &device);
        let loss = model.loss(&tokens, targets().into(), 0.0, &Context::training(0, 0));
        let grads = gradients(&model, &loss.backward());
        for parameter in named_parameters(&model).into_iter().filter(|parameter| !parameter.buffer) {
            let grad = grads.get(&parameter.name).unwrap_or_else(|| panic!("{mechanism}: {}", parameter.name));
            assert!(grad.iter().all(|g| g.is_finite()), "{mechanism}: {}", parameter.name);
            let idle = softmax && parameter.name.ends_with("b_k");
            assert!(idle || grad.iter().any(|&g| g != 0.0), "{mechanism}: {}", parameter.name);
        }
        // The same gradient by the logits of all positions.
        let logits = model.forward(&tokens, &Context::training(0, 0)).reshape([14, VOCABULARY]);
        let all = regard_nn::ops::cross_entropy(logits, targets(), 0.0);
        let mut report = Report::new();
        for (name, grad) in gradients(&model, &all.backward()) {
            if !(softmax && name.ends_with("b_k")) {
                report.compare(format!("{mechanism} {name}"), &grads[&name], &grad, 1e-4);
            }
        }
        report.finish();
    }
    let model = masked(&small(), &attention(Mechanism::Softmax), &device);
    let none: Arc<[i32]> = vec![-1; 14].into();
    let loss = model.loss(&tokens, none, 0.0, &Context::training(0, 0));
    assert_eq!(values(loss.clone()), [0.0]);
    assert!(gradients(&model, &loss.backward()).values().flatten().all(|&g| g == 0.0));
}

#[test]
fn impossible_sizes_are_errors() {
    let new = |config: &ModelConfig, vocabulary, context| {
        MaskedModel::new(config, &attention(Mechanism::Softmax), vocabulary, context, 1, &Device::flex())
    };
    assert!(new(&small(), 0, 5).unwrap_err().to_string().contains("vocabulary is 0"));
    assert!(new(&small(), 5, 0).unwrap_err().to_string().contains("context is 0"));
    let odd = ModelConfig { width: 15, ..small() };
    assert!(new(&odd, 5, 5).unwrap_err().to_string().contains("multiple of heads"));
}
