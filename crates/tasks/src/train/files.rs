//! Files that are whole or not there.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use super::TrainError;

/// Writes a file and waits until the disk has it.
pub(super) fn write_synced(path: &Path, content: &[u8]) -> Result<(), TrainError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().map_err(TrainError::writing(path))
}

/// Replaces a file at once: a reader, or a run after a crash, sees the old content or the new.
pub(super) fn replace(path: &Path, content: &[u8]) -> Result<(), TrainError> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let result = write_synced(&temporary, content)
        .and_then(|()| fs::rename(&temporary, path).map_err(TrainError::writing(path)));
    if result.is_err() {
        // Best effort: what could not be written may not be removable either.
        let _ = fs::remove_file(&temporary);
    }
    result?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Waits until the disk has the names in a directory.
pub(super) fn sync_directory(path: &Path) -> Result<(), TrainError> {
    if cfg!(unix) {
        File::open(path).and_then(|directory| directory.sync_all()).map_err(TrainError::writing(path))?;
    }
    Ok(())
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
    fs::create_dir_all(path).map_err(TrainError::writing(path))
}
