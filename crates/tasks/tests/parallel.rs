//! Training by several ranks, here threads of one process.

mod common;

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use burn::tensor::Device;
use regard_cluster::{Alone, ClusterError, Communicator, Threads};
use regard_kernels::{
    AttentionOptions, Mechanism,
    mechanism::Inference,
    support::{SupportKind, SupportOptions},
};
use regard_nn::models::ModelConfig;
use regard_tasks::{
    data::{CharLmConfig, GeneratedNews, ListOpsConfig, NewsConfig, TaskConfig, TaskData, TaskName},
    train::{
        Checkpoint, Evaluation, Existing, Model, Outcome, Silent, Split, TEST_ITEMS, TrainConfig, TrainError, Trainer,
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

fn news() -> TaskData {
    let generated = GeneratedNews { topics: 4, users: 60, news: 300, impressions: 100, test_impressions: 60 };
    let news = NewsConfig { generated, ..NewsConfig::default() };
    TaskConfig { name: TaskName::News, news, ..TaskConfig::default() }.load(3, None, &|_, _| {}).unwrap()
}

fn attention(mechanism: Mechanism) -> AttentionOptions {
    let mut options = AttentionOptions { mechanism, heads: 2, ..AttentionOptions::default() };
    options.features.rows = 4;
    options.support = SupportOptions { kind: SupportKind::Local, radius: 2, ..SupportOptions::default() };
    options
}

fn build(attention: &AttentionOptions, data: &TaskData) -> Model {
    let model = ModelConfig {
        width: 16,
        layers: 2,
        feed_forward: 32,
        dropout: 0.1,
        attention_dropout: 0.1,
        ..ModelConfig::default()
    };
    Model::build(&model, attention, data, 5, &Device::flex().autodiff()).unwrap()
}

fn config(parts: usize) -> TrainConfig {
    TrainConfig { steps: 8, batch: 8, parts, evaluate_every: 3, checkpoint_every: 4, ..TrainConfig::default() }
}

/// What a rank has at the end: the run's outcome, the measured best model, the model and its own moments.
type Ended = (Outcome, Evaluation, Checkpoint);

fn train(
    (data, options, config): (&TaskData, &AttentionOptions, &TrainConfig),
    (path, existing): (&Path, Existing),
    cluster: Arc<dyn Communicator>,
    stop: &StopAfter,
) -> Result<Ended, TrainError> {
    let stops = cluster.rank() == cluster.ranks() - 1;
    let trainer = Trainer::new(build(options, data), data, config, 7)?.with_cluster(cluster.clone())?;
    let trainer = if stops { trainer.with_progress(stop).with_stop(stop.1.clone()) } else { trainer };
    let mut trainer = match cluster.rank() {
        0 => trainer.with_directory(open(path, existing)?)?,
        _ => trainer.following()?,
    };
    let outcome = trainer.run()?;
    let mut best = trainer.evaluate_best(Split::Test)?;
    best.seconds = 0.0;
    Ok((outcome, best, trainer.checkpoint()))
}

fn never() -> StopAfter {
    StopAfter(usize::MAX, Arc::new(AtomicBool::new(false)))
}

fn last_checkpoint(path: &Path, step: usize) -> Checkpoint {
    Checkpoint::load(&path.join("checkpoints").join(format!("step-{step}"))).unwrap()
}

#[test]
fn any_number_of_ranks_gives_the_same_bits() {
    for (data, mechanism) in [
        (listops(), Mechanism::Softmax),
        (listops(), Mechanism::Scatterbrain),
        (characters(), Mechanism::Moa),
        (news(), Mechanism::Fastformer),
    ] {
        let (mut options, config) = (attention(mechanism), config(4));
        if mechanism == Mechanism::Scatterbrain {
            options.features.redraw = 3;
        }
        let folder = tempfile::tempdir().unwrap();
        let run = |ranks: usize| {
            let path = folder.path().join(ranks.to_string());
            let job = |cluster: Arc<dyn Communicator>| {
                train((&data, &options, &config), (&path, Existing::Refuse), cluster, &never()).unwrap()
            };
            let ended = if ranks == 1 { vec![job(Arc::new(Alone))] } else { Threads::run(ranks, job) };
            (path, ended)
        };
        let (alone, [(outcome, best, whole)]) = run(1).map_ended();
        assert_eq!(outcome, Outcome::Finished { step: 8 });
        for ranks in [2, 3, 4] {
            let (path, ended) = run(ranks);
            assert_eq!(figures(&path), figures(&alone), "{ranks} ranks with {mechanism:?}");
            assert_same(&last_checkpoint(&path, 8), &whole);
            let items = |path: &Path| std::fs::read(path.join(TEST_ITEMS)).unwrap();
            assert_eq!(items(&path), items(&alone));
            for (rank, (seen, measured, own)) in ended.iter().enumerate() {
                assert_eq!((*seen, measured), (outcome, &best), "rank {rank}");
                assert_eq!(own.model, whole.model, "rank {rank}");
            }
            // Every parameter has one rank that keeps its moments.
            let kept: usize = ended.iter().map(|(.., own)| own.moments.len()).sum();
            assert_eq!(kept, whole.moments.len());
            assert!(ended.iter().all(|(.., own)| !own.moments.is_empty()));
        }
    }
}

trait MapEnded {
    fn map_ended(self) -> (std::path::PathBuf, [Ended; 1]);
}

impl MapEnded for (std::path::PathBuf, Vec<Ended>) {
    fn map_ended(self) -> (std::path::PathBuf, [Ended; 1]) {
        (self.0, self.1.try_into().map_err(|_| "one rank").unwrap())
    }
}

#[test]
fn a_run_stopped_on_one_rank_goes_on_on_others() {
    let (data, options) = (listops(), attention(Mechanism::Mgk));
    let config = TrainConfig { accumulate: 2, average: 2, ..config(2) };
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, existing, ranks, stop: usize| {
        let path = folder.path().join(name);
        // The last rank alone is told to stop, by its own observer.
        let stop = StopAfter(stop, Arc::new(AtomicBool::new(false)));
        Threads::run(ranks, |cluster| {
            train((&data, &options, &config), (&path, existing), cluster, &stop).map(|(outcome, ..)| outcome).unwrap()
        })
    };
    assert_eq!(run("whole", Existing::Refuse, 1, usize::MAX), [Outcome::Finished { step: 8 }]);
    // The others hear of it in the update after the one in which it was told.
    assert_eq!(run("parts", Existing::Refuse, 2, 4), [Outcome::Interrupted { step: 5 }; 2]);
    assert_eq!(run("parts", Existing::Resume, 4, usize::MAX), [Outcome::Finished { step: 8 }; 4]);
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
    let steps = |path: &Path| figures(path).into_iter().filter(|line| !line.contains("Test")).collect::<Vec<_>>();
    assert_eq!(steps(&parts), steps(&whole));
    assert_same(&last_checkpoint(&parts, 8), &last_checkpoint(&whole, 8));
}

/// Cutting a batch changes the order of its sums, and nothing else.
#[test]
fn parts_are_the_whole_batch_but_for_rounding() {
    for data in [listops(), characters()] {
        let mut options = attention(Mechanism::Softmax);
        options.heads = 4;
        let losses = |parts: usize, accumulate: usize| -> Vec<f64> {
            let config = TrainConfig { parts, accumulate, ..config(0) };
            let model = ModelConfig { width: 16, layers: 1, feed_forward: 32, ..ModelConfig::default() };
            let model = Model::build(&model, &options, &data, 5, &Device::flex().autodiff()).unwrap();
            let mut trainer = Trainer::new(model, &data, &config, 7).unwrap().with_progress(&Silent);
            (0..5).map(|_| trainer.update().unwrap().loss).collect()
        };
        for accumulate in [1, 2] {
            let whole = losses(0, accumulate);
            // With two batches there is one order.
            assert_eq!(losses(1, accumulate), whole);
            for parts in [2, 5] {
                let cut = losses(parts, accumulate);
                assert!(whole.iter().zip(&cut).all(|(a, b)| (a - b).abs() < 1e-5), "{parts} parts: {cut:?}, {whole:?}");
            }
        }
    }
}

#[test]
fn what_ranks_cannot_share_is_refused() {
    let data = listops();
    let refused = |config: &TrainConfig, options: &AttentionOptions, ranks: usize| {
        let said = Threads::run(ranks, |cluster| {
            let trainer = Trainer::new(build(options, &data), &data, config, 7);
            trainer.and_then(|trainer| trainer.with_cluster(cluster)).map(drop).unwrap_err().to_string()
        });
        assert!(said.iter().all(|sentence| *sentence == said[0]), "{said:?}");
        said[0].clone()
    };
    let softmax = attention(Mechanism::Softmax);
    let said = refused(&config(2), &softmax, 4);
    assert!(said.contains("train.parts is 2; expected at least 4, so that each of the 4 ranks"), "{said}");
    let said = refused(&TrainConfig { batch: 2, ..config(0) }, &softmax, 3);
    assert!(said.contains("train.batch is 2; expected at least 3"), "{said}");
    let mut soft_em = attention(Mechanism::Mgk);
    soft_em.mixture.inference = Inference::SoftEm;
    let said = refused(&config(0), &soft_em, 2);
    assert!(said.contains("soft-em"), "{said}");
}

#[test]
fn a_rank_that_is_gone_ends_the_run_on_all_others_and_spares_the_checkpoints() {
    let (data, options, config) = (listops(), attention(Mechanism::Softmax), config(4));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let seen = Threads::run(3, |cluster| {
        if cluster.rank() < 2 {
            return train((&data, &options, &config), (&path, Existing::Refuse), cluster, &never()).map(drop);
        }
        let mut trainer =
            Trainer::new(build(&options, &data), &data, &config, 7)?.with_cluster(cluster)?.following()?;
        // Without the checkpoint after update 4 and its evaluation.
        (0..3).try_for_each(|_| trainer.update().map(drop))
    });
    for outcome in &seen[..2] {
        let gone = matches!(outcome, Err(TrainError::Cluster(ClusterError::Lost { .. })));
        assert!(gone, "{outcome:?}");
    }
    assert!(seen[2].is_ok());
    let ended = Threads::run(2, |cluster| {
        train((&data, &options, &config), (&path, Existing::Resume), cluster, &never()).unwrap().0
    });
    assert_eq!(ended, [Outcome::Finished { step: 8 }; 2]);
}
