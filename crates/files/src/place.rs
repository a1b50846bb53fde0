//! Where a path leads.

use std::{
    ffi::OsStr,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

/// Maximum number of links to follow before assuming a loop, as in Linux.
const LINKS: usize = 40;

/// Target of a path, with links followed.
pub(crate) enum Place {
    /// Nothing yet.
    New(PathBuf),
    /// A regular file.
    File(PathBuf, Metadata),
    /// A pipe, a device or an open file of another process: opened, never replaced.
    Special,
    /// An open descriptor.
    Descriptor(File),
}

impl Place {
    pub fn of(path: &Path) -> io::Result<Self> {
        let mut path = path.to_path_buf();
        for _ in 0..=LINKS {
            match Descriptor::named(&path) {
                Some(Descriptor::Own(number)) => return duplicate(number).map(Self::Descriptor),
                Some(Descriptor::Other) => return Ok(Self::Special),
                None => {}
            }
            let metadata = match fs::symlink_metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::New(path)),
                Err(error) => return Err(error),
            };
            if metadata.is_symlink() {
                path = super::folder(&path).join(fs::read_link(&path)?);
            } else if metadata.is_dir() {
                return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory, expected the name of a file"));
            } else if metadata.is_file() {
                return Ok(Self::File(path, metadata));
            } else {
                return Ok(Self::Special);
            }
        }
        Err(io::Error::other(format!("more than {LINKS} links lead from one to the next")))
    }
}

/// A path that names an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Descriptor {
    /// Of this process.
    Own(i32),
    /// Of another one.
    Other,
}

impl Descriptor {
    /// `/dev/stdout`, `/dev/stderr`, `/dev/fd/N`, and `N` in a `/proc/PID/fd`, however it is reached.
    fn named(path: &Path) -> Option<Self> {
        let place = fs::canonicalize(super::folder(path)).ok()?;
        let folder: Vec<&str> = place.iter().map(OsStr::to_str).collect::<Option<_>>()?;
        let name = path.file_name()?.to_str()?;
        match (&folder[..], name) {
            (["/", "dev"], "stdout") => Some(Self::Own(1)),
            (["/", "dev"], "stderr") => Some(Self::Own(2)),
            (["/", "dev", "fd"], _) => name.parse().ok().map(Self::Own),
            // Ask the system for the process number: in a container it may differ from the one this process sees.
            (["/", "proc", _, .., "fd"], _) => Some(match (fs::canonicalize("/proc/self"), name.parse()) {
                (Ok(own), Ok(number)) if place.starts_with(&own) => Self::Own(number),
                _ => Self::Other,
            }),
            _ => None,
        }
    }
}

/// A duplicate of the descriptor: it shares file position and append mode, and works for sockets too.
#[cfg(unix)]
fn duplicate(number: i32) -> io::Result<File> {
    use std::os::fd::{FromRawFd, OwnedFd};

    // SAFETY: `fcntl` takes any number; one that is not open is an error.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fcntl` has just opened it, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) }.into())
}

#[cfg(not(unix))]
fn duplicate(_: i32) -> io::Result<File> {
    Err(ErrorKind::Unsupported.into())
}

/// Number of hard links of a file.
#[cfg(unix)]
pub(crate) fn names(metadata: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(metadata)
}

#[cfg(not(unix))]
pub(crate) fn names(_: &Metadata) -> u64 {
    1
}

/// Restricts a file to be created to its owner.
#[cfg(unix)]
pub(crate) fn hide(options: &mut OpenOptions, hidden: bool) {
    use std::os::unix::fs::OpenOptionsExt;

    if hidden {
        options.mode(0o600);
    }
}

#[cfg(not(unix))]
pub(crate) fn hide(_: &mut OpenOptions, _: bool) {}

/// Copies owner and mode from another file.
#[cfg(unix)]
pub(crate) fn take_after(file: &File, old: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
        fchown(file, Some(old.uid()), Some(old.gid())).map_err(|_| io::Error::other(super::Owner))?;
    }
    // After the owner, since changing it clears mode bits.
    if file.metadata()?.mode() == old.mode() {
        return Ok(());
    }
    file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o7777))
}

#[cfg(not(unix))]
pub(crate) fn take_after(_: &File, _: &Metadata) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_standard_streams_are_known_by_their_names() {
        let named = |path: &str| Descriptor::named(Path::new(path));
        for (path, number) in [("/dev/stdout", 1), ("/dev/../dev/stderr", 2), ("/dev/fd/3", 3), ("/proc/self/fd/4", 4)]
        {
            assert_eq!(named(path), Some(Descriptor::Own(number)), "{path}");
        }
        for path in ["/dev/null", "/dev/stdoutput", "stdout", "/proc/self/status"] {
            assert_eq!(named(path), None, "{path}");
        }
        assert_eq!(named("/proc/self/fd/none"), Some(Descriptor::Other));
    }
}
