//! Cache of generated sets on disk: one file per set, checked before use, replaced atomically.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{
    ClassificationData, DataError, GREYS, ListOpsConfig, PathfinderConfig, Progress, Sequences, listops, pathfinder,
};
use crate::digest::hexadecimal;

/// First bytes of every file.
const MAGIC: &[u8; 8] = b"regardds";

/// Version of the file format and the generator: increment when either changes.
const VERSION: u32 = 1;

/// Magic, version, parameters, number of sequences, number of symbols; integers are little-endian. Then come the labels
/// (u16), the lengths (u32), the symbols (u8) and the SHA-256 of everything before.
const HEADER: usize = 8 + 4 + 32 + 8 + 8;

/// The ListOps set, from the cache if present and intact.
pub fn load_listops(
    config: &ListOpsConfig,
    seed: u64,
    directory: Option<&Path>,
    progress: Progress<'_>,
) -> Result<ClassificationData, DataError> {
    let ListOpsConfig { depth, max_arguments, min_length, max_length, .. } = config;
    let total = config.total()?;
    let parameters = format!("{depth} {max_arguments} {min_length} {max_length} {total} {seed}");
    let set = Generated { name: "listops", parameters, classes: listops::CLASSES };
    let (trees, notes) = set.load(directory, || listops::generate(config, seed, progress))?;
    let [train, valid, test] = splits(trees, config.valid, config.test);
    let (vocabulary, first_id) = (listops::TOKENS.len() + 1, 1);
    let (classes, max_length) = (listops::CLASSES, config.max_length);
    Ok(ClassificationData {
        train,
        valid,
        test,
        classes,
        vocabulary,
        first_id,
        max_length,
        about: String::new(),
        units: None,
        notes,
    })
}

/// The Pathfinder set, from the cache if present and intact.
pub(super) fn load_pathfinder(
    config: &PathfinderConfig,
    seed: u64,
    directory: Option<&Path>,
    progress: Progress<'_>,
) -> Result<ClassificationData, DataError> {
    let (size, difficulty, total) = (config.size, config.difficulty.name(), config.total()?);
    let parameters = format!("{size} {difficulty} {total} {seed}");
    let set = Generated { name: "pathfinder", parameters, classes: pathfinder::CLASSES };
    let (pictures, notes) = set.load(directory, || pathfinder::generate(config, seed, progress))?;
    let [train, valid, test] = splits(pictures, config.valid, config.test);
    let (classes, max_length) = (pathfinder::CLASSES, config.tokens());
    Ok(ClassificationData {
        train,
        valid,
        test,
        classes,
        vocabulary: GREYS,
        first_id: 0,
        max_length,
        about: format!("{size} x {size} pixels, {difficulty}, {} for validation", config.valid),
        units: None,
        notes,
    })
}

/// Training, validation and test split of a set that holds the test first, then the validation.
fn splits(mut all: Sequences, valid: usize, test: usize) -> [Sequences; 3] {
    let (valid, test) = (all.slice(test..test + valid), all.slice(0..test));
    all.remove_first(valid.len() + test.len());
    [all, valid, test]
}

/// A set that its parameters determine.
struct Generated {
    /// The task's name.
    name: &'static str,
    /// Everything that determines the set, as text.
    parameters: String,
    /// Labels are `0 .. classes`.
    classes: usize,
}

impl Generated {
    /// The set from the cache, if present and intact, else generated and put there; and notes for the user.
    fn load(
        &self,
        directory: Option<&Path>,
        generate: impl FnOnce() -> Result<Sequences, DataError>,
    ) -> Result<(Sequences, Vec<String>), DataError> {
        let parameters = self.digest();
        let mut notes = Vec::new();
        let Some(path) = directory.map(|directory| directory.join(self.file_name(&parameters))) else {
            return Ok((generate()?, notes));
        };
        match read(&path, &parameters, self.classes) {
            Ok(Some(set)) => return Ok((set, notes)),
            Ok(None) => {}
            Err(problem) => notes.push(format!("{}: {problem}; generated the set anew", path.display())),
        }
        let set = generate()?;
        // A set that cannot be cached is still usable.
        if let Err(error) = regard_files::write_whole(&path, &encode(&parameters, &set)) {
            notes.push(format!("{error}; went on without the cache"));
        }
        Ok((set, notes))
    }

    /// Digest of everything that determines the set.
    fn digest(&self) -> [u8; 32] {
        Sha256::digest(format!("{} {VERSION} {}", self.name, self.parameters)).into()
    }

    fn file_name(&self, digest: &[u8; 32]) -> PathBuf {
        let digits = hexadecimal(&digest[..8]);
        format!("{}-{digits}.bin", self.name).into()
    }
}

/// The set in a file; `None` if there is no file.
///
/// # Errors
/// A description of what is wrong with the file.
fn read(path: &Path, parameters: &[u8; 32], classes: usize) -> Result<Option<Sequences>, String> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot be read ({error})")),
    };
    decode(&bytes, parameters, classes).map(Some)
}

fn decode(bytes: &[u8], parameters: &[u8; 32], classes: usize) -> Result<Sequences, String> {
    if !bytes.starts_with(MAGIC) {
        return Err("is not a file of this cache".into());
    }
    let Some((content, digest)) = bytes.split_last_chunk::<32>().filter(|(content, _)| content.len() >= HEADER) else {
        return Err(format!("is truncated to {} bytes", bytes.len()));
    };
    let number = |start: usize, bytes: usize| {
        content[start..start + bytes].iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte))
    };
    if number(8, 4) != u64::from(VERSION) {
        return Err(format!("has format {}, not {VERSION}", number(8, 4)));
    }
    if content[12..44] != parameters[..] {
        return Err("was made with other parameters".into());
    }
    if Sha256::digest(content)[..] != digest[..] {
        return Err("is damaged: its SHA-256 does not match its content".into());
    }
    let wrong = || "has sizes that do not fit its content".to_string();
    let (count, symbols) = (number(44, 8), number(52, 8));
    let expected = count.checked_mul(6).and_then(|n| n.checked_add(symbols)).ok_or_else(wrong)?;
    if (content.len() - HEADER) as u64 != expected {
        return Err(wrong());
    }
    let (labels, rest) = content[HEADER..].split_at(2 * count as usize);
    let (lengths, mut symbols) = rest.split_at(4 * count as usize);
    let mut set = Sequences::new(classes);
    for (label, length) in labels.as_chunks::<2>().0.iter().zip(lengths.as_chunks::<4>().0) {
        let (sequence, rest) = symbols.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(wrong)?;
        set.push(sequence, usize::from(u16::from_le_bytes(*label))).map_err(|error| error.to_string())?;
        symbols = rest;
    }
    Ok(set)
}

fn encode(parameters: &[u8; 32], set: &Sequences) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + 6 * set.len() + set.tokens() + 32);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(parameters);
    bytes.extend_from_slice(&(set.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(set.tokens() as u64).to_le_bytes());
    set.labels().for_each(|label| bytes.extend_from_slice(&(label as u16).to_le_bytes()));
    (0..set.len()).for_each(|i| bytes.extend_from_slice(&(set.length(i) as u32).to_le_bytes()));
    (0..set.len()).for_each(|i| bytes.extend_from_slice(set.symbols(i)));
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn config() -> ListOpsConfig {
        ListOpsConfig { min_length: 5, max_length: 40, train: 60, valid: 20, test: 30, ..ListOpsConfig::default() }
    }

    /// Loads and tells whether trees had to be generated.
    fn load(seed: u64, directory: Option<&Path>) -> (ClassificationData, bool) {
        let generated = Cell::new(false);
        let data = load_listops(&config(), seed, directory, &|_, _| generated.set(true)).unwrap();
        (data, generated.get())
    }

    fn same(a: &ClassificationData, b: &ClassificationData) -> bool {
        a.train == b.train && a.valid == b.valid && a.test == b.test
    }

    fn only_file(directory: &Path) -> PathBuf {
        let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files.remove(0)
    }

    #[test]
    fn the_second_load_reads_what_the_first_generated() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("a/b");
        let (first, generated) = load(1, Some(&below));
        assert!(generated && first.notes.is_empty());
        assert_eq!((first.train.len(), first.valid.len(), first.test.len(), first.vocabulary), (60, 20, 30, 16));
        let (second, generated) = load(1, Some(&below));
        assert!(!generated && second.notes.is_empty() && same(&first, &second));
        only_file(&below);
        let (other, generated) = load(2, Some(&below));
        assert!(generated && !same(&first, &other));
        let (memory, generated) = load(1, None);
        assert!(generated && same(&first, &memory));
    }

    #[test]
    fn damaged_and_foreign_files_are_replaced_with_a_note() {
        let directory = tempfile::tempdir().unwrap();
        let (reference, _) = load(1, Some(directory.path()));
        let path = only_file(directory.path());
        let sound = fs::read(&path).unwrap();
        let flipped = |place: usize| {
            let mut bytes = sound.clone();
            bytes[place] ^= 1;
            bytes
        };
        for (bytes, expected) in [
            (b"something else".to_vec(), "is not a file of this cache"),
            (Vec::new(), "is not a file of this cache"),
            (sound[..50].to_vec(), "is truncated to 50 bytes"),
            (sound[..sound.len() - 1].to_vec(), "is damaged"),
            (flipped(8), "has format 0, not 1"),
            (flipped(20), "was made with other parameters"),
            (flipped(HEADER + 3), "is damaged"),
            (flipped(sound.len() - 1), "is damaged"),
        ] {
            fs::write(&path, bytes).unwrap();
            let (data, generated) = load(1, Some(directory.path()));
            assert!(generated && same(&data, &reference));
            assert!(data.notes.len() == 1 && data.notes[0].contains(expected), "{:?}", data.notes);
            assert!(fs::read(&path).unwrap() == sound);
        }
    }

    /// A matching digest does not make sizes trustworthy.
    #[test]
    fn sizes_and_labels_are_checked_against_the_content() {
        let parameters = [7; 32];
        let mut set = Sequences::new(20);
        set.push(&[1, 2, 3], 15).unwrap();
        let sound = encode(&parameters, &set);
        assert_eq!(decode(&sound, &parameters, 20).unwrap(), set);
        assert!(decode(&sound, &parameters, 10).unwrap_err().contains("label 15 is out of range"));
        for (place, value) in [(44, 200), (51, 255), (52, 9), (HEADER + 2, 4), (HEADER + 5, 255)] {
            let mut bytes = sound[..sound.len() - 32].to_vec();
            bytes[place] = value;
            let digest = Sha256::digest(&bytes);
            bytes.extend_from_slice(&digest);
            assert!(decode(&bytes, &parameters, 20).is_err(), "byte {place} = {value}");
        }
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_done_without() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "in the way").unwrap();
        let (data, generated) = load(1, Some(&file.join("cache")));
        assert!(generated && data.train.len() == 60);
        assert!(data.notes.iter().any(|note| note.contains("cannot write")), "{:?}", data.notes);
    }
}
