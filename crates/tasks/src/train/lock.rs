//! One process per directory.

use std::{
    fs::{self, File, TryLockError},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::{
    CONFIG, METRICS, TOKENIZER, TrainError,
    checkpoint::{BEST, LAST},
    run_directory::ENVIRONMENT,
};

/// The file of a directory that is locked while a process writes there.
const LOCK: &str = ".lock";

/// How often a lock is tried, and the pause before it is tried again: whoever asks [`DirectoryLock::is_held`] holds it for an
/// instant.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// A directory that no other process writes to while this is held. The system lets go of it when the process ends, however
/// it ends; a file that a killed process left behind locks nothing.
#[derive(Debug)]
pub struct DirectoryLock {
    path: PathBuf,
    /// None on file systems without locks, and where nothing can be written.
    file: Option<File>,
}

impl DirectoryLock {
    /// Locks a directory that exists.
    ///
    /// # Errors
    /// A directory that another process writes to ([`TrainError::InUse`]), or in which no file can be made.
    pub fn take(directory: &Path) -> Result<Self, TrainError> {
        let path = directory.join(LOCK);
        let in_use = || TrainError::InUse { path: directory.into() };
        // Whoever ends removes the file: one that was opened before that is no lock any more.
        for _ in 0..TRIES {
            let file = match File::options().create(true).truncate(false).write(true).open(&path) {
                Ok(file) => file,
                Err(error) if unlockable(error.kind()) => return Ok(Self { path, file: None }),
                Err(error) => return Err(TrainError::writing(&path)(error)),
            };
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => return Ok(Self { path, file: Some(file) }),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
                // A file system without locks: as good as there is.
                Err(TryLockError::Error(_)) => return Ok(Self { path, file: None }),
            }
        }
        Err(in_use())
    }

    /// Whether a process writes to a directory; nothing where that cannot be told, as on file systems without locks.
    pub fn is_held(directory: &Path) -> Option<bool> {
        let file = match File::open(directory.join(LOCK)) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Some(false),
            Err(_) => return None,
        };
        // Those who ask do not disturb each other, and let go when the file is closed.
        match file.try_lock_shared() {
            Ok(()) => Some(false),
            Err(TryLockError::WouldBlock) => Some(true),
            Err(TryLockError::Error(_)) => None,
        }
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        if self.file.is_some() {
            // Best effort: the file is no lock without its process.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes what killed processes left in the making in a directory of ours. Failures cost disk space only.
pub fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if in_the_making(&entry.file_name().to_string_lossy()) {
            let path = entry.path();
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
}

/// Whether a name is that of a file or directory of ours which is renamed when it is whole.
fn in_the_making(name: &str) -> bool {
    let ours = [CONFIG, ENVIRONMENT, METRICS, TOKENIZER, BEST, LAST];
    name.strip_suffix(".tmp").is_some_and(|name| name.starts_with('.') || ours.contains(&name))
}

/// Whether a file that cannot be made for this reason is done without: what cannot be written is told of when it matters.
fn unlockable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::Unsupported)
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |about: io::Result<fs::Metadata>| about.map(|about| (about.dev(), about.ino())).ok();
    place(file.metadata()).is_some_and(|own| place(fs::metadata(path)) == Some(own))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Whether a directory is there and holds anything but its lock and what a kill left of a file in the making.
///
/// # Errors
/// A directory that cannot be read.
pub fn occupied(directory: &Path) -> io::Result<bool> {
    match fs::read_dir(directory) {
        Ok(mut entries) => entries.try_fold(false, |occupied, entry| {
            let name = entry?.file_name();
            Ok(occupied || !(name == LOCK || in_the_making(&name.to_string_lossy())))
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_who_holds_a_directory_keeps_nobody_out() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(DirectoryLock::is_held(directory.path()), Some(false));
        let lock = DirectoryLock::take(directory.path()).unwrap();
        assert_eq!(DirectoryLock::is_held(directory.path()), Some(true));
        drop(lock);
        // A killed process leaves its file.
        fs::write(directory.path().join(LOCK), "").unwrap();
        assert_eq!(DirectoryLock::is_held(directory.path()), Some(false));
        // A process that starts while someone asks waits for that instant.
        let asking = File::open(directory.path().join(LOCK)).unwrap();
        asking.try_lock_shared().unwrap();
        let end = thread::spawn(move || {
            thread::sleep(2 * PAUSE);
            drop(asking);
        });
        drop(DirectoryLock::take(directory.path()).unwrap());
        end.join().unwrap();
    }

    #[test]
    fn a_directory_is_locked_until_its_holder_lets_go() {
        let directory = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::take(directory.path()).unwrap();
        assert!(!occupied(directory.path()).unwrap());
        // A lock belongs to an open file: another handle of this process is refused as another process is.
        let error = DirectoryLock::take(directory.path()).unwrap_err();
        assert!(matches!(error, TrainError::InUse { .. }), "{error}");
        drop(lock);
        assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
        // What a killed process leaves.
        fs::write(directory.path().join(LOCK), "").unwrap();
        for name in [".results.json.7-1.tmp", "metrics.jsonl.tmp", "mine.tmp"] {
            fs::write(directory.path().join(name), "half").unwrap();
        }
        drop(DirectoryLock::take(directory.path()).unwrap());
        sweep(directory.path());
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["mine.tmp"]);
        fs::remove_file(directory.path().join("mine.tmp")).unwrap();
        fs::write(directory.path().join(".config.toml.1-0.tmp"), "half").unwrap();
        assert!(!occupied(directory.path()).unwrap());
        fs::write(directory.path().join("thesis.txt"), "mine").unwrap();
        assert!(occupied(directory.path()).unwrap());
        assert!(!occupied(&directory.path().join("nowhere")).unwrap());
        let error = DirectoryLock::take(&directory.path().join("nowhere")).unwrap_err();
        assert!(matches!(error, TrainError::Write { .. }), "{error}");
    }
}
