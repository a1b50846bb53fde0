//! Byte-level text classification from TSV files.

use std::{
    io::BufRead,
    path::{Path, PathBuf},
};

use rand::seq::SliceRandom;

use serde::{Deserialize, Serialize};

use super::{
    ClassificationData, DataError, Objective, Progress, Sequences, Shape, Streams, TaskData, TaskOptions,
    config::{check_file, check_fraction},
    file::Meter,
    plain_text::each_line,
};

/// Token ids: padding and one for each byte.
const VOCABULARY: usize = 257;

/// Byte-level classification of the rows of a TSV file (plain, gzip or bzip2, detected by content).
///
/// Columns are numbered from 0; negative numbers count from the end of the row, -1 being the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextConfig {
    /// Training rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<PathBuf>,
    /// Validation rows; absent: a random `valid_fraction` of the training rows, by the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<PathBuf>,
    /// Test rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<PathBuf>,
    /// Fraction of the training rows held out if `valid` is absent, in (0, 1).
    pub valid_fraction: f64,
    /// Column of the label, an integer.
    pub label_column: i64,
    /// Column of the text.
    pub text_column: i64,
    /// Whether the first line names the columns and is skipped.
    pub header: bool,
    /// Labels are `first_label .. first_label + classes`.
    pub classes: usize,
    /// The smallest label in the files.
    pub first_label: usize,
    /// Bytes kept of each text; also the model's maximum length.
    pub max_length: usize,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self {
            train: None,
            valid: None,
            test: None,
            valid_fraction: 0.1,
            label_column: 0,
            text_column: -1,
            header: false,
            classes: 2,
            first_label: 0,
            max_length: 4000,
        }
    }
}

impl TaskOptions for TextConfig {
    fn summary(&self) -> &'static str {
        "byte-level text classification from a TSV file (plain, .gz, .bz2)"
    }

    fn check(&self) -> Result<(), DataError> {
        let error = |key: &str, problem: String| Err(DataError::config(&format!("text.{key}"), problem));
        for (key, path) in [("train", &self.train), ("test", &self.test)] {
            if path.is_none() {
                return error(key, format!("is not set; give a TSV file: --set task.text.{key}=FILE"));
            }
        }
        if self.label_column == self.text_column {
            let seen = self.label_column;
            return error("text_column", format!("is {seen}, the column of the label too; they must differ"));
        }
        // Labels are stored in 16 bits.
        if !(2..=65_536).contains(&self.classes) {
            return error("classes", format!("is {}; must be from 2 to 65536", self.classes));
        }
        if self.max_length == 0 {
            return error("max_length", "is 0; must be at least 1".into());
        }
        if self.valid.is_none() {
            check_fraction("text.valid_fraction", self.valid_fraction)?;
        }
        [&self.train, &self.valid, &self.test].into_iter().flatten().try_for_each(|path| check_file(path))
    }

    fn load(&self, seed: u64, _: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        Ok(Box::new(load(self, seed, progress)?))
    }

    fn shape(&self) -> Shape {
        Shape {
            objective: Objective::Classify { classes: self.classes },
            vocabulary: VOCABULARY,
            max_length: self.max_length,
        }
    }
}

/// Reads the files; without a validation file, holds out rows of the training file.
fn load(config: &TextConfig, seed: u64, progress: Progress<'_>) -> Result<ClassificationData, DataError> {
    let required = |key: &str, path: &Option<PathBuf>| {
        path.clone().ok_or_else(|| DataError::config(&format!("text.{key}"), "is not set; give a TSV file"))
    };
    let (train_path, test_path) = (required("train", &config.train)?, required("test", &config.test)?);
    let paths = [Some(&train_path), config.valid.as_ref(), Some(&test_path)];
    let meter = Meter::new(paths.into_iter().flatten().map(PathBuf::as_path), progress);
    let read = |path: &Path| read_rows(meter.open(path)?, path, config);

    let all = read(&train_path)?;
    let (train, valid) = match &config.valid {
        Some(path) => (all, read(path)?),
        None if all.len() < 2 => {
            let problem = "has a single row, of which none can be held out for validation; set task.text.valid".into();
            return Err(DataError::Content { path: train_path, problem });
        }
        None => hold_out(&all, config.valid_fraction, seed),
    };
    let test = read(&test_path)?;
    Ok(ClassificationData {
        train,
        valid,
        test,
        classes: config.classes,
        vocabulary: VOCABULARY,
        first_id: 1,
        max_length: config.max_length,
        about: String::new(),
        notes: Vec::new(),
    })
}

/// A random part of two or more sequences for validation and the rest for training, each in the original order.
fn hold_out(all: &Sequences, fraction: f64, seed: u64) -> (Sequences, Sequences) {
    let mut items: Vec<usize> = (0..all.len()).collect();
    items.shuffle(&mut Streams::new(seed, "validation split").at(0));
    let count = ((all.len() as f64 * fraction).round() as usize).clamp(1, all.len() - 1);
    let (valid, train) = items.split_at_mut(count);
    valid.sort_unstable();
    train.sort_unstable();
    (all.select(train), all.select(valid))
}

/// All rows of one file.
fn read_rows(source: impl BufRead, path: &Path, config: &TextConfig) -> Result<Sequences, DataError> {
    let mut rows = Sequences::new(config.classes);
    each_line(source, path, |line, row| {
        if line == 1 && config.header {
            return Ok(());
        }
        let (label, text) = parse_row(row, config)?;
        rows.push(&text[..text.len().min(config.max_length)], label).map_err(|problem| problem.to_string())
    })?;
    if rows.is_empty() {
        let problem = "has no rows; a row is a label, a tab and a text".into();
        return Err(DataError::Content { path: path.into(), problem });
    }
    Ok(rows)
}

/// Label, from 0, and text of one row.
fn parse_row<'r>(row: &'r [u8], config: &TextConfig) -> Result<(usize, &'r [u8]), String> {
    let columns = 1 + row.iter().filter(|&&byte| byte == b'\t').count();
    let place = |key: &str, column: i64| {
        let magnitude = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let place = match column {
            0.. => Some(magnitude(column.unsigned_abs())),
            _ => columns.checked_sub(magnitude(column.unsigned_abs())),
        };
        place.filter(|&place| place < columns).ok_or_else(|| {
            format!("{columns} tab-separated columns, none is column {column}; check the row or task.text.{key}")
        })
    };
    let (label, text) = (place("label_column", config.label_column)?, place("text_column", config.text_column)?);
    if label == text {
        return Err(format!(
            "{columns} tab-separated columns, where columns {} (label) and {} (text) are the same; check the row, \
             task.text.label_column and task.text.text_column",
            config.label_column, config.text_column
        ));
    }
    let column = |place: usize| row.split(|&byte| byte == b'\t').nth(place).unwrap_or_default();
    let seen = column(label).trim_ascii();
    let number = std::str::from_utf8(seen).ok().and_then(|text| text.parse::<usize>().ok());
    let (first, classes) = (config.first_label, config.classes);
    let label = number.and_then(|number| number.checked_sub(first)).filter(|&label| label < classes);
    let label = label.ok_or_else(|| {
        let shown = seen[..seen.len().min(40)].escape_ascii();
        format!(
            "label `{shown}`; expected a whole number from {first} to {} (task.text.first_label, task.text.classes); \
             check the row, these two and task.text.label_column",
            first.saturating_add(classes - 1)
        )
    })?;
    match column(text) {
        [] => Err("the text is empty; remove the row or check task.text.text_column".into()),
        text => Ok((label, text)),
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;
    use crate::data::file::tests::{bzip2, gzip};
    use crate::data::plain_text::LONGEST_LINE;

    fn rows(bytes: &[u8], config: &TextConfig) -> Result<Sequences, DataError> {
        read_rows(bytes, Path::new("rows.tsv"), config)
    }

    #[test]
    fn rows_of_two_and_of_five_columns_are_read() {
        let set = rows(b"1\tgood\r\n0\t8\t17\ttt004\tbad \xff one", &TextConfig::default()).unwrap();
        assert_eq!((set.len(), set.label(0), set.label(1)), (2, 1, 0));
        assert_eq!((set.symbols(0), set.symbols(1)), (&b"good"[..], &b"bad \xff one"[..]));
        let stars = TextConfig { label_column: 1, first_label: 1, classes: 10, ..TextConfig::default() };
        assert_eq!(rows(b"1\t10\tfine", &stars).unwrap().label(0), 9);
        let sst = TextConfig { label_column: -1, text_column: 0, header: true, ..TextConfig::default() };
        let set = rows(b"sentence\tlabel\nfun \t1\n", &sst).unwrap();
        assert_eq!((set.symbols(0), set.label(0)), (&b"fun "[..], 1));
    }

    #[test]
    fn texts_are_truncated() {
        let short = TextConfig { max_length: 3, ..TextConfig::default() };
        assert_eq!(rows(b"0\tabcdef\n1\tab\n", &short).unwrap(), rows(b"0\tabc\n1\tab\n", &short).unwrap());
    }

    #[test]
    fn bad_rows_are_named_by_file_and_line() {
        for (text, expected) in [
            (&b"0\tgood\n2\tbad\n"[..], "rows.tsv:2: label `2`; expected a whole number from 0 to 1"),
            (b"0\tgood\n-1\tbad\n", "rows.tsv:2: label `-1`"),
            (b"\xff\tbad\n", "rows.tsv:1: label `\\xff`"),
            (b"0\tgood\n\n1\tbad\n", "rows.tsv:2: 1 tab-separated columns, where columns 0 (label) and -1"),
            (b"0\t\n", "rows.tsv:1: the text is empty"),
            (b"", "rows.tsv: has no rows"),
        ] {
            let error = rows(text, &TextConfig::default()).unwrap_err();
            assert!(!error.is_config() && error.to_string().starts_with(expected), "{error}");
        }
        let third = TextConfig { text_column: 2, ..TextConfig::default() };
        let error = rows(b"0\tgood\n", &third).unwrap_err().to_string();
        assert!(error.contains("rows.tsv:1: 2 tab-separated columns, none is column 2"), "{error}");
        let endless = vec![b'x'; LONGEST_LINE + 10];
        assert!(rows(&endless, &TextConfig::default()).unwrap_err().to_string().contains("without a line end"));
    }

    /// Arbitrary bytes and columns give rows or an error; rows have valid labels.
    #[test]
    fn arbitrary_bytes_never_panic() {
        let mut stream = Streams::new(0, "fuzz").at(0);
        let alphabet = b"\t\t\n\r0123ab\xff\xef\xbb\xbf \0";
        let (mut good, mut bad) = (0, 0);
        for _ in 0..20_000 {
            let length = stream.random_range(0..24);
            let bytes: Vec<u8> = (0..length).map(|_| alphabet[stream.random_range(0..alphabet.len())]).collect();
            let mut column = || match stream.random_range(0..20) {
                0 => i64::MIN,
                1 => i64::MAX,
                other => other % 7 - 3,
            };
            let (label_column, text_column) = (column(), column());
            let config = TextConfig { label_column, text_column, classes: 3, max_length: 4, ..TextConfig::default() };
            match rows(&bytes, &config) {
                Ok(set) => {
                    assert!(set.labels().all(|label| label < 3) && set.longest() <= 4);
                    good += 1;
                }
                Err(_) => bad += 1,
            }
        }
        assert!(good > 100 && bad > 100, "{good} good, {bad} bad");
    }

    #[test]
    fn files_of_every_format_load_and_validation_is_held_out_by_the_seed() {
        let directory = tempfile::tempdir().unwrap();
        let text: String = (0..200).map(|i| format!("{}\ttext number {i}\n", i % 2)).collect();
        let write = |name: &str, bytes: Vec<u8>| {
            std::fs::write(directory.path().join(name), bytes).unwrap();
            Some(directory.path().join(name))
        };
        let test = write("test.tsv", b"1\ta test\n".to_vec());
        let load_from = |train: &Option<PathBuf>, seed| {
            let config = TextConfig { train: train.clone(), test: test.clone(), ..TextConfig::default() };
            config.check().unwrap();
            load(&config, seed, &|_, _| {}).unwrap()
        };
        let plain = load_from(&write("train.tsv", text.clone().into()), 4);
        assert_eq!((plain.train.len(), plain.valid.len(), plain.test.len()), (180, 20, 1));
        let mut all: Vec<&[u8]> = (0..180).map(|i| plain.train.symbols(i)).collect();
        all.extend((0..20).map(|i| plain.valid.symbols(i)));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 200);
        for bytes in [gzip(text.as_bytes()), bzip2(text.as_bytes())] {
            let path = write("compressed", bytes);
            let same = load_from(&path, 4);
            assert!(same.train == plain.train && same.valid == plain.valid);
            assert!(load_from(&path, 5).valid != plain.valid);
        }
    }
}
