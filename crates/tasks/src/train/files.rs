//! Files of a run, written atomically, with errors of training.

use std::{fs, io, path::Path};

use super::TrainError;

/// Writes a file and syncs it to disk.
pub(super) fn write_synced(path: &Path, content: &[u8]) -> Result<(), TrainError> {
    regard_files::write_synced(path, content).map_err(TrainError::writing(path))
}

/// Replaces a file atomically: a reader, or a run after a crash, sees the old content or the new.
pub(super) fn replace(path: &Path, content: &[u8]) -> Result<(), TrainError> {
    regard_files::replace(path, content).map_err(TrainError::writing(path))
}

/// Syncs the entries of a directory to disk.
pub(super) fn sync_directory(path: &Path) -> Result<(), TrainError> {
    regard_files::sync_directory(path).map_err(TrainError::writing(path))
}

/// Makes a directory in one that is there: a run whose directory was removed must not begin another one in its place.
pub(super) fn make_child(path: &Path) -> Result<(), TrainError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.map_err(TrainError::writing(path)),
    }
}

/// Makes a directory and those above it.
pub(super) fn make_directory(path: &Path) -> Result<(), TrainError> {
    fs::create_dir_all(path).map_err(|error| match error.kind() {
        // Above it stands what takes no directories.
        io::ErrorKind::NotFound => {
            TrainError::Write { path: path.into(), source: error, remedy: "choose another path" }
        }
        _ => TrainError::writing(path)(error),
    })
}
