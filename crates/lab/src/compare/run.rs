//! Runs every candidate with every seed.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use burn::tensor::Device;
use regard_cluster::{ClusterError, Communicator, deal};
use regard_files::write_whole;
use regard_nn::models::parameter_count;
use regard_tasks::{
    Class, Classed, Failure,
    data::TaskData,
    run::RunConfig,
    train::{
        Environment, Existing, METRICS, Model, Outcome, Progress, Record, RunDirectory, ScheduleConfig, Split,
        TrainConfig, TrainError, Trainer, occupied,
    },
};

use super::{Candidate, RunResult};
use crate::{
    bench::Timing,
    cost::{ModelCost, ModelSizes, Run},
    load::{self, Loading},
};

const RESULT: &str = "result.json";
/// Points of the training loss curve.
const LOSS_POINTS: usize = 60;

/// A comparison: models, data, and output directory.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The models.
    pub candidates: &'a [Candidate],
    /// Seeds; every candidate is trained once per seed.
    pub seeds: &'a [u64],
    /// The data, the same for all.
    pub data: &'a TaskData,
    /// The recipe, the same for all.
    pub train: &'a TrainConfig,
    /// Directory of the comparison, with one subdirectory per run.
    pub directory: &'a Path,
    /// Machine, version and date.
    pub environment: &'a Environment,
    /// A device with autodiff.
    pub device: &'a Device,
    /// This rank of the job whose ranks train, which have the directory together.
    pub cluster: Arc<dyn Communicator>,
}

/// Where runs are trained, and by whom.
#[derive(Debug)]
pub struct Job<'a> {
    /// Directory of all of them.
    pub out: &'a Path,
    /// Directory for generated data.
    pub cache: Option<&'a Path>,
    /// Machine, version and date.
    pub environment: &'a Environment,
    /// This rank of the job whose ranks train, which have the directory together.
    pub cluster: Arc<dyn Communicator>,
}

/// Observer of a comparison and its data.
pub trait Watch: Loading {
    /// A run begins: its index from 0, and the total. Returns its observer.
    fn begin(&self, label: &str, seed: u64, number: usize, total: usize, steps: usize) -> Box<dyn Progress>;
    /// A run has ended, and its observer is dropped; `fresh` unless its result already existed.
    fn end(&self, result: &RunResult, fresh: bool);
}

/// Why a comparison ended early.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A run failed.
    #[error("{label}, seed {seed}: {source}")]
    Run {
        /// The candidate.
        label: String,
        /// Its seed.
        seed: u64,
        /// The cause.
        #[source]
        source: TrainError,
    },
    /// A result file that is missing or cannot be read.
    #[error("{}: {problem}", path.display())]
    Result {
        /// The file.
        path: PathBuf,
        /// The problem and a remedy.
        problem: String,
    },
    /// A result file that cannot be written.
    #[error(transparent)]
    Write(Failure),
    /// A rank of the job that is gone.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The stop flag was raised; finished runs and a checkpoint of the unfinished one remain.
    #[error("interrupted; continue with --resume")]
    Interrupted,
}

impl Classed for CompareError {
    fn class(&self) -> Class {
        match self {
            Self::Run { source, .. } => source.class(),
            Self::Result { .. } => Class::Data,
            Self::Write(failure) => failure.class,
            Self::Cluster(_) | Self::Interrupted => Class::Interrupted,
        }
    }
}

/// Directory of a candidate's run within a comparison.
pub fn run_directory(comparison: &Path, label: &str, seed: u64) -> PathBuf {
    comparison.join(label).join(format!("seed-{seed}"))
}

/// Trains the runs of a job that have no result; returns the data and the results, as [`run`] does.
///
/// # Errors
/// Missing data; the first run that fails, or an interrupt.
pub fn train(
    config: &RunConfig,
    candidates: &[Candidate],
    job: &Job,
    watch: &dyn Watch,
    stop: &Arc<AtomicBool>,
) -> Result<(TaskData, Vec<RunResult>), Failure> {
    let Job { out: directory, cache, environment, ref cluster } = *job;
    let data = load::data(config, cache, watch)?;
    let (train, seeds, device) = (&config.train, &config.compare.seeds, &config.training_device());
    let cluster = cluster.clone();
    let plan = Plan { candidates, seeds, data: &data, train, directory, environment, device, cluster };
    let results = run(&plan, watch, stop)?;
    Ok((data, results))
}

/// Runs everything without a result; returns all results, by candidate and seed. The ranks of a job take runs as they are
/// free; rank 0 observes all, and the others return no results.
///
/// # Errors
/// The first run that fails, or an interrupt.
pub fn run(plan: &Plan, watch: &dyn Watch, stop: &Arc<AtomicBool>) -> Result<Vec<RunResult>, CompareError> {
    warm_up(plan)?;
    let runs: Vec<(&Candidate, u64)> =
        plan.candidates.iter().flat_map(|candidate| plan.seeds.iter().map(move |&seed| (candidate, seed))).collect();
    let directory = |number: usize| {
        let (candidate, seed) = runs[number];
        run_directory(plan.directory, &candidate.label, seed)
    };
    let mut open = Vec::new();
    if plan.cluster.rank() == 0 {
        for number in 0..runs.len() {
            match read_result(&directory(number).join(RESULT))? {
                Some(result) => watch.end(&result, false),
                None => open.push(number),
            }
        }
    }
    let work = |number: usize| {
        let ((candidate, seed), directory) = (runs[number], directory(number));
        let progress = watch.begin(&candidate.label, seed, number, runs.len(), plan.train.steps);
        let failed = |source| CompareError::Run { label: candidate.label.clone(), seed, source };
        let result = run_one(plan, candidate, seed, &directory, &*progress, stop).map_err(failed)?;
        drop(progress);
        let Some(result) = result else { return Err(CompareError::Interrupted) };
        let (path, text) = (directory.join(RESULT), serde_json::to_string_pretty(&result));
        write_whole(&path, text.expect("strings and finite numbers").as_bytes())
            .map_err(|error| CompareError::Write(Failure::written(&error)))
    };
    let result = |number: usize| {
        let path = directory(number).join(RESULT);
        let missing = || CompareError::Result {
            path: path.clone(),
            problem: "a rank ended its run without a result here: all ranks need the same directory".into(),
        };
        read_result(&path)?.ok_or_else(missing)
    };
    let done = |number: usize| {
        watch.end(&result(number)?, true);
        Ok(())
    };
    let go_on = || if stop.load(Ordering::Relaxed) { Err(CompareError::Interrupted) } else { Ok(()) };
    deal(&plan.cluster, open, work, done, go_on)?;
    if plan.cluster.rank() > 0 {
        return Ok(Vec::new());
    }
    (0..runs.len()).map(result).collect()
}

/// One discarded update of the first candidate, so that one-time setup (threads, tables, scratch of matrix products as large as
/// theirs) is not charged to any run.
pub(super) fn warm_up(plan: &Plan) -> Result<(), CompareError> {
    let (Some(candidate), Some(&seed)) = (plan.candidates.first(), plan.seeds.first()) else { return Ok(()) };
    let config = TrainConfig { steps: 1, accumulate: 1, evaluate_batches: 1, average: 1, ..plan.train.clone() };
    let config = TrainConfig { schedule: ScheduleConfig::default(), ..config };
    let update = || {
        let model = Model::build(&candidate.model, candidate.attentions.clone(), plan.data, seed, plan.device)?;
        Trainer::new(model, plan.data, &config, seed)?.run().map(|_| ())
    };
    update().map_err(|source| CompareError::Run { label: candidate.label.clone(), seed, source })
}

fn read_result(path: &Path) -> Result<Option<RunResult>, CompareError> {
    let failed = |problem: String| CompareError::Result { path: path.into(), problem };
    match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(format!("{error}; check its permissions and the disk"))),
        Ok(text) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| failed(format!("no result of a run ({error}); remove it to run it again"))),
    }
}

/// Trains and measures one model; `None` if interrupted.
pub(super) fn run_one(
    plan: &Plan,
    candidate: &Candidate,
    seed: u64,
    directory: &Path,
    progress: &dyn Progress,
    stop: &Arc<AtomicBool>,
) -> Result<Option<RunResult>, TrainError> {
    regard_kernels::parallel::release_scratch();
    let before = regard_alloc::current_bytes();
    let model = Model::build(&candidate.model, candidate.attentions.clone(), plan.data, seed, plan.device)?;
    let parameters = parameter_count(&model);
    // A kill may have left an empty directory with nothing to resume.
    let started = occupied(directory).is_ok_and(|occupied| occupied);
    let existing = if started { Existing::Resume } else { Existing::Refuse };
    let opened = RunDirectory::open(directory, existing, plan.train.keep, &candidate.config, plan.environment)?;
    let mut trainer = Trainer::new(model, plan.data, plan.train, seed)?
        .with_progress(progress)
        .with_stop(stop.clone())
        .with_directory(opened)?;
    let outcome = trainer.run()?;
    let steps = match outcome {
        Outcome::Interrupted { .. } => return Ok(None),
        Outcome::Finished { step } | Outcome::Stopped { step } => step,
    };
    let test = trainer.evaluate_best(Split::Test)?;
    let records = Record::read(&directory.join(METRICS))?;
    let (curve, training_loss, times) = curves(&records);
    let train_seconds = times.iter().sum::<f64>() / 1e3;
    let peak = records.iter().filter_map(|record| if let Record::Step(step) = record { step.peak_bytes } else { None });
    let peak_bytes = peak.max().zip(before).map(|(peak, before)| peak.saturating_sub(before));
    Ok(Some(RunResult {
        label: candidate.label.clone(),
        seed,
        steps,
        test_accuracy: test.accuracy,
        test_loss: test.loss,
        test_perplexity: test.perplexity,
        test_language: test.language.clone(),
        test_bleu: test.bleu,
        test_rouge: test.rouge,
        test_ranking: test.ranking,
        parameters,
        multiply_adds: multiply_adds(plan, candidate),
        milliseconds_per_step: Timing::of(times).map_or(0.0, |timing| timing.median),
        peak_bytes,
        sequences_per_second: test.sequences_per_second(),
        train_seconds,
        curve,
        training_loss,
    }))
}

/// Validation metric over the steps, training loss over the steps, milliseconds of each update.
#[allow(clippy::type_complexity)]
fn curves(records: &[Record]) -> (Vec<(usize, f64)>, Vec<(usize, f64)>, Vec<f64>) {
    let (mut curve, mut losses, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for record in records {
        match record {
            Record::Step(report) => {
                losses.push((report.step, report.loss));
                times.push(report.milliseconds);
            }
            // The mean of the last models is another model than that of the last step.
            Record::Evaluation(evaluation) if evaluation.split == Split::Valid && evaluation.averaged.is_none() => {
                curve.push((evaluation.step, evaluation.score().abs()));
            }
            Record::Evaluation(_) => {}
        }
    }
    let chunk = losses.len().div_ceil(LOSS_POINTS).max(1);
    let mean = |part: &[(usize, f64)]| {
        let (last, _) = part[part.len() - 1];
        (last, part.iter().map(|(_, loss)| loss).sum::<f64>() / part.len() as f64)
    };
    (curve, losses.chunks(chunk).map(mean).collect(), times)
}

fn multiply_adds(plan: &Plan, candidate: &Candidate) -> Option<f64> {
    let shape = plan.data.shape();
    let (sizes, length) = (ModelSizes::new(&candidate.model, &candidate.attentions, shape), shape.max_length);
    let cost = ModelCost::of(&sizes, Run { batch: 1, length, decoded: length });
    Some(cost.ok()?.total().multiply_adds as f64)
}
