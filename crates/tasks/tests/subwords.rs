//! Translation and masked language models from end to end, on tiny data of our own.

mod common;

use std::{
    fs,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use burn::{module::Module, tensor::Device};
use regard_cluster::Alone;
use regard_kernels::{AttentionOptions, Mechanism, mechanism::Position};
use regard_nn::models::{BeamOptions, ModelConfig};
use regard_tasks::{
    data::{MaskedLmConfig, TaskConfig, TaskData, TaskName, TextTokenizer, TranslationConfig},
    train::{
        Checkpoint, Existing, Model, OptimizerConfig, Outcome, Record, ScheduleConfig, ScheduleKind, Split, TOKENIZER,
        TrainConfig, Trainer, translate, translations,
    },
};

use common::{StopAfter, assert_same, figures, open};

const ENGLISH: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
const GERMAN: [&str; 10] = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"];

/// Numbers digit by digit, and the same in German from the last to the first.
fn write_pairs(directory: &Path) {
    // A generator of its own, so that the splits are the same for ever.
    let mut state = 1u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % below) as usize
    };
    for (split, pairs) in [("train", 1500), ("val", 40), ("test_2016_flickr", 40)] {
        let (mut source, mut target) = (String::new(), String::new());
        for _ in 0..pairs {
            let digits: Vec<usize> = (0..1 + draw(5)).map(|_| draw(10)).collect();
            let words = |names: [&str; 10], digits: &mut dyn Iterator<Item = &usize>| -> String {
                digits.map(|&digit| names[digit]).collect::<Vec<_>>().join(" ") + "\n"
            };
            source += &words(ENGLISH, &mut digits.iter());
            target += &words(GERMAN, &mut digits.iter().rev());
        }
        fs::write(directory.join(format!("{split}.en")), source).unwrap();
        fs::write(directory.join(format!("{split}.de")), target).unwrap();
    }
}

fn pairs(directory: &Path) -> TaskData {
    write_pairs(directory);
    loaded(directory)
}

fn loaded(directory: &Path) -> TaskData {
    let translation =
        TranslationConfig { directory: Some(directory.into()), vocabulary: 320, max_length: 20, ..Default::default() };
    TaskConfig { name: TaskName::Translation, translation, ..TaskConfig::default() }.load(3, None, &|_, _| {}).unwrap()
}

fn masked() -> TaskData {
    let masked_lm = MaskedLmConfig { context: 32, vocabulary: 400, valid_fraction: 0.005, ..Default::default() };
    TaskConfig { name: TaskName::MaskedLm, masked_lm, ..TaskConfig::default() }.load(3, None, &|_, _| {}).unwrap()
}

fn attention(mechanism: Mechanism) -> AttentionOptions {
    AttentionOptions { mechanism, heads: 4, position: Position::Learned, ..AttentionOptions::default() }
}

fn model(width: usize) -> ModelConfig {
    ModelConfig { width, layers: 2, feed_forward: 2 * width, tied_head: true, ..ModelConfig::default() }
}

fn build(width: usize, mechanism: Mechanism, data: &TaskData) -> Model {
    let model = ModelConfig { dropout: 0.1, ..model(width) };
    Model::build(&model, &attention(mechanism), data, 5, &Device::flex().autodiff()).unwrap()
}

/// A short run in which everything happens: two batches an update, checkpoints, evaluations, a mean in the end.
fn short(steps: usize) -> TrainConfig {
    TrainConfig {
        steps,
        batch: 8,
        accumulate: 2,
        evaluate_every: 3,
        checkpoint_every: 4,
        keep: 1,
        average: 3,
        smoothing: 0.1,
        schedule: ScheduleConfig { kind: ScheduleKind::InverseSqrt, warmup: 4, final_fraction: 0.0 },
        ..TrainConfig::default()
    }
}

#[test]
fn a_translator_learns_to_reverse_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let data = pairs(directory.path());
    let config = TrainConfig {
        steps: 600,
        batch: 32,
        evaluate_every: 100,
        smoothing: 0.1,
        average: 3,
        checkpoint_every: 20,
        optimizer: OptimizerConfig { learning_rate: 3e-3, beta2: 0.98, ..Default::default() },
        schedule: ScheduleConfig { kind: ScheduleKind::Cosine, warmup: 40, final_fraction: 0.1 },
        ..TrainConfig::default()
    };
    let model = Model::build(&model(64), &attention(Mechanism::Softmax), &data, 5, &Device::flex().autodiff()).unwrap();
    let mut trainer = Trainer::new(model, &data, &config, 9).unwrap();
    let before = trainer.evaluate(Split::Test, 0).unwrap();
    assert_eq!((before.sequences, before.bleu, before.accuracy), (40, None, None));
    assert_eq!(trainer.run().unwrap(), Outcome::Finished { step: 600 });
    let after = trainer.evaluate_best(Split::Test).unwrap();
    assert_eq!((after.step, after.averaged), (600, Some(3)));
    let perplexity = after.perplexity.unwrap();
    assert!(perplexity < 1.3 && (perplexity - after.loss.exp()).abs() < 1e-9, "{before:?} {after:?}");
    assert!(after.bleu.unwrap() > 90.0, "{after:?}");
}

/// As `regard translate` has them: what is measured is what is written.
#[test]
fn an_empty_sentence_has_an_empty_translation() {
    let directory = tempfile::tempdir().unwrap();
    write_pairs(directory.path());
    let path = directory.path().join("test_2016_flickr.en");
    let lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(String::from).collect();
    let cleared = lines.iter().enumerate().map(|(i, line)| if i == 4 { "\n".into() } else { line.clone() + "\n" });
    fs::write(&path, cleared.collect::<String>()).unwrap();
    let data = loaded(directory.path());
    let Model::Translator(model) = build(16, Mechanism::Softmax, &data).valid() else { panic!("a translator") };
    let (tokenizer, pairs) = (data.tokenizer().unwrap(), data.pairs(Split::Test).unwrap());
    let options = BeamOptions { longest: 6, ..BeamOptions::default() };
    let together = translations(&model, tokenizer, pairs, 8, &options, &Alone).unwrap();
    assert_eq!((together.len(), together[4].as_str()), (40, ""));
    let sentences: Vec<&str> = lines.iter().enumerate().map(|(i, line)| if i == 4 { "" } else { line }).collect();
    let written = translate(&model, tokenizer, &sentences, &options).unwrap();
    assert!(written.iter().any(|translation| !translation.text.is_empty()));
    assert_eq!(together, written.into_iter().map(|translation| translation.text).collect::<Vec<_>>());
}

#[test]
fn a_masked_model_learns_and_is_measured_on_the_same_masks() {
    let data = masked();
    let config = TrainConfig { steps: 40, batch: 16, evaluate_every: 0, ..TrainConfig::default() };
    let mut trainer = Trainer::new(build(32, Mechanism::Softmax, &data), &data, &config, 9).unwrap();
    let before = trainer.evaluate(Split::Valid, 0).unwrap();
    assert!((before.loss - 400f64.ln()).abs() < 0.3, "an untrained model guesses: {before:?}");
    let again = trainer.evaluate(Split::Valid, 0).unwrap();
    assert_eq!((again.loss, again.items), (before.loss, before.items));
    trainer.run().unwrap();
    let after = trainer.evaluate(Split::Valid, 0).unwrap();
    assert!(after.loss < before.loss - 0.5, "{before:?} {after:?}");
    assert_eq!((after.perplexity, after.bleu, after.items), (Some(after.loss.exp()), None, before.items));
}

#[test]
fn interrupted_runs_continue_bit_for_bit_to_the_same_mean() {
    let directory = tempfile::tempdir().unwrap();
    let pairs = pairs(directory.path());
    for (data, mechanism) in [(&pairs, Mechanism::Moa), (&masked(), Mechanism::Moa), (&pairs, Mechanism::Mgk)] {
        let directory = tempfile::tempdir().unwrap();
        let [whole, parts] = ["whole", "parts"].map(|name| directory.path().join(name));
        let config = short(22);
        let new = || Trainer::new(build(16, mechanism, data), data, &config, 9).unwrap();
        let mut trainer = new().with_directory(open(&whole, Existing::Refuse).unwrap()).unwrap();
        assert_eq!(trainer.run().unwrap(), Outcome::Finished { step: 22 });

        let stop = Arc::new(AtomicBool::new(false));
        let watcher = StopAfter(17, stop.clone());
        let first = new().with_stop(stop).with_progress(&watcher);
        let mut first = first.with_directory(open(&parts, Existing::Refuse).unwrap()).unwrap();
        assert_eq!(first.run().unwrap(), Outcome::Interrupted { step: 17 });
        drop(first);
        let mut second = new().with_directory(open(&parts, Existing::Resume).unwrap()).unwrap();
        assert_eq!(second.run().unwrap(), Outcome::Finished { step: 22 });

        assert_same(&trainer.checkpoint(), &second.checkpoint());
        let average = |run: &Path| Checkpoint::load(&run.join("checkpoints/average")).unwrap();
        assert_same(&average(&whole), &average(&parts));
        assert_eq!(figures(&whole), figures(&parts));
        assert_mean(&whole, [16, 20, 22]);
        assert_routers(&whole, mechanism);
        drop(second);
        // A finished run has nothing left to do.
        let mut again = new().with_directory(open(&parts, Existing::Resume).unwrap()).unwrap();
        assert_eq!(again.run().unwrap(), Outcome::Finished { step: 22 });
        assert_eq!(figures(&whole), figures(&parts));
        drop(again);
        // One that goes on drops its mean.
        let longer = short(23);
        let longer = Trainer::new(build(16, mechanism, data), data, &longer, 9).unwrap();
        let mut longer = longer.with_directory(open(&parts, Existing::Resume).unwrap()).unwrap();
        assert_eq!(longer.run().unwrap(), Outcome::Finished { step: 23 });
        assert_eq!(longer.evaluate_best(Split::Valid).unwrap().step, 23);
        drop(trainer);
        another_mean(&whole, data, mechanism);
    }
}

/// A run that ended with a mean of three, resumed with another one.
#[track_caller]
fn another_mean(run: &Path, data: &TaskData, mechanism: Mechanism) {
    let resumed = |config: &TrainConfig, then: &dyn Fn(Trainer)| {
        let trainer = Trainer::new(build(16, mechanism, data), data, config, 9).unwrap();
        trainer.with_directory(open(run, Existing::Resume).unwrap()).map(then)
    };
    // Of more than are kept: told before anything is trained.
    let error = resumed(&TrainConfig { average: 9, ..short(40) }, &|_| ()).unwrap_err().to_string();
    assert!(error.contains("no checkpoint of step 8, which train.average = 9 needs at step 40"), "{error}");
    for (average, expected) in [(2, Some(2)), (0, None)] {
        let before = Checkpoint::load_model(&run.join("checkpoints/step-22")).unwrap();
        resumed(&TrainConfig { average, ..short(22) }, &|mut trainer| {
            assert_eq!(trainer.run().unwrap(), Outcome::Finished { step: 22 });
            assert_eq!(trainer.evaluate_best(Split::Valid).unwrap().averaged, expected);
        })
        .unwrap();
        assert_eq!(run.join("checkpoints/average").exists(), average > 1);
        assert_eq!(Checkpoint::load_model(&run.join("checkpoints/step-22")).unwrap(), before);
    }
}

/// The mean of a run is that of the checkpoints at `steps`, and what is used of it.
#[track_caller]
fn assert_mean(run: &Path, steps: [usize; 3]) {
    let checkpoints = regard_tasks::train::Checkpoints::new(run.join("checkpoints"), 1);
    let best = checkpoints.best().unwrap();
    assert!(best.ends_with("average") && checkpoints.last().unwrap().ends_with("step-22"));
    let mean = Checkpoint::load_model(&best).unwrap();
    let parts = steps.map(|step| Checkpoint::load_model(&run.join(format!("checkpoints/step-{step}"))).unwrap());
    for (name, tensor) in mean.iter().filter(|(name, _)| !regard_nn::models::is_buffer(name)) {
        for (i, &value) in tensor.data.iter().enumerate() {
            let expected = parts.iter().map(|part| f64::from(part[name].data[i])).sum::<f64>() / 3.0;
            assert_eq!(value, expected as f32, "{name}");
        }
    }
    let averaged = |record: &Record| matches!(record, Record::Evaluation(e) if e.averaged == Some(3) && e.step == 22);
    assert_eq!(Record::read(&run.join("metrics.jsonl")).unwrap().iter().filter(|record| averaged(record)).count(), 1);
}

/// Routers, where there are any, report their losses and loads.
#[track_caller]
fn assert_routers(run: &Path, mechanism: Mechanism) {
    let records = Record::read(&run.join("metrics.jsonl")).unwrap();
    let reports: Vec<_> = records
        .iter()
        .filter_map(|record| match record {
            Record::Step(step) if !step.routers.is_empty() => Some((step.step, &step.routers)),
            _ => None,
        })
        .collect();
    if mechanism != Mechanism::Moa {
        assert!(reports.is_empty());
        return;
    }
    assert_eq!(reports.len(), 1);
    let (step, routers) = reports[0];
    let names: Vec<_> = routers.iter().map(|router| router.name.as_str()).collect();
    let both =
        ["encoder.1.self", "encoder.2.self", "decoder.1.self", "decoder.1.cross", "decoder.2.self", "decoder.2.cross"];
    assert!(step == 20 && (names == both || names == both[..2]), "{names:?} after {step}");
    for router in routers {
        assert!((router.load.iter().sum::<f64>() - 1.0).abs() < 1e-6 && router.load.len() == 8, "{router:?}");
        assert!(router.balance > 0.5 && router.z >= 0.0 && router.entropy > 0.0, "{router:?}");
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let directory = tempfile::tempdir().unwrap();
    let pairs = pairs(directory.path());
    for (data, mechanism) in [(&pairs, Mechanism::Softmax), (&pairs, Mechanism::Moa), (&masked(), Mechanism::Moa)] {
        let train = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                // Wide enough for products that a backend would split between threads.
                let model = build(128, mechanism, data);
                let config = TrainConfig { batch: 32, accumulate: 1, average: 0, ..short(4) };
                let mut trainer = Trainer::new(model, data, &config, 9).unwrap();
                trainer.run().unwrap();
                let test = trainer.evaluate_best(Split::Test).unwrap();
                (trainer.checkpoint(), test.loss.to_bits(), test.bleu)
            })
        };
        let (one, loss, bleu) = train(1);
        for threads in [2, 7] {
            let (other, other_loss, other_bleu) = train(threads);
            assert_same(&one, &other);
            assert_eq!((loss, bleu), (other_loss, other_bleu));
        }
    }
}

#[test]
fn the_tokenizer_is_kept_and_other_data_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let data = pairs(directory.path());
    let run = directory.path().join("run");
    let config = TrainConfig { average: 0, ..short(4) };
    let new = |data| Trainer::new(build(16, Mechanism::Softmax, data), data, &config, 9).unwrap();
    let mut trainer = new(&data).with_directory(open(&run, Existing::Refuse).unwrap()).unwrap();
    trainer.run().unwrap();
    drop(trainer);
    let kept = TextTokenizer::load(&run.join(TOKENIZER)).unwrap();
    assert!(Some(&kept) == data.tokenizer());
    assert_eq!(kept.decode(&kept.encode("sechs  fünf")), "sechs fünf");
    // Other words of the same number of ids.
    let other = fs::read_to_string(directory.path().join("train.en")).unwrap().replace("one", "ein");
    fs::write(directory.path().join("train.en"), other).unwrap();
    let translation = TranslationConfig {
        directory: Some(directory.path().into()),
        vocabulary: 320,
        max_length: 20,
        ..Default::default()
    };
    let task = TaskConfig { name: TaskName::Translation, translation, ..TaskConfig::default() };
    let other = task.load(3, None, &|_, _| {}).unwrap();
    assert_eq!(other.shape(), data.shape());
    let error = new(&other).with_directory(open(&run, Existing::Resume).unwrap()).err().unwrap().to_string();
    assert!(error.contains("tokenizer.json: not the vocabulary of these data"), "{error}");
    new(&other).with_directory(open(&run, Existing::Overwrite).unwrap()).unwrap();
}
