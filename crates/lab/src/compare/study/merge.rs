//! One study out of the directories of several: shards of one study, or studies of further models, tasks or seeds.

use std::{
    fs,
    path::{Path, PathBuf},
};

use regard_tasks::{
    Failure,
    run::RunConfig,
    train::{CONFIG, ENVIRONMENT, Existing, TEST_ITEMS},
};

use super::{
    Cell, CellRecord, Place, Study,
    cell::differences,
    cell_directory,
    directory::{check_config, open, plain},
    record::CELL,
};

/// Studies put together.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The study that holds the cells of all.
    pub study: Study,
    /// Directories of cells that have ended, each with its place and seed.
    cells: Vec<(Place, u64, PathBuf)>,
}

/// Puts the studies of several directories together. Labels keep the order in which they first occur; title, baseline and
/// columns are those of the first. Of a cell that has ended in several directories the first result counts.
///
/// # Errors
/// A directory without a study; cells of the same labels with different configurations, by name.
pub fn merge(directories: &[PathBuf]) -> Result<Merged, Failure> {
    let mut merged: Option<Study> = None;
    for directory in directories {
        let study = Study::stored(directory)?;
        merged = Some(match merged {
            None => study,
            Some(before) => before.joined(study, directory)?,
        });
    }
    let mut study = merged.ok_or_else(|| Failure::usage("--merge names no directory, expected at least one"))?;
    let order = |axis: &[String], label: Option<&String>| {
        label.and_then(|label| axis.iter().position(|own| own == label)).unwrap_or(0)
    };
    let tasks: Vec<String> = study.tasks.iter().map(|task| task.label.clone()).collect();
    let (settings, models) = (study.settings.clone(), study.models.clone());
    study.groups.sort_by_key(|group| {
        let Place { task, setting, model } = &group.place;
        [order(&tasks, Some(task)), order(&settings, setting.as_ref()), order(&models, Some(model))]
    });
    check_columns(&study)?;
    let mut cells = Vec::new();
    for cell in study.cells() {
        let (mut best, config) = (None, cell.config()?);
        for directory in directories {
            let path = cell_directory(directory, &cell.group.place, cell.seed);
            let Some(record) = CellRecord::read(&path)? else { continue };
            check_config(&path, &config).map_err(|failure| failure.at(cell))?;
            if best.is_none() || record.finished().is_some() {
                let finished = record.finished().is_some();
                best = Some(path);
                if finished {
                    break;
                }
            }
        }
        cells.extend(best.map(|path| (cell.group.place.clone(), cell.seed, path)));
    }
    Ok(Merged { study, cells })
}

impl Study {
    /// This study with the cells of another, which comes from `directory`.
    fn joined(mut self, other: Self, directory: &Path) -> Result<Self, Failure> {
        for task in other.tasks {
            match self.tasks.iter_mut().find(|own| own.label == task.label) {
                None => self.tasks.push(task),
                Some(own) if own.measure == task.measure => {}
                Some(_) => {
                    return Err(Failure::usage(format!(
                        "task '{}' in {} has another measure than in the directories before it; give it the same one",
                        task.label,
                        directory.display()
                    )));
                }
            }
        }
        for (own, others) in [(&mut self.settings, other.settings), (&mut self.models, other.models)] {
            for label in others {
                if !own.contains(&label) {
                    own.push(label);
                }
            }
        }
        for group in other.groups {
            let Some(own) = self.groups.iter_mut().find(|own| own.place == group.place) else {
                self.groups.push(group);
                continue;
            };
            if let Some((key, own, seen)) = differences(&own.config()?, &group.config()?).into_iter().next() {
                return Err(Failure::usage(format!(
                    "{} has {key} = {seen} in {}, but {own} in a directory before it; cells of one label have one \
                     configuration: rename one of the labels and train it under its new name",
                    group.place,
                    directory.display()
                )));
            }
            let further: Vec<u64> = group.seeds.into_iter().filter(|seed| !own.seeds.contains(seed)).collect();
            own.seeds.extend(further);
            own.seeds.sort_unstable();
        }
        Ok(self)
    }
}

/// Refuses labels that would share a directory, and models on other data than their neighbours.
fn check_columns(study: &Study) -> Result<(), Failure> {
    let tasks: Vec<&String> = study.tasks.iter().map(|task| &task.label).collect();
    for labels in [tasks, study.settings.iter().collect(), study.models.iter().collect()] {
        let same = |a: &str, b: &str| plain(a).to_lowercase() == plain(b).to_lowercase();
        let pair = labels.iter().enumerate().find_map(|(i, a)| Some((a, labels[..i].iter().find(|b| same(a, b))?)));
        if let Some((a, b)) = pair {
            return Err(Failure::usage(format!(
                "the labels '{b}' and '{a}' differ in case and punctuation alone, expected one of them, or others"
            )));
        }
    }
    for column in study.columns() {
        let mut first: Option<(&Place, RunConfig)> = None;
        for group in study.groups.iter().filter(|group| group.place.beside(column)) {
            let config = group.config()?;
            let (place, expected) = first.get_or_insert_with(|| (&group.place, config.clone()));
            let of_data = |(key, ..): &(String, String, String)| key.starts_with("task.");
            if let Some((key, seen, expected)) = differences(&config, expected).into_iter().find(of_data) {
                return Err(Failure::usage(format!(
                    "{} has {key} = {seen}, but {place} has {expected}; the data are the same for all models of a task and \
                     setting: rename one of the tasks",
                    group.place
                )));
            }
        }
    }
    Ok(())
}

impl Merged {
    /// Makes the directory of the merged study. One that holds a study already must hold none of its own cells.
    ///
    /// # Errors
    /// A directory with something else, or with cells that are not among the merged ones.
    pub fn open(&self, out: &Path) -> Result<(), Failure> {
        if let Ok(before) = Study::stored(out) {
            let own =
                |cell: &Cell| !self.study.cells().any(|c| c.group.place == cell.group.place && c.seed == cell.seed);
            if let Some(cell) = before.cells().find(own) {
                return Err(Failure::usage(format!(
                    "{} holds a study with further cells, as {cell}; add it to --merge, or choose another --out",
                    out.display()
                )));
            }
        }
        open(out, Existing::Resume, &self.study, &[])
    }

    /// Copies the records of the cells to the directory of the merged study: what reports and further merges need, not the
    /// checkpoints.
    ///
    /// # Errors
    /// Files that cannot be read or written.
    pub fn copy(&self, out: &Path) -> Result<(), Failure> {
        for (place, seed, source) in &self.cells {
            let target = cell_directory(out, place, *seed);
            fs::create_dir_all(&target).map_err(|error| Failure::writing(&target, &error))?;
            // The record last: it says that the others are there.
            for name in [CONFIG, ENVIRONMENT, TEST_ITEMS, CELL] {
                let (from, to) = (source.join(name), target.join(name));
                if from.is_file() {
                    let bytes = fs::read(&from).map_err(|error| Failure::reading(&from, &error))?;
                    regard_files::write_whole(&to, &bytes).map_err(|error| Failure::written(&error))?;
                }
            }
        }
        Ok(())
    }
}
