//! Steps of training, saved so that they can go on bit for bit.

use std::{path::PathBuf, time::Instant};

use regard_nn::attention::Attention;
use regard_pretrained::Pretrained;
use regard_tasks::train::{
    AdamW, Checkpoint, Checkpoints, HostTensor, OptimizerConfig, RunState, ScheduleConfig, ScheduleKind,
};

use super::{
    AdaptConfig, AdaptError,
    data::{Example, Texts},
    learned::{HostGradients, Learned, norm},
    matching, tuning,
};

/// Losses of all steps, among the tensors of a checkpoint.
const LOSSES: &str = "losses";
/// The rate of the last step, as a part of the highest.
const FINAL_FRACTION: f64 = 0.1;

/// A model that learns.
pub(super) struct Session<'a> {
    pub config: &'a AdaptConfig,
    pub teacher: &'a Pretrained,
    /// The model as it was before.
    pub student: &'a Pretrained,
    pub texts: &'a Texts,
    pub learned: Learned,
    /// Steps of the first stage; the second has those of the configuration.
    pub match_steps: usize,
    optimizer: AdamW,
    checkpoints: Checkpoints,
    state: RunState,
    losses: Vec<f32>,
}

impl<'a> Session<'a> {
    /// One whose checkpoints are in `directory`; it goes on from the last of them, if there is one.
    pub fn open(
        config: &'a AdaptConfig,
        [teacher, student]: [&'a Pretrained; 2],
        texts: &'a Texts,
        match_steps: usize,
        directory: PathBuf,
    ) -> Result<Self, AdaptError> {
        let learned = Learned::new(&student.model, config.training, config.seed);
        let checkpoints = Checkpoints::new(directory, 1);
        let state = RunState { seed: config.seed, batch: config.batch, accumulate: 1, ..RunState::default() };
        let (optimizer, losses) = (AdamW::new(OptimizerConfig::default()), Vec::new());
        let mut session =
            Self { config, teacher, student, texts, learned, match_steps, optimizer, checkpoints, state, losses };
        if let Some(path) = session.checkpoints.last() {
            let Checkpoint { mut model, moments, state } = Checkpoint::load(&path)?;
            session.losses = model.remove(LOSSES).map(|losses| losses.data).unwrap_or_default();
            session
                .learned
                .restore(model)
                .map_err(|problem| regard_tasks::train::TrainError::Checkpoint { path, problem })?;
            session.optimizer =
                AdamW::with_moments(session.optimizer_config(state.step), moments, &regard_nn::device::chosen());
            session.state = state;
        }
        Ok(session)
    }

    /// Seconds that all steps took, and the loss of each.
    pub fn took(&self) -> (f64, &[f32]) {
        (self.state.seconds, &self.losses)
    }

    /// The model as it is now, for inference.
    pub fn model(&self) -> Pretrained {
        let model = self.learned.apply(self.student.model.clone(), "", false);
        Pretrained { model: burn::module::Module::valid(&model), ..self.student.clone() }
    }

    /// The first stage; `progress` gets how many steps are done.
    pub fn matching(&mut self, progress: &dyn Fn(usize) -> Result<(), AdaptError>) -> Result<(), AdaptError> {
        if self.state.step >= self.match_steps {
            return Ok(());
        }
        let layers = matching::layers(self.student)?;
        self.run(self.match_steps, progress, |session, example| session.match_layers(&layers, &example))
    }

    /// The second one.
    pub fn tuning(&mut self, progress: &dyn Fn(usize) -> Result<(), AdaptError>) -> Result<(), AdaptError> {
        let steps = self.match_steps + self.config.steps;
        self.run(steps, progress, |session, example| {
            let model = session.learned.apply(session.student.model.clone(), "", true);
            let student = Pretrained { model, ..session.student.clone() };
            let (loss, gradients) = tuning::backward(&student, session.teacher, &example, session.config.distill)?;
            let gradients = session.learned.gradients(gradients);
            session.update(loss, &gradients)?;
            Ok(loss)
        })
    }

    fn run(
        &mut self,
        end: usize,
        progress: &dyn Fn(usize) -> Result<(), AdaptError>,
        mut step: impl FnMut(&mut Self, Example) -> Result<f64, AdaptError>,
    ) -> Result<(), AdaptError> {
        while self.state.step < end {
            if progress(self.state.step).is_err() {
                self.save()?;
                return Err(AdaptError::Interrupted);
            }
            if self.state.step == 0 || self.state.step == self.match_steps {
                // What the gradients of another loss were says nothing about these.
                self.optimizer = AdamW::new(self.optimizer_config(self.state.step));
            }
            let start = Instant::now();
            let example = self.texts.batch(self.state.step, self.config.batch)?;
            let loss = step(self, example)?;
            self.losses.push(loss as f32);
            self.state.step += 1;
            self.state.seconds += start.elapsed().as_secs_f64();
            let every = self.config.checkpoint_every;
            if self.state.step == end || every > 0 && self.state.step.is_multiple_of(every) {
                self.save()?;
            }
        }
        Ok(())
    }

    /// One step of all layers; the mean of their errors.
    fn match_layers(&mut self, layers: &[Attention], example: &Example) -> Result<f64, AdaptError> {
        let mut total = 0.0;
        let mut updates = Vec::new();
        matching::backward(self.teacher, layers, &self.learned, example, |error, gradients| {
            total += error;
            updates.push((error, self.learned.gradients(gradients)));
            Ok(())
        })?;
        for (error, gradients) in updates {
            self.update(error, &gradients)?;
        }
        Ok(total / layers.len() as f64)
    }

    /// One step of AdamW, with gradients cut to the longest norm.
    fn update(&mut self, loss: f64, gradients: &HostGradients) -> Result<(), AdaptError> {
        let (config, step) = (self.config, self.state.step);
        let norm = norm(gradients);
        if !(loss.is_finite() && norm.is_finite()) {
            return Err(AdaptError::Numbers { step: step + 1, loss, norm });
        }
        let (first, steps, peak) = match step < self.match_steps {
            true => (0, self.match_steps, config.match_rate),
            false => (self.match_steps, config.steps, config.rate),
        };
        let warmup = config.warmup.min(steps);
        let schedule = ScheduleConfig { kind: ScheduleKind::Cosine, warmup, final_fraction: FINAL_FRACTION };
        let scale = if config.clip > 0.0 && norm > config.clip { (config.clip / norm) as f32 } else { 1.0 };
        let rate = peak * schedule.factor(step - first, steps);
        self.learned.update(gradients, &mut self.optimizer, step - first + 1, rate, scale);
        Ok(())
    }

    fn optimizer_config(&self, step: usize) -> OptimizerConfig {
        let rate = if step < self.match_steps { self.config.match_rate } else { self.config.rate };
        OptimizerConfig { learning_rate: rate, weight_decay: 0.0, ..OptimizerConfig::default() }
    }

    fn save(&self) -> Result<(), AdaptError> {
        let mut model = self.learned.tensors();
        model.insert(LOSSES.into(), HostTensor { shape: vec![self.losses.len()], data: self.losses.clone() });
        let checkpoint = Checkpoint { model, moments: self.optimizer.moments().clone(), state: self.state.clone() };
        self.checkpoints.save(&checkpoint)?;
        Ok(())
    }
}
