//! The mean of a run's last checkpoints, which it may end with (`train.average`).

use std::{collections::BTreeMap, path::Path};

use burn::module::Module;
use regard_cluster::gather_all;

use super::Trainer;
use crate::{
    data::Split,
    train::{Checkpoint, HostTensors, RunDirectory, TrainError, average::Mean, evaluation::measure, parallel::tags},
};

impl Trainer<'_> {
    /// Averages the last checkpoints where the configuration asks for it, measures their mean and keeps it.
    pub(super) fn finish(&mut self) -> Result<(), TrainError> {
        let steps = self.config.averaged(self.state.step);
        if steps.len() < 2 || self.has_average()? {
            return Ok(());
        }
        let mean = if self.leads() { Some(self.mean_of(&steps)?) } else { None };
        let mean = self.shared(mean)?.expect("of rank 0");
        let model = self.model().clone().with_host(mean.clone()).expect("parameters of its own checkpoints").valid();
        let (size, now) = ([self.config.batch, self.config.evaluate_batches], self.state.step);
        let mut evaluation = measure(&model, self.data, Split::Valid, size, now, None, self.cluster())?;
        self.check_evaluation(&evaluation)?;
        evaluation.averaged = Some(steps.len());
        // First the line, then the checkpoint: after a kill between them a resumed run repeats both.
        self.report(&evaluation)?;
        match &self.directory {
            None => self.averaged = Some(mean).filter(|_| self.leads()),
            Some(directory) => {
                let checkpoint = Checkpoint { model: mean, moments: BTreeMap::new(), state: self.state.clone() };
                directory.checkpoints().save_average(&checkpoint)?;
            }
        }
        Ok(())
    }

    /// Forgets the mean that a resumed run ended with where another one is asked for now, and fails where a checkpoint that
    /// the mean at its end will need is gone.
    pub(super) fn check_average(&self, directory: &mut RunDirectory) -> Result<(), TrainError> {
        let ended = directory.checkpoints().average().is_some();
        if ended && directory.averaged()? == Some(self.config.averaged(self.state.step).len()) {
            return Ok(());
        }
        let steps = self.config.averaged(self.config.steps);
        let gone = |step: &&usize| **step <= self.state.step && directory.checkpoints().of_step(**step).is_none();
        if let Some(step) = steps.iter().find(gone).filter(|_| steps.len() > 1) {
            let problem = format!(
                "no checkpoint of step {step}, which train.average = {} needs at step {}; lower it, or leave it out",
                self.config.average, self.config.steps
            );
            return Err(TrainError::checkpoint(directory.path(), problem));
        }
        if ended { directory.forget_average(self.state.step) } else { Ok(()) }
    }

    /// The mean of the checkpoints of these steps.
    fn mean_of(&self, steps: &[usize]) -> Result<HostTensors, TrainError> {
        let mut mean = Mean::default();
        for &step in steps {
            let place = self.directory.as_ref().map_or(Path::new("memory"), |directory| directory.path());
            let kept = match &self.directory {
                None => self.recent.get(&step).cloned(),
                Some(directory) => {
                    directory.checkpoints().of_step(step).map(|path| Checkpoint::load_model(&path)).transpose()?
                }
            };
            let missing = || format!("no checkpoint of step {step}, which train.average needs; train without it");
            let added = kept.ok_or_else(missing).and_then(|model| mean.add(model));
            added.map_err(|problem| TrainError::checkpoint(place, problem))?;
        }
        Ok(mean.finish())
    }

    /// Whether the run has ended with the mean of its last checkpoints.
    pub(super) fn has_average(&self) -> Result<bool, TrainError> {
        let own = match &self.directory {
            None => self.averaged.is_some(),
            Some(directory) => self.config.average > 1 && directory.checkpoints().average().is_some(),
        };
        // What rank 0 has counts.
        let all = gather_all(self.cluster(), tags::FIGURES, vec![own.into()])?;
        Ok(all[0] == [1])
    }
}
