//! Files that are whole or not there.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes a file under a temporary name beside it, then renames it: a reader sees the old content or the new, never
/// half of it. Creates missing folders.
///
/// # Errors
/// Those of the file system, with the path in the message; the temporary file is removed.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let told = |error: io::Error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()));
    let Some(name) = path.file_name() else {
        return Err(told(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file")));
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(told)?;
    }
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}-{}.tmp", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)));
    let temporary = path.with_file_name(temporary);
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&temporary, path));
    renamed.map_err(|error| {
        // The error above is the one worth reporting.
        let _ = fs::remove_file(&temporary);
        told(error)
    })
}
