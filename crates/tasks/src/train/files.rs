//! Files of a run: whole or not there, with errors of training.

use std::{fs, path::Path};

use super::TrainError;

/// Writes a file and waits until the disk has it.
pub(super) fn write_synced(path: &Path, content: &[u8]) -> Result<(), TrainError> {
    regard_files::write_synced(path, content).map_err(TrainError::writing(path))
}

/// Replaces a file at once: a reader, or a run after a crash, sees the old content or the new.
pub(super) fn replace(path: &Path, content: &[u8]) -> Result<(), TrainError> {
    regard_files::replace(path, content).map_err(TrainError::writing(path))
}

/// Waits until the disk has the names in a directory.
pub(super) fn sync_directory(path: &Path) -> Result<(), TrainError> {
    regard_files::sync_directory(path).map_err(TrainError::writing(path))
}

/// Makes a directory and those above it.
pub(super) fn make_directory(path: &Path) -> Result<(), TrainError> {
    fs::create_dir_all(path).map_err(TrainError::writing(path))
}
