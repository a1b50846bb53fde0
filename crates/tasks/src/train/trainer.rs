//! The training loop.

mod mean;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use burn::module::Module;
use regard_cluster::{Alone, Communicator};
use regard_nn::config::Precision;

use super::{
    AdamW, Best, Checkpoint, Evaluation, HostTensors, Items, LossScale, Model, Progress, RouterReport, RunDirectory,
    RunState, Silent, StepReport, TrainConfig, TrainError,
    evaluation::measure,
    gradients::{Gradients, Pass, Settings},
    measure_bleu, measure_rouge,
    parallel::Parallel,
    routers,
    run_directory::vocabulary_file,
};
use crate::data::{Batch, Batches, Split, TaskData};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done.
    Finished {
        /// Updates done.
        step: usize,
    },
    /// The metric did not get better for `train.patience` evaluations.
    Stopped {
        /// Updates done.
        step: usize,
    },
    /// The stop flag was raised; there is a checkpoint of this step where there is a run directory.
    Interrupted {
        /// Updates done.
        step: usize,
    },
}

/// A model in training.
///
/// ```
/// use burn::tensor::Device;
/// use regard_kernels::AttentionOptions;
/// use regard_nn::models::ModelConfig;
/// use regard_tasks::{
///     data::{CopyConfig, TaskConfig, TaskName},
///     train::{Model, Split, TrainConfig, Trainer},
/// };
///
/// let copy = CopyConfig { length: 16, symbols: 4, train: 32, valid: 4, test: 4 };
/// let data = TaskConfig { name: TaskName::Copy, copy, ..TaskConfig::default() }.load(1, None, &|_, _| {})?;
/// let (model, attention) = (ModelConfig::default(), AttentionOptions::default());
/// let model = Model::build(&model, &attention, &data, 1, &Device::flex().autodiff())?;
///
/// let config = TrainConfig { steps: 3, batch: 4, ..TrainConfig::default() };
/// let mut trainer = Trainer::new(model, &data, &config, 1)?;
/// let report = trainer.update()?; // one step
/// assert!(report.loss.is_finite());
/// trainer.run()?; // the others
/// assert_eq!(trainer.evaluate_best(Split::Test)?.sequences, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trainer<'a> {
    config: &'a TrainConfig,
    data: &'a TaskData,
    batches: Batches<'a>,
    /// Absent only while an update has it.
    model: Option<Model>,
    optimizer: AdamW,
    state: RunState,
    directory: Option<RunDirectory>,
    /// Absent where one rank makes an update in one part.
    parallel: Option<Parallel>,
    /// Whether rank 0 keeps a directory that this rank has not.
    follows: bool,
    /// Whether a rank of the job was asked to end.
    stopping: bool,
    /// Whether each batch moves buffers of the model.
    moves: bool,
    /// The best parameters, where no directory keeps them.
    best: Option<HostTensors>,
    /// Models by step that are to be averaged, where no directory keeps them.
    recent: BTreeMap<usize, HostTensors>,
    /// Their mean, once the run has ended.
    averaged: Option<HostTensors>,
    progress: &'a dyn Progress,
    stop: Arc<AtomicBool>,
}

/// # Errors
/// A format that the model's device does not compute with.
fn check_precision(precision: Precision, model: &Model) -> Result<(), TrainError> {
    let device = model.devices().into_iter().next().unwrap_or_default();
    if precision.runs_on(&device) {
        return Ok(());
    }
    let formats = Precision::ALL.iter().filter(|other| other.runs_on(&device)).map(|other| other.name());
    let expected = format!("{}: what this device computes with", formats.collect::<Vec<_>>().join(" or "));
    Err(TrainError::config("precision", precision.name(), expected))
}

/// A pass whose gradients are finite.
struct Scaled {
    pass: Pass,
    /// The factor that they have.
    loss_scale: Option<LossScale>,
}

impl<'a> Trainer<'a> {
    /// `model` must be on a device with autodiff; `seed` draws batches and dropout.
    ///
    /// # Errors
    /// An invalid configuration; a training set without sequences; a run to start from that cannot be read.
    pub fn new(model: Model, data: &'a TaskData, config: &'a TrainConfig, seed: u64) -> Result<Self, TrainError> {
        config.check()?;
        check_precision(config.precision, &model)?;
        let model = match &config.start {
            Some(run) => model.starting_from(run)?,
            None => model,
        };
        let moves = model.follows_batches();
        let parallel = (config.parts > 0).then(|| Parallel::new(Arc::new(Alone), &model, config, 1)).transpose()?;
        Ok(Self {
            config,
            data,
            batches: data.batches(seed, config.batch)?,
            model: Some(model),
            optimizer: AdamW::new(config.optimizer.clone()),
            state: RunState { seed, batch: config.batch, accumulate: config.accumulate, ..RunState::default() },
            directory: None,
            parallel,
            follows: false,
            moves,
            stopping: false,
            best: None,
            recent: BTreeMap::new(),
            averaged: None,
            progress: &Silent,
            stop: Arc::default(),
        })
    }

    /// With an observer; before [`Trainer::with_directory`], to be told of a resumed run.
    #[must_use]
    pub fn with_progress(self, progress: &'a dyn Progress) -> Self {
        Self { progress, ..self }
    }

    /// As one rank of a job whose ranks all train this model on these data, before the directory: rank 0 has it, if there is
    /// one, and the others [follow](Self::following).
    ///
    /// # Errors
    /// More ranks than there are parts for them; a model that cannot be trained in parts.
    pub fn with_cluster(self, cluster: Arc<dyn Communicator>) -> Result<Self, TrainError> {
        self.with_sequences_over(1, cluster)
    }

    /// The same with the tokens of each sequence spread over `ranks` neighbouring ranks: each has an equal share of them, and of
    /// the activations.
    ///
    /// # Errors
    /// As [`Trainer::with_cluster`]; a job that does not consist of such groups; a model whose tokens cannot be spread.
    pub fn with_sequences_over(self, ranks: usize, cluster: Arc<dyn Communicator>) -> Result<Self, TrainError> {
        let shared = cluster.ranks() > 1 || self.config.parts > 0 || ranks != 1;
        let parallel = shared.then(|| Parallel::new(cluster, self.model(), self.config, ranks)).transpose()?;
        Ok(Self { parallel, ..self })
    }

    /// As a rank other than 0, whose run begins where that of rank 0 does, which has the directory.
    ///
    /// # Errors
    /// A rank that has left the job.
    pub fn following(mut self) -> Result<Self, TrainError> {
        self.share_start()?;
        self.follows = true;
        Ok(self)
    }

    /// Begins where rank 0 does.
    fn share_start(&mut self) -> Result<(), TrainError> {
        let Some(parallel) = self.parallel.as_ref().filter(|parallel| parallel.cluster().ranks() > 1) else {
            return Ok(());
        };
        let own = parallel.leads().then(|| self.checkpoint());
        let start = parallel.share_start(own)?;
        self.restore(start).map_err(|problem| TrainError::checkpoint("the run of rank 0", problem))
    }

    /// With a flag that ends the run after the update in progress, or before it where that is made of several batches, with a
    /// checkpoint.
    #[must_use]
    pub fn with_stop(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop, ..self }
    }

    /// With a directory for checkpoints and metrics; if it was opened to resume a run, from where that run stands.
    ///
    /// # Errors
    /// A checkpoint of another model, seed, batch or accumulation; another vocabulary; a directory that cannot be written.
    pub fn with_directory(mut self, mut directory: RunDirectory) -> Result<Self, TrainError> {
        if self.config.average > 1 {
            directory.keep_regular(self.config.average, self.config.checkpoint_every);
        }
        let checkpoint = directory.take_checkpoint();
        if let Some((name, content)) = vocabulary_file(self.data) {
            directory.keep_vocabulary(name, &content, checkpoint.as_ref().is_some_and(|last| last.state.step > 0))?;
        }
        if let Some(checkpoint) = checkpoint {
            let path = directory.checkpoints().last().unwrap_or_else(|| directory.path().into());
            self.restore(checkpoint).map_err(|problem| TrainError::checkpoint(path, problem))?;
            // Removes what a killed run left.
            directory.checkpoints().prune(self.state.step, self.state.best);
            self.check_average(&mut directory)?;
            self.progress.message(&format!("continuing after step {}", self.state.step));
        }
        self.directory = Some(directory);
        self.share_start()?;
        Ok(self)
    }

    /// From where a run stands that has no directory.
    ///
    /// # Errors
    /// A checkpoint of another model, seed, batch or accumulation.
    pub fn continuing(mut self, checkpoint: Checkpoint) -> Result<Self, TrainError> {
        self.restore(checkpoint).map_err(|problem| TrainError::checkpoint("", problem))?;
        Ok(self)
    }

    /// Continues from a checkpoint.
    fn restore(&mut self, checkpoint: Checkpoint) -> Result<(), String> {
        let Checkpoint { model, moments, state } = checkpoint;
        let fixed = |state: &RunState| [state.seed, state.batch as u64, state.accumulate as u64];
        let names = ["seed", "train.batch", "train.accumulate"];
        for ((seen, expected), name) in fixed(&state).into_iter().zip(fixed(&self.state)).zip(names) {
            if seen != expected {
                return Err(format!("its run has {name} = {seen}, this one {expected}; resume with the same value"));
            }
        }
        for (name, moments) in &moments {
            let size = model.get(name).map(|parameter| parameter.data.len());
            if size != Some(moments.first.len()) {
                return Err(format!("moments of '{name}' do not have the size of that parameter"));
            }
        }
        let own = self.model.take().expect("between updates");
        let loaded = own.with_host(model).map_err(|problem| format!("not a checkpoint of this model: {problem}"))?;
        // Every model has parameters, and all of them lie on one device.
        let device = loaded.devices().into_iter().next().unwrap_or_default();
        self.model = Some(loaded);
        self.optimizer = AdamW::with_moments(self.config.optimizer.clone(), moments, &device);
        self.state = state;
        Ok(())
    }

    /// The current model.
    pub fn model(&self) -> &Model {
        self.model.as_ref().expect("between updates")
    }

    /// State of the run.
    pub fn state(&self) -> &RunState {
        &self.state
    }

    /// The directory, if any.
    pub fn directory(&self) -> Option<&RunDirectory> {
        self.directory.as_ref()
    }

    /// Parameters, moments and state, as a checkpoint has them; of several ranks each has the moments that it updates.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint { model: self.model().to_host(), moments: self.optimizer.moments(), state: self.state.clone() }
    }

    /// Trains until all steps are done, the metric stops getting better, or the stop flag is raised.
    ///
    /// # Errors
    /// A loss or gradient that is not finite, a directory that cannot be written. Checkpoints written before remain.
    pub fn run(&mut self) -> Result<Outcome, TrainError> {
        let config = self.config;
        while self.state.step < config.steps {
            if self.out_of_patience() {
                let (step, patience) = (self.state.step, config.patience);
                self.progress.message(&format!("stopping at step {step}: no better metric in {patience} evaluations"));
                self.finish()?;
                return Ok(Outcome::Stopped { step });
            }
            let Some(report) = self.advance(true)? else {
                self.save()?;
                return Ok(Outcome::Interrupted { step: self.state.step });
            };
            let step = report.step;
            if let Some(directory) = &mut self.directory {
                directory.step(&report)?;
            }
            self.progress.step(&report);
            let due = |every: usize| every > 0 && step % every == 0;
            let last = step == config.steps;
            let mut better = false;
            if due(config.evaluate_every) || last {
                let evaluation = self.evaluate(Split::Valid, config.evaluate_batches)?;
                better = self.judge(&evaluation);
            }
            // The ranks of a job stop after the same update, whichever was asked to.
            let interrupted = if self.parallel.is_some() { self.stopping } else { self.stop.load(Ordering::Relaxed) };
            if due(config.checkpoint_every) || better || last || interrupted || self.out_of_patience() {
                self.save()?;
            }
            if interrupted && !last {
                return Ok(Outcome::Interrupted { step });
            }
        }
        self.finish()?;
        Ok(Outcome::Finished { step: self.state.step })
    }

    /// One update of the parameters, without what [`Trainer::run`] does around it: evaluations, checkpoints, reports.
    ///
    /// # Errors
    /// A loss or gradient that is not finite.
    pub fn update(&mut self) -> Result<StepReport, TrainError> {
        Ok(self.advance(false)?.expect("not asked to stop"))
    }

    /// One update; none, and nothing changed, where it is made of several batches and the stop flag was raised among them.
    fn advance(&mut self, stops: bool) -> Result<Option<StepReport>, TrainError> {
        let start = Instant::now();
        regard_alloc::reset_peak();
        let (config, step) = (self.config, self.state.step);
        let (sent, shared) = (self.cluster().bytes_sent(), self.cluster().ranks() > 1);
        let batches: Vec<Batch> =
            (0..config.accumulate).map(|part| (self.batches)((step * config.accumulate + part) as u64)).collect();
        let tokens: usize = batches.iter().map(Batch::real_tokens).sum();
        let Some(scaled) = self.gradients(&batches, stops)? else { return Ok(None) };
        let Scaled { pass: Pass { loss, gradients, norm, routers, stop }, loss_scale } = scaled;
        self.stopping = stop;
        let norm = norm / loss_scale.map_or(1.0, |scale| scale.factor);
        let clip = if config.clip > 0.0 && norm > config.clip { config.clip / norm } else { 1.0 };
        let scale = (clip / loss_scale.map_or(1.0, |scale| scale.factor)) as f32;
        let rate = config.optimizer.learning_rate * config.schedule.factor(step, config.steps);
        let model = self.model.take().expect("between updates");
        self.model = Some(match &self.parallel {
            None => gradients.apply(model, &mut self.optimizer, step + 1, rate, scale),
            Some(parallel) => parallel.apply(&gradients, model, &mut self.optimizer, step + 1, rate, scale)?,
        });
        self.state.step += 1;
        self.state.loss_scale = loss_scale.map(LossScale::after_update);
        let seconds = start.elapsed().as_secs_f64();
        self.state.seconds += seconds;
        Ok(Some(StepReport {
            step: self.state.step,
            loss,
            learning_rate: rate,
            gradient_norm: norm,
            milliseconds: seconds * 1e3,
            tokens_per_second: tokens as f64 / seconds,
            peak_bytes: regard_alloc::peak_bytes(),
            loss_scale: loss_scale.map(|scale| scale.factor),
            bytes_sent: shared.then(|| self.cluster().bytes_sent() - sent),
            routers: RouterReport::of(&routers),
        }))
    }

    /// Loss and gradients of the next update, finite ones. Where gradients of f16 overflow, the pass is made again with half the
    /// scale, so that no update is left out; from the same model, whose priors a pass moves. None where the stop flag counts and
    /// was raised.
    fn gradients(&mut self, batches: &[Batch], stops: bool) -> Result<Option<Scaled>, TrainError> {
        let (config, step) = (self.config, self.state.step);
        let scaled = config.precision == Precision::F16;
        let again = self.moves && (scaled || stops && batches.len() > 1);
        let before = if again { self.model().moved() } else { HostTensors::default() };
        let mut loss_scale = scaled.then(|| self.state.loss_scale.unwrap_or_default());
        loop {
            let factor = loss_scale.map_or(1.0, |scale| scale.factor);
            let settings = Settings {
                smoothing: config.smoothing as f32,
                seed: self.state.seed,
                step: step as u64,
                log: (step + 1).is_multiple_of(routers::EVERY),
                precision: config.precision,
                loss_scale: factor,
            };
            let pass = match &self.parallel {
                None => {
                    let stop = || stops && self.stop.load(Ordering::Relaxed);
                    let Some(pass) = Gradients::of(self.model(), batches, settings, &stop) else {
                        self.put_back(&before);
                        return Ok(None);
                    };
                    pass
                }
                Some(parallel) => {
                    let (rows, stop) = (self.data.shape().objective.rows(), self.stop.load(Ordering::Relaxed));
                    parallel.pass(self.model(), batches, settings, rows, stop)?
                }
            };
            self.check_finite("training loss", pass.loss, step + 1)?;
            match loss_scale.and_then(LossScale::after_overflow) {
                Some(less) if !pass.norm.is_finite() => {
                    loss_scale = Some(less);
                    self.put_back(&before);
                }
                _ => {
                    self.check_finite("gradient norm", pass.norm, step + 1)?;
                    return Ok(Some(Scaled { pass, loss_scale }));
                }
            }
        }
    }

    /// The model with the buffers that a pass without an update has moved.
    fn put_back(&mut self, before: &HostTensors) {
        if before.is_empty() {
            return;
        }
        let model = self.model.take().expect("between updates");
        let mut tensors = model.to_host();
        tensors.extend(before.clone());
        self.model = Some(model.with_host(tensors).expect("tensors of its own"));
    }

    /// Measures the model on a split, all of it or (`most` > 0) that many batches, and reports the result.
    ///
    /// # Errors
    /// A loss that is not finite, a directory that cannot be written.
    pub fn evaluate(&mut self, split: Split, most: usize) -> Result<Evaluation, TrainError> {
        let model = self.model().valid();
        let (rows, step) = (self.config.batch, self.state.step);
        let evaluation = measure(&model, self.data, split, [rows, most], step, None, self.cluster())?;
        self.check_evaluation(&evaluation)?;
        self.report(&evaluation)?;
        Ok(evaluation)
    }

    /// Measures the [best model](Self::best_model) on the whole of a split, a translator on the test split in BLEU too, summaries
    /// in ROUGE, and reports the result. The directory keeps what the model did on each sequence of the test split.
    ///
    /// # Errors
    /// A checkpoint that cannot be read, a loss that is not finite, a directory that cannot be written.
    pub fn evaluate_best(&mut self, split: Split) -> Result<Evaluation, TrainError> {
        let model = self.best_model()?.valid();
        let averaged = self.has_average()?.then(|| self.config.averaged(self.state.step).len());
        let step = match (averaged, self.state.best) {
            (None, Some(best)) => best.step,
            _ => self.state.step,
        };
        let mut items = Items::default();
        let (config, cluster) = (self.config, self.cluster());
        let mut evaluation = measure(&model, self.data, split, [config.batch, 0], step, Some(&mut items), cluster)?;
        self.check_evaluation(&evaluation)?;
        evaluation.averaged = averaged;
        evaluation.rouge = measure_rouge(&model, self.data, split, config, config.batch, cluster)?;
        if split == Split::Test {
            if let Some(directory) = &self.directory {
                directory.keep_items(&items)?;
            }
            let bleu = measure_bleu(&model, self.data, split, config, config.batch, cluster)?;
            evaluation.bleu = bleu.map(|bleu| bleu.score);
        }
        self.report(&evaluation)?;
        Ok(evaluation)
    }

    /// The model to use: the mean of the last checkpoints where the run has ended with it (`train.average`), else that with
    /// the best validation metric, else the present one.
    ///
    /// # Errors
    /// A checkpoint that cannot be read.
    pub fn best_model(&self) -> Result<Model, TrainError> {
        let model = self.model().clone();
        let (place, best) = match &self.directory {
            None => (PathBuf::from("the best model of rank 0"), self.averaged.as_ref().or(self.best.as_ref()).cloned()),
            Some(directory) => {
                let place = directory.checkpoints().best();
                let best = place.as_ref().map(|path| Checkpoint::load_model(path)).transpose()?;
                (place.unwrap_or_default(), best)
            }
        };
        let Some(best) = self.shared(best)? else { return Ok(model) };
        model.with_host(best).map_err(|problem| TrainError::checkpoint(place, problem))
    }

    /// Tensors that rank 0 has.
    fn shared(&self, own: Option<HostTensors>) -> Result<Option<HostTensors>, TrainError> {
        match &self.parallel {
            Some(parallel) if parallel.cluster().ranks() > 1 => parallel.share_tensors(own),
            _ => Ok(own),
        }
    }

    fn cluster(&self) -> &dyn Communicator {
        self.parallel.as_ref().map_or(&Alone, Parallel::cluster)
    }

    /// Whether this rank keeps and reports.
    fn leads(&self) -> bool {
        self.cluster().rank() == 0
    }

    fn report(&mut self, evaluation: &Evaluation) -> Result<(), TrainError> {
        if let Some(directory) = &mut self.directory {
            directory.evaluated(evaluation)?;
        }
        self.progress.evaluated(evaluation);
        Ok(())
    }

    /// Whether an evaluation is the best so far; counts those that are not.
    fn judge(&mut self, evaluation: &Evaluation) -> bool {
        let (step, score) = (evaluation.step, evaluation.score());
        let better = self.state.best.is_none_or(|best| score > best.score);
        if better {
            self.state.best = Some(Best { step, score });
            self.state.evaluations_since_best = 0;
            if self.directory.is_none() && self.leads() {
                self.best = Some(self.model().to_host());
            }
        } else {
            self.state.evaluations_since_best += 1;
        }
        better
    }

    fn out_of_patience(&self) -> bool {
        self.config.patience > 0 && self.state.evaluations_since_best >= self.config.patience
    }

    fn save(&mut self) -> Result<(), TrainError> {
        if self.directory.is_none() && !self.follows {
            if self.config.average > 1 && self.leads() {
                self.recent.insert(self.state.step, self.model().to_host());
                let (now, every) = (self.state.step, self.config.checkpoint_every.max(1));
                let first = self.config.averaged(now).first().copied().unwrap_or(now);
                self.recent.retain(|&step, _| step == now || step >= first && step.is_multiple_of(every));
            }
            return Ok(());
        }
        let moments = self.optimizer.moments();
        let moments = match &self.parallel {
            Some(parallel) => parallel.gather_moments(moments)?,
            None => moments,
        };
        let Some(directory) = &mut self.directory else { return Ok(()) };
        let model = self.model.as_ref().expect("between updates").to_host();
        directory.save(&Checkpoint { model, moments, state: self.state.clone() })
    }

    /// Before it is reported: a record must be read again.
    fn check_evaluation(&self, evaluation: &Evaluation) -> Result<(), TrainError> {
        let what = match evaluation.split {
            Split::Valid => "validation loss",
            Split::Test => "test loss",
        };
        self.check_finite(what, evaluation.loss, evaluation.step)
    }

    fn check_finite(&self, what: &'static str, value: f64, step: usize) -> Result<(), TrainError> {
        if value.is_finite() {
            return Ok(());
        }
        let last = self.directory.as_ref().and_then(|directory| directory.checkpoints().last());
        let kept = match last {
            Some(path) => format!("the last good checkpoint is {}", path.display()),
            None => "there is no checkpoint yet".into(),
        };
        Err(TrainError::Numeric { what, value, step, kept })
    }
}
