//! The directory of a comparison.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use regard_files::write_whole;
use regard_report::{PAGE, PLOTS};
use regard_tasks::{
    Failure,
    run::RunConfig,
    train::{CONFIG, DirectoryLock, Existing, METRICS, occupied, sweep},
};

use crate::record::RESULTS;

/// Handles existing content of the directory, and writes the configuration there.
///
/// An unfinished comparison with the same configuration continues automatically: nothing is lost by that.
///
/// # Errors
/// A directory with other content, or with a finished comparison; one that cannot be read or written.
pub fn open(out: &Path, existing: Existing, config: &RunConfig) -> Result<(), Failure> {
    let occupied = occupied(out).map_err(|error| Failure::reading(out, &error))?;
    let path = out.join(CONFIG);
    if occupied && existing == Existing::Overwrite {
        if !holds_comparison(out) {
            return Err(Failure::usage(format!(
                "{} holds no comparison, so --overwrite leaves it alone; choose another --out",
                out.display()
            )));
        }
        remove(out)?;
    } else if occupied {
        let same = RunConfig::read(&path).is_ok_and(|before| before == *config);
        let finished = out.join(PAGE).exists();
        match (same, finished, existing == Existing::Resume) {
            (true, false, _) | (true, true, true) => {}
            (true, true, false) => {
                return Err(Failure::usage(format!(
                    "{} holds a finished comparison; see {}, start over with --overwrite, or choose another --out",
                    out.display(),
                    out.join(PAGE).display()
                )));
            }
            (false, _, true) => {
                return Err(Failure::usage(format!(
                    "{} holds a comparison of another configuration, expected that of {}; resume with the same options",
                    out.display(),
                    path.display()
                )));
            }
            (false, _, false) => {
                return Err(Failure::usage(format!(
                    "{} is not empty and holds something else; start over with --overwrite, or choose another --out",
                    out.display()
                )));
            }
        }
    }
    sweep(out);
    write_whole(&path, config.to_toml().as_bytes()).map_err(|error| Failure::written(&error))
}

/// Whether the directory holds a comparison: it has our configuration file, and is not a single run.
fn holds_comparison(out: &Path) -> bool {
    RunConfig::read(&out.join(CONFIG)).is_ok() && !out.join(METRICS).exists()
}

/// Removes only what comparisons write: a wrong path must not delete other files.
///
/// # Errors
/// Files that cannot be removed; a run in use by another process.
pub fn remove(out: &Path) -> Result<(), Failure> {
    for path in children(out)? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let removed = |result: io::Result<()>| result.map_err(|error| Failure::writing(&path, &error));
        if name == PLOTS {
            removed(fs::remove_dir_all(&path))?;
        } else if [CONFIG, PAGE].into_iter().chain(RESULTS).any(|own| own == name) {
            removed(fs::remove_file(&path))?;
        } else if path.is_dir() {
            remove_runs(&path)?;
        }
    }
    Ok(())
}

/// Removes the runs of one candidate, one per seed, and their directory if nothing else is in it.
fn remove_runs(candidate: &Path) -> Result<(), Failure> {
    let mut left = false;
    for path in children(candidate)? {
        let seed = path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix("seed-"));
        let empty = || occupied(&path).is_ok_and(|occupied| !occupied);
        if seed.is_some_and(|seed| seed.parse::<u64>().is_ok()) && (path.join(CONFIG).is_file() || empty()) {
            let _lock = DirectoryLock::take(&path)?;
            fs::remove_dir_all(&path).map_err(|error| Failure::writing(&path, &error))?;
        } else {
            left = true;
        }
    }
    if left { Ok(()) } else { fs::remove_dir(candidate).map_err(|error| Failure::writing(candidate, &error)) }
}

/// The entries of a directory.
fn children(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(directory).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    entries.map_err(|error| Failure::reading(directory, &error))
}

#[cfg(test)]
mod tests {
    use regard_tasks::run::Layers;

    use super::*;

    #[test]
    fn a_configuration_without_a_newer_key_is_the_same_and_another_value_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut layers = Layers::new();
        layers.preset("smoke").unwrap();
        let config = layers.resolve().unwrap();
        open(folder.path(), Existing::Refuse, &config).unwrap();
        let (path, text) = (folder.path().join(CONFIG), config.to_toml());
        let older: String =
            text.lines().filter(|line| !line.starts_with("label_column")).map(|l| l.to_owned() + "\n").collect();
        assert!(older.len() < text.len());
        fs::write(&path, older).unwrap();
        open(folder.path(), Existing::Refuse, &config).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        layers.assign("model.width=8", "--set").unwrap();
        let failure = open(folder.path(), Existing::Resume, &layers.resolve().unwrap()).unwrap_err();
        assert!(failure.message.contains("another configuration"), "{failure}");
    }
}
