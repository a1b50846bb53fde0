//! Long Range Arena beyond ListOps and text: every mechanism on each task, pairs of documents, and interrupted runs.

mod common;

use std::{
    fs,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use burn::tensor::{Device, Tensor};
use regard_kernels::{AttentionOptions, Mechanism, support::SupportOptions};
use regard_nn::{
    blocks::Context,
    models::{ModelConfig, Pooling, TokenBatch, named_parameters},
};
use regard_tasks::{
    data::{Batch, ImageConfig, Objective, PathfinderConfig, RetrievalConfig, Split, TaskConfig, TaskData, TaskName},
    train::{Existing, Model, Outcome, TrainConfig, Trainer},
};

use common::{StopAfter, assert_same, figures, open};

fn load(task: TaskConfig) -> TaskData {
    task.load(3, None, &|_, _| {}).unwrap()
}

fn pathfinder() -> TaskData {
    let pathfinder = PathfinderConfig { train: 24, valid: 2, test: 2, ..PathfinderConfig::default() };
    load(TaskConfig { name: TaskName::Pathfinder, pathfinder, ..TaskConfig::default() })
}

/// Documents of very different lengths; a pair belongs together if both are of the same letters.
fn retrieval(directory: &Path) -> TaskData {
    let document = |i: usize, letter: usize| {
        let length = 3 + (i * 37) % 60;
        (0..length).map(|j| char::from(b"abcdefgh"[(4 * letter + j * j + i) % 4 + 4 * letter])).collect::<String>()
    };
    let rows = |count: usize, start: usize| -> String {
        let row = |i: usize| format!("{}.0\ti\tj\t{}\tb'{}'\n", i % 2, document(i, 0), document(i + 5, 1 - i % 2));
        (start..start + count).map(row).collect()
    };
    let [train, test] = [("train.tsv", rows(60, 0)), ("test.tsv", rows(12, 100))].map(|(name, rows)| {
        let path = directory.join(name);
        fs::write(&path, rows).unwrap();
        Some(path)
    });
    let retrieval = RetrievalConfig { train, test, max_length: 50, ..RetrievalConfig::default() };
    load(TaskConfig { name: TaskName::Retrieval, retrieval, ..TaskConfig::default() })
}

/// Pictures of 6 x 6 pixels, brighter by their class.
fn image(directory: &Path) -> TaskData {
    let sizes =
        |magic: u32, sizes: &[u32]| [magic].iter().chain(sizes).flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>();
    for (name, count) in [("train", 40u32), ("t10k", 10)] {
        let pixels = (0..count).flat_map(|i| (0..36).map(move |j| (25 * (i % 10) + j % 5) as u8));
        let pictures = sizes(0x803, &[count, 6, 6]).into_iter().chain(pixels);
        fs::write(directory.join(format!("{name}-images-idx3-ubyte")), pictures.collect::<Vec<_>>()).unwrap();
        let labels = sizes(0x801, &[count]).into_iter().chain((0..count).map(|i| (i % 10) as u8));
        fs::write(directory.join(format!("{name}-labels-idx1-ubyte")), labels.collect::<Vec<_>>()).unwrap();
    }
    let image = ImageConfig { path: Some(directory.into()), ..ImageConfig::default() };
    load(TaskConfig { name: TaskName::Image, image, ..TaskConfig::default() })
}

fn attention(mechanism: Mechanism) -> AttentionOptions {
    let support = SupportOptions { radius: 2, cluster: 4, ..SupportOptions::default() };
    AttentionOptions { mechanism, heads: 2, support, ..AttentionOptions::default() }
}

fn build(mechanism: Mechanism, pooling: Pooling, data: &TaskData) -> Model {
    let model = ModelConfig { width: 16, layers: 2, feed_forward: 32, pooling, ..ModelConfig::default() };
    Model::build(&model, &attention(mechanism), data, 5, &Device::flex().autodiff()).unwrap()
}

fn short(steps: usize) -> TrainConfig {
    TrainConfig { steps, batch: 3, evaluate_every: 2, checkpoint_every: 2, ..TrainConfig::default() }
}

#[test]
fn every_mechanism_trains_on_every_task() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for data in [pathfinder(), retrieval(directories[0].path()), image(directories[1].path())] {
        for &mechanism in Mechanism::ALL {
            let model = build(mechanism, Pooling::Mean, &data);
            let before = model.to_host();
            let config = short(2);
            let mut trainer = Trainer::new(model, &data, &config, 9).unwrap();
            assert_eq!(trainer.run().unwrap(), Outcome::Finished { step: 2 });
            let test = trainer.evaluate_best(Split::Test).unwrap();
            assert!(test.loss.is_finite() && test.accuracy.is_some() && test.perplexity.is_none());
            assert_eq!(test.sequences, data.split(Split::Test, 1).unwrap().len(), "{mechanism:?}");
            let after = trainer.model().to_host();
            assert!(before.iter().any(|(name, tensor)| after[name].data != tensor.data), "{mechanism:?} has not moved");
        }
    }
}

#[test]
fn pairs_of_documents_are_learned_and_an_interrupted_run_continues_bit_for_bit() {
    let directory = tempfile::tempdir().unwrap();
    let data = retrieval(directory.path());
    assert_eq!(data.shape().objective, Objective::ClassifyPairs { classes: 2 });
    let config =
        TrainConfig { steps: 60, batch: 12, evaluate_every: 20, checkpoint_every: 7, ..TrainConfig::default() };
    let [whole, parts] = ["whole", "parts"].map(|name| directory.path().join(name));
    let trainer = Trainer::new(build(Mechanism::Mgk, Pooling::Mean, &data), &data, &config, 9).unwrap();
    let mut trainer = trainer.with_directory(open(&whole, Existing::Refuse).unwrap()).unwrap();
    trainer.run().unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let watcher = StopAfter(31, stop.clone());
    let first = Trainer::new(build(Mechanism::Mgk, Pooling::Mean, &data), &data, &config, 9).unwrap();
    let first = first.with_stop(stop).with_progress(&watcher);
    let mut first = first.with_directory(open(&parts, Existing::Refuse).unwrap()).unwrap();
    assert_eq!(first.run().unwrap(), Outcome::Interrupted { step: 31 });
    drop(first);
    let second = Trainer::new(build(Mechanism::Mgk, Pooling::Mean, &data), &data, &config, 9).unwrap();
    let mut second = second.with_directory(open(&parts, Existing::Resume).unwrap()).unwrap();
    assert_eq!(second.run().unwrap(), Outcome::Finished { step: 60 });
    assert_same(&trainer.checkpoint(), &second.checkpoint());
    assert_eq!(figures(&whole), figures(&parts));
    let accuracy = trainer.evaluate_best(Split::Test).unwrap().accuracy.unwrap();
    assert!(accuracy > 0.9, "accuracy {accuracy}");
}

/// Logits of a padded batch are those of the head of the vectors of each document alone: padding of one document reaches
/// neither its own vector nor the other one's, and the head reads both, their product and their difference.
#[test]
fn the_head_of_pairs_reads_both_documents_without_their_padding() {
    let directory = tempfile::tempdir().unwrap();
    let data = retrieval(directory.path());
    let batch = data.batches(2, 6).unwrap()(1);
    let padding = batch.tokens.padding.clone().expect("documents of different lengths");
    for pooling in [Pooling::Mean, Pooling::Attention] {
        for mechanism in [Mechanism::Softmax, Mechanism::Mgk, Mechanism::Linear, Mechanism::Fastformer] {
            let model = build(mechanism, pooling, &data);
            let context = Context::evaluation();
            let (logits, targets) = model.predictions(&batch, &context);
            assert_eq!((logits.dims(), targets.len()), ([6, 2], 6));
            let Model::Classifier(classifier) = &model else { panic!("a classifier") };
            let parameters = named_parameters(&model);
            let of = |name: &str| {
                let found = parameters.iter().find(|p| p.name == name || p.name.ends_with(&format!(".{name}")));
                found.unwrap_or_else(|| panic!("no {name}")).values.clone()
            };
            let (head, bias) = (of("head"), of("b_head"));
            let vector = |row: usize| -> Vec<f32> {
                let length = padding.row(row).iter().filter(|real| **real != 0).count();
                let ids = &batch.tokens.ids[row * batch.tokens.length..][..length];
                let vector: Tensor<3> = classifier.vectors(&TokenBatch::full(ids, 1).unwrap(), &context);
                vector.into_data_as::<f32>().try_into_vec().unwrap()
            };
            let logits: Vec<f32> = logits.into_data_as::<f32>().try_into_vec().unwrap();
            for pair in 0..6 {
                let (a, b) = (vector(2 * pair), vector(2 * pair + 1));
                let product = a.iter().zip(&b).map(|(a, b)| a * b);
                let difference = a.iter().zip(&b).map(|(a, b)| a - b);
                let features: Vec<f32> = a.iter().chain(&b).copied().chain(product).chain(difference).collect();
                for class in 0..2 {
                    let expected: f32 = features.iter().enumerate().map(|(i, x)| x * head[2 * i + class]).sum();
                    let (expected, seen) = (expected + bias[class], logits[2 * pair + class]);
                    assert!((expected - seen).abs() < 1e-4, "{mechanism:?} pair {pair}: {seen}, expected {expected}");
                }
            }
        }
    }
}

/// Gradients flow through both documents, as far as differences of the loss say.
#[test]
fn gradients_reach_the_tokens_of_both_documents() {
    let directory = tempfile::tempdir().unwrap();
    let data = retrieval(directory.path());
    let model = build(Mechanism::Mgk, Pooling::Mean, &data);
    // Tokens 11 and 12 are those of the first documents of two pairs, 13 and 14 those of the second.
    let ids: Vec<i32> = [11, 13, 12, 14].iter().flat_map(|id| [*id, 20, *id]).collect();
    let batch =
        Batch { tokens: TokenBatch::full(ids, 4).unwrap(), targets: [0, 1].into(), source: None, readers: None };
    let gradients = model.loss(&batch, 0.0, &Context::evaluation()).backward();
    let Model::Classifier(classifier) = &model else { panic!("a classifier") };
    let embedding = classifier.token_embedding();
    let width = embedding.dims()[1];
    let gradient: Vec<f32> = embedding.grad(&gradients).unwrap().into_data_as::<f32>().try_into_vec().unwrap();
    for token in [11, 12, 13, 14] {
        let moved = |by: f32| {
            let mut parameters = model.to_host();
            let (_, table) = parameters.iter_mut().find(|(name, _)| name.ends_with("token_embedding")).unwrap();
            table.data[token * width + 3] += by;
            let loss = model.clone().with_host(parameters).unwrap().loss(&batch, 0.0, &Context::evaluation());
            f64::from(loss.inner().into_scalar::<f32>())
        };
        let difference = (moved(0.001) - moved(-0.001)) / 0.002;
        let seen = f64::from(gradient[token * width + 3]);
        assert!(seen != 0.0 && (seen - difference).abs() < 2e-3 + 0.02 * seen.abs(), "{token}: {seen}, {difference}");
    }
}
