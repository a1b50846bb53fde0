//! The directory of a run.
//!
//! ```text
//! config.toml        the resolved configuration
//! config-to-N.toml   that of the updates up to N, where the run went on with another one
//! env.json           processor, threads, version, date
//! metrics.jsonl      one line per update and evaluation
//! events.out.*       the same for TensorBoard
//! checkpoints/       see `checkpoint`
//! tokenizer.json     what turns text into ids, where tokens are pieces of words
//! vocabulary.txt     the words by id, where tokens are words
//! characters.json    the characters by id, where tokens are characters
//! test-items.safetensors   what the model did on each sequence of the test split: see `Items`
//! .lock              during the run: see `DirectoryLock`
//! ```

use std::{
    borrow::Cow,
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

use super::{
    Checkpoint, Checkpoints, DirectoryLock, Environment, Evaluation, Items, Record, Split, StepReport, TEST_ITEMS,
    TrainError,
    files::{make_directory, replace},
    occupied, sweep,
    tensorboard::EventWriter,
};
use crate::data::{TaskData, TextUnits, VOCABULARY};

/// The file of a run directory that [`TextTokenizer::load`](crate::data::TextTokenizer::load) reads.
pub const TOKENIZER: &str = "tokenizer.json";
/// The characters by id, as a JSON string.
const CHARACTERS: &str = "characters.json";
/// The resolved configuration.
pub const CONFIG: &str = "config.toml";
/// What [`Record::read`] reads.
pub const METRICS: &str = "metrics.jsonl";
/// What begins the names of former configurations.
const FORMER: &str = "config-to-";
/// The folder of [`Checkpoints`].
pub const CHECKPOINTS: &str = "checkpoints";
/// Machine, version and date.
pub const ENVIRONMENT: &str = "env.json";
const EVENTS: &str = "events.out.tfevents.";
/// Written by reports into the same directory, and removed with the run when it is overwritten.
pub const REPORTS: [&str; 2] = ["plots", "report.html"];

/// What to do with a directory that already holds something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Leave it alone and return an error.
    #[default]
    Refuse,
    /// Remove the run in it. Files that no run writes stay.
    Overwrite,
    /// Continue the run in it from its last checkpoint, or from its start if there is none yet.
    Resume,
}

/// A run directory, open for writing.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    metrics: File,
    events: EventWriter,
    checkpoints: Checkpoints,
    /// Where the run stands; taken by the trainer.
    resumed: Option<Checkpoint>,
    _lock: DirectoryLock,
}

const OTHER_VOCABULARY: &str =
    "not the vocabulary of these data: files of the task have changed since the run began; put them back";

/// What a run directory keeps of the vocabulary of its data: the name and the content of a file.
pub(super) fn vocabulary_file(data: &TaskData) -> Option<(&'static str, Cow<'_, str>)> {
    if let Some(tokenizer) = data.tokenizer() {
        return Some((TOKENIZER, tokenizer.json().into()));
    }
    if let Some(vocabulary) = data.characters() {
        let characters: String = vocabulary.characters().iter().collect();
        return Some((CHARACTERS, serde_json::to_string(&characters).expect("a text").into()));
    }
    data.units().and_then(TextUnits::file)
}

/// Checks that the model of a run directory was trained with the vocabulary of these data.
///
/// # Errors
/// Another vocabulary.
pub fn check_vocabulary(run: &Path, data: &TaskData) -> Result<(), TrainError> {
    let Some((name, content)) = vocabulary_file(data) else { return Ok(()) };
    let path = run.join(name);
    match fs::read_to_string(&path) {
        Ok(kept) if kept != content => Err(TrainError::checkpoint(path, OTHER_VOCABULARY)),
        // Directories of before have no such file.
        _ => Ok(()),
    }
}

impl RunDirectory {
    /// Opens `path`, makes it where it is missing, and writes `config.toml` and `env.json`.
    ///
    /// `keep` checkpoints are kept beside the best. When a run is resumed, lines of `metrics.jsonl` beyond its last
    /// checkpoint are dropped: the run writes them again. No other process can open the directory until this is dropped.
    ///
    /// # Errors
    /// A directory that holds something ([`TrainError::NotEmpty`]) or that another process writes to
    /// ([`TrainError::InUse`]), one to resume that is not there, a damaged checkpoint, a directory that cannot be written, a
    /// full disk.
    pub fn open(
        path: &Path,
        existing: Existing,
        keep: usize,
        config: &str,
        environment: &Environment,
    ) -> Result<Self, TrainError> {
        let nothing = || TrainError::checkpoint(path, "no run to resume; start one without --resume");
        if existing == Existing::Resume && !path.exists() {
            return Err(nothing());
        }
        make_directory(path)?;
        let lock = DirectoryLock::take(path)?;
        let occupied = occupied(path).map_err(TrainError::reading(path))?;
        let checkpoints = Checkpoints::new(path.join(CHECKPOINTS), keep);
        let mut resumed = None;
        match existing {
            Existing::Refuse if occupied => return Err(TrainError::NotEmpty { path: path.into() }),
            Existing::Overwrite if holds_several(path) => return Err(TrainError::SeveralRuns { path: path.into() }),
            Existing::Overwrite if occupied => remove_run(path)?,
            Existing::Resume if !occupied => return Err(nothing()),
            Existing::Resume => resumed = checkpoints.last().map(|last| Checkpoint::load(&last)).transpose()?,
            Existing::Refuse | Existing::Overwrite => {}
        }
        sweep(path);
        sweep(&path.join(CHECKPOINTS));
        let step = resumed.as_ref().map_or(0, |checkpoint| checkpoint.state.step);
        match fs::read(path.join(CONFIG)) {
            Ok(former) if step > 0 && former != config.as_bytes() => {
                replace(&path.join(format!("{FORMER}{step}.toml")), &former)?;
            }
            _ => {}
        }
        replace(&path.join(CONFIG), config.as_bytes())?;
        let text = serde_json::to_string_pretty(environment).expect("strings and numbers");
        replace(&path.join(ENVIRONMENT), format!("{text}\n").as_bytes())?;
        let file = path.join(METRICS);
        if existing == Existing::Resume && file.exists() {
            truncate_metrics(&file, step, checkpoints.average().is_some())?;
        }
        if let Some(checkpoint) = &resumed {
            checkpoints.point_to_best(&checkpoint.state)?;
        }
        let metrics = OpenOptions::new().create(true).append(true).open(&file).map_err(TrainError::writing(&file))?;
        let events = EventWriter::create(path, (existing == Existing::Resume).then_some(step.saturating_add(1)))?;
        Ok(Self { path: path.into(), metrics, events, checkpoints, resumed, _lock: lock })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its checkpoints.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// The checkpoint that the run continues from, once.
    pub(super) fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        self.resumed.take()
    }

    /// Writes an update.
    ///
    /// # Errors
    /// A full disk.
    pub(super) fn step(&mut self, report: &StepReport) -> Result<(), TrainError> {
        self.line(&Record::Step(report.clone()))?;
        let mut values = vec![
            ("train/loss", report.loss),
            ("train/learning_rate", report.learning_rate),
            ("train/gradient_norm", report.gradient_norm),
            ("speed/milliseconds", report.milliseconds),
            ("speed/tokens_per_second", report.tokens_per_second),
        ];
        values.extend(report.peak_bytes.map(|bytes| ("memory/peak_bytes", bytes as f64)));
        let routers: Vec<_> = report.routers.iter().flat_map(|router| router.scalars()).collect();
        values.extend(routers.iter().map(|(tag, value)| (tag.as_str(), *value)));
        self.events.scalars(report.step, &values)
    }

    /// Writes an evaluation.
    ///
    /// # Errors
    /// A full disk.
    pub fn evaluated(&mut self, evaluation: &Evaluation) -> Result<(), TrainError> {
        self.line(&Record::Evaluation(evaluation.clone()))?;
        let averaged = if evaluation.averaged.is_some() { "averaged/" } else { "" };
        let tag = |name: &str| format!("{averaged}{}/{name}", evaluation.split.name());
        let values = [
            (tag("loss"), Some(evaluation.loss)),
            (tag("accuracy"), evaluation.accuracy),
            (tag("pearson"), evaluation.values.and_then(|values| values.pearson)),
            (tag("perplexity"), evaluation.perplexity),
            (tag("bleu"), evaluation.bleu),
            (tag("rouge-1"), evaluation.rouge.map(|scores| scores.model.rouge_1)),
            (tag("rouge-2"), evaluation.rouge.map(|scores| scores.model.rouge_2)),
            (tag("rouge-l"), evaluation.rouge.map(|scores| scores.model.rouge_l)),
            (tag("auc"), evaluation.ranking.map(|ranking| ranking.scores.auc)),
            (tag("mrr"), evaluation.ranking.map(|ranking| ranking.scores.mrr)),
            (tag("ndcg_5"), evaluation.ranking.map(|ranking| ranking.scores.ndcg_5)),
            (tag("ndcg_10"), evaluation.ranking.map(|ranking| ranking.scores.ndcg_10)),
        ];
        let values: Vec<_> = values.iter().filter_map(|(tag, value)| Some((tag.as_str(), (*value)?))).collect();
        self.events.scalars(evaluation.step, &values)
    }

    /// Saves the vocabulary of the run, its tokenizer or its words, as the file `name`. A `resumed` run must have the same one.
    ///
    /// # Errors
    /// Another vocabulary than that of the run; a directory that cannot be written.
    pub(super) fn keep_vocabulary(&self, name: &str, content: &str, resumed: bool) -> Result<(), TrainError> {
        let path = self.path.join(name);
        match fs::read_to_string(&path) {
            Ok(kept) if kept == content => Ok(()),
            Ok(_) if resumed => {
                Err(TrainError::checkpoint(path, format!("{OTHER_VOCABULARY} or start over with --overwrite")))
            }
            _ => replace(&path, content.as_bytes()),
        }
    }

    /// Replaces what was measured by sequence on the test split.
    ///
    /// # Errors
    /// A directory that cannot be written.
    pub(super) fn keep_items(&self, items: &Items) -> Result<(), TrainError> {
        replace(&self.path.join(TEST_ITEMS), &items.to_bytes())
    }

    fn line(&mut self, record: &Record) -> Result<(), TrainError> {
        let file = self.path.join(METRICS);
        // Writing to a removed file loses the lines without an error.
        fs::metadata(&file).map_err(TrainError::writing(&file))?;
        let mut line = serde_json::to_string(record).expect("strings and numbers");
        line.push('\n');
        // One write per line: a kill leaves at most one unfinished line, which readers skip.
        self.metrics.write_all(line.as_bytes()).map_err(TrainError::writing(&file))
    }

    /// Checkpoints that the run's last mean is of, if it was measured.
    pub(super) fn averaged(&self) -> Result<Option<usize>, TrainError> {
        let averaged = |record: &Record| match record {
            Record::Evaluation(evaluation) => evaluation.averaged,
            Record::Step(_) => None,
        };
        Ok(Record::read(&self.path.join(METRICS))?.iter().rev().find_map(averaged))
    }

    /// Removes the mean of the last checkpoints and what was measured of it.
    pub(super) fn forget_average(&mut self, step: usize) -> Result<(), TrainError> {
        let file = self.path.join(METRICS);
        // The lines first: a mean without a line is measured again.
        truncate_metrics(&file, step, false)?;
        self.metrics = OpenOptions::new().append(true).open(&file).map_err(TrainError::writing(&file))?;
        self.checkpoints.remove_average()
    }

    /// Keeps, beside the newest checkpoints, the newest `count` of steps that are multiples of `every`.
    pub(super) fn keep_regular(&mut self, count: usize, every: usize) {
        self.checkpoints = self.checkpoints.clone().keeping_regular(count, every);
    }

    /// Writes a checkpoint, after the metrics up to it have reached the disk.
    ///
    /// # Errors
    /// A full disk; earlier checkpoints are still there then.
    pub(super) fn save(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        self.metrics.sync_data().map_err(TrainError::writing(&self.path.join(METRICS)))?;
        self.checkpoints.save(checkpoint).map(drop)
    }
}

/// Whether a directory is that of a comparison or a study: reports of its own, and runs below.
fn holds_several(path: &Path) -> bool {
    !path.join(METRICS).exists() && (path.join("study.json").is_file() || run_within(path).is_some())
}

/// A run of the comparison in a directory: `LABEL/seed-N`.
pub(crate) fn run_within(path: &Path) -> Option<PathBuf> {
    let below = |path: &Path| {
        let mut all: Vec<PathBuf> =
            fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        all.sort();
        all
    };
    let runs = below(path).into_iter().flat_map(|label| below(&label));
    runs.into_iter().find(|run| run.join(CONFIG).is_file())
}

/// Removes only files that runs write: a wrong path must not delete other files.
fn remove_run(path: &Path) -> Result<(), TrainError> {
    for entry in fs::read_dir(path).map_err(TrainError::reading(path))? {
        let entry = entry.map_err(TrainError::reading(path))?;
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let files = [CONFIG, ENVIRONMENT, METRICS, CHECKPOINTS, TOKENIZER, VOCABULARY, CHARACTERS, TEST_ITEMS];
        let ours = files.into_iter().chain(REPORTS);
        if ours.into_iter().any(|own| name == own) || name.starts_with(EVENTS) || name.starts_with(FORMER) {
            let target = entry.path();
            let removed = if target.is_dir() { fs::remove_dir_all(&target) } else { fs::remove_file(&target) };
            removed.map_err(TrainError::writing(&target))?;
        }
    }
    Ok(())
}

/// Keeps the lines up to `step`, as they are, but for what a run measures at its end: that it measures again. The evaluation
/// of an averaged model comes before that model is kept, so it stays where there is one (`averaged`).
fn truncate_metrics(path: &Path, step: usize, averaged: bool) -> Result<(), TrainError> {
    let stays = |record: &Record| {
        let measured = match record {
            Record::Step(_) => true,
            Record::Evaluation(evaluation) => {
                evaluation.split != Split::Test && (averaged || evaluation.averaged.is_none())
            }
        };
        record.step() <= step && measured
    };
    let records = Record::read(path)?;
    let text = fs::read_to_string(path).map_err(TrainError::reading(path))?;
    // An unfinished last line has no record.
    let lines = text.split_inclusive('\n').zip(records).filter(|(_, record)| stays(record));
    let kept: String = lines.map(|(line, _)| line).collect();
    replace(path, kept.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::{Best, HostTensor, HostTensors, RunState};

    fn open(path: &Path, existing: Existing) -> Result<RunDirectory, TrainError> {
        RunDirectory::open(path, existing, 2, "steps = 3\n", &Environment::capture(None))
    }

    fn report(step: usize) -> StepReport {
        StepReport {
            step,
            loss: 0.1 + 0.2,
            learning_rate: 1e-3,
            gradient_norm: 2.0,
            milliseconds: 1.5,
            tokens_per_second: 10.0,
            peak_bytes: Some(7),
            loss_scale: None,
            bytes_sent: None,
            routers: Vec::new(),
        }
    }

    fn evaluation(step: usize) -> Evaluation {
        Evaluation {
            step,
            split: Split::Valid,
            loss: 1.0 / 3.0,
            accuracy: Some(0.25),
            classes: None,
            values: None,
            perplexity: None,
            bleu: None,
            rouge: None,
            ranking: None,
            averaged: None,
            language: None,
            items: 4,
            sequences: 4,
            seconds: 0.5,
        }
    }

    fn checkpoint(step: usize) -> Checkpoint {
        let model = HostTensors::from([("w".into(), HostTensor { shape: vec![1], data: vec![step as f32] })]);
        Checkpoint { model, moments: Default::default(), state: RunState { step, ..RunState::default() } }
    }

    #[test]
    fn a_directory_in_use_is_refused_and_overwriting_spares_foreign_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep").join("run");
        let mut run = open(&path, Existing::Refuse).unwrap();
        run.step(&report(1)).unwrap();
        run.save(&checkpoint(1)).unwrap();
        assert_eq!(fs::read_to_string(path.join(CONFIG)).unwrap(), "steps = 3\n");
        assert!(matches!(open(&path, Existing::Overwrite).unwrap_err(), TrainError::InUse { .. }));
        drop(run);
        assert!(matches!(open(&path, Existing::Refuse).unwrap_err(), TrainError::NotEmpty { .. }));
        assert_eq!(Record::read(&path.join(METRICS)).unwrap().len(), 1);
        fs::write(path.join("thesis.txt"), "mine").unwrap();
        fs::write(path.join("config.toml.tmp"), "half").unwrap();
        let run = open(&path, Existing::Overwrite).unwrap();
        assert_eq!(run.checkpoints().last(), None);
        assert_eq!(Record::read(&path.join(METRICS)).unwrap(), []);
        assert_eq!(fs::read_to_string(path.join("thesis.txt")).unwrap(), "mine");
        assert!(!path.join("config.toml.tmp").exists());
    }

    /// A kill between the last lines and the end of the program leaves lines that the resumed run writes again.
    #[test]
    fn what_is_measured_at_the_end_is_measured_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let averaged = Evaluation { averaged: Some(2), ..evaluation(2) };
        let mut run = open(path, Existing::Refuse).unwrap();
        run.step(&report(2)).unwrap();
        run.evaluated(&evaluation(2)).unwrap();
        let mut saved = checkpoint(2);
        saved.state.best = Some(Best { step: 2, score: 0.25 });
        run.save(&saved).unwrap();
        fs::remove_file(path.join("checkpoints/best")).unwrap();
        run.evaluated(&averaged).unwrap();
        run.evaluated(&Evaluation { split: Split::Test, ..evaluation(1) }).unwrap();
        drop(run);
        let records = || Record::read(&path.join(METRICS)).unwrap();
        let best = path.join("checkpoints/best");
        assert!(!best.exists());
        let run = open(path, Existing::Resume).unwrap();
        assert_eq!(fs::read_to_string(best).unwrap(), "step-2");
        assert_eq!(records(), [Record::Step(report(2)), Record::Evaluation(evaluation(2))]);
        drop(run);
        let mut run = open(path, Existing::Resume).unwrap();
        run.evaluated(&averaged).unwrap();
        run.checkpoints().save_average(&checkpoint(2)).unwrap();
        drop(run);
        open(path, Existing::Resume).unwrap();
        assert_eq!(records()[2], Record::Evaluation(averaged));
    }

    #[test]
    fn a_directory_that_is_removed_ends_the_run_with_a_sentence() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run");
        let mut run = open(&path, Existing::Refuse).unwrap();
        run.step(&report(1)).unwrap();
        fs::remove_dir_all(&path).unwrap();
        for error in [run.step(&report(2)).unwrap_err(), run.save(&checkpoint(2)).unwrap_err()] {
            assert!(error.to_string().contains("was its directory removed or moved meanwhile?"), "{error}");
        }
        assert!(!path.exists());
    }

    #[test]
    fn resuming_drops_the_lines_after_the_checkpoint_and_keeps_the_others_exactly() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut run = open(path, Existing::Refuse).unwrap();
        run.step(&report(1)).unwrap();
        run.step(&report(2)).unwrap();
        run.evaluated(&evaluation(2)).unwrap();
        run.save(&checkpoint(2)).unwrap();
        let before = fs::read(path.join(METRICS)).unwrap();
        run.step(&report(3)).unwrap();
        drop(run);
        // A kill in the middle of a line.
        let mut metrics = OpenOptions::new().append(true).open(path.join(METRICS)).unwrap();
        metrics.write_all(b"{\"kind\":\"step\",\"st").unwrap();
        let mut run = open(path, Existing::Resume).unwrap();
        assert_eq!(run.take_checkpoint(), Some(checkpoint(2)));
        assert_eq!(fs::read(path.join(METRICS)).unwrap(), before);
        run.step(&report(3)).unwrap();
        let steps: Vec<_> = Record::read(&path.join(METRICS)).unwrap().iter().map(Record::step).collect();
        assert_eq!(steps, [1, 2, 2, 3]);
    }

    #[test]
    fn a_run_killed_before_its_first_checkpoint_starts_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut run = open(directory.path(), Existing::Refuse).unwrap();
        run.step(&report(1)).unwrap();
        drop(run);
        let mut run = open(directory.path(), Existing::Resume).unwrap();
        assert_eq!(run.take_checkpoint(), None);
        assert_eq!(Record::read(&directory.path().join(METRICS)).unwrap(), []);
        let nothing = open(&directory.path().join("nowhere"), Existing::Resume).unwrap_err().to_string();
        assert!(nothing.contains("no run to resume"), "{nothing}");
        assert!(!directory.path().join("nowhere").exists());
    }

    #[test]
    fn a_path_through_a_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "x").unwrap();
        for path in ["file", "file/run"] {
            let error = open(&directory.path().join(path), Existing::Refuse).unwrap_err();
            assert!(matches!(error, TrainError::Read { .. } | TrainError::Write { .. }), "{error}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_named() {
        let full = Path::new("/dev/full");
        if let Ok(mut file) = OpenOptions::new().write(true).open(full) {
            let error = file.write_all(b"x").map_err(TrainError::writing(full)).unwrap_err().to_string();
            assert!(error.contains("free some space and continue with --resume"), "{error}");
        }
    }
}
