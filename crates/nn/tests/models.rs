//! Whole models: what does not leak, what repeats, what has a name.

mod common;

use std::{collections::BTreeMap, sync::Arc};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use common::{VOCABULARY, attention, batch, doubles, gradients, small, values};
use regard_kernels::{
    Mechanism, Storage,
    features::FeatureOptions,
    mechanism::{FastformerOptions, Inference, MixtureOptions, Position, Sharing},
    support::SupportKind,
};
use regard_nn::{
    attention::{AttentionConfig, Attentions},
    blocks::{Context, DecoderBlock, Init, Memory},
    models::{
        Activation, Classifier, LanguageModel, ModelConfig, NormPlace, ParameterError, ParameterMap, Pooling,
        TokenBatch, load_parameters, named_parameters, parameter_count,
    },
};
use regard_testkit::{Report, error};

const CONTEXT: usize = 10;
const CLASSES: usize = 3;

fn positions(mechanism: Mechanism) -> impl Iterator<Item = Position> {
    use Position::{Alibi, Learned, None, Rotary, Sinusoidal};
    [Learned, Sinusoidal, Rotary, Alibi, None].into_iter().filter(move |&position| {
        AttentionConfig { position, ..attention(mechanism) }.check().is_ok()
            && (position != Rotary || mechanism != Mechanism::Fastformer)
    })
}

fn classifier(config: &ModelConfig, attention: &AttentionConfig, device: &Device) -> Classifier {
    Classifier::new(config, attention, VOCABULARY, CLASSES, CONTEXT, 3, device).unwrap()
}

fn language_model(config: &ModelConfig, attention: &AttentionConfig, device: &Device) -> LanguageModel {
    LanguageModel::new(config, attention, VOCABULARY, CONTEXT, 3, device).unwrap()
}

#[test]
fn padding_never_reaches_a_classifier() {
    let device = Device::flex();
    let mut report = Report::new();
    for &mechanism in Mechanism::ALL {
        for pooling in [Pooling::Mean, Pooling::First, Pooling::Attention] {
            for position in positions(mechanism) {
                let options = AttentionConfig { position, ..attention(mechanism) };
                let model = classifier(&ModelConfig { pooling, ..small() }, &options, &device);
                let logits = |tokens: &TokenBatch| doubles(model.forward(tokens, &Context::evaluation()));
                let what = format!("{mechanism} {pooling:?} {position:?}");
                let padded = logits(&batch(&[7, 4], 7, 0));
                report.same(format!("{what}, filler"), &logits(&batch(&[7, 4], 7, 9)), &padded);
                // More padding may change the order of sums, not the result.
                report.compare(format!("{what}, longer"), &logits(&batch(&[7, 4], CONTEXT, 0)), &padded, 1e-5);
                let full =
                    TokenBatch::full(batch(&[4], 4, 0).ids.iter().map(|id| (id + 5) % 11).collect::<Vec<_>>(), 1);
                report.compare(format!("{what}, alone"), &logits(&full.unwrap()), &padded[CLASSES..], 1e-5);
            }
        }
    }
    report.finish();
}

#[test]
fn a_row_without_real_tokens_gives_finite_logits() {
    for &mechanism in Mechanism::ALL {
        let model = classifier(&small(), &attention(mechanism), &Device::flex());
        let logits = values(model.forward(&batch(&[5, 0], 5, 0), &Context::evaluation()));
        assert!(logits.iter().all(|x| x.is_finite()), "{mechanism}: {logits:?}");
    }
}

/// What tokens put out before and after others behind them changed: the same bits, but for features, which share scales
/// with those of later tokens nearby and may be rounded in another way.
#[track_caller]
fn same_past(options: &AttentionConfig, before: &[f32], after: &[f32]) {
    let bound = if options.uses_features() { 2e-6 } else { 0.0 };
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    assert!(error(&wide(before), &wide(after)) <= bound, "{options:?}: {before:?} {after:?}");
}

#[test]
fn the_future_never_reaches_a_language_model() {
    let device = Device::flex().autodiff();
    for &mechanism in Mechanism::ALL {
        for position in positions(mechanism) {
            let options = AttentionConfig { position, ..attention(mechanism) };
            let model = language_model(&small(), &options, &device);
            let logits =
                |ids: &[i32]| values(model.forward(&TokenBatch::full(ids, 1).unwrap(), &Context::evaluation()));
            let (one, other) = (logits(&[1, 2, 3, 4, 5, 6, 7]), logits(&[1, 2, 3, 4, 10, 0, 9]));
            same_past(&options, &one[..4 * VOCABULARY], &other[..4 * VOCABULARY]);
            assert_ne!(one[4 * VOCABULARY..], other[4 * VOCABULARY..], "{mechanism} {position:?}");
        }
        // The gradient of the loss at the first four positions does not reach later position vectors.
        let model = language_model(&small(), &attention(mechanism), &device);
        let tokens = TokenBatch::full([1, 2, 3, 4, 5, 6, 7], 1).unwrap();
        let targets: Arc<[i32]> = [2, 3, 4, 5, -1, -1, -1].into();
        let grads = gradients(&model, &model.loss(&tokens, targets, 0.0, &Context::evaluation()).backward());
        let positions = &grads["position_embedding"];
        assert!(positions[..4 * 16].iter().any(|&g| g != 0.0) && positions[4 * 16..].iter().all(|&g| g == 0.0));
    }
}

#[test]
fn steps_of_the_decoder_are_the_rows_of_the_forward_pass() {
    let device = Device::flex();
    let mut report = Report::new();
    for &mechanism in Mechanism::ALL {
        for position in positions(mechanism) {
            for tied_head in [false, true] {
                let options = AttentionConfig { position, ..attention(mechanism) };
                let model = language_model(&ModelConfig { tied_head, ..small() }, &options, &device);
                let tokens = TokenBatch::full([1, 2, 3, 4, 5, 10, 9, 8, 7, 6], 2).unwrap();
                let whole = model.forward(&tokens, &Context::evaluation());
                let mut state = model.decoder(2, Storage::F32).unwrap();
                for i in 0..5 {
                    let step = model.step(&[tokens.ids[i], tokens.ids[5 + i]], &mut state).unwrap();
                    let row = doubles(whole.clone().narrow(1, i, 1));
                    report.compare(format!("{mechanism} {position:?} token {i}"), &doubles(step), &row, 2e-5);
                }
                assert!(state.bytes() > 0 && state.position() == 5);
            }
        }
    }
    report.finish();
    let model = language_model(&small(), &attention(Mechanism::Softmax), &device);
    let mut state = model.decoder(1, Storage::F32).unwrap();
    assert!(model.step(&[1, 2], &mut state).unwrap_err().to_string().contains("1 rows"));
    assert!(model.step(&[11], &mut state).unwrap_err().to_string().contains("vocabulary (11)"));
    for _ in 0..CONTEXT {
        model.step(&[1], &mut state).unwrap();
    }
    assert!(model.step(&[1], &mut state).unwrap_err().to_string().contains("below 10"));
    assert!(model.decoder(0, Storage::F32).is_err());
}

#[test]
fn a_training_pass_repeats_to_the_bit_and_depends_on_its_step_alone() {
    let device = Device::flex().autodiff();
    let config = ModelConfig { dropout: 0.2, attention_dropout: 0.1, ..small() };
    for &mechanism in Mechanism::ALL {
        let pass = |context: Context| {
            let model = classifier(&config, &attention(mechanism), &device);
            values(model.forward(&batch(&[7, 4], 7, 0), &context))
        };
        let first = pass(Context::training(1, 20));
        // An earlier pass in between changes nothing, as after a resume.
        let model = classifier(&config, &attention(mechanism), &device);
        model.forward(&batch(&[7, 4], 7, 0), &Context::training(1, 19));
        assert_eq!(values(model.forward(&batch(&[7, 4], 7, 0), &Context::training(1, 20))), first, "{mechanism}");
        let others = [
            Context::training(1, 21),
            Context::training(2, 20),
            Context::training(1, 20).with_micro_batch(1),
            Context::evaluation(),
        ];
        for other in others {
            assert_ne!(pass(other.clone()), first, "{mechanism} {other:?}");
        }
    }
}

#[test]
fn recomputing_blocks_changes_no_bit() {
    let device = Device::flex().autodiff();
    let em = MixtureOptions { inference: Inference::SoftEm, ..MixtureOptions::default() };
    let layer_wise = FastformerOptions { sharing: Sharing::LayerWise, ..FastformerOptions::default() };
    let mut variants: Vec<_> = Mechanism::ALL.iter().map(|&mechanism| attention(mechanism)).collect();
    variants.push(AttentionConfig { mixture: em, ..attention(Mechanism::Mgk) });
    variants.push(AttentionConfig { fastformer: layer_wise, ..attention(Mechanism::Fastformer) });
    // The second pass has another projection than the first, and both see it.
    let features = FeatureOptions { redraw: 1, ..FeatureOptions::default() };
    variants.push(AttentionConfig { features, ..attention(Mechanism::Performer) });
    for options in variants {
        let pass = |checkpointing| {
            let config = ModelConfig { checkpointing, dropout: 0.1, attention_dropout: 0.1, ..small() };
            let model = classifier(&config, &options, &device);
            let mut out = BTreeMap::new();
            // Twice, so that buffers changed by the first pass show in the second.
            for step in 0..2 {
                let logits = model.forward(&batch(&[7, 4], 7, 0), &Context::training(1, step));
                out = gradients(&model, &logits.clone().square().sum().backward());
                out.insert("logits".into(), doubles(logits));
            }
            out
        };
        assert_eq!(pass(false), pass(true), "{}", options.label());
    }
}

#[test]
fn every_parameter_learns() {
    let device = Device::flex().autodiff();
    for &mechanism in Mechanism::ALL {
        for (norm, activation) in [(NormPlace::Pre, Activation::Gelu), (NormPlace::Post, Activation::Relu)] {
            let config = ModelConfig { norm, activation, pooling: Pooling::Attention, ..small() };
            let model = classifier(&config, &attention(mechanism), &device);
            let grads = model.forward(&batch(&[7, 4], 7, 0), &Context::training(0, 0)).square().sum().backward();
            let grads = gradients(&model, &grads);
            for parameter in named_parameters(&model).into_iter().filter(|parameter| !parameter.buffer) {
                let grad = grads.get(&parameter.name).unwrap_or_else(|| panic!("{mechanism}: {}", parameter.name));
                assert!(grad.iter().all(|g| g.is_finite()), "{mechanism}: {}", parameter.name);
                // Key biases of softmax shift all scores of a query alike, on whatever support.
                let softmax = matches!(mechanism, Mechanism::Softmax | Mechanism::Sparse | Mechanism::Scatterbrain);
                let idle = softmax && parameter.name.ends_with("b_k");
                assert!(idle || grad.iter().any(|&g| g != 0.0), "{mechanism}: {}", parameter.name);
            }
        }
    }
}

#[test]
fn names_are_those_of_the_files_and_load_what_they_saved() {
    let device = Device::flex();
    let model = language_model(&small(), &attention(Mechanism::Mgk), &device);
    let saved = named_parameters(&model);
    let names: Vec<_> = saved.iter().map(|parameter| parameter.name.as_str()).collect();
    assert_eq!(names[..3], ["token_embedding", "position_embedding", "layers.0.norm_1.weight"]);
    for name in ["layers.1.attention.w_k", "layers.1.attention.log_prior", "layers.1.ff.b_2", "norm_f.bias", "head"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    assert_eq!(parameter_count(&model), saved.iter().map(|parameter| parameter.values.len()).sum::<usize>());
    let map: BTreeMap<_, _> =
        saved.iter().map(|p| (p.name.clone(), (p.shape.clone(), p.values.iter().map(|x| x + 1.0).collect()))).collect();
    let loaded = load_parameters(model.clone(), map.clone()).unwrap();
    for (before, after) in saved.iter().zip(named_parameters(&loaded)) {
        assert_eq!(before.name, after.name);
        assert!(before.values.iter().zip(&after.values).all(|(before, after)| before + 1.0 == *after));
    }
    let change = |change: fn(&mut ParameterMap)| {
        let mut map = map.clone();
        change(&mut map);
        load_parameters(model.clone(), map).unwrap_err()
    };
    let missing = change(|map| drop(map.remove("head")));
    assert_eq!(missing, ParameterError::Missing(vec!["head".into()]));
    let unexpected = change(|map| drop(map.insert("tail".into(), (vec![1], vec![0.0]))));
    assert_eq!(unexpected.to_string(), "parameters are not part of this model: 'tail'");
    let shape = change(|map| drop(map.insert("head".into(), (vec![11, 16], vec![0.0; 176]))));
    assert_eq!(shape.to_string(), "parameter 'head' has shape [11, 16], expected [16, 11]");
}

#[test]
fn blocks_that_share_their_attention_have_one_set_of_its_parameters() {
    let sharing = |sharing| AttentionConfig {
        fastformer: FastformerOptions { sharing, ..FastformerOptions::default() },
        ..attention(Mechanism::Fastformer)
    };
    let count = |options: &AttentionConfig| parameter_count(&classifier(&small(), options, &Device::flex()));
    let (own, shared) = (sharing(Sharing::QueryValue), sharing(Sharing::LayerWise));
    // Width 16 with biases: three projections, two score vectors.
    assert_eq!(count(&own) - count(&shared), 3 * 16 * 16 + 3 * 16 + 2 * 16);
    let model = classifier(&small(), &shared, &Device::flex());
    let names: Vec<_> = named_parameters(&model).into_iter().map(|parameter| parameter.name).collect();
    assert!(names.contains(&"attention.w_t".into()) && !names.iter().any(|name| name.contains("0.attention")));
}

#[test]
fn a_decoder_block_reads_the_memory_and_no_future() {
    let device = Device::flex();
    let random = |seed: u64, tokens: usize| {
        let values: Vec<f32> =
            regard_testkit::Random::new(seed).normals(tokens * 16).iter().map(|&x| x as f32).collect();
        Tensor::<1>::from_floats(values.as_slice(), &device).reshape([1, tokens, 16])
    };
    for &mechanism in Mechanism::ALL {
        let mut attentions = Attentions::from(&attention(mechanism));
        // Under a local support the place of a query depends on how many there are.
        attentions.cross.support.kind = SupportKind::Full;
        let block = DecoderBlock::new(&small(), &attentions, CONTEXT, &Init::new(2, &device));
        if !mechanism.facts().cross {
            assert!(block.unwrap_err().to_string().contains("cross attention: mechanism is fastformer"));
            continue;
        }
        let block = block.unwrap();
        let forward = |x: Tensor<3>, states: Tensor<3>| {
            let memory = Memory { states, padding: None };
            values(block.forward(x, None, &memory, None, &Context::evaluation()))
        };
        let (x, memory) = (random(1, 5), random(2, 7));
        let out = forward(x.clone(), memory.clone());
        assert_ne!(out, forward(x.clone(), random(3, 7)), "{mechanism}");
        let changed = Tensor::cat(vec![x.clone().narrow(1, 0, 3), random(4, 2)], 1);
        same_past(&attention(mechanism), &out[..48], &forward(changed, memory)[..48]);
    }
}

#[test]
fn the_same_seed_gives_the_same_model_with_and_without_autodiff() {
    for &mechanism in Mechanism::ALL {
        let plain = classifier(&small(), &attention(mechanism), &Device::flex());
        let tracked = classifier(&small(), &attention(mechanism), &Device::flex().autodiff());
        assert_eq!(named_parameters(&plain), named_parameters(&tracked));
        let tokens = batch(&[7, 4], 7, 0);
        let context = Context::evaluation();
        let seen = doubles(tracked.valid().forward(&tokens, &context));
        assert!(error(&seen, &doubles(plain.forward(&tokens, &context))) == 0.0, "{mechanism}");
    }
}

#[test]
fn impossible_sizes_are_errors() {
    let device = Device::flex();
    let softmax = attention(Mechanism::Softmax);
    let refused = |config: ModelConfig, part: &str| {
        let error = Classifier::new(&config, &softmax, VOCABULARY, CLASSES, CONTEXT, 1, &device).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(ModelConfig { width: 0, ..small() }, "model.width is 0");
    refused(ModelConfig { width: 15, ..small() }, "multiple of heads (2)");
    refused(ModelConfig { layers: 0, ..small() }, "model.layers is 0");
    refused(ModelConfig { feed_forward: 0, ..small() }, "model.feed_forward is 0");
    refused(ModelConfig { dropout: 1.0, ..small() }, "model.dropout is 1");
    refused(ModelConfig { attention_dropout: f64::NAN, ..small() }, "model.attention_dropout is NaN");
    assert!(Classifier::new(&small(), &softmax, VOCABULARY, 0, CONTEXT, 1, &device).is_err());
    assert!(LanguageModel::new(&small(), &softmax, VOCABULARY, 0, 1, &device).is_err());
    assert!(batch(&[7], CONTEXT + 1, 0).check(VOCABULARY, CONTEXT).unwrap_err().to_string().contains("at most 10"));
    assert!(TokenBatch::new([1, 2, 3], 2, 2, None).is_err());
}
