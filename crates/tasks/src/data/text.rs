//! Text classification from TSV files: byte by byte, by words or by pieces of words.

use std::{
    io::BufRead,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    ClassificationData, DataError, Objective, Progress, Sequences, Shape, Symbol, TaskData, TaskOptions, TextTokenizer,
    TextUnits, TokenKind, WordVocabulary,
    config::{check_file, check_fraction, check_vocabulary},
    file::Meter,
    order::hold_out,
    plain_text::each_line,
};

/// Token ids of bytes: padding and one for each byte.
const BYTES: usize = 257;

/// Largest vocabulary of words or pieces: ids are stored in 16 bits.
const LARGEST: usize = 1 << 16;

/// Smallest vocabulary of words: one word, the unknown word, the end of a line and padding.
const FEWEST_WORDS: usize = 4;

/// Classification of the rows of a TSV file (plain, gzip or bzip2, detected by content).
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
    /// Units of text: bytes, words or subwords.
    pub tokens: TokenKind,
    /// Maximum size of a vocabulary of words or subwords, which is learned from the training rows.
    pub vocabulary: usize,
    /// Tokens kept of each text; also the model's maximum length.
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
            tokens: TokenKind::Bytes,
            vocabulary: 30_000,
            max_length: 4000,
        }
    }
}

impl TaskOptions for TextConfig {
    fn summary(&self) -> &'static str {
        "text classification by bytes, words or subwords, from a TSV file (plain, .gz, .bz2)"
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
        match self.tokens {
            TokenKind::Bytes => {}
            TokenKind::Characters => {
                return error("tokens", "is 'characters'; must be bytes, words or subwords".into());
            }
            TokenKind::Subwords => check_vocabulary("text.vocabulary", self.vocabulary)?,
            TokenKind::Words if self.vocabulary < FEWEST_WORDS => {
                return error("vocabulary", format!("is {}; must be at least {FEWEST_WORDS}", self.vocabulary));
            }
            TokenKind::Words => {}
        }
        if self.tokens != TokenKind::Bytes && self.vocabulary > LARGEST {
            return error("vocabulary", format!("is {}; must be at most {LARGEST}", self.vocabulary));
        }
        if self.valid.is_none() {
            check_fraction("text.valid_fraction", self.valid_fraction)?;
        }
        [&self.train, &self.valid, &self.test].into_iter().flatten().try_for_each(|path| check_file(path))
    }

    fn load(&self, seed: u64, _: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        let rows = read(self, seed, progress)?;
        Ok(match self.tokens {
            TokenKind::Bytes => Box::new(self.in_bytes(&rows)?),
            _ => Box::new(self.in_pieces(&rows)?),
        })
    }

    fn shape(&self) -> Shape {
        Shape {
            objective: Objective::Classify { classes: self.classes },
            vocabulary: if self.tokens == TokenKind::Bytes { BYTES } else { self.vocabulary },
            max_length: self.max_length,
        }
    }
}

impl TextConfig {
    /// Byte `b` is symbol `b`.
    fn in_bytes(&self, rows: &[Rows; 3]) -> Result<ClassificationData, DataError> {
        let encode = |text: &[u8]| text[..text.len().min(self.max_length)].to_vec();
        self.encoded(rows, BYTES, 1, encode)
    }

    /// Words or subwords of a vocabulary that the training rows give.
    fn in_pieces(&self, rows: &[Rows; 3]) -> Result<ClassificationData<u16>, DataError> {
        let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let train: Vec<String> = rows[0].texts.iter().map(|row| text(row)).collect();
        let (units, first_id) = if self.tokens == TokenKind::Words {
            let words: Vec<String> = train.iter().map(|text| words_of(text)).collect();
            // Id 0 is padding, and a word its place in the vocabulary plus 1.
            (TextUnits::Words(WordVocabulary::count(&words.join(" "), self.vocabulary - 1, 1)), 1)
        } else {
            (TextUnits::Subwords(TextTokenizer::train(train.iter().map(String::as_str), self.vocabulary)?), 0)
        };
        let vocabulary = units.vocabulary() + first_id as usize;
        let encode = |row: &[u8]| {
            let ids = match &units {
                TextUnits::Words(words) => words.encode(&words_of(&text(row))),
                // A row has no line ends.
                other => other.encode(&text(row)).unwrap_or_default(),
            };
            ids.into_iter().take(self.max_length).map(|id| id as u16).collect()
        };
        let data = self.encoded(rows, vocabulary, first_id, encode)?;
        Ok(ClassificationData { units: Some(units), ..data })
    }

    fn encoded<S: Symbol>(
        &self,
        rows: &[Rows; 3],
        vocabulary: usize,
        first_id: i32,
        encode: impl Fn(&[u8]) -> Vec<S>,
    ) -> Result<ClassificationData<S>, DataError> {
        let of = |rows: &Rows| {
            let mut sequences = Sequences::new(self.classes);
            for ((text, label), line) in rows.texts.iter().zip(&rows.labels).zip(&rows.lines) {
                let pushed = sequences.push(&encode(text), *label);
                pushed.map_err(|error| DataError::Content {
                    path: format!("{}:{line}", rows.path.display()).into(),
                    problem: error.to_string(),
                })?;
            }
            Ok::<_, DataError>(sequences)
        };
        let [train, valid, test] = rows;
        Ok(ClassificationData {
            train: of(train)?,
            valid: of(valid)?,
            test: of(test)?,
            classes: self.classes,
            vocabulary,
            first_id,
            max_length: self.max_length,
            about: String::new(),
            units: None,
            notes: Vec::new(),
        })
    }
}

/// The words and punctuation marks of a text in lower case, separated by spaces.
pub(super) fn words_of(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len() + text.len() / 8);
    let mut inside = false;
    for c in text.to_lowercase().chars() {
        let word = c.is_alphanumeric();
        if !c.is_whitespace() {
            if !(spaced.is_empty() || word && inside) {
                spaced.push(' ');
            }
            spaced.push(c);
        }
        inside = word;
    }
    spaced
}

/// Rows of a file, as far as they belong to one split.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rows {
    path: PathBuf,
    texts: Vec<Box<[u8]>>,
    labels: Vec<usize>,
    /// Their lines in the file.
    lines: Vec<u64>,
}

impl Rows {
    /// The rows of `items`, in order.
    fn select(&self, items: &[usize]) -> Self {
        Self {
            path: self.path.clone(),
            texts: items.iter().map(|&i| self.texts[i].clone()).collect(),
            labels: items.iter().map(|&i| self.labels[i]).collect(),
            lines: items.iter().map(|&i| self.lines[i]).collect(),
        }
    }
}

/// Training, validation and test rows; without a validation file, rows of the training file are held out.
fn read(config: &TextConfig, seed: u64, progress: Progress<'_>) -> Result<[Rows; 3], DataError> {
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
        None if all.texts.len() < 2 => {
            let problem = "has a single row, of which none can be held out for validation; set task.text.valid".into();
            return Err(DataError::Content { path: train_path, problem });
        }
        None => {
            let [valid, train] = hold_out(all.texts.len(), config.valid_fraction, seed);
            (all.select(&train), all.select(&valid))
        }
    };
    Ok([train, valid, read(&test_path)?])
}

/// All rows of one file.
fn read_rows(source: impl BufRead, path: &Path, config: &TextConfig) -> Result<Rows, DataError> {
    let mut rows = Rows { path: path.into(), ..Rows::default() };
    // Of bytes no more are kept than will be read.
    let most = if config.tokens == TokenKind::Bytes { config.max_length } else { usize::MAX };
    each_line(source, path, |line, row| {
        if line == 1 && config.header {
            return Ok(());
        }
        let (label, text) = parse_row(row, config)?;
        rows.texts.push(text[..text.len().min(most)].into());
        rows.labels.push(label);
        rows.lines.push(line);
        Ok(())
    })?;
    if rows.texts.is_empty() {
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
    use crate::data::Streams;
    use crate::data::file::tests::{bzip2, gzip};
    use crate::data::plain_text::LONGEST_LINE;

    fn rows(bytes: &[u8], config: &TextConfig) -> Result<Sequences, DataError> {
        let rows = read_rows(bytes, Path::new("rows.tsv"), config)?;
        Ok(config.in_bytes(&[rows.clone(), rows.clone(), rows])?.train)
    }

    fn load(config: &TextConfig, seed: u64) -> Result<ClassificationData, DataError> {
        config.in_bytes(&read(config, seed, &|_, _| {})?)
    }

    #[test]
    fn words_and_marks_stand_apart_in_lower_case() {
        assert_eq!(words_of("  The U.S.  isn't\u{a0}Über-big"), "the u . s . isn ' t über - big");
        assert_eq!(words_of(" \t"), "");
    }

    #[test]
    fn words_and_subwords_are_those_of_the_training_rows() {
        let train = read_rows(&b"0\tThe cat, the dog\n1\tthe bird\n"[..], Path::new("train.tsv"), &words()).unwrap();
        let test = read_rows(&b"1\tThe fish and the bird fly\n"[..], Path::new("test.tsv"), &words()).unwrap();
        let split = [train.clone(), train.clone(), test.clone()];
        let data = words().in_pieces(&split).unwrap();
        let Some(TextUnits::Words(vocabulary)) = &data.units else { panic!("words") };
        // Five words and marks, the unknown word, the end of a line; padding besides.
        assert_eq!((vocabulary.len(), data.vocabulary, data.first_id), (7, 8, 1));
        assert_eq!(data.train.symbols(0).len(), 5);
        let ids: Vec<u32> = data.test.symbols(0).iter().map(|id| u32::from(*id)).collect();
        assert_eq!(vocabulary.decode(&ids), "the <unk> <unk> the bird");
        let subwords = TextConfig { tokens: TokenKind::Subwords, vocabulary: 300, max_length: 9, ..words() };
        let data = subwords.in_pieces(&split).unwrap();
        let Some(TextUnits::Subwords(tokenizer)) = &data.units else { panic!("subwords") };
        assert_eq!((data.first_id, data.vocabulary), (0, tokenizer.vocabulary()));
        let ids: Vec<i32> = data.train.symbols(1).iter().map(|id| i32::from(*id)).collect();
        assert_eq!(tokenizer.decode(&ids).trim(), "the bird");
        assert_eq!(data.test.longest(), 9);
        let blank = read_rows(&b"0\tone\n0\t  \n"[..], Path::new("blank.tsv"), &words()).unwrap();
        let error = words().in_pieces(&[train.clone(), train, blank]).unwrap_err().to_string();
        assert!(error.starts_with("blank.tsv:2: a sequence without tokens"), "{error}");
    }

    fn words() -> TextConfig {
        TextConfig { tokens: TokenKind::Words, max_length: 5, ..TextConfig::default() }
    }

    #[test]
    fn units_that_cannot_be_are_refused() {
        let problem = |config: TextConfig| {
            let files = TextConfig { train: Some("a".into()), test: Some("b".into()), ..config };
            files.check().unwrap_err().to_string()
        };
        assert!(problem(TextConfig { tokens: TokenKind::Characters, ..words() }).contains("task.text.tokens"));
        assert!(problem(TextConfig { vocabulary: 3, ..words() }).contains("task.text.vocabulary: is 3"));
        assert!(problem(TextConfig { vocabulary: LARGEST + 1, ..words() }).contains("at most 65536"));
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
            load(&config, seed).unwrap()
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
