//! Checkpoints: written atomically, checked when read.
//!
//! ```text
//! checkpoints/
//!   step-200/   model.safetensors  optimizer.safetensors  state.json
//!   last        the name of the newest, as text
//!   best        the name of that with the best validation metric
//!   average/    the mean of the last ones, where a run ends with it
//! ```
//!
//! A checkpoint is written under another name, synced, then renamed: a directory called `step-N` is complete.
//! `state.json` holds length and SHA-256 of the other files.

mod state;
mod tensors;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

pub use self::{
    state::{Best, RunState},
    tensors::{HostTensor, HostTensors, decode_tensors, encode_tensors},
};
use self::{
    state::{StateFile, StateProblem},
    tensors::{Lent, encode},
};
use super::{
    TrainError,
    files::{make_child, replace, sync_directory, write_synced},
    optimizer::Moments,
    sweep,
};
use crate::digest::FileSum;

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
const AVERAGE: &str = "average";
/// Pointers to checkpoints.
pub(super) const LAST: &str = "last";
pub(super) const BEST: &str = "best";
const FIRST: &str = "exp_avg.";
const SECOND: &str = "exp_avg_sq.";

/// State that a run continues from.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Parameters and buffers of the model by name.
    pub model: HostTensors,
    /// Moments of the optimizer by parameter name.
    pub moments: BTreeMap<String, Moments>,
    /// The rest.
    pub state: RunState,
}

/// The checkpoints of a run.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    directory: PathBuf,
    keep: usize,
    /// `(count, every)`: the newest `count` checkpoints at multiples of `every` are kept too.
    regular: (usize, usize),
}

impl Checkpoints {
    /// Those in `directory`, which need not exist yet, of which the newest `keep` and the best are kept.
    pub fn new(directory: impl Into<PathBuf>, keep: usize) -> Self {
        Self { directory: directory.into(), keep: keep.max(1), regular: (0, 1) }
    }

    /// The same, of which the newest `count` of steps that are multiples of `every` are kept too.
    #[must_use]
    pub(super) fn keeping_regular(self, count: usize, every: usize) -> Self {
        Self { regular: (count, every.max(1)), ..self }
    }

    /// The newest complete checkpoint.
    pub fn last(&self) -> Option<PathBuf> {
        self.pointed(LAST).or_else(|| Some(self.step_directory(*self.steps().last()?)))
    }

    /// The checkpoint to use a run by: the mean of its last ones where it ended with that, else that with the best validation
    /// metric. Which one that is stands in the state of the newest; the file `best` counts where that cannot be read.
    pub fn best(&self) -> Option<PathBuf> {
        let judged = || self.of_step(read_state(&self.last()?).ok()?.run.best?.step);
        self.average().or_else(judged).or_else(|| self.pointed(BEST))
    }

    /// The mean of the last checkpoints of a run that ended with it.
    pub fn average(&self) -> Option<PathBuf> {
        Some(self.directory.join(AVERAGE)).filter(|path| path.is_dir())
    }

    /// The checkpoint of a step, if it is there.
    pub(super) fn of_step(&self, step: usize) -> Option<PathBuf> {
        Some(self.step_directory(step)).filter(|path| path.is_dir())
    }

    /// Writes the mean of the last checkpoints.
    ///
    /// # Errors
    /// As [`Checkpoints::save`].
    pub(super) fn save_average(&self, checkpoint: &Checkpoint) -> Result<PathBuf, TrainError> {
        let target = self.directory.join(AVERAGE);
        self.write(checkpoint, &target)?;
        Ok(target)
    }

    /// Removes the mean of the last checkpoints.
    ///
    /// # Errors
    /// A directory that cannot be written.
    pub(super) fn remove_average(&self) -> Result<(), TrainError> {
        let target = self.directory.join(AVERAGE);
        fs::remove_dir_all(&target).map_err(TrainError::writing(&target))
    }

    /// Steps of the complete checkpoints, ascending.
    pub fn steps(&self) -> Vec<usize> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.path().is_dir());
        let mut steps: Vec<_> = directories.filter_map(|entry| step_of(entry.file_name().to_str()?)).collect();
        steps.sort_unstable();
        steps
    }

    /// Writes a checkpoint, makes it `last` (and `best` if it is of the best step) and removes old ones.
    ///
    /// # Errors
    /// A directory that cannot be written or a full disk; all earlier checkpoints are still there then.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf, TrainError> {
        let step = checkpoint.state.step;
        let target = self.step_directory(step);
        self.write(checkpoint, &target)?;
        // A run that continues has no final mean yet.
        let _ = fs::rename(self.directory.join(AVERAGE), self.directory.join(".average.tmp"));
        let name = format!("step-{step}");
        replace(&self.directory.join(LAST), name.as_bytes())?;
        self.point_to_best(&checkpoint.state)?;
        self.prune(step, checkpoint.state.best);
        Ok(target)
    }

    /// Points the file `best` to the best checkpoint, which a kill may have prevented.
    ///
    /// # Errors
    /// As [`Checkpoints::save`].
    pub(super) fn point_to_best(&self, state: &RunState) -> Result<(), TrainError> {
        let best = state.best.and_then(|best| Some((best.step, self.of_step(best.step)?)));
        match best {
            Some((step, path)) if self.pointed(BEST).as_ref() != Some(&path) => {
                replace(&self.directory.join(BEST), format!("step-{step}").as_bytes())
            }
            _ => Ok(()),
        }
    }

    /// Writes a checkpoint to `target` atomically.
    fn write(&self, checkpoint: &Checkpoint, target: &Path) -> Result<(), TrainError> {
        make_child(&self.directory)?;
        let temporary = self.directory.join(format!(".step-{}.tmp", checkpoint.state.step));
        let result = write_files(&temporary, checkpoint).and_then(|()| self.publish(&temporary, target));
        if result.is_err() {
            let _ = fs::remove_dir_all(&temporary);
        }
        result
    }

    /// Gives a complete directory its name; one of the same step, which a resumed run writes again, makes way.
    fn publish(&self, temporary: &Path, target: &Path) -> Result<(), TrainError> {
        let old = self.directory.join(".replaced.tmp");
        let _ = fs::remove_dir_all(&old);
        if target.exists() {
            fs::rename(target, &old).map_err(TrainError::writing(target))?;
        }
        fs::rename(temporary, target).map_err(TrainError::writing(target))?;
        let _ = fs::remove_dir_all(&old);
        sync_directory(&self.directory)
    }

    /// Removes checkpoints that are neither the best of the run, nor among the newest up to `step`, nor regular ones to be kept, those of
    /// steps beyond it, which another future wrote, and the leftovers of a killed run. Failures cost disk space only.
    pub(super) fn prune(&self, step: usize, best: Option<Best>) {
        let steps = self.steps();
        let current = steps.partition_point(|s| *s <= step);
        let (past, future) = steps.split_at(current);
        let old = &past[..past.len().saturating_sub(self.keep)];
        let (count, every) = self.regular;
        let regular: Vec<&usize> = past.iter().rev().filter(|step| **step % every == 0).take(count).collect();
        for step in old.iter().filter(|step| !regular.contains(step)).chain(future) {
            if best.is_none_or(|best| best.step != *step) {
                // Renamed first: a half-removed checkpoint must not look complete.
                let removed = self.directory.join(format!(".removed-{step}.tmp"));
                let _ = fs::rename(self.step_directory(*step), removed);
            }
        }
        sweep(&self.directory);
    }

    fn step_directory(&self, step: usize) -> PathBuf {
        self.directory.join(format!("step-{step}"))
    }

    /// The checkpoint that the file `name` names, if it is there.
    fn pointed(&self, name: &str) -> Option<PathBuf> {
        let target = fs::read_to_string(self.directory.join(name)).ok()?;
        let directory = self.step_directory(step_of(target.trim())?);
        directory.is_dir().then_some(directory)
    }
}

fn step_of(name: &str) -> Option<usize> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    // Exactly one name per step.
    (name == format!("step-{step}")).then_some(step)
}

fn write_files(directory: &Path, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    // A killed run may have left one.
    let _ = fs::remove_dir_all(directory);
    make_child(directory)?;
    let moments = checkpoint.moments.iter().flat_map(|(name, Moments { first, second })| {
        let shape = checkpoint.model.get(name).map_or_else(|| vec![first.len()], |tensor| tensor.shape.clone());
        [(FIRST, first), (SECOND, second)]
            .map(|(prefix, data)| (format!("{prefix}{name}"), Lent { shape: shape.clone(), data }))
    });
    let mut files = BTreeMap::new();
    let mut write = |name: &str, content: Vec<u8>| {
        files.insert(name.to_string(), FileSum::of(&content));
        write_synced(&directory.join(name), &content)
    };
    // One file after the other: each is in memory as a whole.
    write(MODEL, encode_tensors(&checkpoint.model))?;
    write(OPTIMIZER, encode(moments))?;
    let state = StateFile::new(checkpoint.state.clone(), files);
    write_synced(&directory.join(STATE), state.to_text().as_bytes())?;
    sync_directory(directory)
}

impl Checkpoint {
    /// Reads the checkpoint in `directory` and checks every byte.
    ///
    /// # Errors
    /// Files that are missing, truncated, changed or of another format. Where there is damage, the error names another
    /// checkpoint of the run that is sound.
    pub fn load(directory: &Path) -> Result<Self, TrainError> {
        Self::read(directory).map_err(|damage| match damage {
            Damage::Format(error) => error,
            Damage::File(TrainError::Read { path, source, .. }) => {
                TrainError::Read { path, source, remedy: remedy(directory) }
            }
            Damage::File(TrainError::Checkpoint { path, problem }) => {
                TrainError::checkpoint(path, format!("{problem}; {}", remedy(directory)))
            }
            Damage::File(other) => other,
        })
    }

    fn read(directory: &Path) -> Result<Self, Damage> {
        let state = read_state(directory)?;
        let model = read_tensors(&directory.join(MODEL), state.files.get(MODEL))?;
        let tensors = read_tensors(&directory.join(OPTIMIZER), state.files.get(OPTIMIZER))?;
        let moments = pair_moments(&directory.join(OPTIMIZER), tensors)?;
        Ok(Self { model, moments, state: state.run })
    }

    /// Reads only the model, as for an evaluation.
    ///
    /// # Errors
    /// As [`Checkpoint::load`].
    pub fn load_model(directory: &Path) -> Result<HostTensors, TrainError> {
        Self::load(directory).map(|checkpoint| checkpoint.model)
    }
}

/// Why a checkpoint cannot be read.
enum Damage {
    /// A file that is not as it was written; its remedy is still to be found.
    File(TrainError),
    /// Another version of the program wrote it.
    Format(TrainError),
}

impl From<TrainError> for Damage {
    fn from(error: TrainError) -> Self {
        Self::File(error)
    }
}

fn read_state(directory: &Path) -> Result<StateFile, Damage> {
    let path = directory.join(STATE);
    let text = fs::read(&path).map_err(TrainError::reading(&path))?;
    StateFile::parse(&text).map_err(|problem| match problem {
        StateProblem::Damaged(problem) => Damage::File(TrainError::checkpoint(path, problem)),
        StateProblem::Format(problem) => Damage::Format(TrainError::checkpoint(path, problem)),
    })
}

/// What to do about a damaged checkpoint: the newest of the others of its run that can be read to the last byte.
fn remedy(damaged: &Path) -> String {
    let all = Checkpoints::new(damaged.parent().unwrap_or(Path::new(".")), 1);
    let others = all.steps().into_iter().rev().map(|step| all.step_directory(step));
    match others.filter(|other| other != damaged).find(|other| Checkpoint::read(other).is_ok()) {
        Some(sound) => format!(
            "{} is sound: remove {} and use --resume",
            sound.file_name().unwrap_or_default().display(),
            damaged.display()
        ),
        None => "no other checkpoint of the run is sound: train again with --overwrite, or in another directory".into(),
    }
}

fn read_tensors(path: &Path, expected: Option<&FileSum>) -> Result<HostTensors, TrainError> {
    let content = fs::read(path).map_err(TrainError::reading(path))?;
    let Some(expected) = expected else {
        return Err(TrainError::checkpoint(path, format!("{STATE} does not list this file")));
    };
    if content.len() as u64 != expected.bytes {
        let problem = format!("{} bytes; {STATE} says {}: truncated or replaced", content.len(), expected.bytes);
        return Err(TrainError::checkpoint(path, problem));
    }
    if FileSum::of(&content) != *expected {
        return Err(TrainError::checkpoint(path, format!("its SHA-256 is not that in {STATE}: damaged or replaced")));
    }
    decode_tensors(path, &content)
}

fn pair_moments(path: &Path, mut tensors: HostTensors) -> Result<BTreeMap<String, Moments>, TrainError> {
    let names: Vec<String> = tensors.keys().filter_map(|name| Some(name.strip_prefix(FIRST)?.to_string())).collect();
    let mut moments = BTreeMap::new();
    for name in names {
        let first = tensors.remove(&format!("{FIRST}{name}")).expect("just listed");
        let second = tensors.remove(&format!("{SECOND}{name}")).filter(|second| second.shape == first.shape);
        let Some(second) = second else {
            return Err(TrainError::checkpoint(path, format!("no '{SECOND}{name}' of the shape of '{FIRST}{name}'")));
        };
        moments.insert(name, Moments { first: first.data, second: second.data });
    }
    match tensors.keys().next() {
        Some(name) => Err(TrainError::checkpoint(path, format!("tensor '{name}' is no moment of AdamW"))),
        None => Ok(moments),
    }
}

#[cfg(test)]
mod tests;
