//! Training of the cells.

use std::{
    any::Any,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use regard_cluster::{Alone, deal};
use regard_tasks::{Classed, Failure, data::TaskData, run::RunConfig, train::TrainError};

use super::{Cell, CellRecord, Finished, Outcome, Place, Reason, cell::check, cell_directory};
use crate::{
    compare::{Candidate, Job, RunResult, Watch, run as runs},
    load,
};

/// Observer of a study.
pub trait Observe: Watch {
    /// A cell has failed; `fresh` unless it had failed before.
    fn failed(&self, cell: &str, sentence: &str, fresh: bool);
}

/// Trains the cells that have not ended, in their order, and records how each ended. Cells that failed before are tried
/// again if `again`. A cell that fails stops no other. The ranks of a job, which have the directory together, take cells as
/// they are free; rank 0 observes all, and the others return no records.
///
/// # Errors
/// An interrupt; a directory that cannot be read or written, or that another process writes to: then no cell could be kept.
pub fn run(
    cells: &[Cell],
    job: &Job,
    again: bool,
    watch: &dyn Observe,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<CellRecord>, Failure> {
    let directory = |number: usize| cell_directory(job.out, &cells[number].group.place, cells[number].seed);
    let mut open = Vec::new();
    if job.cluster.rank() == 0 {
        for number in 0..cells.len() {
            let ended = CellRecord::read(&directory(number))?;
            match ended.filter(|before| before.finished().is_some() || !again) {
                Some(record) => observe(watch, &cells[number], &record, false),
                None => open.push(number),
            }
        }
    }
    let mut trainer = Cells { job, watch, stop, total: cells.len(), data: None, warm: false };
    let work = |number: usize| {
        let (cell, directory) = (&cells[number], directory(number));
        CellRecord::forget(&directory)?;
        let outcome = trainer.end(cell, number, &directory)?;
        let record = CellRecord { place: cell.group.place.clone(), seed: cell.seed, outcome };
        fs::create_dir_all(&directory).map_err(|error| Failure::writing(&directory, &error))?;
        record.write(&directory)
    };
    let recorded = |number: usize| {
        let directory = directory(number);
        CellRecord::read(&directory)?.ok_or_else(|| {
            let told = "a rank ended its cell without a record here: all ranks need the same directory";
            Failure::data(format!("{}: {told}", directory.display()))
        })
    };
    let done = |number: usize| {
        observe(watch, &cells[number], &recorded(number)?, true);
        Ok(())
    };
    let go_on = || if stop.load(Ordering::Relaxed) { Err(interrupted()) } else { Ok(()) };
    deal::<Failure>(&job.cluster, open, work, done, go_on)?;
    if job.cluster.rank() > 0 {
        return Ok(Vec::new());
    }
    (0..cells.len()).map(recorded).collect()
}

fn observe(watch: &dyn Observe, cell: &Cell, record: &CellRecord, fresh: bool) {
    match &record.outcome {
        Outcome::Finished(finished) => {
            watch.end(&RunResult { label: cell.group.place.to_string(), ..finished.result.clone() }, fresh);
        }
        Outcome::Failed { sentence, .. } => watch.failed(&cell.to_string(), sentence, fresh),
    }
}

struct Cells<'a> {
    job: &'a Job<'a>,
    watch: &'a dyn Observe,
    stop: &'a Arc<AtomicBool>,
    total: usize,
    /// The data of the column that the last cell was in.
    data: Option<(Place, TaskData)>,
    /// Whether a first update was done, so that one-time setup is charged to no cell.
    warm: bool,
}

impl Cells<'_> {
    /// Trains a cell to its end.
    ///
    /// # Errors
    /// What stops all cells.
    fn end(&mut self, cell: &Cell, number: usize, directory: &Path) -> Result<Outcome, Failure> {
        // A panic must not take the other cells along; nothing of the cell is used after it.
        let ended = catch_unwind(AssertUnwindSafe(|| self.train(cell, number, directory)));
        match ended {
            Ok(Ok(finished)) => Ok(Outcome::Finished(Box::new(finished))),
            Ok(Err(Ended::Cell(failure))) => {
                Ok(Outcome::Failed { reason: Reason::of(&failure), sentence: failure.message })
            }
            Ok(Err(Ended::Study(failure))) => Err(failure),
            Err(panic) => Ok(Outcome::Failed { reason: Reason::Program, sentence: said(&*panic) }),
        }
    }

    fn train(&mut self, cell: &Cell, number: usize, directory: &Path) -> Result<Finished, Ended> {
        let config = cell.config().map_err(Ended::Cell)?;
        check(&config).map_err(Ended::Cell)?;
        self.load(&cell.group.place, &config)?;
        let (_, data) = self.data.as_ref().expect("just loaded");
        let candidate = Candidate {
            label: cell.group.place.model.clone(),
            attentions: config.attentions(),
            model: config.model.clone(),
            config: config.to_toml(),
        };
        let plan = runs::Plan {
            candidates: std::slice::from_ref(&candidate),
            seeds: &[cell.seed],
            data,
            train: &config.train,
            directory: self.job.out,
            environment: self.job.environment,
            device: &config.training_device(),
            cluster: Arc::new(Alone),
        };
        if !std::mem::replace(&mut self.warm, true) {
            // The cell itself will say what is wrong.
            let _ = runs::warm_up(&plan);
        }
        let label = cell.group.place.to_string();
        let progress = self.watch.begin(&label, cell.seed, number, self.total, config.train.steps);
        fs::create_dir_all(directory.parent().unwrap_or(directory))
            .map_err(|error| Ended::Study(Failure::writing(directory, &error)))?;
        let trained = runs::run_one(&plan, &candidate, cell.seed, directory, &*progress, self.stop);
        drop(progress);
        match trained {
            Ok(Some(result)) => Ok(Finished {
                result,
                data: data.setting(),
                majority: data.majority(),
                environment: self.job.environment.clone(),
            }),
            Ok(None) => Err(Ended::Study(interrupted())),
            // What cannot be written for one cell cannot be for the others.
            Err(error @ (TrainError::Write { .. } | TrainError::InUse { .. })) => Err(Ended::Study(error.into())),
            Err(error) => Err(Ended::Cell(Failure::new(error.class(), error))),
        }
    }

    /// Loads the data of a column, unless they are there.
    fn load(&mut self, place: &Place, config: &RunConfig) -> Result<(), Ended> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Ended::Study(interrupted()));
        }
        if self.data.as_ref().is_none_or(|(before, _)| !before.beside(place)) {
            // Frees those before first.
            self.data = None;
            let data = load::data(config, self.job.cache, self.watch).map_err(Ended::Cell)?;
            self.data = Some((place.clone(), data));
        }
        Ok(())
    }
}

/// What a failure ends.
enum Ended {
    /// The cell alone.
    Cell(Failure),
    /// The study.
    Study(Failure),
}

fn interrupted() -> Failure {
    Failure::interrupted("interrupted; the same command goes on where it stopped")
}

/// The message of a panic.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the program stopped with an error of its own: {}; please report it", text.unwrap_or("no message"))
}
