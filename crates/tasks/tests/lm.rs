//! Language modelling from end to end on small models: every mechanism, both heads, all kinds of tokens.

mod common;

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use burn::tensor::Device;
use regard_kernels::{AttentionOptions, Mechanism};
use regard_nn::models::{AdaptiveSoftmaxConfig, ModelConfig};
use regard_tasks::{
    data::{Batching, LmConfig, TaskConfig, TaskData, TaskName, TokenKind},
    train::{Existing, METRICS, Model, Outcome, Record, Split, TrainConfig, Trainer, evaluate},
};

use common::{StopAfter, assert_same, figures, open};

/// A text of a hundred words that repeats itself in part.
fn text(folder: &Path) -> LmConfig {
    let path = folder.join("text.txt");
    let words: Vec<String> = (0..2000usize).map(|i| format!("w{}", (i * i / 7 + i) % 97)).collect();
    let lines: Vec<String> = words.chunks(12).map(|line| line.join(" ")).collect();
    std::fs::write(&path, lines.join("\n")).unwrap();
    LmConfig { train: vec![path], context: 16, vocabulary: 300, ..LmConfig::default() }
}

fn load(lm: LmConfig) -> TaskData {
    TaskConfig { name: TaskName::Lm, lm, ..TaskConfig::default() }.load(3, None, &|_, _| {}).unwrap()
}

fn words(folder: &Path) -> TaskData {
    load(LmConfig { tokens: TokenKind::Words, stride: Some(3), ..text(folder) })
}

fn small(cutoffs: &[usize]) -> ModelConfig {
    let adaptive_softmax = AdaptiveSoftmaxConfig { cutoffs: cutoffs.to_vec(), factor: 2 };
    ModelConfig { width: 16, feed_forward: 32, dropout: 0.1, adaptive_softmax, ..ModelConfig::default() }
}

fn build(config: &ModelConfig, mechanism: Mechanism, data: &TaskData) -> Model {
    let attention = AttentionOptions { mechanism, heads: 2, ..AttentionOptions::default() };
    Model::build(config, &attention, data, 5, &Device::flex().autodiff()).unwrap()
}

fn config(steps: usize) -> TrainConfig {
    TrainConfig { steps, batch: 4, evaluate_every: 3, checkpoint_every: 4, ..TrainConfig::default() }
}

#[test]
fn every_mechanism_trains_with_both_heads() {
    let folder = tempfile::tempdir().unwrap();
    let data = words(folder.path());
    let config = TrainConfig { evaluate_batches: 1, ..config(3) };
    for &mechanism in Mechanism::ALL {
        for cutoffs in [&[][..], &[20, 60]] {
            let mut trainer = Trainer::new(build(&small(cutoffs), mechanism, &data), &data, &config, 1).unwrap();
            assert_eq!(trainer.run().unwrap(), Outcome::Finished { step: 3 }, "{mechanism}");
            let test = trainer.evaluate_best(Split::Test).unwrap();
            // About as unsure as an untrained model.
            let unsure = test.perplexity.unwrap() / data.shape().vocabulary as f64;
            assert!((0.3..8.0).contains(&unsure), "{mechanism}: {test:?}");
        }
    }
}

/// Scored by windows of every kind, whatever the rows of a batch, and as the whole distribution says.
#[test]
fn every_token_is_scored_once_and_shared_among_positions() {
    let folder = tempfile::tempdir().unwrap();
    for cutoffs in [&[][..], &[20, 60]] {
        let mut seen = Vec::new();
        for stride in [1, 5, 16] {
            let data = load(LmConfig { tokens: TokenKind::Words, stride: Some(stride), ..text(folder.path()) });
            let Model::Language(model) = build(&small(cutoffs), Mechanism::Softmax, &data) else { unreachable!() };
            let model = Model::Language(burn::module::Module::valid(&model));
            let of = |rows| evaluate(&model, &data, Split::Test, rows, 0, 0).unwrap();
            let (one, many) = (of(1), of(7));
            assert!((one.loss - many.loss).abs() < 1e-6 * one.loss);
            let figures = many.language.unwrap();
            assert_eq!((figures.context, figures.stride), (16, stride));
            let scored: usize = figures.positions.iter().map(|position| position.tokens).sum();
            assert_eq!(scored, many.items);
            let total: f64 = figures.positions.iter().map(|p| p.perplexity.ln() * p.tokens as f64).sum();
            assert!((total / scored as f64 - many.loss).abs() < 1e-9);
            // Beyond the first window, tokens at the last position alone.
            let last = figures.positions.last().unwrap();
            assert_eq!((last.from, last.to), (16, 16));
            if stride == 1 {
                assert_eq!(last.tokens, scored - 15);
            }
            assert_eq!(figures.perplexity_per_word, None, "tokens are words");
            seen.push((many.items, many.sequences));
        }
        assert!(seen.iter().all(|(items, _)| *items == seen[0].0), "{seen:?}");
        assert!(seen[0].1 == seen[0].0 - 15 && seen[1].1 > seen[2].1, "{seen:?}");
    }
}

/// The loss of a split is that of its text, whatever its tokens.
#[test]
fn figures_for_each_byte_and_word_are_of_the_same_text() {
    let folder = tempfile::tempdir().unwrap();
    for tokens in [TokenKind::Bytes, TokenKind::Characters, TokenKind::Subwords] {
        let data = load(LmConfig { tokens, ..text(folder.path()) });
        let extent = data.extent(Split::Test).unwrap();
        let model = burn::module::Module::valid(&build(&small(&[]), Mechanism::Softmax, &data));
        let found = evaluate(&model, &data, Split::Test, 8, 0, 0).unwrap();
        let figures = found.language.unwrap();
        let nats = found.loss * found.items as f64;
        assert!((figures.perplexity_per_word.unwrap().ln() * extent.words as f64 / nats - 1.0).abs() < 1e-12);
        let bits = figures.bits_per_byte.unwrap() * extent.bytes as f64;
        assert!((bits * std::f64::consts::LN_2 / nats - 1.0).abs() < 1e-12);
        assert_eq!(figures.bits_per_character, figures.bits_per_byte, "the text is ASCII");
        if tokens != TokenKind::Subwords {
            assert_eq!(found.items + 1, extent.bytes);
        }
        let part = evaluate(&model, &data, Split::Test, 1, 2, 0).unwrap().language.unwrap();
        assert_eq!(part.bits_per_byte, None, "two windows are not the whole text");
    }
}

#[test]
fn an_interrupted_run_continues_bit_for_bit_with_its_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    let subwords = load(LmConfig { batches: Batching::Windows, ..text(folder.path()) });
    for (data, model, file) in [
        (words(folder.path()), small(&[20, 60]), "vocabulary.txt"),
        (words(folder.path()), small(&[]), "vocabulary.txt"),
        (subwords, small(&[]), "tokenizer.json"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let [whole, parts] = ["whole", "parts"].map(|name| directory.path().join(name));
        let config = config(8);
        let fresh = || Trainer::new(build(&model, Mechanism::Mgk, &data), &data, &config, 9).unwrap();
        let mut trainer = fresh().with_directory(open(&whole, Existing::Refuse).unwrap()).unwrap();
        trainer.run().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let watcher = StopAfter(5, stop.clone());
        let first = fresh().with_stop(stop).with_progress(&watcher);
        let mut first = first.with_directory(open(&parts, Existing::Refuse).unwrap()).unwrap();
        assert_eq!(first.run().unwrap(), Outcome::Interrupted { step: 5 });
        drop(first);
        let mut second = fresh().with_directory(open(&parts, Existing::Resume).unwrap()).unwrap();
        assert_eq!(second.run().unwrap(), Outcome::Finished { step: 8 });
        assert_same(&trainer.checkpoint(), &second.checkpoint());
        assert_eq!(figures(&whole), figures(&parts));
        drop(second);
        let (_, content) = data.units().unwrap().file().unwrap();
        assert_eq!(std::fs::read_to_string(parts.join(file)).unwrap(), content);
        let records = Record::read(&parts.join(METRICS)).unwrap();
        let language = records.iter().any(|record| matches!(record, Record::Evaluation(e) if e.language.is_some()));
        assert!(language, "evaluations keep the loss by position");

        // Another text with as many words is another vocabulary.
        std::fs::write(parts.join(file), "other words\n").unwrap();
        let error = fresh().with_directory(open(&parts, Existing::Resume).unwrap()).err().unwrap().to_string();
        assert!(error.contains(file) && error.contains("not the vocabulary of these data"), "{error}");
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let data = words(folder.path());
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let config = TrainConfig { evaluate_every: 0, ..config(3) };
            let mut trainer =
                Trainer::new(build(&small(&[20, 60]), Mechanism::Softmax, &data), &data, &config, 1).unwrap();
            trainer.run().unwrap();
            (trainer.checkpoint(), trainer.evaluate_best(Split::Test).unwrap().loss.to_bits())
        })
    };
    let (first, loss) = run(1);
    for threads in [2, 7] {
        let (other, other_loss) = run(threads);
        assert_same(&first, &other);
        assert_eq!(loss, other_loss);
    }
}

#[test]
fn heads_that_cannot_be_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let data = words(folder.path());
    let attention = AttentionOptions { heads: 2, ..AttentionOptions::default() };
    let build = |config: &ModelConfig, data: &TaskData| {
        Model::build(config, &attention, data, 5, &Device::flex()).err().unwrap().to_string()
    };
    let words = data.shape().vocabulary;
    let error = build(&small(&[20, words]), &data);
    let expected =
        format!("model.adaptive_softmax.cutoffs is 20,{words}, expected numbers below the vocabulary ({words})");
    assert!(error.contains(&expected), "{error}");
    let masked = TaskConfig { name: TaskName::MaskedLm, ..TaskConfig::default() };
    let masked = masked.load(3, None, &|_, _| {}).unwrap();
    let error = build(&small(&[20]), &masked);
    assert!(error.contains("only language models have such a head"), "{error}");
}
