//! What can go wrong.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a set is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write {}: {source}; choose another folder or free some space", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Not the published file.
    #[error("{}: its SHA-256 is {seen}, expected {expected}; fetch it again, or from another mirror", path.display())]
    Sum {
        /// The file.
        path: PathBuf,
        /// Of the file.
        seen: String,
        /// As published.
        expected: String,
    },
    /// An archive that cannot be unpacked, or names files outside its folder.
    #[error("{}: {problem}; fetch it again", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A file of a name that another one had, of the same set.
    #[error("{}: has another {}, and no file may replace another; bring files of different names", path.display(), name.display())]
    Twice {
        /// The archive or file.
        path: PathBuf,
        /// The name.
        name: std::ffi::OsString,
    },
    /// A file with sums that cannot be read as one.
    #[error("{}: line {line} is '{seen}', expected a SHA-256 and a file name, as sha256sum writes them", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The line.
        seen: String,
    },
    /// The set is there.
    #[error("{} is there; remove it to fetch the set again", path.display())]
    There {
        /// Its folder.
        path: PathBuf,
    },
    /// What the user has to do: nothing was given, and nothing can be fetched.
    #[error("{0}")]
    ByHand(String),
    /// No answer, or not the file.
    #[error("{url}: {problem}; check the network, name a mirror with --mirror, or give the file with --from-file")]
    Network {
        /// The address.
        url: String,
        /// What went wrong.
        problem: String,
    },
}

impl Error {
    pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        |source| Self::Read { path, source }
    }

    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        |source| Self::Write { path, source }
    }
}
