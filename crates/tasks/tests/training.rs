//! The training loop from end to end on small models and data.

mod common;

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use burn::tensor::Device;
use regard_kernels::{
    AttentionOptions, Mechanism,
    mechanism::Inference,
    support::{SupportKind, SupportOptions},
};
use regard_nn::{config::Precision, models::ModelConfig};
use regard_tasks::{
    data::{CharLmConfig, ClassificationData, ListOpsConfig, Sequences, TaskConfig, TaskData, TaskName},
    train::{
        Checkpoint, Existing, LossScale, Model, Outcome, ScheduleConfig, ScheduleKind, Split, TrainConfig, TrainError,
        Trainer,
    },
};

use common::{StopAfter, assert_same, figures, open};

fn listops() -> TaskData {
    let listops =
        ListOpsConfig { depth: 4, max_arguments: 4, min_length: 8, max_length: 48, train: 200, valid: 30, test: 30 };
    TaskConfig { listops, ..TaskConfig::default() }.load(3, None, &|_, _| {}).unwrap()
}

fn characters() -> TaskData {
    let char_lm = CharLmConfig { context: 32, valid_fraction: 0.0005, ..CharLmConfig::default() };
    TaskConfig { name: TaskName::CharLm, char_lm, ..TaskConfig::default() }.load(3, None, &|_, _| {}).unwrap()
}

/// The label is the first token.
fn first_token() -> TaskData {
    let set = |count: usize, shift: usize| {
        let mut set = Sequences::new(4);
        for i in shift..shift + count {
            let tokens: Vec<u8> = (0..6 + i % 5).map(|j| ((i * (j + 1) + i / 4) % 4) as u8).collect();
            set.push(&tokens, usize::from(tokens[0])).unwrap();
        }
        set
    };
    Box::new(ClassificationData {
        train: set(256, 0),
        valid: set(64, 1000),
        test: set(64, 2000),
        classes: 4,
        vocabulary: 5,
        first_id: 1,
        max_length: 16,
        about: String::new(),
        units: None,
        notes: vec![],
    })
}

fn small() -> ModelConfig {
    ModelConfig {
        width: 16,
        layers: 2,
        feed_forward: 32,
        dropout: 0.1,
        attention_dropout: 0.1,
        ..ModelConfig::default()
    }
}

fn attention(mechanism: Mechanism) -> AttentionOptions {
    AttentionOptions { mechanism, heads: 2, ..AttentionOptions::default() }
}

fn soft_em() -> AttentionOptions {
    let mut options = attention(Mechanism::Mgk);
    options.mixture.inference = Inference::SoftEm;
    options
}

/// Draws another projection in the middle of what is interrupted after update 5.
fn redrawn(mechanism: Mechanism, kind: SupportKind) -> AttentionOptions {
    let mut options = attention(mechanism);
    (options.features.redraw, options.features.rows) = (3, 4);
    options.support = SupportOptions { kind, radius: 2, cluster: 4, ..SupportOptions::default() };
    options
}

fn build(attention: &AttentionOptions, data: &TaskData) -> Model {
    Model::build(&small(), attention, data, 5, &Device::flex().autodiff()).unwrap()
}

fn config(steps: usize) -> TrainConfig {
    TrainConfig {
        steps,
        batch: 4,
        accumulate: 2,
        evaluate_every: 3,
        checkpoint_every: 4,
        schedule: ScheduleConfig { kind: ScheduleKind::Constant, warmup: 2, final_fraction: 0.0 },
        ..TrainConfig::default()
    }
}

#[test]
fn an_interrupted_run_continues_bit_for_bit() {
    use Precision::{Bf16, F16, F32};
    for (data, attention, precision) in [
        (listops(), attention(Mechanism::Softmax), F32),
        (listops(), soft_em(), Bf16),
        (listops(), attention(Mechanism::Fastformer), F32),
        (characters(), attention(Mechanism::Mlk), F16),
        (characters(), redrawn(Mechanism::Performer, SupportKind::Empty), F32),
        (listops(), redrawn(Mechanism::Scatterbrain, SupportKind::Smyrf), F32),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let [whole, parts] = ["whole", "parts"].map(|name| directory.path().join(name));
        let config = TrainConfig { precision, ..config(10) };
        let trainer = Trainer::new(build(&attention, &data), &data, &config, 9).unwrap();
        let mut trainer = trainer.with_directory(open(&whole, Existing::Refuse).unwrap()).unwrap();
        assert_eq!(trainer.run().unwrap(), Outcome::Finished { step: 10 });

        let stop = Arc::new(AtomicBool::new(false));
        let watcher = StopAfter(5, stop.clone());
        let first = Trainer::new(build(&attention, &data), &data, &config, 9).unwrap();
        let mut first = first
            .with_stop(stop)
            .with_progress(&watcher)
            .with_directory(open(&parts, Existing::Refuse).unwrap())
            .unwrap();
        assert_eq!(first.run().unwrap(), Outcome::Interrupted { step: 5 });
        drop(first);
        let second = Trainer::new(build(&attention, &data), &data, &config, 9).unwrap();
        let mut second = second.with_directory(open(&parts, Existing::Resume).unwrap()).unwrap();
        assert_eq!(second.state().step, 5);
        assert_eq!(second.run().unwrap(), Outcome::Finished { step: 10 });

        assert_same(&trainer.checkpoint(), &second.checkpoint());
        assert_eq!(figures(&whole), figures(&parts), "{}", attention.label());
        assert_eq!(trainer.state().best, second.state().best);
        drop(second);
        // A finished run has nothing left to do, but to remove what a kill has left it.
        let stray = parts.join("checkpoints/step-1");
        fs::create_dir(&stray).unwrap();
        let again = Trainer::new(build(&attention, &data), &data, &config, 9).unwrap();
        let mut again = again.with_directory(open(&parts, Existing::Resume).unwrap()).unwrap();
        assert_eq!(again.run().unwrap(), Outcome::Finished { step: 10 });
        assert!(!stray.exists());
        assert_eq!(figures(&whole), figures(&parts));
    }
}

#[test]
fn a_run_that_died_continues_from_its_last_checkpoint() {
    let data = listops();
    let options = soft_em();
    let directory = tempfile::tempdir().unwrap();
    let [whole, died] = ["whole", "died"].map(|name| directory.path().join(name));
    let config = TrainConfig { evaluate_every: 0, ..config(11) };
    let trainer = Trainer::new(build(&options, &data), &data, &config, 9).unwrap();
    let mut trainer = trainer.with_directory(open(&whole, Existing::Refuse).unwrap()).unwrap();
    trainer.run().unwrap();
    // What is left after a kill at step 9: the checkpoints up to 8, metrics beyond it, half a checkpoint.
    fs::create_dir_all(died.join("checkpoints/.step-9.tmp")).unwrap();
    fs::write(died.join("checkpoints/.step-9.tmp/model.safetensors"), b"half").unwrap();
    let metrics = fs::read_to_string(whole.join("metrics.jsonl")).unwrap();
    let lines: String = metrics.split_inclusive('\n').take(9).collect();
    fs::write(died.join("metrics.jsonl"), lines + "{\"kind\":").unwrap();
    fs::create_dir_all(died.join("checkpoints/step-8")).unwrap();
    for file in fs::read_dir(whole.join("checkpoints/step-8")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), died.join("checkpoints/step-8").join(file.file_name())).unwrap();
    }
    let second = Trainer::new(build(&options, &data), &data, &config, 9).unwrap();
    let mut second = second.with_directory(open(&died, Existing::Resume).unwrap()).unwrap();
    assert_eq!(second.state().step, 8);
    second.run().unwrap();
    assert_same(&trainer.checkpoint(), &second.checkpoint());
    assert_eq!(figures(&whole), figures(&died));
    let model = second.checkpoint().model;
    let prior = model.iter().find(|(name, _)| name.ends_with(".prior")).expect("the prior is saved").1;
    assert!(prior.data.iter().any(|share| *share != prior.data[0]), "the prior has moved");
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let data = listops();
    let options = [
        attention(Mechanism::Softmax),
        soft_em(),
        attention(Mechanism::Mlk),
        redrawn(Mechanism::Scatterbrain, SupportKind::Local),
        attention(Mechanism::Fastformer),
    ];
    for attention in options {
        let train = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                // Wide enough for products that a backend would split between threads.
                let model = ModelConfig { width: 128, feed_forward: 512, ..small() };
                let model = Model::build(&model, &attention, &data, 5, &Device::flex().autodiff()).unwrap();
                let config = TrainConfig { batch: 16, ..config(3) };
                let mut trainer = Trainer::new(model, &data, &config, 9).unwrap();
                trainer.run().unwrap();
                trainer.checkpoint()
            })
        };
        let one = train(1);
        for threads in [2, 7] {
            assert_same(&one, &train(threads));
        }
    }
}

#[test]
fn a_model_learns_and_the_best_is_kept() {
    let data = first_token();
    let options = attention(Mechanism::Softmax);
    let config = TrainConfig {
        steps: 120,
        batch: 16,
        evaluate_every: 20,
        optimizer: regard_tasks::train::OptimizerConfig { learning_rate: 5e-3, ..Default::default() },
        ..TrainConfig::default()
    };
    let model = ModelConfig { dropout: 0.0, attention_dropout: 0.0, ..small() };
    let model = Model::build(&model, &options, &data, 5, &Device::flex().autodiff()).unwrap();
    let mut trainer = Trainer::new(model, &data, &config, 9).unwrap();
    let before = trainer.evaluate(Split::Test, 0).unwrap();
    assert_eq!((before.items, before.sequences), (64, 64));
    assert!((before.loss - 4f64.ln()).abs() < 0.3, "an untrained model guesses: {before:?}");
    trainer.run().unwrap();
    let after = trainer.evaluate_best(Split::Test).unwrap();
    assert!(after.loss < 0.5 * before.loss && after.accuracy.unwrap() > 0.9, "{before:?} {after:?}");
    assert!(after.sequences_per_second() > 0.0);
    let best = trainer.state().best.unwrap();
    assert_eq!((after.step, best.step % 20), (best.step, 0));
}

#[test]
fn a_language_model_learns_and_reports_perplexity() {
    let data = characters();
    let config = TrainConfig { steps: 30, batch: 8, evaluate_every: 0, ..TrainConfig::default() };
    let mut trainer = Trainer::new(build(&attention(Mechanism::Softmax), &data), &data, &config, 9).unwrap();
    let before = trainer.evaluate(Split::Valid, 0).unwrap();
    trainer.run().unwrap();
    let after = trainer.evaluate(Split::Valid, 0).unwrap();
    assert!(after.loss < before.loss - 0.3, "{before:?} {after:?}");
    assert_eq!((after.perplexity, after.accuracy), (Some(after.loss.exp()), None));
    // Every token after the first of the part is predicted once.
    assert_eq!((after.items, trainer.evaluate(Split::Test, 0).unwrap().items), (278, 278));
}

/// An update of several batches does not end before it stops; what is left undone is made again.
#[test]
fn a_stop_among_the_batches_of_an_update_leaves_the_model_as_it_was() {
    let data = characters();
    for options in [attention(Mechanism::Softmax), soft_em()] {
        let config = TrainConfig { accumulate: 3, ..config(2) };
        let new = || Trainer::new(build(&options, &data), &data, &config, 9).unwrap();
        let mut whole = new();
        assert_eq!(whole.run().unwrap(), Outcome::Finished { step: 2 });
        let stop = Arc::new(AtomicBool::new(true));
        let mut stopped = new().with_stop(stop.clone());
        let before = stopped.checkpoint();
        assert_eq!(stopped.run().unwrap(), Outcome::Interrupted { step: 0 });
        assert_same(&stopped.checkpoint(), &before);
        stop.store(false, Ordering::Relaxed);
        assert_eq!(stopped.run().unwrap(), Outcome::Finished { step: 2 });
        assert_same(&stopped.checkpoint(), &whole.checkpoint());
    }
}

/// A loss scale at which gradients of f16 overflow is halved until they do not; no update is lost.
#[test]
fn gradients_of_16_bits_learn_what_those_of_32_do() {
    let data = characters();
    let losses = |precision: Precision| {
        let config = TrainConfig { precision, clip: 0.0, ..config(30) };
        let mut trainer = Trainer::new(build(&attention(Mechanism::Softmax), &data), &data, &config, 9).unwrap();
        let reports: Vec<_> = (0..30).map(|_| trainer.update().unwrap()).collect();
        (reports.iter().map(|report| report.loss).collect::<Vec<_>>(), reports.last().unwrap().loss_scale)
    };
    let (exact, no_scale) = losses(Precision::F32);
    assert_eq!(no_scale, None);
    assert!(exact[29] < exact[0] - 0.3, "{exact:?}");
    for precision in [Precision::Bf16, Precision::F16] {
        let (rounded, scale) = losses(precision);
        assert_eq!(scale.is_some(), precision == Precision::F16);
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 0.02 * a;
        assert!(exact.iter().zip(&rounded).all(near), "{precision:?}: {rounded:?}, in f32 {exact:?}");
        assert_ne!(rounded, exact, "{precision:?} rounds");
    }
}

#[test]
fn a_loss_scale_that_overflows_is_halved_and_the_update_made_again() {
    let data = characters();
    let config = TrainConfig { precision: Precision::F16, ..config(4) };
    // A pass of soft-EM moves priors, and one that is made again begins from those before it.
    for options in [attention(Mechanism::Softmax), soft_em()] {
        overflows(&options, &data, &config);
    }
}

fn overflows(options: &AttentionOptions, data: &TaskData, config: &TrainConfig) {
    let build = || build(options, data);
    let mut trainer = Trainer::new(build(), data, config, 9).unwrap();
    let mut checkpoint = trainer.checkpoint();
    checkpoint.state.loss_scale = Some(LossScale { factor: 2f64.powi(60), steady: 5 });
    let mut high = Trainer::new(build(), data, config, 9).unwrap().continuing(checkpoint).unwrap();
    let (report, expected) = (high.update().unwrap(), trainer.update().unwrap());
    let factor = report.loss_scale.unwrap();
    assert!(factor < 2f64.powi(60) && factor > 1.0, "{factor}");
    assert_eq!(report.loss, expected.loss);
    assert!((report.gradient_norm / expected.gradient_norm - 1.0).abs() < 0.01, "factors of two round nothing");
    assert_eq!(high.state().loss_scale, Some(LossScale { factor, steady: 1 }));
    let priors = |trainer: &Trainer| {
        let all = trainer.checkpoint().model.into_iter().filter(|(name, _)| name.ends_with(".prior"));
        all.map(|(_, tensor)| tensor.data).collect::<Vec<_>>()
    };
    assert_eq!(priors(&high), priors(&trainer));
}

#[test]
fn training_stops_when_the_metric_does_not_get_better() {
    let data = first_token();
    let mut config = TrainConfig { evaluate_every: 1, patience: 3, ..config(50) };
    // Too low to change any answer.
    config.optimizer.learning_rate = 1e-12;
    let directory = tempfile::tempdir().unwrap();
    let options = attention(Mechanism::Softmax);
    let trainer = Trainer::new(build(&options, &data), &data, &config, 9).unwrap();
    let mut trainer = trainer.with_directory(open(directory.path(), Existing::Refuse).unwrap()).unwrap();
    assert_eq!(trainer.run().unwrap(), Outcome::Stopped { step: 4 });
    assert_eq!(trainer.state().best.unwrap().step, 1);
    let checkpoints = trainer.directory().unwrap().checkpoints();
    assert!(checkpoints.best().unwrap().ends_with("step-1"));
    assert!(checkpoints.last().unwrap().ends_with("step-4"));
    drop(trainer);
    let resumed = Trainer::new(build(&options, &data), &data, &config, 9).unwrap();
    let mut resumed = resumed.with_directory(open(directory.path(), Existing::Resume).unwrap()).unwrap();
    assert_eq!(resumed.run().unwrap(), Outcome::Stopped { step: 4 });
}

#[test]
fn a_loss_that_is_no_number_ends_the_run_and_spares_the_checkpoints() {
    let data = first_token();
    let mut config = TrainConfig { checkpoint_every: 1, evaluate_every: 0, clip: 0.0, ..config(50) };
    config.optimizer.learning_rate = 1e25;
    config.optimizer.weight_decay = 0.0;
    let directory = tempfile::tempdir().unwrap();
    let trainer = Trainer::new(build(&attention(Mechanism::Softmax), &data), &data, &config, 9).unwrap();
    let mut trainer = trainer.with_directory(open(directory.path(), Existing::Refuse).unwrap()).unwrap();
    let error = trainer.run().unwrap_err();
    let TrainError::Numeric { step, .. } = error else { panic!("{error}") };
    let last = trainer.directory().unwrap().checkpoints().last().unwrap();
    assert!(last.ends_with(format!("step-{}", step - 1)), "{}", last.display());
    assert!(error.to_string().contains(&last.display().to_string()), "{error}");
    Checkpoint::load(&last).unwrap();
}

#[test]
fn checkpoints_of_other_models_and_runs_are_refused() {
    let data = first_token();
    let config = config(2);
    let options = attention(Mechanism::Softmax);
    let directory = tempfile::tempdir().unwrap();
    let trainer = Trainer::new(build(&options, &data), &data, &config, 9).unwrap();
    let mut trainer = trainer.with_directory(open(directory.path(), Existing::Refuse).unwrap()).unwrap();
    trainer.run().unwrap();
    drop(trainer);
    let resume = |model: Model, config: &TrainConfig, seed: u64| {
        let trainer = Trainer::new(model, &data, config, seed).unwrap();
        let result = trainer.with_directory(open(directory.path(), Existing::Resume).unwrap());
        result.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(resume(build(&options, &data), &config, 9), "");
    let error = resume(build(&options, &data), &config, 8);
    assert!(error.contains("seed = 9, this one 8"), "{error}");
    let error = resume(build(&options, &data), &TrainConfig { batch: 5, ..config.clone() }, 9);
    assert!(error.contains("train.batch = 4, this one 5"), "{error}");
    let error = resume(build(&attention(Mechanism::Mgk), &data), &config, 9);
    assert!(error.contains("not a checkpoint of this model: parameters"), "{error}");
    let wide = ModelConfig { width: 32, ..small() };
    let wide = Model::build(&wide, &options, &data, 5, &Device::flex().autodiff()).unwrap();
    let error = resume(wide, &config, 9);
    assert!(error.contains("has shape") && error.contains("expected"), "{error}");
}
