//! Surveys of small models against their kernels and full matrices.

use std::sync::Arc;

use burn::tensor::Device;
use regard_kernels::{
    AttentionOptions, Averaged, Mechanism, View,
    mechanism::{Combination, Inference, KeyDesign, Prior},
    support::{SupportKind, SupportOptions},
};
use regard_nn::{
    attention::{AttentionCall, AttentionLog, Attentions},
    blocks::Context,
    models::{Classifier, ModelConfig, TokenBatch, Translator},
};

use super::*;
use crate::approx::Dense;

const TOKENS: usize = 23;

fn config() -> ModelConfig {
    ModelConfig { width: 12, layers: 2, feed_forward: 16, ..ModelConfig::default() }
}

fn sequence(length: usize) -> TokenBatch {
    let ids: Vec<i32> = (0..length as i32).map(|i| (7 * i + i * i) % 13).collect();
    TokenBatch::full(ids, 1).unwrap()
}

fn record(options: &AttentionOptions) -> Recording {
    let model = Classifier::new(&config(), options, 13, 4, TOKENS, 5, &Device::flex()).unwrap();
    let log = Arc::new(AttentionLog::new());
    model.forward(&sequence(TOKENS), &Context::evaluation().with_attention_log(log.clone()));
    Recording { tokens: TOKENS, records: log.take() }
}

/// Every mechanism, with the variants that change the inputs of its operator.
fn variants() -> Vec<AttentionOptions> {
    let plain = |mechanism| AttentionOptions { mechanism, heads: 2, ..AttentionOptions::default() };
    let with = |mechanism, change: &dyn Fn(&mut AttentionOptions)| {
        let mut options = plain(mechanism);
        change(&mut options);
        options
    };
    let support = |kind| SupportOptions { kind, radius: 2, cluster: 4, bucket: 4, ..SupportOptions::default() };
    let mut all: Vec<AttentionOptions> = Mechanism::ALL.iter().map(|mechanism| plain(*mechanism)).collect();
    all.push(with(Mechanism::Softmax, &|o| (o.heads, o.key_value_heads) = (4, Some(2))));
    for mechanism in [Mechanism::Mgk, Mechanism::Mlk] {
        all.push(with(mechanism, &|o| o.keys.design = KeyDesign::Shifted));
    }
    all.push(with(Mechanism::Mgk, &|o| o.mixture.prior = Prior::PerPosition));
    all.push(with(Mechanism::Mgk, &|o| o.mixture.inference = Inference::Hard));
    all.push(with(Mechanism::Mgk, &|o| o.mixture.inference = Inference::SoftEm));
    for kind in [SupportKind::Smyrf, SupportKind::Lsh] {
        all.push(with(Mechanism::Sparse, &|o| o.support = support(kind)));
    }
    for kind in [SupportKind::Local, SupportKind::Lsh] {
        all.push(with(Mechanism::Scatterbrain, &|o| {
            o.support = support(kind);
            o.scatterbrain.combination = Combination::Gated;
        }));
    }
    let causal = all.clone().into_iter().map(|options| AttentionOptions { causal: true, ..options });
    let causal: Vec<_> = causal.collect();
    all.extend(causal);
    all
}

/// The output of one call by its float32 kernel, `[N,H,Dv]`.
fn kernel(call: &AttentionCall) -> Vec<f32> {
    let inputs: Vec<View<f32>> = call.operator.inputs().iter().map(|name| call.input(name).unwrap()).collect();
    let shapes: Vec<&[usize]> = inputs.iter().map(|input| input.shape).collect();
    let mut out = vec![f32::NAN; call.operator.out_shape(&shapes).unwrap().iter().product()];
    call.operator.forward(&inputs, &mut out);
    out
}

#[test]
fn implied_weights_give_the_output_of_the_kernel() {
    for options in variants() {
        let label = format!("{} causal {}", options.label(), options.causal);
        let recording = record(&options);
        assert_eq!(recording.records.len(), 2, "{label}");
        for record in &recording.records {
            let attended = Attended::new(record);
            let heads: Vec<usize> = (0..attended.heads()).collect();
            let averages = attended.averages();
            if options.mechanism == Mechanism::Fastformer {
                assert_eq!(averages, [Averaged::Queries, Averaged::Keys], "{label}");
                continue;
            }
            assert_eq!(averages, [Averaged::Values], "{label}");
            let outputs: Vec<Vec<f32>> = record.calls.iter().map(kernel).collect();
            attended.with_rows(Averaged::Values, &heads, |rows| {
                for i in 0..TOKENS {
                    for (h, row) in rows(i).into_iter().enumerate() {
                        let hidden = (0..TOKENS).filter(|j| !attended.visible(i).contains(j)).any(|j| row[j] != 0.0);
                        let sum: f64 = row.iter().sum();
                        // A row may have an empty support.
                        let empty = options.mechanism == Mechanism::Sparse && row.iter().all(|w| *w == 0.0);
                        let normal = empty || (sum - 1.0).abs() < 1e-6;
                        assert!(!hidden && normal, "{label} row {i} of head {h} sums to {sum}");
                        let width = attended.value(h, 0).unwrap().len();
                        for c in 0..width {
                            let seen: f64 = (0..TOKENS).map(|j| row[j] * attended.value(h, j).unwrap()[c]).sum();
                            let at = (i * heads.len() + h) * width + c;
                            let share = |call: usize| record.calls[call].shares.as_ref().map_or(1.0, |s| s[h]);
                            let expected: f32 =
                                outputs.iter().enumerate().map(|(call, out)| share(call) * out[at]).sum();
                            let expected = f64::from(expected);
                            assert!((seen - expected).abs() < 1e-5, "{label} {i} {h} {c}: {seen}, expected {expected}");
                        }
                    }
                }
            });
        }
    }
}

fn plan(parts: &[Part]) -> Plan {
    Plan { parts: parts.to_vec(), layers: Vec::new(), heads: Vec::new(), matrices: 1000 }
}

/// Full softmax matrices of `q k^T / sqrt D` for every head of a record.
fn matrices(recording: &Recording, layer: usize, causal: bool) -> Vec<Dense> {
    let call = &recording.records[layer].calls[0];
    let [q, k] = ["q", "k"].map(|name| call.input(name).unwrap());
    let (heads, width) = (q.shape[2], q.shape[3]);
    let x = |t: &View<f32>, i: usize, h: usize, c: usize| f64::from(t.data[(i * heads + h) * width + c]);
    let score = |h: usize, i: usize, j: usize| {
        let product: f64 = (0..width).map(|c| x(&q, i, h, c) * x(&k, j, h, c)).sum();
        if causal && j > i { f64::NEG_INFINITY } else { product / (width as f64).sqrt() }
    };
    (0..heads).map(|h| Dense::from_fn(TOKENS, TOKENS, |i, j| score(h, i, j)).softmax()).collect()
}

#[test]
fn figures_are_those_of_full_matrices() {
    for causal in [false, true] {
        let options = AttentionOptions { heads: 3, causal, ..AttentionOptions::default() };
        let recording = record(&options);
        let survey = survey(vec![recording.clone()].into_iter(), &plan(&Part::ALL), false, &|| {}).unwrap();
        assert_eq!((survey.sequences, survey.tokens, survey.drawn, survey.attentions.len()), (1, TOKENS, TOKENS, 2));
        for (layer, attention) in survey.attentions.iter().enumerate() {
            assert_eq!(attention.name, format!("layer {}", layer + 1));
            let all = matrices(&recording, layer, causal);
            for (h, matrix) in all.iter().enumerate() {
                let entropy = attention.entropy[h].nats.mean;
                assert!((entropy - matrix.mean_row_entropy()).abs() < 1e-12, "{entropy}");
                let expected = MatrixRank::of(h + 1, matrix).unwrap();
                let seen = attention.ranks[h];
                assert_eq!((seen.rank, seen.head), (expected.rank, h + 1));
                assert!((seen.effective - expected.effective).abs() < 1e-9);
            }
            let pairs: Vec<[usize; 2]> = attention.redundancy.iter().map(|pair| pair.heads).collect();
            assert_eq!(pairs, [[1, 2], [1, 3], [2, 3]]);
            for pair in &attention.redundancy {
                let [a, b] = pair.heads.map(|head| &all[head - 1]);
                let distance = a.zip(b, |x, y| x - y).norm() / (TOKENS as f64).sqrt();
                assert!((pair.distance.mean - distance).abs() < 1e-12);
                let centred = |m: &Dense| {
                    let even = |i: usize| 1.0 / if causal { i as f64 + 1.0 } else { TOKENS as f64 };
                    Dense::from_fn(TOKENS, TOKENS, |i, j| if causal && j > i { 0.0 } else { m.row(i)[j] - even(i) })
                };
                let (x, y) = (centred(a), centred(b));
                let correlation = x.zip(&y, |x, y| x * y).data.iter().sum::<f64>() / (x.norm() * y.norm());
                assert!((pair.correlation.mean - correlation).abs() < 1e-12);
                let value = |h: usize| {
                    let call = &recording.records[layer].calls[0];
                    let v = call.input("v").unwrap();
                    Dense::from_fn(TOKENS, v.shape[3], |j, c| f64::from(v.data[(j * 3 + h - 1) * v.shape[3] + c]))
                };
                let [o, p] = [0, 1].map(|n| [a, b][n].product(&value(pair.heads[n]), false));
                let rows = (0..TOKENS)
                    .map(|i| o.row(i).iter().zip(p.row(i)).map(|(x, y)| (x - y) * (x - y)).sum::<f64>().sqrt());
                let distance = rows.sum::<f64>() / TOKENS as f64;
                assert!((pair.outputs.distance.mean - distance).abs() < 1e-12);
            }
            // One key per position: the mixture is one Gaussian per key.
            for likelihood in &attention.likelihood {
                assert!((likelihood.mixture.mean - likelihood.per_key.mean).abs() < 1e-12);
            }
            assert_eq!(attention.pictures.len(), 2);
            let drawn = &attention.pictures[0].map.panels[1];
            let exact = drawn.values.iter().zip(&all[1].data).all(|(x, y)| (x - y).abs() < 1e-12);
            assert!(exact && (drawn.rows, drawn.columns) == (TOKENS, TOKENS));
        }
    }
}

#[test]
fn parts_layers_and_heads_are_chosen() {
    let recording = record(&AttentionOptions { mechanism: Mechanism::Mgk, heads: 3, ..AttentionOptions::default() });
    let chosen = Plan { layers: vec![2], heads: vec![1, 3], matrices: 1, ..plan(&[Part::Rank, Part::Learned]) };
    let found = survey(vec![recording.clone()].into_iter(), &chosen, false, &|| {}).unwrap();
    let [attention] = &found.attentions[..] else { panic!("one layer") };
    assert_eq!((attention.name.as_str(), &attention.heads[..]), ("layer 2", &[1, 3][..]));
    assert!(attention.entropy.is_empty() && attention.redundancy.is_empty() && attention.likelihood.is_empty());
    assert_eq!(attention.ranks.iter().map(|rank| rank.head).collect::<Vec<_>>(), [1]);
    let learned = &attention.learned[0];
    assert!((learned.priors.iter().sum::<f64>() - 1.0).abs() < 1e-12 && learned.priors.len() == 2);
    assert_eq!(learned.variances, [2.0; 2]);
    assert!(learned.apart.mean > 0.0 && learned.outputs.count == TOKENS as u64);
    for (bad, part) in [
        (Plan { layers: vec![3], ..chosen.clone() }, "layer 3 is not one of the model's, expected 1 to 2"),
        (Plan { heads: vec![0], ..chosen.clone() }, "head 0 is not one of the model's, expected 1 to 3"),
    ] {
        let error = survey(vec![recording.clone()].into_iter(), &bad, false, &|| {}).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(survey(Vec::new().into_iter(), &chosen, false, &|| {}).is_err());
}

/// The three attentions of a translator, one of which attends to a sequence of another length.
#[test]
fn a_translator_has_three_attentions() {
    let attentions = Attentions::from(&AttentionOptions { heads: 2, ..AttentionOptions::default() });
    let model = Translator::new(&config(), &attentions, 13, TOKENS, 5, &Device::flex()).unwrap();
    let log = Arc::new(AttentionLog::new());
    let context = Context::evaluation().with_attention_log(log.clone());
    model.forward(&sequence(TOKENS), &sequence(7), &context);
    let recording = Recording { tokens: TOKENS, records: log.take() };
    let found = survey(vec![recording].into_iter(), &plan(&Part::ALL), true, &|| {}).unwrap();
    let names: Vec<&str> = found.attentions.iter().map(|attention| attention.name.as_str()).collect();
    let expected = ["encoder 1", "encoder 2", "decoder 1", "decoder 1, cross", "decoder 2", "decoder 2, cross"];
    assert_eq!(names, expected);
    let cross = &found.attentions[3];
    assert_eq!(cross.ranks[0].full, 7);
    assert!(cross.entropy[0].normalised.count == 7 && found.attentions[2].entropy[0].normalised.count == 6);
}
