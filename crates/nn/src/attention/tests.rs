//! What tests of the layers share: every variant of every mechanism, and what a layer gives for an input.

mod forms;
mod parameters;

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
