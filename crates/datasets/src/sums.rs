//! SHA-256 of files, and files of them as `sha256sum` writes and reads them.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::Error;

/// The file with the sums of all others of a folder.
pub const MANIFEST: &str = "SHA256SUMS";

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It is not there.
    Missing,
    /// It is not what it was.
    Changed {
        /// Its SHA-256.
        seen: String,
    },
}

/// SHA-256 of a file in hexadecimal digits; `progress` is told the bytes read each time.
pub(crate) fn sum(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<String, Error> {
    let mut file = File::open(path).map_err(Error::reading(path))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(Error::reading(path))? {
            0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            count => {
                hash.update(&buffer[..count]);
                progress(count as u64);
            }
        }
    }
}

/// Every file below a folder, by its path from there, in order.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    fn walk(folder: &Path, below: &Path, found: &mut Vec<PathBuf>) -> Result<(), Error> {
        for entry in fs::read_dir(folder).map_err(Error::reading(folder))? {
            let entry = entry.map_err(Error::reading(folder))?;
            let name = below.join(entry.file_name());
            let kind = entry.file_type().map_err(Error::reading(&entry.path()))?;
            if kind.is_dir() {
                walk(&entry.path(), &name, found)?;
            } else {
                found.push(name);
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    walk(folder, Path::new(""), &mut found)?;
    found.retain(|path| path != Path::new(MANIFEST));
    found.sort();
    Ok(found)
}

/// Writes the sums of every file of a folder into it. Returns how many there are and their bytes.
pub(crate) fn write_manifest(folder: &Path, progress: &mut dyn FnMut(u64)) -> Result<(usize, u64), Error> {
    let (mut text, mut bytes) = (String::new(), 0);
    let files = files(folder)?;
    for name in &files {
        let path = folder.join(name);
        let digest = sum(&path, &mut |count| {
            bytes += count;
            progress(count);
        })?;
        text += &format!("{digest}  {}\n", name.to_string_lossy().replace('\\', "/"));
    }
    let path = folder.join(MANIFEST);
    regard_files::write_whole(&path, text.as_bytes()).map_err(Error::writing(&path))?;
    Ok((files.len(), bytes))
}

/// Holds a folder to its file of sums. Returns how many files were looked at, and what is wrong with which.
///
/// # Errors
/// No file of sums, or one that is none; files that cannot be read.
pub fn verify(folder: &Path, progress: &mut dyn FnMut(u64)) -> Result<(usize, Vec<(PathBuf, Finding)>), Error> {
    let path = folder.join(MANIFEST);
    let text = fs::read_to_string(&path).map_err(Error::reading(&path))?;
    let (mut count, mut wrong) = (0, Vec::new());
    for (line, seen) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let named = seen.split_once(' ').filter(|(digest, _)| digest.len() == 64 && digest.is_ascii());
        let Some((digest, name)) = named else {
            return Err(Error::Manifest { path, line: line + 1, seen: seen.chars().take(80).collect() });
        };
        // A star marks what was read as binary.
        let name = PathBuf::from(name.trim_start_matches([' ', '*']).trim_start_matches("./"));
        count += 1;
        let file = folder.join(&name);
        if !file.is_file() {
            wrong.push((name, Finding::Missing));
            continue;
        }
        let seen = sum(&file, progress)?;
        if !seen.eq_ignore_ascii_case(digest) {
            wrong.push((name, Finding::Changed { seen }));
        }
    }
    if count == 0 {
        return Err(Error::Manifest { path, line: 1, seen: String::new() });
    }
    Ok((count, wrong))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_held_to() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a.txt", "abc");
        write("below/b.txt", "");
        assert_eq!(write_manifest(folder.path(), &mut |_| ()).unwrap(), (2, 3));
        // Sums that `sha256sum` prints for "abc" and for nothing.
        let text = fs::read_to_string(folder.path().join(MANIFEST)).unwrap();
        let sums = [
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a.txt\n",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  below/b.txt\n",
        ];
        assert_eq!(text, sums.concat());
        assert_eq!(verify(folder.path(), &mut |_| ()).unwrap(), (2, vec![]));
        write("a.txt", "abd");
        fs::remove_file(folder.path().join("below/b.txt")).unwrap();
        let (count, wrong) = verify(folder.path(), &mut |_| ()).unwrap();
        assert_eq!((count, wrong.len()), (2, 2));
        assert!(matches!(&wrong[0], (name, Finding::Changed { .. }) if name == Path::new("a.txt")));
        assert_eq!(wrong[1], ("below/b.txt".into(), Finding::Missing));
    }

    #[test]
    fn a_file_of_something_else_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(verify(folder.path(), &mut |_| ()).unwrap_err().to_string().contains(MANIFEST));
        fs::write(folder.path().join(MANIFEST), "\nnot a sum\n").unwrap();
        let error = verify(folder.path(), &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("line 2 is 'not a sum'"), "{error}");
        fs::write(folder.path().join(MANIFEST), "\n").unwrap();
        assert!(verify(folder.path(), &mut |_| ()).is_err(), "no sum says nothing");
    }
}
