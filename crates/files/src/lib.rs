//! Whole files: replaced at once where that can be, written through where it cannot.
//!
//! [`write_whole`] is for paths that people name. [`write_synced`], [`replace`] and [`sync_directory`] are what it is made of,
//! for those who lay out a directory of their own, as checkpoints do.

mod place;
#[cfg(test)]
mod tests;

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use place::Place;

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Writes a whole file, and the folders above it where they are missing.
///
/// - A new file, or one with one name: a reader, or the next start after a crash, sees the old content or the new, never half
///   of it. Mode and owner of an old file stay.
/// - A link is followed, also one to a file that is yet to be made.
/// - A file with several names, one whose owner could not be kept, and one in a folder that takes no other file are written in
///   place.
/// - A pipe, a device and an open descriptor (`/dev/stdout`, `/dev/fd/3`) are written through.
///
/// # Errors
/// A directory, a file that is protected, and what else the system says, with the path in the message. A file that is replaced
/// at once is as it was then, and nothing is left beside it.
pub fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    write(path, content)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    if path.file_name().is_none() || ends_with_separator(path) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not the name of a file"));
    }
    match Place::of(path)? {
        Place::New(target) => {
            // Only those of the path itself: a link into nowhere may point at a disk that is not there.
            if target == path {
                fs::create_dir_all(folder(path))?;
            }
            put(&target, content, None)
        }
        Place::File(target, metadata) => {
            // A rename would pass over the protection of the file. By the path as it was given, so that the system judges the
            // links on the way.
            let mut file = OpenOptions::new().write(true).open(path)?;
            if place::names(&metadata) > 1 {
                return in_place(&mut file, content);
            }
            match put(&target, content, Some(&metadata)) {
                Err(error) if needs_place(&error) => in_place(&mut file, content),
                result => result,
            }
        }
        Place::Special => {
            let mut file = OpenOptions::new().write(true).open(path)?;
            if file.metadata()?.is_file() { in_place(&mut file, content) } else { through(&mut file, content) }
        }
        Place::Descriptor(mut file) => through(&mut file, content),
    }
}

/// Creates a file, or empties it, writes it and waits until the disk has it.
///
/// # Errors
/// What the system says.
pub fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    fill(&mut File::create(path)?, content)
}

/// Puts a file in the place of whatever has that name, at once and on the disk: a link is replaced, not followed. Mode and owner
/// of an old file stay where the system allows that.
///
/// # Errors
/// What the system says; the old file is as it was then, and nothing is left beside it.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let old = fs::symlink_metadata(path).ok().filter(Metadata::is_file);
    match put(path, content, old.as_ref()) {
        Err(error) if is_owner(&error) => put(path, content, None),
        result => result,
    }
}

/// Waits until the disk has the names in a directory. Does nothing where a directory cannot be asked for that.
///
/// # Errors
/// What the system says.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    match File::open(path) {
        // A directory may be written that may not be read.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
        Ok(directory) => unless_unsupported(directory.sync_all()),
    }
}

/// The folder of a file.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn ends_with_separator(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().last().is_some_and(|byte| std::path::is_separator(char::from(*byte)))
}

/// The owner of a file that cannot be given to another one.
#[derive(Debug)]
struct Owner;

impl std::fmt::Display for Owner {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("its owner cannot be kept")
    }
}

impl std::error::Error for Owner {}

fn is_owner(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Owner>())
}

/// Whether a file can only be written where it lies: the owner is another one's, the folder takes no other file, or the file
/// is a disk of its own, as containers have them.
fn needs_place(error: &io::Error) -> bool {
    is_owner(error)
        || matches!(
            error.kind(),
            ErrorKind::PermissionDenied
                | ErrorKind::ReadOnlyFilesystem
                | ErrorKind::ResourceBusy
                | ErrorKind::CrossesDevices
        )
}

/// Writes a temporary file beside the target, then gives it its name. It takes mode and owner of `old`.
fn put(target: &Path, content: &[u8], old: Option<&Metadata>) -> io::Result<()> {
    let (mut file, temporary) = temporary(folder(target), old.is_some())?;
    let written = fill_as(&mut file, content, old).and_then(|()| fs::rename(&temporary, target));
    if let Err(error) = written {
        // That error is the one worth telling.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_directory(folder(target))
}

fn fill_as(file: &mut File, content: &[u8], old: Option<&Metadata>) -> io::Result<()> {
    if let Some(old) = old {
        place::take_after(file, old)?;
    }
    fill(file, content)
}

/// A new file in a folder, of a name that nothing else has; for its owner alone if `hidden`.
fn temporary(folder: &Path, hidden: bool) -> io::Result<(File, PathBuf)> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    place::hide(&mut options, hidden);
    loop {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        // Not made of the target's name, which may be as long as names can be.
        let path = folder.join(format!(".regard-{}-{number}.tmp", std::process::id()));
        match options.open(&path) {
            // Of a process that was killed, or of one on another machine.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return Ok((opened?, path)),
        }
    }
}

/// Writes an empty file and waits until the disk has it.
fn fill(file: &mut File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)?;
    file.sync_all()
}

fn in_place(file: &mut File, content: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    fill(file, content)
}

fn through(file: &mut File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)?;
    unless_unsupported(file.sync_all())
}

/// What cannot be synced, such as a pipe, has nothing to wait for.
fn unless_unsupported(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        other => other,
    }
}
