//! The folder of all sets: what is there, and how a set comes to be there.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    CATALOGUE, Dataset, Download, Error, MANIFEST, source,
    sums::{files, sum, write_manifest},
    unpack::{stem, unpack},
};

/// The folder of all sets, a folder each.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

/// Whether a set is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is not.
    Absent,
    /// Part of a download is.
    Begun {
        /// Bytes of it.
        bytes: u64,
    },
    /// It is.
    There {
        /// Number of its files.
        files: usize,
        /// Their bytes.
        bytes: u64,
    },
}

/// A set that was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Its folder.
    pub folder: PathBuf,
    /// Number of its files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Files that it was made from, with the SHA-256 that was seen.
    pub from: Vec<(String, String)>,
}

/// Told what is done, how many bytes of it, and of how many, if known.
pub type Progress<'a> = &'a dyn Fn(&str, u64, Option<u64>);

impl Store {
    /// The sets below a folder, which need not be there.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The folder of a set.
    pub fn path(&self, set: &Dataset) -> PathBuf {
        self.folder.join(set.name)
    }

    /// Where a set is in the making.
    fn part(&self, set: &Dataset) -> PathBuf {
        self.folder.join(format!("{}.part", set.name))
    }

    /// Whether a set is there.
    pub fn state(&self, set: &Dataset) -> State {
        let size = |folder: &Path| {
            let files = files(folder).unwrap_or_default();
            let bytes = files.iter().filter_map(|name| Some(fs::metadata(folder.join(name)).ok()?.len())).sum();
            (files.len(), bytes)
        };
        let (folder, part) = (self.path(set), self.part(set));
        if folder.join(MANIFEST).is_file() {
            let (files, bytes) = size(&folder);
            State::There { files, bytes }
        } else if part.is_dir() {
            State::Begun { bytes: size(&part).1 }
        } else {
            State::Absent
        }
    }

    /// Fetches a set, or takes it from the files `given`, by their names; unpacks archives; writes the sums of all files.
    /// `mirror` is the address of a folder of files of the same names.
    ///
    /// # Errors
    /// A set that is there, or has to be brought by hand and was not; a file that is not the published one; archives that
    /// cannot be unpacked; a network or disk that fails. What was downloaded is kept, and nothing else.
    pub fn fetch(
        &self,
        set: &Dataset,
        given: &[PathBuf],
        mirror: Option<&str>,
        progress: Progress<'_>,
    ) -> Result<Fetched, Error> {
        let (folder, part) = (self.path(set), self.part(set));
        if folder.exists() {
            return Err(Error::There { path: folder });
        }
        let sources = self.sources(set, given)?;
        Self::make(sources, &folder, &part, mirror, progress).inspect_err(|_| {
            // Only what was downloaded stays; a folder that is not empty is not removed.
            let _ = remove(&part.join("files"));
            let _ = fs::remove_dir(&part);
        })
    }

    /// Makes the folder of a set in `part`, and renames it.
    fn make(
        sources: Vec<Source>,
        folder: &Path,
        part: &Path,
        mirror: Option<&str>,
        progress: Progress<'_>,
    ) -> Result<Fetched, Error> {
        let made = part.join("files");
        remove(&made)?;
        fs::create_dir_all(&made).map_err(Error::writing(&made))?;
        let mut from = Vec::new();
        // Archives that a person brings have files of the same names, as those of a training and of a test split.
        let apart = sources.len() > 1 && sources.iter().all(|source| source.file.is_none());
        for Source { name, path, file } in sources {
            let fetched = path.is_none();
            let path = path.unwrap_or_else(|| part.join(name.as_str()));
            let file = file.as_ref();
            if let (true, Some(file)) = (fetched, file) {
                source::fetch(file, mirror, &path, &mut |done, total| progress(&name, done, total))?;
            }
            let mut read = 0;
            let total = fs::metadata(&path).map_err(Error::reading(&path))?.len();
            let seen = sum(&path, &mut |count| {
                read += count;
                progress(&format!("checking {name}"), read, Some(total));
            })?;
            if let Some(file) = file.filter(|file| file.sha256 != seen) {
                if fetched {
                    // It would only be gone on with.
                    fs::remove_file(&path).map_err(Error::writing(&path))?;
                }
                return Err(Error::Sum { path, seen, expected: file.sha256.into() });
            }
            progress(&format!("unpacking {name}"), total, Some(total));
            let into = match stem(&name) {
                Some(own) if apart => made.join(own),
                _ => made.clone(),
            };
            fs::create_dir_all(&into).map_err(Error::writing(&into))?;
            unpack(&path, &name, &into, !fetched)?;
            from.push((name, seen));
        }
        let mut read = 0;
        let (files, bytes) = write_manifest(&made, &mut |count| {
            read += count;
            progress("writing sums", read, None);
        })?;
        fs::rename(&made, folder).map_err(Error::writing(folder))?;
        remove(part)?;
        Ok(Fetched { folder: folder.to_path_buf(), files, bytes, from })
    }

    /// The files that make a set, each from a path, or to be fetched.
    fn sources(&self, set: &Dataset, given: &[PathBuf]) -> Result<Vec<Source>, Error> {
        let named =
            |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if set.downloads.is_empty() {
            if given.is_empty() {
                return Err(Error::ByHand(self.advice(set)));
            }
            return Ok(given
                .iter()
                .map(|path| Source { name: named(path), path: Some(path.clone()), file: None })
                .collect());
        }
        let single = set.downloads.len() == 1 && given.len() == 1;
        let source = |file: &Download| {
            let path = given.iter().find(|path| single || named(path) == file.name);
            if path.is_none() && !source::CAN_FETCH {
                return Err(Error::ByHand(self.advice(set)));
            }
            Ok(Source { name: file.name.into(), path: path.cloned(), file: Some(*file) })
        };
        set.downloads.iter().map(source).collect()
    }

    /// What to do where a set cannot be fetched, in one sentence.
    pub fn advice(&self, set: &Dataset) -> String {
        let name = set.name;
        if set.downloads.is_empty() {
            return format!(
                "{name} has to be brought by hand: get {}, then run 'regard data fetch {name} --from-file FILE' for each \
                 of its files in one call",
                set.by_hand
            );
        }
        let files: Vec<String> =
            set.downloads.iter().map(|file| format!("{} (SHA-256 {})", file.urls[0], file.sha256)).collect();
        format!(
            "this build does not fetch: get {} by other means and run 'regard data fetch {name} --from-file FILE', or \
             build with --features fetch",
            files.join(", ")
        )
    }

    /// Every set with its state.
    pub fn states(&self) -> impl Iterator<Item = (&'static Dataset, State)> + '_ {
        CATALOGUE.iter().map(|set| (set, self.state(set)))
    }
}

/// A file that a set is made from.
struct Source {
    name: String,
    /// Where it is, if it was given.
    path: Option<PathBuf>,
    /// What is published of it.
    file: Option<Download>,
}

fn remove(folder: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::writing(folder)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{unpack::tests::zipped, verify};

    fn quiet(_: &str, _: u64, _: Option<u64>) {}

    /// A set of one archive and one file; the sums are those of the archive below, and of "abc".
    fn with_sums(archive: &str) -> Dataset {
        let file = |name, sha256: &str| Download {
            name,
            urls: &["https://127.0.0.1:9/nothing"],
            bytes: None,
            sha256: sha256.to_owned().leak(),
        };
        let plain = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        Dataset {
            name: "small",
            about: "a test",
            licence: "none",
            tasks: &["lm"],
            downloads: vec![file("a.zip", archive), file("b.txt", plain)].leak(),
            by_hand: "",
        }
    }

    #[test]
    fn a_set_is_made_of_files_at_hand_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("a.zip"), zipped(&[("in/one.txt", "1"), ("in/two.txt", "22")])).unwrap();
        fs::write(path("b.txt"), "abc").unwrap();
        let set = with_sums(&sum(&path("a.zip"), &mut |_| ()).unwrap());
        let store = Store::new(path("sets"));
        assert_eq!(store.state(&set), State::Absent);
        let given = [path("a.zip"), path("b.txt")];

        let other = Dataset { downloads: with_sums(&"0".repeat(64)).downloads, ..set };
        let error = store.fetch(&other, &given, None, &quiet).unwrap_err().to_string();
        assert!(error.contains("expected 0000") && error.contains("a.zip"), "{error}");
        assert!(!store.path(&set).exists());
        assert_eq!(store.state(&set), State::Absent);

        let fetched = store.fetch(&set, &given, None, &quiet).unwrap();
        assert_eq!((fetched.files, fetched.bytes, fetched.from.len()), (3, 6, 2));
        assert_eq!(store.state(&set), State::There { files: 3, bytes: 6 });
        assert_eq!(fs::read_to_string(fetched.folder.join("in/two.txt")).unwrap(), "22");
        assert_eq!(verify(&fetched.folder, &mut |_| ()).unwrap(), (3, vec![]));
        assert!(path("b.txt").exists(), "what was given stays");
        assert!(!path("sets/small.part").exists());
        let again = store.fetch(&set, &given, None, &quiet).unwrap_err().to_string();
        assert!(again.contains("small is there; remove it"), "{again}");
    }

    #[test]
    fn what_cannot_be_fetched_is_said_in_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().into());
        let lra = crate::find("lra").unwrap();
        let error = store.fetch(lra, &[], None, &quiet).unwrap_err().to_string();
        assert!(error.contains("by hand") && error.contains("--from-file"), "{error}");
        fs::write(folder.path().join("release.txt"), "x").unwrap();
        let fetched = store.fetch(lra, &[folder.path().join("release.txt")], None, &quiet).unwrap();
        assert_eq!(fetched.from[0].1, "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
        // Both logs of a person have the same names.
        let given = ["train", "dev"].map(|split| folder.path().join(format!("MINDsmall_{split}.zip")));
        for (path, text) in given.iter().zip(["1", "2"]) {
            fs::write(path, zipped(&[("news.tsv", text)])).unwrap();
        }
        let mind = store.fetch(crate::find("mind").unwrap(), &given, None, &quiet).unwrap().folder;
        let read = |split: &str| fs::read_to_string(mind.join(split).join("news.tsv")).unwrap();
        assert_eq!((read("MINDsmall_train").as_str(), read("MINDsmall_dev").as_str()), ("1", "2"));
        let store = Store::new(folder.path().join("others"));
        let absent = store.fetch(crate::find("mind").unwrap(), &["no.zip".into()], None, &quiet).unwrap_err();
        assert!(absent.to_string().starts_with("cannot read no.zip"), "{absent}");
    }

    #[cfg(not(feature = "fetch"))]
    #[test]
    fn a_build_without_network_names_address_and_sum() {
        let store = Store::new("nowhere".into());
        let error = store.fetch(crate::find("cifar10").unwrap(), &[], None, &quiet).unwrap_err().to_string();
        assert!(
            error.contains("cifar-10-binary.tar.gz (SHA-256 c4a3") && error.contains("--features fetch"),
            "{error}"
        );
    }

    /// A server that ends its first answer early: the download goes on where it stopped.
    #[cfg(feature = "fetch")]
    #[test]
    fn downloads_go_on_and_are_checked() {
        use std::{
            io::{BufRead, BufReader, Write},
            net::TcpListener,
        };
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("a.zip");
        let text = (0..100_000).map(|i| i.to_string()).collect::<String>();
        fs::write(&archive, zipped(&[("a.txt", &text)])).unwrap();
        let set = with_sums(&sum(&archive, &mut |_| ()).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mirror = format!("http://{}", listener.local_addr().unwrap());
        let bytes = fs::read(&archive).unwrap();
        let ranges = std::thread::spawn(move || {
            let mut ranges = Vec::new();
            for request in 0..3 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let first = lines.next().unwrap().unwrap();
                let rest: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                let range = rest
                    .iter()
                    .find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
                let body: &[u8] = if first.contains("b.txt") { b"abc" } else { &bytes };
                let from: usize = range.as_ref().map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
                let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
                let most = if request == 0 { body.len() / 2 } else { body.len() };
                write!(
                    stream,
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len() - from
                )
                .unwrap();
                stream.write_all(&body[from..most]).unwrap();
                ranges.push(from);
            }
            (ranges, bytes.len())
        });
        let store = Store::new(folder.path().join("sets"));
        let cut = store.fetch(&set, &[], Some(&mirror), &quiet).unwrap_err().to_string();
        assert!(cut.contains("cut off after"), "{cut}");
        assert!(matches!(store.state(&set), State::Begun { bytes } if bytes > 0));
        let fetched = store.fetch(&set, &[], Some(&mirror), &quiet).unwrap();
        assert_eq!(fs::read_to_string(fetched.folder.join("a.txt")).unwrap(), text);
        let (ranges, length) = ranges.join().unwrap();
        assert_eq!(ranges, [0, length / 2, 0]);
    }
}
