//! The directory of a study.
//!
//! ```text
//! study.json                                    the study resolved: axes, cells, configurations
//! cells/TASK[/SETTING]/MODEL/seed-N/            a run directory each, with `cell.json` once it has ended
//! report.html, plots/, results.*, cells.csv     what came out
//! ```

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use regard_files::write_whole;
use regard_report::{PAGE, PLOTS};
use regard_tasks::{
    Failure,
    run::RunConfig,
    train::{CONFIG, DirectoryLock, Existing, occupied, sweep},
};

use super::{
    Cell, CellRecord, Place, Study,
    cell::differences,
    page::{CELLS_TABLE, LATEX, PAIRS_TABLE},
};
use crate::record::RESULTS;

/// The study resolved.
const STUDY: &str = "study.json";
/// The folder of the cells.
const CELLS: &str = "cells";

/// A label as a name that is valid on every file system.
pub fn plain(label: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '=' { c } else { '-' };
    label.chars().map(plain).collect()
}

/// Directory of a cell within a study.
pub fn cell_directory(study: &Path, place: &Place, seed: u64) -> PathBuf {
    group_directory(study, place).join(format!("seed-{seed}"))
}

fn group_directory(study: &Path, place: &Place) -> PathBuf {
    let labels = [Some(&place.task), place.setting.as_ref(), Some(&place.model)];
    study.join(CELLS).join(labels.into_iter().flatten().map(|label| plain(label)).collect::<PathBuf>())
}

impl Study {
    /// The study of a directory.
    ///
    /// # Errors
    /// A directory that holds none.
    pub fn stored(directory: &Path) -> Result<Self, Failure> {
        let path = directory.join(STUDY);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Failure::data(format!(
                    "{} holds no study (no {STUDY}); give a directory that 'regard compare --study' wrote",
                    directory.display()
                )));
            }
            read => read.map_err(|error| Failure::reading(&path, &error))?,
        };
        serde_json::from_str(&text)
            .map_err(|error| Failure::data(format!("{} is no study: {error}; was it edited?", path.display())))
    }

    /// Writes it into its directory.
    pub(super) fn store(&self, directory: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).expect("strings and numbers");
        write_whole(&directory.join(STUDY), (text + "\n").as_bytes()).map_err(|error| Failure::written(&error))
    }
}

/// The records of the cells that have ended, in the order of the study.
///
/// # Errors
/// A record that cannot be read.
pub fn records(study: &Study, out: &Path) -> Result<Vec<CellRecord>, Failure> {
    let read = |cell: Cell| CellRecord::read(&cell_directory(out, &cell.group.place, cell.seed));
    study.cells().filter_map(|cell| read(cell).transpose()).collect()
}

/// Whether the directory holds this study with a report on all of `cells`.
fn finished(study: &Study, cells: &[Cell], out: &Path) -> bool {
    let same = Study::stored(out).is_ok_and(|before| before == *study);
    let ended =
        |cell: &Cell| CellRecord::read(&cell_directory(out, &cell.group.place, cell.seed)).is_ok_and(|r| r.is_some());
    same && out.join(PAGE).exists() && cells.iter().all(ended)
}

/// Handles existing content of the directory, and writes the study there. `cells` are those to be trained there.
///
/// A study that was interrupted, or one to which cells were added, goes on by itself: nothing is lost by that.
///
/// # Errors
/// A directory with something else, with a finished study, or with a cell of another configuration; one that cannot be read
/// or written.
pub fn open(out: &Path, existing: Existing, study: &Study, cells: &[Cell]) -> Result<(), Failure> {
    if occupied(out).map_err(|error| Failure::reading(out, &error))? {
        let before = Study::stored(out).map_err(|failure| {
            Failure::usage(format!("{}; it is not empty, so choose another --out", failure.message.replace(';', ",")))
        })?;
        if existing == Existing::Overwrite {
            remove(out, &before)?;
        } else {
            same_cells(out, &before, study)?;
            if existing == Existing::Refuse && finished(study, cells, out) {
                return Err(Failure::usage(format!(
                    "{} holds this study, finished; see {}, try failed cells again with --resume, start over with \
                     --overwrite, or choose another --out",
                    out.display(),
                    out.join(PAGE).display()
                )));
            }
        }
    }
    sweep(out);
    study.store(out)
}

/// Refuses cells that began with another configuration; of those that failed with it, nothing is kept.
fn same_cells(out: &Path, before: &Study, study: &Study) -> Result<(), Failure> {
    let mut failed = Vec::new();
    for group in &study.groups {
        let Some(old) = before.group(&group.place).filter(|old| old.config != group.config) else { continue };
        let Some((key, now, then)) = differences(&group.config()?, &old.config()?).into_iter().next() else { continue };
        for &seed in &group.seeds {
            let path = cell_directory(out, &group.place, seed);
            match CellRecord::read(&path)? {
                Some(record) if record.finished().is_none() => failed.push(path),
                None if !path.join(CONFIG).is_file() => {}
                _ => {
                    return Err(Failure::usage(format!(
                        "{key} is {now}, but {}, seed {seed}, in {} was trained with {then}; use the same value, start over \
                         with --overwrite, or choose another --out",
                        group.place,
                        out.display()
                    )));
                }
            }
        }
    }
    failed.iter().try_for_each(|path| remove_cell(path))
}

/// Removes the directory of a cell.
fn remove_cell(path: &Path) -> Result<(), Failure> {
    let _lock = DirectoryLock::take(path)?;
    fs::remove_dir_all(path).map_err(|error| Failure::writing(path, &error))
}

/// Removes only what studies write: a wrong path must not delete other files.
///
/// # Errors
/// Files that cannot be removed; a cell in use by another process.
pub fn remove(out: &Path, study: &Study) -> Result<(), Failure> {
    let gone = |path: &Path, removed: io::Result<()>| match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::writing(path, &error)),
        _ => Ok(()),
    };
    for cell in study.cells() {
        let path = cell_directory(out, &cell.group.place, cell.seed);
        let ours = path.join(CONFIG).is_file() || CellRecord::read(&path).is_ok_and(|record| record.is_some());
        if ours {
            remove_cell(&path)?;
        }
        // Then what is empty above it; a directory with other files stays.
        for above in path.ancestors().take_while(|above| *above != out) {
            if fs::remove_dir(above).is_err() && above.exists() {
                break;
            }
        }
    }
    let plots = out.join(PLOTS);
    gone(&plots, fs::remove_dir_all(&plots))?;
    for name in [STUDY, PAGE, LATEX, CELLS_TABLE, PAIRS_TABLE].into_iter().chain(RESULTS) {
        let path = out.join(name);
        gone(&path, fs::remove_file(&path))?;
    }
    Ok(())
}

/// Whether the configuration in the directory of a cell is the one of the study.
///
/// # Errors
/// Another one, with the first key that differs; one that cannot be read.
pub(super) fn check_config(directory: &Path, config: &RunConfig) -> Result<(), Failure> {
    let path = directory.join(CONFIG);
    if !path.is_file() {
        return Ok(());
    }
    match differences(&RunConfig::read(&path)?, config).into_iter().next() {
        None => Ok(()),
        Some((key, seen, expected)) => Err(Failure::usage(format!(
            "{key} is {seen} in {}, {expected} in its study; was it edited?",
            path.display()
        ))),
    }
}
