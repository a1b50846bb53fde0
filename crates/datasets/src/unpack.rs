//! Archives: zip and tar, the latter plain or by gzip. Other files are taken as they are.

use std::{
    fs::{self, File},
    io::{self, BufReader},
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;

use crate::Error;

/// Kinds of archives.
#[derive(Clone, Copy)]
enum Kind {
    Zip,
    Tar,
    /// By gzip.
    PackedTar,
}

/// The kind of an archive and its name without the ending that tells it; `None` for what is no archive.
fn archive(name: &str) -> Option<(Kind, &str)> {
    let kinds = [(".zip", Kind::Zip), (".tar.gz", Kind::PackedTar), (".tgz", Kind::PackedTar), (".tar", Kind::Tar)];
    let lower = name.to_ascii_lowercase();
    let (ending, kind) = kinds.into_iter().find(|(ending, _)| lower.ends_with(ending))?;
    Some((kind, &name[..name.len() - ending.len()]))
}

/// The name of an archive without its ending; `None` for what is no archive.
pub(crate) fn stem(name: &str) -> Option<&str> {
    archive(name).map(|(_, stem)| stem)
}

/// Unpacks the archive at a path, which is called `name`, into a folder; what is no archive is moved or, if it is to be `kept`, copied
/// there.
pub(crate) fn unpack(path: &Path, name: &str, folder: &Path, kept: bool) -> Result<(), Error> {
    let open = || File::open(path).map(BufReader::new).map_err(Error::reading(path));
    match archive(name) {
        Some((Kind::Zip, _)) => zip(path, folder),
        Some((Kind::PackedTar, _)) => tar(path, GzDecoder::new(open()?), folder),
        Some((Kind::Tar, _)) => tar(path, open()?, folder),
        None => {
            let target = folder.join(name);
            if target.exists() {
                return Err(twice(path, &target));
            }
            let moved = if kept { fs::copy(path, &target).map(drop) } else { fs::rename(path, &target) };
            moved.map_err(Error::writing(&target))
        }
    }
}

fn broken(archive: &Path, problem: impl Into<String>) -> Error {
    Error::Archive { path: archive.to_path_buf(), problem: problem.into() }
}

fn twice(archive: &Path, file: &Path) -> Error {
    Error::Twice { path: archive.to_path_buf(), name: file.file_name().unwrap_or_default().to_os_string() }
}

fn zip(archive: &Path, folder: &Path) -> Result<(), Error> {
    let file = File::open(archive).map_err(Error::reading(archive))?;
    let unsound = |error: zip::result::ZipError| broken(archive, format!("not a sound zip archive ({error})"));
    let mut zip = zip::ZipArchive::new(BufReader::new(file)).map_err(unsound)?;
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).map_err(unsound)?;
        let Some(name) = entry.enclosed_name() else {
            let named = String::from_utf8_lossy(entry.name_raw()).into_owned();
            return Err(broken(archive, format!("it names '{named}', a file outside its folder")));
        };
        let target = folder.join(name);
        if entry.is_dir() {
            fs::create_dir_all(&target).map_err(Error::writing(&target))?;
        } else if entry.is_file() {
            let mut out = create(&target, archive)?;
            copy(&mut entry, &mut out, archive, &target)?;
        }
    }
    Ok(())
}

fn tar(archive: &Path, source: impl io::Read, folder: &Path) -> Result<(), Error> {
    let unsound = |error: io::Error| broken(archive, format!("not a sound tar archive ({error})"));
    let mut tar = tar::Archive::new(source);
    for entry in tar.entries().map_err(unsound)? {
        let mut entry = entry.map_err(unsound)?;
        let name: PathBuf = entry.path().map_err(unsound)?.into_owned();
        let outside = name.is_absolute() || name.components().any(|part| part == std::path::Component::ParentDir);
        if outside {
            return Err(broken(archive, format!("it names '{}', a file outside its folder", name.display())));
        }
        let target = folder.join(&name);
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            fs::create_dir_all(&target).map_err(Error::writing(&target))?;
        } else if kind.is_file() {
            // Links and devices have no place in a data set.
            let mut out = create(&target, archive)?;
            copy(&mut entry, &mut out, archive, &target)?;
        }
    }
    Ok(())
}

/// A new file, for an entry of the archive.
fn create(path: &Path, archive: &Path) -> Result<File, Error> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::writing(folder))?;
    }
    File::create_new(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => twice(archive, path),
        _ => Error::writing(path)(error),
    })
}

/// Copies, and tells a broken archive from a full disk.
fn copy(from: &mut dyn io::Read, to: &mut File, archive: &Path, target: &Path) -> Result<(), Error> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match from.read(&mut buffer).map_err(|error| broken(archive, format!("cut off or damaged ({error})")))? {
            0 => return Ok(()),
            count => io::Write::write_all(to, &buffer[..count]).map_err(Error::writing(target))?,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use super::*;

    pub fn zipped(files: &[(&str, &str)]) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        for (name, text) in files {
            zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    fn tarred(name: &str, text: &str) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        // `set_path` would refuse what a hostile archive has.
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(text.len() as u64);
        header.set_cksum();
        let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        tar.append(&header, text.as_bytes()).unwrap();
        tar.into_inner().unwrap().finish().unwrap()
    }

    fn try_unpack(bytes: &[u8], name: &str) -> (tempfile::TempDir, Result<(), String>) {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive");
        fs::write(&archive, bytes).unwrap();
        let into = folder.path().join("into");
        fs::create_dir(&into).unwrap();
        let result = unpack(&archive, name, &into, false).map_err(|error| error.to_string());
        (folder, result)
    }

    #[test]
    fn no_file_replaces_another() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one.zip"), folder.path().join("two.zip"));
        fs::write(&one, zipped(&[("news.tsv", "1")])).unwrap();
        fs::write(&two, zipped(&[("news.tsv", "2")])).unwrap();
        let into = folder.path().join("into");
        fs::create_dir(&into).unwrap();
        unpack(&one, "one.zip", &into, true).unwrap();
        for (path, name) in [(&two, "two.zip"), (&two, "news.tsv")] {
            let error = unpack(path, name, &into, true).unwrap_err().to_string();
            assert!(error.contains("two.zip: has another news.tsv"), "{error}");
        }
        assert_eq!(fs::read_to_string(into.join("news.tsv")).unwrap(), "1");
        assert_eq!(["a.tar.gz", "A.ZIP", "a.txt.gz"].map(stem), [Some("a"), Some("A"), None]);
    }

    #[test]
    fn archives_are_unpacked_and_other_files_moved() {
        let long = "text ".repeat(10_000);
        for (bytes, name) in [(zipped(&[("a/b.txt", &long)]), "x.zip"), (tarred("a/b.txt", &long), "x.tar.gz")] {
            let (folder, result) = try_unpack(&bytes, name);
            result.unwrap();
            assert_eq!(fs::read_to_string(folder.path().join("into/a/b.txt")).unwrap(), long);
        }
        let (folder, result) = try_unpack(b"plain", "plain.txt.gz");
        result.unwrap();
        assert_eq!(fs::read(folder.path().join("into/plain.txt.gz")).unwrap(), b"plain");
    }

    #[test]
    fn hostile_and_broken_archives_are_refused() {
        for (bytes, name) in [(zipped(&[("../out.txt", "x")]), "x.zip"), (tarred("../out.txt", "x"), "x.tgz")] {
            let (folder, result) = try_unpack(&bytes, name);
            assert!(result.unwrap_err().contains("outside its folder"), "{name}");
            assert!(!folder.path().join("out.txt").exists());
        }
        let text = (0..5000).map(|i| i.to_string()).collect::<String>();
        for (bytes, name) in [(zipped(&[("a.txt", &text)]), "x.zip"), (tarred("a.txt", &text), "x.tar.gz")] {
            let (_folder, result) = try_unpack(&bytes[..bytes.len() / 2], name);
            let problem = result.unwrap_err();
            assert!(problem.contains("archive: ") && problem.ends_with("fetch it again"), "{problem}");
        }
    }
}
