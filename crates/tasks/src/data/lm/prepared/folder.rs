//! A prepared folder in the making: beside the folder to be, and renamed when it is whole.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use regard_files::{sync_directory, write_synced};

use super::{FILES, HEADER, PrepareError, SUMS};
use crate::train::DirectoryLock;

/// The file of [`DirectoryLock`].
const LOCK: &str = ".lock";

/// The folder in the making. Dropped before it is whole, it goes.
#[derive(Debug)]
pub(super) struct Making {
    out: PathBuf,
    part: PathBuf,
    /// Held until the end, and past the renaming.
    lock: Option<DirectoryLock>,
}

/// A folder beside `out`, named after it.
fn beside(out: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(out.file_name().unwrap_or_default());
    name.push(ending);
    out.with_file_name(name)
}

/// Names in a folder; none if there is no folder.
fn names(folder: &Path) -> Result<Vec<OsString>, PrepareError> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(PrepareError::writing(folder)(error)),
        Ok(entries) => {
            let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name());
            entries.map(name).collect::<io::Result<_>>().map_err(PrepareError::writing(folder))
        }
    }
}

/// Removes what this program writes to a folder.
fn clear(folder: &Path) -> io::Result<()> {
    for name in FILES {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes a folder, unless others have put something there.
fn remove(folder: &Path) -> io::Result<()> {
    clear(folder)?;
    // Of a process that was killed when the folder had just got its name.
    let _ = fs::remove_file(folder.join(LOCK));
    fs::remove_dir(folder)
}

impl Making {
    /// Begins a folder that is to be at `out`.
    ///
    /// # Errors
    /// `out` is there, but for an empty folder, and is not to be overwritten or holds other files; another process makes it;
    /// nothing can be written.
    pub fn begin(out: &Path, overwrite: bool) -> Result<Self, PrepareError> {
        let refuse = |problem: &str| Err(PrepareError::Folder { path: out.into(), problem: problem.into() });
        if out.file_name().is_none() {
            return refuse("is no name of a folder; give one that need not exist");
        }
        if out.exists() && !out.is_dir() {
            return refuse("is a file, expected the name of a folder; choose another");
        }
        let there: Vec<_> = names(out)?.into_iter().filter(|name| name != LOCK).collect();
        if there.iter().any(|name| !FILES.iter().any(|own| name == own)) {
            return refuse("holds files that are not of a prepared text; choose another folder");
        }
        if !there.is_empty() && !overwrite {
            return refuse("holds a prepared text; choose another folder, or replace it with --overwrite");
        }
        let part = beside(out, ".part");
        fs::create_dir_all(&part).map_err(PrepareError::writing(&part))?;
        let lock = Some(DirectoryLock::take(&part)?);
        let making = Self { out: out.into(), part, lock };
        // What a process left that was killed.
        for name in names(&making.part)?.iter().filter(|name| *name != LOCK) {
            let path = making.part.join(name);
            if !FILES.iter().any(|own| name == own) {
                let problem =
                    "is not of a prepared text, but where one is made; move it away, or choose another folder";
                return Err(PrepareError::Folder { path, problem: problem.into() });
            }
            fs::remove_file(&path).map_err(PrepareError::writing(&path))?;
        }
        Ok(making)
    }

    /// The path of a file in the making.
    pub fn path(&self, name: &str) -> PathBuf {
        self.part.join(name)
    }

    /// Writes a small file.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), PrepareError> {
        let path = self.path(name);
        write_synced(&path, content).map_err(PrepareError::writing(&path))
    }

    /// Gives the folder its name. What had it before goes; where the program is killed at this moment, it stands beside, with
    /// the ending `.old`.
    pub fn finish(mut self) -> Result<(), PrepareError> {
        let failed = PrepareError::writing;
        sync_directory(&self.part).map_err(failed(&self.part))?;
        let old = beside(&self.out, ".old");
        let replaces = self.out.exists();
        if replaces {
            if old.exists() {
                remove(&old).map_err(failed(&old))?;
            }
            fs::rename(&self.out, &old).map_err(failed(&self.out))?;
        }
        if let Err(error) = fs::rename(&self.part, &self.out) {
            if replaces {
                let _ = fs::rename(&old, &self.out);
            }
            return Err(failed(&self.out)(error));
        }
        // The lock has moved with its folder.
        if self.lock.take().is_some() {
            let _ = fs::remove_file(self.out.join(LOCK));
        }
        if replaces {
            remove(&old).map_err(failed(&old))?;
        }
        let parent = self.out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sync_directory(parent).map_err(failed(parent))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        // Without a lock the folder is another's, or it has its name.
        if let Some(lock) = self.lock.take() {
            let _ = clear(&self.part);
            drop(lock);
            let _ = fs::remove_dir(&self.part);
        }
    }
}

/// What a folder must have to be taken for a prepared one.
pub(in crate::data) fn is_prepared(folder: &Path) -> bool {
    folder.join(HEADER).is_file()
}

/// The content of `SHA256SUMS`, as `sha256sum` reads it.
pub(super) fn sums<'a>(files: impl Iterator<Item = (&'a String, &'a str)>) -> String {
    debug_assert!(FILES.contains(&SUMS));
    files.map(|(name, sha256)| format!("{sha256}  {name}\n")).collect()
}
