//! Summaries from end to end, on real lines and on tiny data of our own.

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use burn::{module::Module, tensor::Device};
use regard_cluster::Alone;
use regard_kernels::{AttentionOptions, Mechanism, mechanism::Position};
use regard_nn::{attention::Attentions, models::ModelConfig};
use regard_tasks::{
    data::{SummaryConfig, TaskConfig, TaskData, TaskName},
    train::{
        Existing, Model, OptimizerConfig, Outcome, Record, ScheduleConfig, ScheduleKind, Split, TrainConfig, Trainer,
        measure_rouge,
    },
};

use common::{StopAfter, assert_same, figures, open};

fn load(summary: SummaryConfig) -> TaskData {
    TaskConfig { name: TaskName::Summary, summary, ..TaskConfig::default() }.load(3, None, &|_, _| {}).unwrap()
}

/// Real lines, the same in all splits.
fn real(file: &str, max_document: usize, max_summary: usize, lead: usize) -> TaskData {
    let path = Some(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/summaries")).join(file));
    let (train, valid, test) = (path.clone(), path.clone(), path);
    load(SummaryConfig { train, valid, test, vocabulary: 400, max_document, max_summary, lead, ..Default::default() })
}

/// Rows of words whose summary is the first two.
fn write_rows(directory: &Path) -> SummaryConfig {
    const WORDS: [&str; 8] = ["sun", "moon", "tree", "river", "stone", "cloud", "bird", "grass"];
    // A generator of its own, so that the splits are the same for ever.
    let mut state = 1u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % below) as usize
    };
    for (split, rows) in [("train", 800), ("valid", 30), ("test", 30)] {
        let mut lines = String::new();
        for _ in 0..rows {
            let words: Vec<_> = (0..3 + draw(4)).map(|_| WORDS[draw(8)]).collect();
            lines += &format!("{{\"document\": \"{}\", \"summary\": \"{}\"}}\n", words.join(" "), words[..2].join(" "));
        }
        fs::write(directory.join(format!("{split}.jsonl")), lines).unwrap();
    }
    let directory = Some(directory.into());
    SummaryConfig { directory, vocabulary: 300, max_document: 16, max_summary: 8, ..Default::default() }
}

fn build(width: usize, mechanism: Mechanism, data: &TaskData) -> Model {
    let of = |mechanism| AttentionOptions { mechanism, heads: 4, position: Position::Learned, ..Default::default() };
    let [own, softmax] = [mechanism, Mechanism::Softmax].map(of);
    let attentions = Attentions { encoder: own.clone(), decoder: own, cross: softmax };
    let model =
        ModelConfig { width, layers: 1, feed_forward: 2 * width, tied_head: true, dropout: 0.0, ..Default::default() };
    Model::build(&model, attentions, data, 5, &Device::flex().autodiff()).unwrap()
}

/// Scores of the first sentences are those of rouge-score 0.1.2, of each abstract with the reference of the best ROUGE-1.
#[test]
fn real_abstracts_are_scored_as_rouge_score_does() {
    for (lead, expected) in [
        (1, [46.367_521_367_521_38, 33.0, 43.589_743_589_743_6]),
        (2, [38.417_402_269_861_284, 23.202_015_574_896_933, 34.186_633_039_026_6]),
    ] {
        let data = real("scitldr.jsonl", 800, 300, lead);
        assert_eq!((data.notes().len(), data.pairs(Split::Test).unwrap().len()), (0, 4), "{:?}", data.notes());
        let references: Vec<usize> = data.summaries(Split::Valid).unwrap().summaries.iter().map(Vec::len).collect();
        assert_eq!(references, [1, 2, 3, 4]);
        assert!(data.setting().starts_with("10 training documents"), "{}", data.setting());
        let config = TrainConfig { beam: 1, ..TrainConfig::default() };
        let data = real("scitldr.jsonl", 100, 60, lead);
        let scores = measure_rouge(&model(&data), &data, Split::Test, &config, 3, &Alone).unwrap().unwrap();
        assert_eq!(scores.lead_sentences, lead);
        let seen = [scores.lead.rouge_1, scores.lead.rouge_2, scores.lead.rouge_l];
        assert!(seen.iter().zip(expected).all(|(seen, expected)| (seen - expected).abs() < 1e-9), "{seen:?}");
    }
}

fn model(data: &TaskData) -> Model {
    build(16, Mechanism::Softmax, data).valid()
}

#[test]
fn every_mechanism_reads_meetings_and_answers() {
    let data = real("qmsum.jsonl", 120, 110, 1);
    assert_eq!((data.pairs(Split::Test).unwrap().len(), data.shape().longest_written()), (3, 110));
    assert!(data.notes()[0].starts_with("3 of 3 training documents cut to 119 tokens"), "{:?}", data.notes());
    let config = TrainConfig { steps: 2, batch: 2, shortest: 3, no_repeat: 2, ..TrainConfig::default() };
    for &mechanism in Mechanism::ALL {
        let mut trainer = Trainer::new(build(16, mechanism, &data), &data, &config, 9).unwrap();
        let first = trainer.update().unwrap();
        assert!(first.loss.is_finite() && first.gradient_norm > 0.0, "{mechanism}: {first:?}");
        trainer.run().unwrap();
        let test = trainer.evaluate_best(Split::Test).unwrap();
        let scores = test.rouge.unwrap();
        assert!(test.bleu.is_none() && (0.0..=100.0).contains(&scores.model.rouge_1), "{mechanism}: {test:?}");
    }
}

#[test]
fn a_model_learns_to_say_what_comes_first_and_its_scores_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let data = load(write_rows(directory.path()));
    let config = TrainConfig {
        steps: 600,
        evaluate_every: 200,
        optimizer: OptimizerConfig { learning_rate: 3e-3, beta2: 0.98, ..OptimizerConfig::default() },
        schedule: ScheduleConfig { kind: ScheduleKind::Cosine, warmup: 40, final_fraction: 0.1 },
        ..TrainConfig::default()
    };
    let run = directory.path().join("run");
    let mut trainer = Trainer::new(build(32, Mechanism::Softmax, &data), &data, &config, 9)
        .unwrap()
        .with_directory(open(&run, Existing::Refuse).unwrap())
        .unwrap();
    let before = trainer.evaluate(Split::Test, 0).unwrap();
    assert_eq!((before.sequences, before.rouge, before.bleu), (30, None, None));
    trainer.run().unwrap();
    let [valid, test] = [Split::Valid, Split::Test].map(|split| trainer.evaluate_best(split).unwrap());
    let scores = test.rouge.unwrap();
    assert!(scores.model.rouge_1 > 95.0 && scores.model.rouge_2 > 90.0, "{before:?} {test:?}");
    // The whole document has both words of the summary, and up to four others.
    assert!((40.0..80.0).contains(&scores.lead.rouge_1), "{scores:?}");
    assert!(valid.rouge.unwrap().model.rouge_l > 90.0);
    let records = Record::read(&run.join("metrics.jsonl")).unwrap();
    let kept = |split: Split| {
        records.iter().rev().find_map(|record| match record {
            Record::Evaluation(evaluation) if evaluation.split == split => evaluation.rouge,
            _ => None,
        })
    };
    assert_eq!((kept(Split::Test), kept(Split::Valid)), (test.rouge, valid.rouge));
    let events = fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().path());
    let mut events = events.filter(|path| path.to_string_lossy().contains("tfevents"));
    let events = fs::read(events.next().unwrap()).unwrap();
    assert!(events.windows(12).any(|part| part == b"test/rouge-l") && !events.windows(9).any(|p| p == b"test/bleu"));
}

#[test]
fn interrupted_runs_continue_bit_for_bit() {
    let directory = tempfile::tempdir().unwrap();
    let data = load(write_rows(directory.path()));
    let config = TrainConfig { steps: 12, batch: 8, evaluate_every: 5, checkpoint_every: 3, ..TrainConfig::default() };
    let [whole, parts] = ["whole", "parts"].map(|name| directory.path().join(name));
    let new = || Trainer::new(build(16, Mechanism::Mgk, &data), &data, &config, 9).unwrap();
    let mut trainer = new().with_directory(open(&whole, Existing::Refuse).unwrap()).unwrap();
    assert_eq!(trainer.run().unwrap(), Outcome::Finished { step: 12 });

    let stop = Arc::new(AtomicBool::new(false));
    let watcher = StopAfter(7, stop.clone());
    let first = new().with_stop(stop).with_progress(&watcher);
    let mut first = first.with_directory(open(&parts, Existing::Refuse).unwrap()).unwrap();
    assert_eq!(first.run().unwrap(), Outcome::Interrupted { step: 7 });
    drop(first);
    let mut second = new().with_directory(open(&parts, Existing::Resume).unwrap()).unwrap();
    assert_eq!(second.run().unwrap(), Outcome::Finished { step: 12 });
    assert_same(&trainer.checkpoint(), &second.checkpoint());
    let [one, other] = [&mut trainer, &mut second].map(|trainer| trainer.evaluate_best(Split::Test).unwrap());
    assert_eq!((one.loss.to_bits(), one.rouge), (other.loss.to_bits(), other.rouge));
    assert_eq!(figures(&whole), figures(&parts));
}
