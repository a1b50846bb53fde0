//! What pretrained transformers are made of, as options of our models.

mod common;

use burn::tensor::Device;
use common::{attention, batch, doubles, gradients};
use regard_kernels::{Mechanism, Storage, mechanism::Position};
use regard_nn::{
    attention::AttentionConfig,
    blocks::{Context, RotaryConfig},
    models::{
        Activation, LanguageModel, MaskedModel, ModelConfig, NormKind, NormPlace, named_parameters, parameter_count,
    },
};
use regard_testkit::Report;

const CONTEXT: usize = 10;
const VOCABULARY: usize = 12;
const WIDTH: usize = 16;

/// As Llama is: root-mean-square norms, gated feed-forward, partly rotated grouped heads, no biases.
fn llama() -> (ModelConfig, AttentionConfig) {
    let model = ModelConfig {
        width: WIDTH,
        layers: 2,
        feed_forward: 24,
        norm_kind: NormKind::Rms,
        activation: Activation::Silu,
        gated: true,
        bias: false,
        tied_head: true,
        rotary: RotaryConfig { share: 0.5, ..RotaryConfig::default() },
        ..ModelConfig::default()
    };
    let options = AttentionConfig {
        heads: 4,
        key_value_heads: Some(2),
        position: Position::Rotary,
        ..attention(Mechanism::Softmax)
    };
    (model, options)
}

/// As ALBERT is: narrow embeddings with types and a norm, one block run three times, a transform before the head.
fn albert() -> (ModelConfig, AttentionConfig) {
    let model = ModelConfig {
        width: WIDTH,
        layers: 3,
        feed_forward: 24,
        norm: NormPlace::Post,
        norm_epsilon: 1e-12,
        activation: Activation::GeluTanh,
        token_types: 2,
        embedding_width: Some(6),
        embedding_norm: true,
        shared_blocks: true,
        tied_head: true,
        head_transform: true,
        head_bias: true,
        ..ModelConfig::default()
    };
    (model, AttentionConfig { heads: 4, position: Position::Learned, ..attention(Mechanism::Softmax) })
}

fn language_model((config, options): (ModelConfig, AttentionConfig), device: &Device) -> LanguageModel {
    LanguageModel::new(&config, &options, VOCABULARY, CONTEXT, 3, device).unwrap()
}

#[test]
fn every_part_has_its_parameters_and_no_more() {
    let model = language_model(llama(), &Device::flex());
    let layer = 2 * WIDTH + 2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH / 2 + 3 * WIDTH * 24;
    assert_eq!(parameter_count(&model), VOCABULARY * WIDTH + 2 * layer + WIDTH);

    let (config, options) = albert();
    let model = MaskedModel::new(&config, &options, VOCABULARY, CONTEXT, 3, &Device::flex()).unwrap();
    let names: Vec<String> = named_parameters(&model).into_iter().map(|parameter| parameter.name).collect();
    for name in [
        "token_type_embedding",
        "norm_embedding.bias",
        "w_embedding",
        "layers.0.ff.w_2",
        "transform.w",
        "norm_transform.weight",
        "b_head",
    ] {
        assert!(names.iter().any(|own| own == name), "{name} is missing of {names:?}");
    }
    assert!(names.iter().all(|name| !name.starts_with("layers.1")), "one block serves all layers: {names:?}");
    let embeddings = (VOCABULARY + CONTEXT + 2) * 6 + 12 + 7 * WIDTH;
    let block = 4 * (WIDTH * WIDTH + WIDTH) + 2 * WIDTH * 24 + 24 + WIDTH + 4 * WIDTH;
    assert_eq!(parameter_count(&model), embeddings + block + (WIDTH * 6 + 6 + 12) + VOCABULARY);
}

#[test]
fn decoding_agrees_with_the_forward_pass_and_recomputing_with_keeping() {
    let mut report = Report::new();
    let (albert_model, albert_options) = albert();
    let causal = (ModelConfig { layer_scale: Some(0.3), ..albert_model }, albert_options);
    for (name, parts) in [("llama", llama()), ("albert", causal)] {
        let model = language_model(parts.clone(), &Device::flex());
        let tokens = batch(&[7, 7], 7, 0);
        let whole = doubles(model.forward(&tokens, &Context::evaluation()));
        let mut state = model.decoder(2, Storage::F32).unwrap();
        for at in 0..7 {
            let logits = doubles(model.step(&[tokens.ids[at], tokens.ids[7 + at]], &mut state).unwrap());
            for row in 0..2 {
                let want = &whole[(row * 7 + at) * VOCABULARY..][..VOCABULARY];
                report.compare(format!("{name}, token {at}"), &logits[row * VOCABULARY..][..VOCABULARY], want, 1e-5);
            }
        }
        let device = Device::flex().autodiff();
        let gradients = |checkpointing| {
            let (config, options) = parts.clone();
            let model = language_model((ModelConfig { checkpointing, ..config }, options), &device);
            let loss = model.forward(&tokens, &Context::training(1, 0)).square().sum();
            gradients(&model, &loss.backward())
        };
        let kept = gradients(false);
        for (parameter, gradient) in gradients(true) {
            assert!(gradient.iter().any(|x| *x != 0.0), "{name}: {parameter} has no gradient");
            report.compare(format!("{name} {parameter}"), &gradient, &kept[&parameter], 1e-5);
        }
    }
    report.finish();
}

#[test]
fn sizes_that_do_not_fit_are_named() {
    let error = |change: fn(&mut ModelConfig)| {
        let (mut config, options) = llama();
        change(&mut config);
        config.check(&options).unwrap_err().to_string()
    };
    assert!(error(|config| config.norm_epsilon = 0.0).contains("model.norm_epsilon is 0"));
    assert!(error(|config| config.layer_scale = Some(-1.0)).contains("model.layer_scale is -1"));
    assert!(error(|config| config.embedding_width = Some(0)).contains("model.embedding_width is 0"));
    assert!(error(|config| config.rotary.base = f64::NAN).contains("model.rotary.base is NaN"));
    assert!(error(|config| config.rotary.share = 0.2).contains("share of 0.2"));
}
