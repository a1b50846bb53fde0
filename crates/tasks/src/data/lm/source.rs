//! Texts from files: plain, JSON lines, folders, and folders laid out as WikiText.

use std::{
    collections::HashMap,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use regard_files::text::decode_text;
use serde_json::Value;

use super::{LmConfig, joined::Joined, prepared::is_prepared};
use crate::data::{
    DataError,
    char_lm::{EMBEDDED, shakespeare},
    config::check_file,
    file::Meter,
    plain_text::{LONGEST_LINE, TextLines},
    text_blocks::TextBlocks,
};

/// Endings of compressed files.
const COMPRESSED: [&str; 3] = ["", ".gz", ".bz2"];

/// Endings of the files that a folder of texts may hold, before those of compression; others are passed over.
const TEXTS: [&str; 6] = [".txt", ".tokens", ".raw", ".jsonl", ".ndjson", ".parquet"];

/// Names of a WikiText folder's parts.
pub(super) const PARTS: [&str; 3] = ["train", "valid", "test"];

/// Files of the training, validation and test text. An empty list: that part is cut from the training text, which is the
/// embedded text if its own list is empty.
///
/// # Errors
/// Files and folders that are missing, or that hold no text files.
pub(super) fn files(config: &LmConfig) -> Result<[Vec<PathBuf>; 3], DataError> {
    let lists = [&config.train, &config.valid, &config.test];
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for (files, list) in all.iter_mut().zip(lists) {
        for path in list {
            if is_prepared(path) {
                return Err(prepared_text(path));
            }
            if path.is_dir() {
                files.extend(texts_of(path)?);
            } else {
                check_file(path)?;
                files.push(path.clone());
            }
        }
    }
    check_apart(&all)?;
    if let Some(directory) = &config.directory {
        if is_prepared(directory) {
            return Err(prepared_text(directory));
        }
        let found = wikitext(directory)?;
        let mut missing = Vec::new();
        for ((files, found), part) in all.iter_mut().zip(found).zip(PARTS) {
            match found {
                _ if !files.is_empty() => {}
                Some(path) => files.push(path),
                None => missing.push(part),
            }
        }
        if let Some(part) = missing.first() {
            let names: Vec<String> = missing.iter().map(|part| format!("wiki.{part}.tokens")).collect();
            return Err(DataError::Content {
                path: directory.clone(),
                problem: format!(
                    "has no {} (nor with .gz, .bz2 or as .raw); put it there, or give the text with task.lm.{part}=FILE",
                    names.join(" and no ")
                ),
            });
        }
    }
    Ok(all)
}

/// Fails if a file stands in two of the parts: a model would be tested on what it was trained on.
fn check_apart(parts: &[Vec<PathBuf>; 3]) -> Result<(), DataError> {
    let mut seen: HashMap<PathBuf, usize> = HashMap::new();
    for (part, path) in parts.iter().enumerate().flat_map(|(part, paths)| paths.iter().map(move |path| (part, path))) {
        let place = fs::canonicalize(path).map_err(|source| DataError::read(path, source))?;
        let first = *seen.entry(place).or_insert(part);
        if first != part {
            let problem = format!(
                "is in the {} text and in the {} text; leave it out of one of them, where a folder has it by naming its other \
                 files",
                PARTS[first], PARTS[part]
            );
            return Err(DataError::Content { path: path.clone(), problem });
        }
    }
    Ok(())
}

fn prepared_text(folder: &Path) -> DataError {
    let problem = "is a prepared text; name it with task.lm.prepared and leave the others out";
    DataError::Content { path: folder.into(), problem: problem.into() }
}

/// Whether a folder is laid out as WikiText: it has the training part.
pub fn is_wikitext(folder: &Path) -> bool {
    folder.is_dir() && wikitext(folder).is_ok_and(|[train, ..]| train.is_some())
}

pub(super) fn is_parquet(path: &Path) -> bool {
    stem(path).ends_with(".parquet")
}

/// The error of a Parquet file that is not read; `how` names the other ways.
pub(super) fn parquet(path: &Path, how: &str) -> DataError {
    let problem = format!(
        "is a Parquet file; {how}, or convert it to JSON lines: python3 -c 'import pandas, sys; \
         pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient=\"records\", lines=True)' FILE.parquet FILE.jsonl"
    );
    DataError::Content { path: path.into(), problem }
}

/// The parts of a folder laid out as WikiText.
fn wikitext(directory: &Path) -> Result<[Option<PathBuf>; 3], DataError> {
    fs::read_dir(directory).map_err(|source| DataError::read(directory, source))?;
    let find = |part: &str| {
        let kinds = ["tokens", "raw"].into_iter();
        let names = kinds.flat_map(|kind| COMPRESSED.map(|ending| format!("wiki.{part}.{kind}{ending}")));
        names.map(|name| directory.join(name)).find(|path| path.is_file())
    };
    Ok(PARTS.map(find))
}

/// The text files of a folder, by name.
fn texts_of(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let failed = |source| DataError::read(folder, source);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_file() && TEXTS.iter().any(|ending| stem(&path).ends_with(ending)) {
            files.push(path);
        }
    }
    if files.is_empty() {
        let problem =
            format!("has no text files, whose names end with {} (or with .gz or .bz2 after that)", TEXTS.join(", "));
        return Err(DataError::Content { path: folder.into(), problem });
    }
    files.sort();
    // A file and its compressed copy are one text, of which the plain one comes first.
    files.dedup_by(|later, earlier| uncompressed(later) == uncompressed(earlier));
    Ok(files)
}

/// The name of a file without an ending of compression.
fn uncompressed(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = COMPRESSED[1..].iter().find_map(|ending| name.strip_suffix(ending));
    stem.unwrap_or(&name).to_owned()
}

/// The same in small letters, those of the compression too.
fn stem(path: &Path) -> String {
    uncompressed(Path::new(&path.file_name().unwrap_or_default().to_string_lossy().to_lowercase()))
}

/// The training, validation and test text; each ends with a line end.
///
/// # Errors
/// Files that cannot be read, are no text, or leave a part empty.
pub(super) fn read(config: &LmConfig, meter: &Meter, files: &[Vec<PathBuf>; 3]) -> Result<[String; 3], DataError> {
    let mut texts = [String::new(), String::new(), String::new()];
    for (part, (text, files)) in texts.iter_mut().zip(files).enumerate() {
        if part == 0 || !files.is_empty() {
            let mut joined = Joined::new(config.paragraphs);
            each_block(meter, files, config, &mut joined, None, &mut |_| Ok::<_, DataError>(()))?;
            *text = joined.text;
        }
    }
    let [train, valid, test] = &mut texts;
    let whole = train.len() as f64;
    for (part, fraction, own) in [(test, config.test_fraction, &files[2]), (valid, config.valid_fraction, &files[1])] {
        if own.is_empty() {
            let place = train.len() as f64 - (whole * fraction).round();
            *part = train.split_off(cut(train, place as usize));
            end_line(train);
        }
    }
    match texts.iter().position(|text| text.trim().is_empty()) {
        Some(part) => Err(no_text(files, part)),
        None => Ok(texts),
    }
}

/// The error of a part, by its number, that has no text.
pub(super) fn no_text(files: &[Vec<PathBuf>; 3], part: usize) -> DataError {
    let path = files[part].first().or(files[0].first()).cloned().unwrap_or(EMBEDDED.into());
    let (name, verb) = (PARTS[part], ["train", "validate", "test"][part]);
    let problem = match files[part].is_empty() {
        true => format!("leaves no text to {verb} on; give a longer text, or that part with task.lm.{name}=FILE"),
        false => "has no text; give a file with text".into(),
    };
    DataError::Content { path, problem }
}

/// Reads the texts of a column of a Parquet file: the file, the name of the column, and what is called with each text, in order,
/// until it breaks. The error is a sentence without the name of the file.
pub type RowReader = fn(&Path, &str, &mut dyn FnMut(&str) -> ControlFlow<()>) -> Result<(), String>;

/// Appends the texts of files, or the embedded text if there are none, to `joined`, in order; calls `each` after every block,
/// which may take away what it has seen. `rows` reads Parquet files.
///
/// # Errors
/// Files that cannot be read or are no text; errors of `each`.
pub(super) fn each_block<E: From<DataError>>(
    meter: &Meter,
    files: &[PathBuf],
    config: &LmConfig,
    joined: &mut Joined,
    rows: Option<RowReader>,
    each: &mut dyn FnMut(&mut String) -> Result<(), E>,
) -> Result<(), E> {
    if files.is_empty() {
        let bytes = shakespeare()?;
        joined.push(&decode_text(&bytes).map_err(|error| DataError::text(EMBEDDED, &error))?);
        joined.end();
        return each(&mut joined.text);
    }
    for path in files {
        if let Some(rows) = rows.filter(|_| is_parquet(path)) {
            let mut failed = None;
            let read = rows(path, &config.field, &mut |text| {
                joined.push(text);
                joined.end();
                match each(&mut joined.text) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        failed = Some(error);
                        ControlFlow::Break(())
                    }
                }
            });
            read.map_err(|problem| DataError::Content { path: path.clone(), problem })?;
            failed.map_or(Ok(()), Err)?;
            meter.count(path);
            continue;
        }
        if [".jsonl", ".ndjson", ".json"].iter().any(|ending| stem(path).ends_with(ending)) {
            for (line, number) in TextLines::new(meter.open(path)?, path).zip(1..) {
                let line = line?;
                if !line.trim().is_empty() {
                    let failed = |problem| DataError::Row { path: path.into(), line: number, problem };
                    joined.push(&text_of(&line, &config.field).map_err(failed)?);
                    joined.end();
                    each(&mut joined.text)?;
                }
            }
            continue;
        }
        let mut blocks = TextBlocks::new(meter.open(path)?, path);
        let (mut block, mut more) = (String::new(), true);
        while more {
            block.clear();
            more = blocks.next(&mut block)?;
            joined.push(&block);
            if joined.held() > LONGEST_LINE {
                let problem = format!(
                    "more than {LONGEST_LINE} bytes without a line end, where lines of paragraphs are to be joined; leave \
                     task.lm.paragraphs out"
                );
                return Err(DataError::Content { path: path.clone(), problem }.into());
            }
            each(&mut joined.text)?;
        }
        joined.end();
        each(&mut joined.text)?;
    }
    Ok(())
}

/// The text in a line of JSON, or the problem.
fn text_of(line: &str, field: &str) -> Result<String, String> {
    let value: Value =
        serde_json::from_str(line).map_err(|error| format!("is no JSON ({error}); expected an object"))?;
    let Value::Object(mut fields) = value else { return Err("is no JSON object; expected {\"text\": ..}".into()) };
    match fields.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(format!("has {other} as '{field}', expected a string; name its field with task.lm.field")),
        None => {
            let names: Vec<String> = fields.keys().map(|name| format!("'{name}'")).collect();
            let seen = if names.is_empty() { "none".into() } else { names.join(", ") };
            Err(format!("has no field '{field}', only {seen}; name that of the text with task.lm.field"))
        }
    }
}

pub(super) fn end_line(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

/// Bytes after a place among which a line end is looked for.
pub(super) const NEAR: usize = 1 << 16;

/// Where to cut a text at about `place`: at the next line end; where none is near, at the next white space.
pub(super) fn cut(text: &str, place: usize) -> usize {
    let place = text.ceil_char_boundary(place.min(text.len()));
    // What stands before the place may be such an end.
    let from = text.floor_char_boundary(place.saturating_sub(1));
    let near = &text[from..text.ceil_char_boundary((place + NEAR).min(text.len()))];
    // The line end that closes the text leaves nothing behind it.
    let after = |is_end: &dyn Fn(char) -> bool| {
        let mut ends = near.char_indices().map(|(at, c)| (from + at + c.len_utf8(), c));
        ends.find(|(end, c)| is_end(*c) && *end < text.len()).map(|(end, _)| end)
    };
    after(&|c| c == '\n').or_else(|| after(&char::is_whitespace)).unwrap_or(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::file::tests::{bzip2, gzip};

    fn texts(config: &LmConfig) -> Result<[String; 3], DataError> {
        read(config, &Meter::new([], &|_, _| {}), &files(config)?)
    }

    fn error(config: &LmConfig) -> String {
        let error = texts(config).unwrap_err();
        assert!(!error.is_config(), "{error}");
        error.to_string()
    }

    #[test]
    fn parts_come_from_files_or_from_the_end_of_the_training_text() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            vec![path]
        };
        let lines: String = (0..100).map(|i| format!("line {i:02}\n")).collect();
        let train = put("a.txt.gz", &gzip(lines.as_bytes()));
        let config = LmConfig { train, valid_fraction: 0.2, test_fraction: 0.1, ..LmConfig::default() };
        let [train, valid, test] = texts(&config).unwrap();
        assert_eq!([&train, &valid, &test].map(|text| text.lines().count()), [70, 20, 10]);
        assert_eq!(train + &valid + &test, lines);

        // A part of its own leaves the training text to the others.
        let config = LmConfig { test: put("b.txt.bz2", &bzip2(b"of its own")), ..config };
        let [train, valid, test] = texts(&config).unwrap();
        assert_eq!((train.lines().count(), valid.lines().count(), test.as_str()), (80, 20, "of its own\n"));

        // Text without line ends is cut between words, or anywhere.
        let config = LmConfig { train: put("c.txt", "wörter ".repeat(100).as_bytes()), ..LmConfig::default() };
        let [train, valid, test] = texts(&config).unwrap();
        assert!([&train, &valid, &test].iter().all(|text| text.split_whitespace().all(|word| word == "wörter")));
        let config = LmConfig { train: put("d.txt", "ö".repeat(100).as_bytes()), ..LmConfig::default() };
        let [train, valid, test] = texts(&config).unwrap();
        assert_eq!([train, valid, test].map(|text| text.trim().chars().count()), [92, 4, 4]);
        fs::write(folder.path().join("e.txt"), "x").unwrap();
        let config = LmConfig { train: vec![folder.path().join("e.txt")], ..config };
        assert!(error(&config).contains("e.txt: leaves no text to "), "{}", error(&config));
    }

    #[test]
    fn folders_are_read_by_name_and_wikitext_by_its_own_names() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        put("README.md", b"not this");
        let of_folder = |path: &Path| LmConfig { train: vec![path.into()], ..LmConfig::default() };
        assert!(error(&of_folder(folder.path())).contains("has no text files, whose names end with .txt"));
        put("wiki.valid.tokens.gz", &gzip(b" = A = \n \n b \n"));
        put("wiki.test.tokens", b" = C = \n");
        let wikitext = LmConfig { directory: Some(folder.path().into()), ..LmConfig::default() };
        let missing = error(&wikitext);
        assert!(
            missing.contains("has no wiki.train.tokens (nor") && missing.contains("task.lm.train=FILE"),
            "{missing}"
        );
        let elsewhere = LmConfig { train: vec![folder.path().join("wiki.test.tokens")], ..wikitext.clone() };
        assert_eq!(texts(&elsewhere).unwrap()[0], " = C = \n");
        put("wiki.train.raw", b"d\ne");
        assert_eq!(texts(&wikitext).unwrap(), ["d\ne\n", " = A = \n \n b \n", " = C = \n"]);
        put("0.txt", b"first\n\n\nsecond\nline\n");
        let third = LmConfig { valid_fraction: 0.3, test_fraction: 0.3, ..of_folder(folder.path()) };
        let joined = texts(&LmConfig { paragraphs: true, ..third }).unwrap();
        assert_eq!(joined.concat(), "first\nsecond line\n= C =\nd e\n= A =\nb\n");
        let nowhere = LmConfig { directory: Some(folder.path().join("nowhere")), ..LmConfig::default() };
        assert!(error(&nowhere).contains("nowhere"));
    }

    #[test]
    fn no_text_is_read_twice() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        put("a.txt", b"one\n");
        put("a.txt.gz", &gzip(b"one\n"));
        put("b.txt.gz", &gzip(b"two\n"));
        let two = LmConfig { train: vec![folder.path().into()], ..LmConfig::default() };
        let names = |config: &LmConfig| {
            let [train, ..] = files(config).unwrap();
            train.iter().map(|path| path.file_name().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&two), ["a.txt", "b.txt.gz"]);
        // By whatever path.
        let tested = LmConfig { test: vec![folder.path().join("./b.txt.gz")], ..two };
        let problem = error(&tested);
        assert!(
            problem.contains("b.txt.gz: is in the train text and in the test text; leave it out of one"),
            "{problem}"
        );
    }

    #[test]
    fn json_lines_give_the_text_of_a_field() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl.gz");
        let config = LmConfig {
            train: vec![path.clone()],
            valid_fraction: 0.3,
            test_fraction: 0.3,
            field: "body".into(),
            ..LmConfig::default()
        };
        let put = |text: &str| fs::write(&path, gzip(text.as_bytes())).unwrap();
        put("{\"id\": 1, \"body\": \"one\\ntwo\"}\n\n{\"body\": \"three\\n\"}\n{\"body\": \"four\"}");
        assert_eq!(texts(&config).unwrap().concat(), "one\ntwo\nthree\nfour\n");
        for (line, expected) in [
            (
                "{\"text\": \"x\", \"id\": 3}",
                "a.jsonl.gz:2: has no field 'body', only 'id', 'text'; name that of the text",
            ),
            ("{}", "a.jsonl.gz:2: has no field 'body', only none"),
            ("{\"body\": 7}", "has 7 as 'body', expected a string"),
            ("[1]", "is no JSON object"),
            ("{\"body\": ", "is no JSON ("),
        ] {
            put(&format!("{{\"body\": \"one\"}}\n{line}\n"));
            assert!(error(&config).contains(expected), "{}", error(&config));
        }
    }

    #[test]
    fn damaged_files_and_those_of_other_kinds_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.gz");
        let config = LmConfig { train: vec![path.clone()], ..LmConfig::default() };
        let whole = gzip("some text\n".repeat(1000).as_bytes());
        fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        assert!(error(&config).contains("truncated or damaged"), "{}", error(&config));
        fs::write(&path, b"one\ntwo\xff\n").unwrap();
        assert!(error(&config).contains("text.gz:2: is not UTF-8 from byte 7"), "{}", error(&config));
        fs::write(&path, b" \n \n").unwrap();
        assert!(error(&config).contains("no text"), "{}", error(&config));
    }
}
