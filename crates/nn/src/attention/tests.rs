use std::{collections::BTreeMap, sync::Arc};

use burn::module::{ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, TensorData};
use regard_kernels::{
    Storage,
    features::{FeatureKind, FeatureOptions},
    mechanism::{
        AdditiveScores, Combination, FastformerOptions, Fraction, Inference, KeyDesign, KeyOptions, MixtureOptions,
        NamedVariances, Position, Prior, ScatterbrainOptions, Score, Sharing, Variances,
    },
    routing::{GateKind, MoaOptions},
    support::{SupportKind, SupportOptions},
};
use regard_testkit::{Random, Report};

use super::*;
use crate::{
    models::{ParameterPath, is_buffer, load_parameters, named_parameters, parameter_count},
    ops::{force_blocks, force_composed},
};

const WIDTH: usize = 24;
const LENGTH: usize = 9;
const CONTEXT: usize = LENGTH + 2;

fn options(mechanism: Mechanism) -> AttentionConfig {
    AttentionConfig { mechanism, position: Position::None, ..AttentionConfig::default() }
}

const SUPPORTS: [(&str, SupportKind); 8] = [
    ("local", SupportKind::Local),
    ("longformer", SupportKind::Longformer),
    ("bigbird", SupportKind::Bigbird),
    ("block", SupportKind::Block),
    ("smyrf", SupportKind::Smyrf),
    ("lsh", SupportKind::Lsh),
    ("full", SupportKind::Full),
    ("empty", SupportKind::Empty),
];

/// A support that leaves something out of the few tokens of these tests; the layout is for [`CONTEXT`].
fn support(kind: SupportKind) -> SupportOptions {
    SupportOptions {
        kind,
        radius: 1,
        globals: 1,
        random: 1,
        block: 3,
        layout: Some(["1001", "0110", "1010", "0101"].map(String::from).to_vec()),
        rounds: 2,
        cluster: 3,
        bucket: 3,
        ..SupportOptions::default()
    }
}

/// Every mechanism with every option that changes what its layer computes, by a name.
fn variants() -> Vec<(String, AttentionConfig)> {
    let mut list = Vec::new();
    for &mechanism in Mechanism::ALL {
        let mut add = |name: &str, options: AttentionConfig| list.push((format!("{mechanism} {name}"), options));
        let base = options(mechanism);
        add("plain", base.clone());
        if mechanism != Mechanism::Fastformer {
            if mechanism != Mechanism::Moa {
                add("grouped", AttentionConfig { key_value_heads: Some(2), ..base.clone() });
            }
            add("multi-query", AttentionConfig { key_value_heads: Some(1), ..base.clone() });
            add("rotary", AttentionConfig { position: Position::Rotary, ..base.clone() });
        }
        if mechanism.facts().window {
            add("window", AttentionConfig { window: Some(2), ..base.clone() });
        }
        let shifted = KeyOptions { design: KeyDesign::Shifted, components: 3 };
        match mechanism {
            Mechanism::Softmax => add("alibi", AttentionConfig { position: Position::Alibi, ..base }),
            Mechanism::Mgk => {
                add("shifted", AttentionConfig { keys: shifted.clone(), ..base.clone() });
                let rotary = AttentionConfig { position: Position::Rotary, ..base.clone() };
                add("shifted rotary", AttentionConfig { keys: shifted, ..rotary });
                let mixtures = [
                    ("hard", MixtureOptions { inference: Inference::Hard, ..Default::default() }),
                    ("soft-em", MixtureOptions { inference: Inference::SoftEm, ..Default::default() }),
                    ("dot", MixtureOptions { score: Score::Dot, ..Default::default() }),
                    ("per-position", MixtureOptions { prior: Prior::PerPosition, ..Default::default() }),
                    (
                        "unequal, learned",
                        MixtureOptions {
                            variances: Variances::Named(NamedVariances::Paper13),
                            learn_variances: true,
                            ..Default::default()
                        },
                    ),
                ];
                for (name, mixture) in mixtures {
                    add(name, AttentionConfig { mixture, ..base.clone() });
                }
            }
            Mechanism::Mlk => add("shifted", AttentionConfig { keys: shifted, ..base }),
            Mechanism::Performer => {
                let plain = FeatureOptions { kind: FeatureKind::Plain, rows: 5, ..Default::default() };
                add("plain features", AttentionConfig { features: plain, ..base });
            }
            Mechanism::Sparse | Mechanism::Scatterbrain => {
                // Without support or features nothing is left.
                let some = |kind: &&(_, SupportKind)| mechanism != Mechanism::Sparse || kind.1 != SupportKind::Empty;
                for kind in SUPPORTS.iter().filter(some) {
                    add(kind.0, AttentionConfig { support: support(kind.1), ..base.clone() });
                }
                let joined = |combination| ScatterbrainOptions { combination, ..Default::default() };
                for (name, combination, kind) in [
                    ("naive", Combination::Naive, SupportKind::Local),
                    ("gated", Combination::Gated, SupportKind::Local),
                    ("block, naive", Combination::Naive, SupportKind::Block),
                    ("block, gated", Combination::Gated, SupportKind::Block),
                ] {
                    if mechanism == Mechanism::Scatterbrain {
                        let (scatterbrain, support) = (joined(combination), support(kind));
                        add(name, AttentionConfig { scatterbrain, support, ..base.clone() });
                    }
                }
                if mechanism == Mechanism::Scatterbrain {
                    let features = FeatureOptions { kind: FeatureKind::Elu, ..Default::default() };
                    let support = support(SupportKind::Local);
                    add("elu", AttentionConfig { features, support, ..base });
                }
            }
            Mechanism::Moa => {
                let gates = GateKind::Released;
                add("released", AttentionConfig { moa: MoaOptions { gates, ..Default::default() }, ..base.clone() });
                let all = MoaOptions { experts: 4, active: 4, cv: 0.5, ..Default::default() };
                add("all", AttentionConfig { moa: all, ..base.clone() });
                let drawn = MoaOptions { noise: 0.3, sampled: 1, ..Default::default() };
                add("noisy, drawn", AttentionConfig { moa: drawn, ..base.clone() });
                let one = MoaOptions { active: 1, head_width: Some(6), ..Default::default() };
                add("one", AttentionConfig { moa: one, ..base });
            }
            Mechanism::Fastformer => {
                for sharing in [Sharing::None, Sharing::HeadWise, Sharing::LayerWise] {
                    for scores in [AdditiveScores::Paper, AdditiveScores::Released] {
                        let fastformer = FastformerOptions { sharing, scores, ..Default::default() };
                        add(&format!("{sharing:?} {scores:?}"), AttentionConfig { fastformer, ..base.clone() });
                    }
                }
            }
            _ => {}
        }
    }
    list
}

/// A layer whose parameters are all away from their special initial values (0, uniform), on a device with autodiff.
fn layer(model: &ModelConfig, options: &AttentionConfig) -> Attention {
    layer_on(&Device::flex().autodiff(), model, options)
}

fn layer_on(device: &Device, model: &ModelConfig, options: &AttentionConfig) -> Attention {
    let init = Init::new(5, device);
    let attention = Attention::new(model, options, CONTEXT, &init).unwrap();
    let mut random = Random::new(9);
    let parameters = named_parameters(&attention).into_iter().map(|parameter| {
        let move_by = if parameter.buffer { 0.0 } else { 0.3 };
        let values = parameter.values.iter().map(|x| x + (move_by * random.normal()) as f32).collect();
        (parameter.name, (parameter.shape, values))
    });
    let parameters = parameters.collect();
    load_parameters(attention, parameters).unwrap()
}

fn model() -> ModelConfig {
    ModelConfig { width: WIDTH, ..ModelConfig::default() }
}

fn input(seed: u64, batch: usize, length: usize, device: &Device) -> Tensor<3> {
    let values: Vec<f32> = Random::new(seed).normals(batch * length * WIDTH).into_iter().map(|x| x as f32).collect();
    Tensor::from_data(TensorData::new(values, [batch, length, WIDTH]), device)
}

fn doubles<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().as_slice::<f32>().unwrap().iter().map(|&x| f64::from(x)).collect()
}

/// Output, gradients and buffers afterwards, by name.
fn run(attention: &Attention, mask: &Mask, context: &Context) -> BTreeMap<String, Vec<f64>> {
    run_on(&Device::flex().autodiff(), attention, mask, context)
}

fn run_on(device: &Device, attention: &Attention, mask: &Mask, context: &Context) -> BTreeMap<String, Vec<f64>> {
    struct Collect<'a>(ParameterPath, &'a Gradients, BTreeMap<String, Vec<f64>>);
    impl ModuleVisitor for Collect<'_> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let name = self.0.name();
            let value = param.val();
            let seen = if is_buffer(&name) { Some(value.clone()) } else { value.grad(self.1) };
            self.2.insert(name.clone(), doubles(seen.unwrap_or_else(|| panic!("'{name}' has no gradient"))));
        }
    }
    let x = input(1, 2, LENGTH, device).require_grad();
    let out = attention.forward(x.clone(), x.clone(), mask, context, Place::Weights);
    let weights = input(2, 2, LENGTH, device);
    let grads = (out.clone() * weights).sum().backward();
    let mut collect = Collect(ParameterPath::default(), &grads, BTreeMap::new());
    attention.visit(&mut collect);
    collect.2.insert("out".into(), doubles(out));
    collect.2.insert("x".into(), doubles(x.grad(&grads).unwrap()));
    collect.2
}

/// Error of one form against another in float32: a few hundred roundings.
const BOUND: f64 = 5e-5;

#[test]
fn kernels_and_composed_forms_agree_for_every_mechanism_in_value_and_gradient() {
    agrees_with_kernels("composed", Device::flex());
}

/// The same on every other device of this machine.
#[cfg(feature = "cube")]
#[test]
fn other_devices_agree_with_the_kernels() {
    for (found, device) in other_devices() {
        agrees_with_kernels(&found.name, device);
    }
}

/// The same by fused kernels, for what they take.
#[cfg(feature = "cube")]
#[test]
fn other_devices_agree_with_the_kernels_by_fused_forms() {
    use crate::ops::{fused_passes, runs_fused};

    let mut report = Report::new();
    for (found, device) in other_devices() {
        let device_name = &found.name;
        each_setting(0.0, |name, setting| {
            let options = &setting.options;
            let fused = runs_fused(options, options.causal, &device);
            if !fused && (setting.padding.is_some() || !runs_fused(options, true, &device)) {
                return;
            }
            let before = fused_passes();
            let seen = setting.run(&device);
            let passes = fused_passes();
            let [forward, backward] = [passes[0] - before[0], passes[1] - before[1]];
            report.require(
                forward == backward && (forward > 0) == fused,
                format!(
                    "{device_name}: {name}, {setting}: {forward} and {backward} passes were fused, expected {fused}"
                ),
            );
            if fused {
                let kernel = setting.run(&Device::flex());
                compare(&mut report, &format!("{device_name}: {name} fused, {setting}"), &kernel, &seen);
            }
        });
    }
    report.finish();
}

#[cfg(feature = "cube")]
fn other_devices() -> Vec<(crate::device::Found, Device)> {
    let others = crate::device::list().into_iter().filter(|found| !found.kernels);
    let others: Vec<_> = others
        .map(|found| {
            let device = crate::device::find(&found.name).expect("a device that was listed");
            (found, device)
        })
        .collect();
    assert!(!others.is_empty(), "no device but the CPU: on a machine without a GPU, a software Vulkan driver serves");
    others
}

/// A layer with a mask.
struct Setting<'a> {
    options: AttentionConfig,
    padding: Option<&'a Arc<Padding>>,
    dropout: f64,
}

impl Setting<'_> {
    fn run(&self, device: &Device) -> BTreeMap<String, Vec<f64>> {
        let device = device.clone().autodiff();
        let model = ModelConfig { attention_dropout: self.dropout, ..model() };
        let attention = layer_on(&device, &model, &self.options);
        run_on(&device, &attention, &attention.mask(self.padding.cloned()), &Context::training(3, 4))
    }
}

impl std::fmt::Display for Setting<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "causal {}, padded {}", self.options.causal, self.padding.is_some())
    }
}

/// Every mechanism, mask and option.
fn each_setting(dropout: f64, mut task: impl FnMut(&str, &Setting)) {
    let padding = Arc::new(Padding::from_lengths(&[LENGTH, 6], LENGTH));
    for (name, options) in variants() {
        for (causal, padding) in [(false, None), (true, None), (false, Some(&padding)), (true, Some(&padding))] {
            let options = AttentionConfig { causal, ..options.clone() };
            task(&name, &Setting { options, padding, dropout });
        }
    }
}

/// Holds the composed forms on `device` against the kernels, for every mechanism, mask and option.
fn agrees_with_kernels(what: &str, device: Device) {
    let mut report = Report::new();
    each_setting(0.2, |name, setting| {
        let kernel = setting.run(&Device::flex());
        let once = || setting.run(&device);
        // At once, and in blocks of a few queries, of which the last is shorter.
        for (form, composed) in [("at once", force_composed(once)), ("in blocks", force_blocks(4, once))] {
            compare(&mut report, &format!("{what}: {name} {form}, {setting}"), &kernel, &composed);
        }
    });
    report.finish();
}

/// Compares what [`run_on`] returns.
fn compare(report: &mut Report, what: &str, kernel: &BTreeMap<String, Vec<f64>>, other: &BTreeMap<String, Vec<f64>>) {
    assert!(kernel.keys().eq(other.keys()));
    for (tensor, seen) in kernel {
        let largest = |tensor: &str| other[tensor].iter().fold(0f64, |most, x| most.max(x.abs()));
        // A key bias that shifts all scores of a query alike has a gradient of 0, a sum of terms that are not.
        let largest = largest(if tensor == "b_k" { "w_k" } else { tensor });
        let apart = seen.iter().zip(&other[tensor]).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x) });
        report.require(
            apart <= BOUND * largest.max(1e-6),
            format!("{what}: {tensor} differs by {apart:.1e} of {largest:.1e}"),
        );
    }
}

#[test]
fn dropout_acts_where_a_mechanism_has_weights() {
    for (name, options) in variants() {
        let outputs = [0.0, 0.5].map(|dropout| {
            let setting = Setting { options: options.clone(), padding: None, dropout };
            setting.run(&Device::flex()).remove("out").unwrap()
        });
        assert_eq!(outputs[0] != outputs[1], options.mechanism.facts().dropout, "{name}");
    }
}

#[test]
fn decoding_token_by_token_gives_the_whole_forward_pass() {
    let mut report = Report::new();
    let device = Device::flex();
    for (name, options) in variants() {
        let options = AttentionConfig { causal: true, ..options };
        let attention = layer(&model(), &options).valid();
        let x = input(3, 2, LENGTH, &device);
        let context = Context::evaluation();
        let whole = attention.forward(x.clone(), x.clone(), &attention.mask(None), &context, Place::Weights);
        use SupportKind::{Bigbird, Lsh, Smyrf};
        let whole_at_once = options.uses_support() && matches!(options.support.kind, Bigbird | Lsh | Smyrf);
        let mut state = match attention.decoder(Storage::F32) {
            Ok(state) => state,
            Err(error) => {
                let error = error.to_string();
                let why = ["depends on all tokens", "drawn among those of the whole sequence"];
                let named = error.contains(&options.label()) && why.iter().any(|why| error.contains(why));
                report.require(whole_at_once && named, format!("{name}: {error}"));
                continue;
            }
        };
        let steps = (0..LENGTH).map(|i| attention.decode(x.clone().narrow(1, i, 1), &mut state)).collect();
        let whole = doubles(whole);
        report.compare(&name, &doubles(Tensor::cat(steps, 1)), &whole, 2e-5);
        report.require(state.bytes() > 0 && state.position() == LENGTH, format!("{name}: state"));
        report.require(!whole_at_once, format!("{name}: a state that cannot know the whole"));
        // A prompt, another chunk, and single tokens.
        let mut chunked = attention.decoder(Storage::F32).unwrap();
        let cuts = [0, 4, 7, 8, LENGTH];
        let chunks = cuts.windows(2).map(|cut| x.clone().narrow(1, cut[0], cut[1] - cut[0]));
        let chunks = chunks.map(|chunk| attention.decode(chunk, &mut chunked)).collect();
        report.compare(format!("{name}, in chunks"), &doubles(Tensor::cat(chunks, 1)), &whole, 2e-5);
        let layout = options.uses_support() && options.support.kind == SupportKind::Block;
        // Four blocks of three.
        report.require(chunked.check(13 - LENGTH).is_err() == layout, format!("{name}: room"));
        report.require(chunked.check(12 - LENGTH).is_ok(), format!("{name}: no room"));
        let open = layer(&model(), &AttentionConfig { causal: false, ..options });
        assert!(open.decoder(Storage::F32).unwrap_err().to_string().contains("causal"), "{name}");
    }
    report.finish();
}

#[test]
fn cross_attention_reads_sequences_of_another_length() {
    let device = Device::flex();
    for (name, options) in variants().into_iter().filter(|(_, options)| reads_second_sequence(options)) {
        let attention = layer(&model(), &options).valid();
        let (x, keys) = (input(4, 2, 5, &device), input(5, 2, LENGTH, &device));
        let padding = Arc::new(Padding::from_lengths(&[LENGTH, 4], LENGTH));
        let mask = Mask { window: options.window, ..Mask::none().with_valid(Some(padding)) };
        let forward = |keys: Tensor<3>| {
            doubles(attention.forward(x.clone(), keys, &mask, &Context::evaluation(), Place::CrossWeights))
        };
        let out = forward(keys.clone());
        assert!(out.len() == 2 * 5 * WIDTH && out.iter().all(|x| x.is_finite()), "{name}");
        // The padded keys of the second row are never read.
        let other = keys.slice_assign([1..2, 4..LENGTH, 0..WIDTH], Tensor::full([1, LENGTH - 4, WIDTH], 7.0, &device));
        assert_eq!(out, forward(other), "{name}");
    }
}

#[test]
fn parameter_counts_are_the_closed_forms() {
    let model = ModelConfig { bias: false, ..model() };
    let count = |model: &ModelConfig, options: &AttentionConfig| {
        parameter_count(&Attention::new(model, options, LENGTH, &Init::new(1, &Device::flex())).unwrap())
    };
    // 3 HD Dx + (HD)^2 for softmax, the Gaussian kernel and linear attention.
    let (d, h) = (WIDTH, 4);
    for mechanism in [Mechanism::Softmax, Mechanism::Gaussian, Mechanism::Linear] {
        assert_eq!(count(&model, &options(mechanism)), 4 * d * d, "{mechanism}");
    }
    // Two keys with half the heads, each as wide as before: 2 HD Dx + (HD)^2 / 2 + H.
    let half = ModelConfig { head_width: Some(d / h), ..model.clone() };
    for mechanism in [Mechanism::Mgk, Mechanism::Mlk] {
        let options = AttentionConfig { heads: h / 2, ..options(mechanism) };
        assert_eq!(count(&half, &options), 2 * d * d + d * d / 2 + h, "{mechanism}");
        let shifted = KeyOptions { components: 2, design: KeyDesign::Shifted };
        let shifted = AttentionConfig { keys: shifted, ..options };
        assert_eq!(count(&half, &shifted), 2 * d * d + h + d, "one projection less, H/2 shifts of 2 D more");
    }
    // (2 E + 2) D d + d E for a mixture of E heads, however many a token uses.
    for (active, head_width) in [(2, None), (3, Some(5))] {
        let moa = MoaOptions { experts: 7, active, head_width, ..Default::default() };
        let width = head_width.unwrap_or(d / active);
        let count = count(&model, &AttentionConfig { moa, ..options(Mechanism::Moa) });
        assert_eq!(count, (2 * 7 + 2) * width * d + d * 7);
    }
    // 3 (HD)^2 + 2 HD, released scores 3 (HD)^2 + 2 H HD.
    let fastformer = |sharing, scores| {
        let fastformer = FastformerOptions { sharing, scores, ..Default::default() };
        count(&model, &AttentionConfig { fastformer, ..options(Mechanism::Fastformer) })
    };
    assert_eq!(fastformer(Sharing::QueryValue, AdditiveScores::Paper), 3 * d * d + 2 * d);
    assert_eq!(fastformer(Sharing::QueryValue, AdditiveScores::Released), 3 * d * d + 2 * h * d);
    assert_eq!(fastformer(Sharing::None, AdditiveScores::Paper), 4 * d * d + 2 * d);
    let own = d / h;
    assert_eq!(fastformer(Sharing::HeadWise, AdditiveScores::Paper), d * d + 2 * own * own + 2 * own);
    // Biases: one per channel of each projection. The prior of soft-EM is no parameter.
    let biased = ModelConfig { bias: true, ..model.clone() };
    assert_eq!(count(&biased, &options(Mechanism::Softmax)), 4 * d * d + 4 * d);
    let em = MixtureOptions { inference: Inference::SoftEm, ..Default::default() };
    assert_eq!(count(&model, &AttentionConfig { mixture: em, ..options(Mechanism::Mgk) }), 5 * d * d);
}

#[test]
fn soft_em_moves_its_prior_in_training_only() {
    let em = MixtureOptions { inference: Inference::SoftEm, ..Default::default() };
    let attention = layer(&model(), &AttentionConfig { mixture: em, causal: true, ..options(Mechanism::Mgk) });
    let prior = |attention: &Attention| {
        let all = named_parameters(attention);
        all.into_iter().find(|parameter| parameter.name == "prior").unwrap().values
    };
    let before = prior(&attention);
    assert!(before.iter().all(|&p| p == 0.5));
    let padding = Some(Arc::new(Padding::from_lengths(&[7, 5], LENGTH)));
    run(&attention, &attention.mask(padding.clone()), &Context::evaluation());
    assert_eq!(prior(&attention), before);
    let first = run(&attention, &attention.mask(padding.clone()), &Context::training(0, 0));
    let after = prior(&attention);
    // Positions of one head and component: 7 are seen by a query, the others keep their prior.
    let positions = LENGTH + 2;
    for (seen, kept) in after.chunks_exact(positions).map(|row| row.split_at(7)) {
        assert!(seen.iter().all(|&p| p != 0.5 && (0.0..=1.0).contains(&p)), "{seen:?}");
        assert!(kept.iter().all(|&p| p == 0.5), "{kept:?}");
    }
    for pair in after.chunks_exact(2 * positions) {
        assert!((0..7).all(|j| (pair[j] + pair[positions + j] - 1.0).abs() < 1e-5));
    }
    let second = run(&attention, &attention.mask(padding), &Context::training(0, 1));
    assert_ne!(first["out"], second["out"], "the next pass uses the new prior");
}

#[test]
fn what_is_drawn_is_a_buffer_of_each_layer_alone() {
    let drawn = |options: &AttentionConfig, path: &str, seed: u64| {
        let init = Init::new(seed, &Device::flex()).part(path);
        let all = named_parameters(&Attention::new(&model(), options, CONTEXT, &init).unwrap());
        all.into_iter().filter(|parameter| parameter.buffer).collect::<Vec<_>>()
    };
    let smyrf = AttentionConfig { support: support(SupportKind::Smyrf), ..options(Mechanism::Scatterbrain) };
    let lsh = AttentionConfig { support: support(SupportKind::Lsh), ..options(Mechanism::Sparse) };
    let shapes = |options: &AttentionConfig| {
        let all = drawn(options, "0", 1).into_iter();
        all.map(|parameter| (parameter.name, parameter.shape)).collect::<Vec<_>>()
    };
    let width = WIDTH / 4;
    let shape = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
    assert_eq!(shapes(&smyrf), [shape("projection", &[32, width]), shape("directions", &[2, width + 2])]);
    // Eleven tokens make four chunks of three, hence eight values and four columns.
    assert_eq!(shapes(&lsh), [shape("rotations", &[2, width, 4])]);
    for options in [&smyrf, &lsh] {
        assert_eq!(drawn(options, "0", 1), drawn(options, "0", 1));
        for (other, what) in [(drawn(options, "1", 1), "layer"), (drawn(options, "0", 2), "seed")] {
            for (one, other) in drawn(options, "0", 1).iter().zip(&other) {
                assert_ne!(one.values, other.values, "{} of another {what}", one.name);
            }
        }
    }
    // Queries are the keys of LSH: one projection less. A gate is one number per head.
    let count = |options: &AttentionConfig| {
        let model = ModelConfig { bias: false, ..model() };
        parameter_count(&Attention::new(&model, options, CONTEXT, &Init::new(1, &Device::flex())).unwrap())
    };
    let gated = ScatterbrainOptions { combination: Combination::Gated, ..Default::default() };
    assert_eq!(count(&smyrf), 4 * WIDTH * WIDTH);
    assert_eq!(count(&lsh), 3 * WIDTH * WIDTH);
    assert_eq!(count(&AttentionConfig { scatterbrain: gated, ..smyrf }), 4 * WIDTH * WIDTH + 4);
}

#[test]
fn a_projection_is_drawn_anew_every_so_many_updates_and_stays_for_evaluation() {
    let features = FeatureOptions { redraw: 5, ..Default::default() };
    let attention = layer(&model(), &AttentionConfig { features, ..options(Mechanism::Performer) });
    let mask = attention.mask(None);
    let projection = |attention: &Attention| {
        let all = named_parameters(attention);
        all.into_iter().find(|parameter| parameter.name == "projection").unwrap().values
    };
    let first = projection(&attention);
    let after = |step: u64| {
        run(&attention, &mask, &Context::training(0, step));
        projection(&attention)
    };
    assert_eq!(after(0), first);
    assert_eq!(after(4), first);
    let second = after(5);
    assert_ne!(second, first);
    // A draw depends on its number alone: a run that was resumed at update 14 goes on as one that was not.
    assert_eq!(after(14), after(10));
    let third = after(10);
    assert_ne!(third, second);
    let trained = run(&attention, &mask, &Context::training(0, 14))["out"].clone();
    assert_eq!(run(&attention, &mask, &Context::evaluation())["out"], trained);
    assert_eq!(projection(&attention.valid()), third);
    assert_eq!(after(5), second);
    assert_ne!(run(&attention, &mask, &Context::evaluation())["out"], trained);
    // Without it, the projection that was loaded is never touched.
    let fixed = layer(&model(), &options(Mechanism::Performer));
    let before = projection(&fixed);
    run(&fixed, &mask, &Context::training(0, 100));
    assert_eq!(projection(&fixed), before);
}

#[test]
fn a_budget_is_a_share_of_the_longest_sequence() {
    let budget = Some(Fraction::new(0.5).unwrap());
    let build = |options: &AttentionConfig, context| {
        let attention = Attention::new(&model(), options, context, &Init::new(1, &Device::flex())).unwrap();
        let Attention::Scatterbrain(layer) = &attention else { panic!("one layer for all three") };
        (layer.heads().options.support.radius, layer.heads().options.features.rows)
    };
    let options = AttentionConfig { budget, ..options(Mechanism::Scatterbrain) };
    // 100 entries: 75 for the support, 25 for features.
    assert_eq!(build(&options, 200), (37, 12));
    assert_eq!(build(&AttentionConfig { causal: true, ..options.clone() }, 200), (74, 12));
    assert_eq!(build(&AttentionConfig { mechanism: Mechanism::Performer, ..options.clone() }, 200).1, 50);
    let init = Init::new(1, &Device::flex());
    let error = Attention::new(&model(), &options, 2, &init).unwrap_err();
    assert!(matches!(error, Error::Budget { .. }), "{error}");
}

#[test]
fn half_of_each_part_is_where_a_gate_starts() {
    let device = Device::flex();
    let base = AttentionConfig { support: support(SupportKind::Local), ..options(Mechanism::Scatterbrain) };
    let forward = |options: &AttentionConfig| {
        let attention = Attention::new(&model(), options, CONTEXT, &Init::new(1, &device)).unwrap();
        let x = input(6, 2, LENGTH, &device);
        doubles(attention.forward(x.clone(), x, &attention.mask(None), &Context::evaluation(), Place::Weights))
    };
    let sparse = forward(&AttentionConfig { mechanism: Mechanism::Sparse, ..base.clone() });
    let performer = forward(&AttentionConfig { mechanism: Mechanism::Performer, ..base.clone() });
    let gated = ScatterbrainOptions { combination: Combination::Gated, ..Default::default() };
    let mean: Vec<f64> = sparse.iter().zip(&performer).map(|(a, b)| (a + b) / 2.0).collect();
    let mut report = Report::new();
    report.compare("gated", &forward(&AttentionConfig { scatterbrain: gated, ..base }), &mean, 1e-6);
    report.finish();
}

#[test]
fn a_layout_is_cut_to_shorter_batches() {
    let device = Device::flex();
    let block = AttentionConfig { support: support(SupportKind::Block), ..options(Mechanism::Sparse) };
    let attention = Attention::new(&model(), &block, CONTEXT, &Init::new(1, &device)).unwrap();
    let forward = |x: Tensor<3>| {
        doubles(attention.forward(x.clone(), x, &attention.mask(None), &Context::evaluation(), Place::Weights))
    };
    let x = input(6, 1, CONTEXT, &device);
    // Tokens 3 to 5 look at blocks 1 and 2; of the first six tokens, at block 1 alone.
    let (whole, short) = (forward(x.clone()), forward(x.clone().narrow(1, 0, 6)));
    assert_ne!(whole[3 * WIDTH..6 * WIDTH], short[3 * WIDTH..6 * WIDTH]);
    let alone =
        forward(x.clone().slice_assign([0..1, 0..3, 0..WIDTH], Tensor::zeros([1, 3, WIDTH], &device)).narrow(1, 0, 6));
    assert_eq!(alone[3 * WIDTH..6 * WIDTH], short[3 * WIDTH..6 * WIDTH]);
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let refused = |model: &ModelConfig, options: &AttentionConfig, part: &str| {
        let error = Attention::new(model, options, LENGTH, &Init::new(1, &Device::flex())).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    let softmax = options(Mechanism::Softmax);
    refused(
        &model(),
        &AttentionConfig { heads: 5, ..softmax.clone() },
        "model.width is 24, expected a multiple of heads (5)",
    );
    refused(&model(), &AttentionConfig { heads: 0, ..softmax.clone() }, "heads");
    let moa = |moa| AttentionConfig { moa, ..options(Mechanism::Moa) };
    let crowded = MoaOptions { active: 9, ..Default::default() };
    refused(&model(), &moa(crowded), "moa.active is 9, expected at least 1 and at most moa.experts (8)");
    let uneven = MoaOptions { active: 5, ..Default::default() };
    refused(&model(), &moa(uneven.clone()), "model.width is 24, expected a multiple of moa.active (5)");
    refused(&model(), &AttentionConfig { key_value_heads: Some(2), ..moa(MoaOptions::default()) }, "share one head");
    let alibi = AttentionConfig { position: Position::Alibi, ..moa(MoaOptions::default()) };
    refused(&model(), &alibi, "'alibi' with moa");
    let wide = MoaOptions { head_width: Some(4), ..uneven };
    assert!(Attention::new(&model(), &moa(wide), LENGTH, &Init::new(1, &Device::flex())).is_ok());
    let odd = ModelConfig { head_width: Some(5), ..model() };
    refused(&odd, &AttentionConfig { position: Position::Rotary, ..softmax }, "even");
    refused(&odd, &options(Mechanism::Fastformer), "head_width");
    let rotary = AttentionConfig { position: Position::Rotary, ..options(Mechanism::Fastformer) };
    refused(&model(), &rotary, "rotary");
    let variances = MixtureOptions { variances: Variances::List(vec![1.0]), ..Default::default() };
    refused(&model(), &AttentionConfig { mixture: variances, ..options(Mechanism::Mgk) }, "variances");
    let mut block = AttentionConfig { support: support(SupportKind::Block), ..options(Mechanism::Sparse) };
    block.support.block = 2;
    refused(&model(), &block, "support.layout is 4 x 4 blocks of 2, expected at least 5 x 5");
    let lsh = AttentionConfig { support: support(SupportKind::Lsh), ..options(Mechanism::Sparse) };
    refused(
        &model(),
        &AttentionConfig { key_value_heads: Some(2), ..lsh.clone() },
        "with LSH the queries are the keys",
    );
    assert!(!reads_second_sequence(&lsh));
}
