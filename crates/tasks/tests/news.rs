//! News recommendation from end to end on a small generated log.

mod common;

use std::sync::{Arc, atomic::AtomicBool};

use burn::{module::Module, tensor::Device};
use regard_kernels::{AttentionOptions, Mechanism, mechanism::Sharing, support::SupportKind};
use regard_nn::{
    blocks::Context,
    models::{ModelConfig, Pooling},
};
use regard_tasks::{
    data::{GeneratedNews, NewsConfig, Split, TaskConfig, TaskData, TaskName},
    train::{
        Evaluation, Existing, Items, Model, OptimizerConfig, Outcome, ScheduleConfig, ScheduleKind, TEST_ITEMS,
        TrainConfig, Trainer, evaluate,
    },
};

use common::{StopAfter, assert_same, figures, open};

fn news(generated: GeneratedNews) -> TaskData {
    let news = NewsConfig {
        max_length: 12,
        history: 12,
        vocabulary: 700,
        valid_fraction: 0.1,
        generated,
        ..NewsConfig::default()
    };
    TaskConfig { name: TaskName::News, news, ..TaskConfig::default() }.load(3, None, &|_, _| {}).unwrap()
}

fn few() -> TaskData {
    news(GeneratedNews { topics: 4, users: 60, news: 80, impressions: 300, test_impressions: 60 })
}

fn attention(mechanism: Mechanism) -> AttentionOptions {
    AttentionOptions { mechanism, heads: 2, ..AttentionOptions::default() }
}

fn build(attention: &AttentionOptions, data: &TaskData, dropout: f64) -> Model {
    let config = ModelConfig {
        width: 16,
        layers: 1,
        feed_forward: 32,
        dropout,
        attention_dropout: dropout,
        pooling: Pooling::Attention,
        ..ModelConfig::default()
    };
    Model::build(&config, attention, data, 5, &Device::flex().autodiff()).unwrap()
}

fn config(steps: usize) -> TrainConfig {
    TrainConfig {
        steps,
        batch: 8,
        accumulate: 2,
        evaluate_every: 3,
        checkpoint_every: 4,
        optimizer: OptimizerConfig { learning_rate: 2e-3, ..OptimizerConfig::default() },
        schedule: ScheduleConfig { kind: ScheduleKind::Constant, warmup: 0, final_fraction: 0.0 },
        ..TrainConfig::default()
    }
}

#[test]
fn an_interrupted_recommender_continues_bit_for_bit() {
    let data = few();
    for mechanism in [Mechanism::Fastformer, Mechanism::Moa] {
        let attention = attention(mechanism);
        let directory = tempfile::tempdir().unwrap();
        let [whole, parts] = ["whole", "parts"].map(|name| directory.path().join(name));
        let config = config(8);
        let model = || build(&attention, &data, 0.1);
        let mut trainer = Trainer::new(model(), &data, &config, 9).unwrap();
        trainer = trainer.with_directory(open(&whole, Existing::Refuse).unwrap()).unwrap();
        assert_eq!(trainer.run().unwrap(), Outcome::Finished { step: 8 });

        let stop = Arc::new(AtomicBool::new(false));
        let watcher = StopAfter(5, stop.clone());
        let first = Trainer::new(model(), &data, &config, 9).unwrap().with_stop(stop).with_progress(&watcher);
        let mut first = first.with_directory(open(&parts, Existing::Refuse).unwrap()).unwrap();
        assert_eq!(first.run().unwrap(), Outcome::Interrupted { step: 5 });
        drop(first);
        let second = Trainer::new(model(), &data, &config, 9).unwrap();
        let mut second = second.with_directory(open(&parts, Existing::Resume).unwrap()).unwrap();
        assert_eq!(second.run().unwrap(), Outcome::Finished { step: 8 });
        assert_same(&trainer.checkpoint(), &second.checkpoint());
        assert_eq!(figures(&whole), figures(&parts), "{mechanism:?}");
        assert_eq!(trainer.state().best, second.state().best);

        // The test leaves the loss of each impression, and the best model is the one with the highest AUC.
        let test = trainer.evaluate_best(Split::Test).unwrap();
        let items = Items::read(&whole.join(TEST_ITEMS)).unwrap();
        assert_eq!((test.sequences, items.losses.len(), items.correct.len()), (60, 60, 0));
        assert_eq!(items.targets.iter().sum::<u32>() as usize, test.items);
        let mean = items.losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / test.items as f64;
        assert!((mean - test.loss).abs() < 1e-5, "{mean} {}", test.loss);
        let best = trainer.state().best.unwrap();
        assert!(best.score > 0.0 && best.score < 1.0, "{best:?}");
    }
}

#[test]
fn every_mechanism_learns_to_rank() {
    let data = few();
    let mut all: Vec<AttentionOptions> = Mechanism::ALL.iter().map(|mechanism| attention(*mechanism)).collect();
    for sharing in [Sharing::None, Sharing::LayerWise] {
        let mut options = attention(Mechanism::Fastformer);
        options.fastformer.sharing = sharing;
        all.push(options);
    }
    for kind in [SupportKind::Smyrf, SupportKind::Lsh] {
        let mut options = attention(Mechanism::Sparse);
        (options.support.kind, options.support.cluster) = (kind, 4);
        all.push(options);
    }
    // Whatever the key says, nothing is causal here.
    all[0].causal = true;
    let steps = TrainConfig { accumulate: 1, evaluate_every: 0, checkpoint_every: 0, ..config(40) };
    for attention in all {
        let mut trainer = Trainer::new(build(&attention, &data, 0.0), &data, &steps, 1).unwrap();
        // Over an epoch of clicks, of which the updates see a part.
        let loss = |model: &Model| {
            let (model, mut batches) = (model.clone().valid(), data.batches(2, 8).unwrap());
            let of = |batch| f64::from(model.loss(&batch, 0.0, &Context::evaluation()).into_scalar::<f32>());
            (0..60).map(|index| of(batches(index))).sum::<f64>() / 60.0
        };
        let before = loss(trainer.model());
        trainer.run().unwrap();
        let after = loss(trainer.model());
        assert!(after.is_finite() && after < before, "{}: {before} {after}", attention.label());
    }
}

#[test]
fn each_title_is_encoded_by_itself_and_no_order_of_reading_matters_to_softmax() {
    let data = few();
    let model = build(&attention(Mechanism::Softmax), &data, 0.0).valid();
    let measured = |rows, most| evaluate(&model, &data, Split::Test, rows, most, 0).unwrap();
    let scores = |evaluation: &Evaluation| evaluation.ranking.unwrap();
    let (one, other) = (measured(7, 0), measured(60, 0));
    assert!((one.loss - other.loss).abs() < 1e-6 && one.sequences == 60, "{one:?} {other:?}");
    assert_eq!(scores(&one).scores, scores(&other).scores);
    // A part of the split, and the batches of the split are what is measured.
    assert_eq!(measured(7, 2).sequences, 14);
    let batch = data.split(Split::Test, 1).unwrap().next().unwrap();
    let first = evaluate(&model, &data, Split::Test, 1, 0, 0).unwrap();
    assert_eq!(first.sequences, 60);
    let (logits, targets) = model.predictions(&batch, &Context::evaluation());
    assert_eq!((logits.dims()[0], targets.len()), (1, 1));
    assert!(evaluate(&model, &data, Split::Test, 0, 0, 0).is_err());
}

/// The rule of the generator bounds every model: 300 updates go far beyond chance and not beyond it.
#[test]
fn a_trained_model_lies_between_chance_and_the_true_probabilities() {
    let data = news(GeneratedNews { topics: 4, users: 300, news: 400, impressions: 3000, test_impressions: 500 });
    let steps = TrainConfig { batch: 16, accumulate: 1, evaluate_every: 100, checkpoint_every: 0, ..config(300) };
    let mut trainer = Trainer::new(build(&attention(Mechanism::Fastformer), &data, 0.0), &data, &steps, 1).unwrap();
    trainer.run().unwrap();
    let test = trainer.evaluate_best(Split::Test).unwrap();
    let figures = test.ranking.unwrap();
    let [own, chance, best] = [figures.scores, figures.chance, figures.best.unwrap()].map(|scores| scores.values());
    for ((own, chance), best) in own.iter().zip(chance).zip(best) {
        assert!(chance + 0.5 * (best - chance) < *own && *own <= best, "{figures:?}");
    }
    assert_eq!((test.accuracy, test.perplexity), (None, None));

    // The bound, pair by pair: how often the click has the higher probability, equal ones counting half.
    let part = data.impressions(Split::Test).unwrap();
    let area = |i: &u32| {
        let impression = part.log.impression(*i as usize);
        let chances = impression.probabilities.unwrap();
        let of = |clicked: bool| (0..chances.len()).filter(move |&i| impression.clicked[i] == clicked);
        let pairs: Vec<f64> = of(true)
            .flat_map(|click| of(false).map(move |other| (chances[click], chances[other])))
            .map(|(click, other)| if click == other { 0.5 } else { f64::from(u8::from(click > other)) })
            .collect();
        pairs.iter().sum::<f64>() / pairs.len() as f64
    };
    let mean = part.chosen.iter().map(area).sum::<f64>() / part.chosen.len() as f64;
    assert!((mean - best[0]).abs() < 1e-12, "{mean} {best:?}");
}
