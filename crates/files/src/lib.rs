//! Whole-file writes: atomic replacement where possible, in place elsewhere. The [`text`] of files that were read.
//!
//! [`write_whole`] is for user-supplied paths. [`write_synced`], [`replace`] and [`sync_directory`] are its building
//! blocks, for code that manages its own directory, such as checkpoints.

mod place;
#[cfg(test)]
mod tests;
pub mod text;

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use place::Place;

/// The README example is a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Writes a whole file, creating missing parent folders.
///
/// - A new file, or one with a single hard link: a reader, or the next start after a crash, sees the old content or the
///   new, never half of it. Mode and owner of an existing file are kept.
/// - A symbolic link is followed, even to a file that does not exist yet.
/// - A file with several hard links, one whose owner could not be kept, and one in a folder that accepts no new files
///   are written in place.
/// - A pipe, a device and an open descriptor (`/dev/stdout`, `/dev/fd/3`) are written through.
///
/// # Errors
/// A directory, a write-protected file, and other system errors, with the path in the message. After an error, a file
/// that would have been replaced atomically is unchanged, and no temporary file is left.
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
            // Only for the path itself: a dangling link may point to a disk that is not mounted.
            if target == path {
                fs::create_dir_all(folder(path))?;
            }
            put(&target, content, None)
        }
        Place::File(target, metadata) => {
            // A rename would bypass the file's write protection. Opened by the given path, so that the system checks
            // the links on the way.
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

/// Creates or truncates a file, writes it and syncs it to disk.
///
/// # Errors
/// System errors.
pub fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    fill(&mut File::create(path)?, content)
}

/// Atomically replaces whatever has that name, synced to disk: a link is replaced, not followed. Mode and owner of an
/// existing file are kept where the system allows it.
///
/// # Errors
/// System errors; the old file is then unchanged, and no temporary file is left.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let old = fs::symlink_metadata(path).ok().filter(Metadata::is_file);
    match put(path, content, old.as_ref()) {
        Err(error) if is_owner(&error) => put(path, content, None),
        result => result,
    }
}

/// Syncs the names in a directory to disk. Does nothing where directories cannot be synced.
///
/// # Errors
/// System errors.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    match File::open(path) {
        // A directory may be writable but not readable.
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

/// Marks that the owner of a file could not be transferred.
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

/// Whether a file can only be written in place: the owner cannot be kept, the folder accepts no new files, or the file
/// is a mount point, as in containers.
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

/// Writes a temporary file next to the target, then renames it. It gets the mode and owner of `old`.
fn put(target: &Path, content: &[u8], old: Option<&Metadata>) -> io::Result<()> {
    let (mut file, temporary) = temporary(folder(target), old.is_some())?;
    let written = fill_as(&mut file, content, old).and_then(|()| fs::rename(&temporary, target));
    if let Err(error) = written {
        // Only the first error is worth reporting.
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

/// A new file in a folder, with a unique name; readable only by its owner if `hidden`.
fn temporary(folder: &Path, hidden: bool) -> io::Result<(File, PathBuf)> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    place::hide(&mut options, hidden);
    loop {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        // Not derived from the target's name, which may already have the maximum length.
        let path = folder.join(format!(".regard-{}-{number}.tmp", std::process::id()));
        match options.open(&path) {
            // Left by a killed process, or by one on another machine.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return Ok((opened?, path)),
        }
    }
}

/// Writes an empty file and syncs it to disk.
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

/// Ignores the error of files that cannot be synced, such as pipes.
fn unless_unsupported(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        other => other,
    }
}
