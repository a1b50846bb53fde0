//! Translators: what does not leak, decoding token by token, losses, names and refusals.

mod common;

use std::{collections::BTreeSet, sync::Arc};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use common::{VOCABULARY, attention, batch, doubles, gradients, small, values};
use regard_kernels::{
    Mechanism, Padding,
    mechanism::{
        Combination, FastformerOptions, Inference, KeyDesign, MixtureOptions, Position, Prior, ScatterbrainOptions,
        Sharing,
    },
    support::SupportKind,
};
use regard_nn::{
    attention::{AttentionConfig, Attentions},
    blocks::Context,
    models::{Activation, ModelConfig, NormPlace, TokenBatch, Translator, named_parameters, parameter_count},
};
use regard_testkit::Report;

const CONTEXT: usize = 12;

/// Every mechanism wherever it can be, softmax or a full support elsewhere, by name.
fn variants() -> Vec<(String, Attentions)> {
    let mut list = Vec::new();
    let mut add = |name: &str, options: &AttentionConfig| {
        let mut attentions = Attentions::from(options);
        if !options.mechanism.facts().cross {
            attentions.cross = attention(Mechanism::Softmax);
        }
        attentions.cross.support.kind = SupportKind::Full;
        list.push((format!("{} {name}", options.label()), attentions));
    };
    for &mechanism in Mechanism::ALL {
        add("", &attention(mechanism));
        for position in [Position::Sinusoidal, Position::Rotary, Position::Alibi, Position::None] {
            let options = AttentionConfig { position, ..attention(mechanism) };
            if options.check().is_ok() && (position, mechanism) != (Position::Rotary, Mechanism::Fastformer) {
                add(&format!("{position:?}"), &options);
            }
        }
    }
    let softmax = attention(Mechanism::Softmax);
    add("multi-query", &AttentionConfig { key_value_heads: Some(1), ..softmax.clone() });
    add("window", &AttentionConfig { window: Some(2), ..softmax });
    for mechanism in [Mechanism::Mgk, Mechanism::Mlk] {
        let mut shifted = attention(mechanism);
        shifted.keys.design = KeyDesign::Shifted;
        add("shifted", &shifted);
        add("shifted, rotary", &AttentionConfig { position: Position::Rotary, ..shifted });
    }
    let mixture = |mixture| AttentionConfig { mixture, ..attention(Mechanism::Mgk) };
    add("hard", &mixture(MixtureOptions { inference: Inference::Hard, ..MixtureOptions::default() }));
    add("em", &mixture(MixtureOptions { inference: Inference::SoftEm, ..MixtureOptions::default() }));
    add("per position", &mixture(MixtureOptions { prior: Prior::PerPosition, ..MixtureOptions::default() }));
    for combination in [Combination::Naive, Combination::Gated] {
        let scatterbrain = ScatterbrainOptions { combination, ..ScatterbrainOptions::default() };
        let mut options = AttentionConfig { scatterbrain, ..attention(Mechanism::Scatterbrain) };
        options.support.radius = 1;
        add("", &options);
    }
    for sharing in [Sharing::None, Sharing::LayerWise] {
        let fastformer = FastformerOptions { sharing, ..FastformerOptions::default() };
        add(&format!("{sharing:?}"), &AttentionConfig { fastformer, ..attention(Mechanism::Fastformer) });
    }
    list
}

fn translator(config: &ModelConfig, attentions: &Attentions, device: &Device) -> Translator {
    Translator::new(config, attentions, VOCABULARY, CONTEXT, 3, device).unwrap()
}

/// Three targets of unequal lengths.
fn target() -> TokenBatch {
    batch(&[6, 3, 5], 6, 0)
}

fn source() -> TokenBatch {
    batch(&[7, 4, 2], 7, 0)
}

/// Column `i` of a batch.
fn column(tokens: &TokenBatch, i: usize) -> Vec<i32> {
    tokens.ids.chunks_exact(tokens.length).map(|row| row[i]).collect()
}

#[test]
fn steps_of_the_decoder_are_the_rows_of_the_forward_pass() {
    let device = Device::flex();
    let mut report = Report::new();
    // Targets without padding: a decoder knows no padding of its own tokens.
    // As long as the source: the padding of one must not be taken for that of the other.
    let (source, target) = (source(), TokenBatch { padding: None, ..batch(&[7, 7, 7], 7, 0) });
    for (name, attentions) in variants() {
        for (norm, tied_head) in [(NormPlace::Pre, false), (NormPlace::Post, true)] {
            let model = translator(&ModelConfig { norm, tied_head, ..small() }, &attentions, &device);
            let context = Context::evaluation();
            let whole = doubles(model.forward(&source, &target, &context));
            let row = |b: usize, i: usize| &whole[(b * target.length + i) * VOCABULARY..][..VOCABULARY];
            let mut state = model.start(model.encode(&source, &context), source.padding.clone()).unwrap();
            for i in 0..3 {
                let step = doubles(model.step(&column(&target, i), &mut state).unwrap());
                let expected: Vec<f64> = (0..3).flat_map(|b| row(b, i).to_vec()).collect();
                report.compare(format!("{name} {norm:?} token {i}"), &step, &expected, 2e-5);
            }
            // Rows leave, repeat and trade places; each goes on with its own source and past.
            for (rows, now) in [(vec![2, 0, 2, 2], vec![2, 0, 2, 2]), (vec![1, 0, 3], vec![0, 2, 2])] {
                state.reorder(&rows);
                assert_eq!(state.sources(), now, "{name}");
                let i = state.position();
                let tokens: Vec<i32> = now.iter().map(|&b| column(&target, i)[b]).collect();
                let step = doubles(model.step(&tokens, &mut state).unwrap());
                let expected: Vec<f64> = now.iter().flat_map(|&b| row(b, i).to_vec()).collect();
                report.compare(format!("{name} {norm:?} token {i} of {now:?}"), &step, &expected, 2e-5);
            }
            report.require(state.bytes() > 0 && state.rows() == 3, format_args!("{name}: state"));
        }
    }
    report.finish();
}

#[test]
fn rows_that_trade_places_under_one_source_keep_their_own_past() {
    let model = translator(&small(), &Attentions::from(&attention(Mechanism::Softmax)), &Device::flex());
    let source = batch(&[5], 5, 0);
    let context = Context::evaluation();
    let memory = || model.encode(&source, &context);
    let mut state = model.start(memory(), None).unwrap();
    model.step(&[1], &mut state).unwrap();
    state.reorder(&[0, 0]);
    model.step(&[5, 6], &mut state).unwrap();
    let before = state.bytes();
    state.reorder(&[1, 0]);
    assert_eq!(state.bytes(), before);
    let both = values(model.step(&[7, 7], &mut state).unwrap());
    for (own, past) in both.chunks_exact(VOCABULARY).zip([6, 5]) {
        let mut state = model.start(memory(), None).unwrap();
        let alone = [1, past, 7].map(|token| values(model.step(&[token], &mut state).unwrap()));
        assert!(own.iter().zip(&alone[2]).all(|(a, b)| (a - b).abs() < 1e-5), "{past}");
    }
}

#[test]
fn padding_of_the_source_never_reaches_a_translation() {
    let device = Device::flex();
    let mut report = Report::new();
    for (name, attentions) in variants() {
        let model = translator(&small(), &attentions, &device);
        let logits = |source: &TokenBatch| doubles(model.forward(source, &target(), &Context::evaluation()));
        let padded = logits(&source());
        report.same(format!("{name}, filler"), &logits(&batch(&[7, 4, 2], 7, 9)), &padded);
        // More padding may change the order of sums, not the result.
        report.compare(format!("{name}, longer"), &logits(&batch(&[7, 4, 2], CONTEXT, 0)), &padded, 1e-5);
        let steps = |source: &TokenBatch| {
            let memory = model.encode(source, &Context::evaluation());
            let mut state = model.start(memory, source.padding.clone()).unwrap();
            doubles(model.step(&[1, 1, 1], &mut state).unwrap())
        };
        report.same(format!("{name}, filler of a step"), &steps(&batch(&[7, 4, 2], 7, 9)), &steps(&source()));
    }
    report.finish();
}

#[test]
fn neither_the_future_nor_padding_of_the_target_reaches_a_logit() {
    let device = Device::flex();
    let mut report = Report::new();
    for (name, attentions) in variants() {
        let model = translator(&small(), &attentions, &device);
        let logits = |target: &TokenBatch| doubles(model.forward(&source(), target, &Context::evaluation()));
        let row = |logits: &[f64], b: usize, length: usize, count: usize| {
            logits[b * length * VOCABULARY..][..count * VOCABULARY].to_vec()
        };
        let whole = logits(&target());
        let mut changed = target();
        let mut ids = changed.ids.to_vec();
        (ids[3], ids[4], ids[5], ids[6 + 3]) = (9, 10, 8, 7);
        changed.ids = ids.into();
        let other = logits(&changed);
        for (b, count) in [(0, 3), (1, 3), (2, 5)] {
            report.compare(format!("{name} row {b}"), &row(&other, b, 6, count), &row(&whole, b, 6, count), 2e-6);
        }
        let longer = logits(&batch(&[6, 3, 5], 9, 0));
        for (b, count) in [(0, 6), (1, 3), (2, 5)] {
            report.compare(format!("{name} row {b}"), &row(&longer, b, 9, count), &row(&whole, b, 6, count), 1e-5);
        }
        report.require(whole[3 * VOCABULARY..6 * VOCABULARY] != other[3 * VOCABULARY..6 * VOCABULARY], name);
    }
    report.finish();
}

#[test]
fn the_loss_is_the_smoothed_cross_entropy_of_the_targets_that_count() {
    let device = Device::flex();
    let model = translator(&small(), &Attentions::from(&attention(Mechanism::Softmax)), &device);
    let (source, target) = (source(), target());
    let targets: Vec<i32> = (0..18).map(|i| if i % 6 < [6, 3, 5][i / 6] { (7 * i % 11) as i32 } else { -1 }).collect();
    let logits = doubles(model.forward(&source, &target, &Context::evaluation()));
    for smoothing in [0.0, 0.1] {
        let mut total = 0.0;
        for (row, &target) in logits.chunks_exact(VOCABULARY).zip(&targets).filter(|(_, target)| **target >= 0) {
            let normaliser = row.iter().map(|z| z.exp()).sum::<f64>().ln();
            let own = row[target as usize] - normaliser;
            let mean = row.iter().map(|z| z - normaliser).sum::<f64>() / VOCABULARY as f64;
            total -= (1.0 - smoothing) * own + smoothing * mean;
        }
        let loss = model.loss(&source, &target, targets.clone().into(), smoothing as f32, &Context::evaluation());
        assert!((doubles(loss)[0] - total / 14.0).abs() < 1e-5, "{smoothing}");
    }
    let none: Arc<[i32]> = vec![-1; 18].into();
    let tracked = translator(&small(), &Attentions::from(&attention(Mechanism::Softmax)), &device.autodiff());
    let loss = tracked.loss(&source, &target, none, 0.1, &Context::training(0, 0));
    assert_eq!(values(loss.clone()), [0.0]);
    assert!(gradients(&tracked, &loss.backward()).values().flatten().all(|&g| g == 0.0));
}

#[test]
fn every_parameter_learns() {
    let device = Device::flex().autodiff();
    let targets: Arc<[i32]> =
        (0..18).map(|i| if i % 6 < [6, 3, 5][i / 6] { (7 * i % 11) as i32 } else { -1 }).collect();
    for (name, attentions) in variants() {
        for (norm, activation, tied_head) in
            [(NormPlace::Pre, Activation::Gelu, false), (NormPlace::Post, Activation::Relu, true)]
        {
            let config = ModelConfig { norm, activation, tied_head, dropout: 0.1, attention_dropout: 0.1, ..small() };
            let model = translator(&config, &attentions, &device);
            let loss = model.loss(&source(), &target(), targets.clone(), 0.1, &Context::training(0, 0));
            let grads = gradients(&model, &loss.backward());
            let parameters = named_parameters(&model);
            assert!(parameters.iter().any(|p| p.name.starts_with("decoder.layers.1.cross_attention.")), "{name}");
            for parameter in parameters.into_iter().filter(|parameter| !parameter.buffer) {
                let what = format!("{name}: {}", parameter.name);
                let grad = grads.get(&parameter.name).unwrap_or_else(|| panic!("{what}"));
                assert!(grad.iter().all(|g| g.is_finite()), "{what}");
                // Key biases of softmax shift all scores of a query alike.
                let [encoder, decoder, cross] = attentions.named().map(|(_, options)| options.mechanism);
                let mechanism = match &parameter.name {
                    name if name.contains("cross_attention") => cross,
                    name if name.starts_with("encoder") => encoder,
                    _ => decoder,
                };
                let softmax = matches!(mechanism, Mechanism::Softmax | Mechanism::Sparse | Mechanism::Scatterbrain);
                let idle = softmax && parameter.name.ends_with("b_k");
                assert!(idle || grad.iter().any(|&g| g != 0.0), "{what}");
            }
        }
    }
}

#[test]
fn a_training_pass_repeats_to_the_bit() {
    let device = Device::flex().autodiff();
    let config = ModelConfig { dropout: 0.3, layers: 1, ..small() };
    let model = translator(&config, &Attentions::from(&attention(Mechanism::Softmax)), &device);
    let pass = |context: Context| values(model.forward(&source(), &target(), &context));
    let first = pass(Context::training(1, 20));
    assert_eq!(pass(Context::training(1, 20)), first);
    for other in [Context::training(1, 21), Context::training(2, 20), Context::evaluation()] {
        assert_ne!(pass(other), first);
    }
}

#[test]
fn recomputing_blocks_changes_no_bit() {
    let device = Device::flex().autodiff();
    let targets: Arc<[i32]> =
        (0..18).map(|i| if i % 6 < [6, 3, 5][i / 6] { (7 * i % 11) as i32 } else { -1 }).collect();
    for (name, attentions) in variants() {
        let pass = |checkpointing| {
            let config = ModelConfig { checkpointing, dropout: 0.1, attention_dropout: 0.1, ..small() };
            let model = translator(&config, &attentions, &device);
            let mut out = Default::default();
            // Twice, so that buffers changed by the first pass show in the second.
            for step in 0..2 {
                let loss = model.loss(&source(), &target(), targets.clone(), 0.1, &Context::training(1, step));
                out = gradients(&model, &loss.clone().backward());
                out.insert("loss".into(), doubles(loss));
            }
            out
        };
        let (plain, recomputed) = (pass(false), pass(true));
        assert_eq!(plain.keys().collect::<Vec<_>>(), recomputed.keys().collect::<Vec<_>>());
        assert_eq!(plain["loss"], recomputed["loss"], "{name}");
        // The memory's gradient is a sum over blocks whose order may differ.
        let mut report = Report::new();
        for (parameter, grad) in &plain {
            let largest = grad.iter().fold(0.0f64, |most, g| most.max(g.abs()));
            if largest > 1e-7 {
                report.compare(format!("{name} {parameter}"), &recomputed[parameter], grad, 1e-4);
            }
        }
        report.finish();
    }
}

#[test]
fn the_same_seed_gives_the_same_translator_with_and_without_autodiff() {
    for (name, attentions) in variants() {
        let plain = translator(&small(), &attentions, &Device::flex());
        let tracked = translator(&small(), &attentions, &Device::flex().autodiff());
        assert_eq!(named_parameters(&plain), named_parameters(&tracked), "{name}");
        let logits = |model: &Translator| values(model.forward(&source(), &target(), &Context::evaluation()));
        assert_eq!(logits(&plain), logits(&tracked.valid()), "{name}");
        let other = Translator::new(&small(), &attentions, VOCABULARY, CONTEXT, 4, &Device::flex()).unwrap();
        assert_ne!(named_parameters(&plain)[0], named_parameters(&other)[0]);
    }
}

#[test]
fn names_say_stack_layer_and_attention() {
    let attentions = Attentions::from(&attention(Mechanism::Mgk));
    let model = translator(&ModelConfig { tied_head: true, ..small() }, &attentions, &Device::flex());
    let names: Vec<_> = named_parameters(&model).into_iter().map(|parameter| parameter.name).collect();
    for name in [
        "token_embedding",
        "encoder.position_embedding",
        "encoder.layers.1.attention.w_k",
        "encoder.norm_f.weight",
        "decoder.position_embedding",
        "decoder.layers.0.attention.log_prior",
        "decoder.layers.0.norm_cross.bias",
        "decoder.layers.1.cross_attention.w_o",
        "decoder.layers.1.ff.w_2",
        "decoder.norm_f.bias",
    ] {
        assert!(names.iter().any(|other| other == name), "{name} is not in {names:?}");
    }
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "no name comes twice");
    assert!(!names.contains(&"head".to_owned()));
}

#[test]
fn parameter_counts_are_the_closed_forms() {
    let count = |attentions: &Attentions, tied_head| {
        parameter_count(&translator(&ModelConfig { tied_head, ..small() }, attentions, &Device::flex()))
    };
    let (d, hidden, layers) = (16, 24, 2);
    let (norm, feed_forward) = (2 * d, 2 * d * hidden + hidden + d);
    let whole = |attention: usize| {
        let encoder = attention + 2 * norm + feed_forward;
        let decoder = 2 * attention + 3 * norm + feed_forward;
        VOCABULARY * d + 2 * CONTEXT * d + layers * (encoder + decoder) + 2 * norm
    };
    let softmax = Attentions::from(&attention(Mechanism::Softmax));
    assert_eq!(count(&softmax, true), whole(4 * (d * d + d)));
    assert_eq!(count(&softmax, false), whole(4 * (d * d + d)) + VOCABULARY * d);
    // (2 E + 2) D d + d E for eight experts, two of them active.
    let (experts, own) = (8, d / 2);
    let experts = (2 * experts + 2) * own * d + d * experts;
    assert_eq!(count(&Attentions::from(&attention(Mechanism::Moa)), true), whole(experts));
}

#[test]
fn what_cannot_be_where_it_is_asked_for_is_refused_by_place() {
    let refused = |config: &ModelConfig, change: &dyn Fn(&mut Attentions), part: &str| {
        let mut attentions = Attentions::from(&attention(Mechanism::Softmax));
        change(&mut attentions);
        let error = Translator::new(config, &attentions, VOCABULARY, CONTEXT, 1, &Device::flex()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    let mechanism = |mechanism| attention(mechanism);
    refused(
        &small(),
        &|a| a.cross = mechanism(Mechanism::Fastformer),
        "cross attention: mechanism is fastformer, expected a mechanism that reads a second sequence: one of softmax, ",
    );
    for (kind, part) in [
        (SupportKind::Local, "cross attention: support.kind is 'local', expected 'full' or 'empty'"),
        (SupportKind::Longformer, "cross attention: support.kind is 'longformer'"),
        (SupportKind::Bigbird, "cross attention: support.kind is 'bigbird'"),
        (SupportKind::Smyrf, "cross attention: support.kind is 'smyrf'"),
        (SupportKind::Lsh, "cross attention: mechanism is scatterbrain-lsh"),
    ] {
        let supported = |attentions: &mut Attentions| {
            attentions.cross = mechanism(Mechanism::Scatterbrain);
            attentions.cross.support.kind = kind;
        };
        refused(&small(), &supported, part);
    }
    let smyrf = |attentions: &mut Attentions| {
        attentions.decoder = mechanism(Mechanism::Sparse);
        attentions.decoder.support.kind = SupportKind::Smyrf;
    };
    refused(&small(), &smyrf, "decoder attention: mechanism is smyrf");
    refused(&small(), &|a| a.decoder.heads = 3, "decoder attention: model.width is 16");
    refused(&small(), &|a| a.encoder.heads = 0, "encoder attention: heads is 0");
    refused(&small(), &|a| a.cross.key_value_heads = Some(3), "cross attention: key_value_heads is 3");
    let sinusoidal = "decoder attention: position is 'sinusoidal', expected the encoder's 'learned'";
    refused(&small(), &|a| a.decoder.position = Position::Sinusoidal, sinusoidal);
    refused(&ModelConfig { layers: 0, ..small() }, &|_| (), "model.layers is 0");

    // What a place demands is no error.
    let mut attentions = Attentions::from(&AttentionConfig { causal: true, ..attention(Mechanism::Softmax) });
    attentions.cross.window = Some(1);
    attentions.cross.position = Position::Alibi;
    let model = translator(&small(), &attentions, &Device::flex());
    let [encoder, decoder, cross] = model.attentions().named().map(|(_, options)| options.clone());
    assert!(!encoder.causal && decoder.causal && !cross.causal && cross.window.is_none());
    assert_eq!(cross.position, Position::None);
}

#[test]
fn steps_that_do_not_fit_are_refused() {
    let model = translator(&small(), &Attentions::from(&attention(Mechanism::Softmax)), &Device::flex());
    let source = source();
    let memory = || -> Tensor<3> { model.encode(&source, &Context::evaluation()) };
    let short = Arc::new(Padding::from_lengths(&[3, 2, 1], 3));
    assert!(model.start(memory(), Some(short)).unwrap_err().to_string().contains("valid"));
    let mut state = model.start(memory(), source.padding.clone()).unwrap();
    assert!(model.step(&[1], &mut state).unwrap_err().to_string().contains("3 rows"));
    assert!(model.step(&[1, 1, 11], &mut state).unwrap_err().to_string().contains("vocabulary (11)"));
    for _ in 0..CONTEXT {
        model.step(&[1, 1, 1], &mut state).unwrap();
    }
    assert!(model.step(&[1, 1, 1], &mut state).unwrap_err().to_string().contains("below 12"));
}
