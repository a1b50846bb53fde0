use std::{
    fs,
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use super::{
    super::{load, source::RowReader},
    write::prepare_sampled,
    *,
};
use crate::data::{Batch, Batching, Split, Task};

fn made(config: &LmConfig, out: &Path) -> Result<Prepared, PrepareError> {
    prepare(config, out, false, None, &AtomicBool::new(false), &|_, _| {})
}

fn opened(folder: &Path, config: &LmConfig) -> Result<LmData, DataError> {
    let LmConfig { context, batches, stride, valid_stride, .. } = *config;
    let prepared = Some(folder.to_path_buf());
    load(&LmConfig { prepared, context, batches, stride, valid_stride, ..LmConfig::default() }, &|_, _| {})
}

fn of_batches(data: &LmData) -> Vec<(Vec<i32>, Vec<i32>)> {
    let pair = |batch: Batch| (batch.tokens.ids.to_vec(), batch.targets.to_vec());
    let mut train = data.batches(3, 4).unwrap();
    let all =
        (0..50).map(&mut train).chain([Split::Valid, Split::Test].iter().flat_map(|s| data.split(*s, 5).unwrap()));
    all.map(pair).collect()
}

/// Lines of words that repeat themselves in part, with characters of one to four bytes.
fn lines(count: usize) -> String {
    let word =
        |i: usize| ["größer", "the", "漢字", "🦀", "x'y", "don't", "<unk>"][i % 7].to_owned() + &"ab".repeat(i % 5);
    let line = |i: usize| {
        (0..i % 9).map(|j| word(i * i / 3 + j)).collect::<Vec<_>>().join(if i.is_multiple_of(4) { "  " } else { " " })
    };
    (0..count).map(|i| line(i) + "\n").collect()
}

const KINDS: [TokenKind; 4] = [TokenKind::Words, TokenKind::Subwords, TokenKind::Characters, TokenKind::Bytes];

/// The text prepared and read directly: the same batches, extents and settings.
fn assert_same(config: &LmConfig, what: &str) {
    assert_same_in(&KINDS, config, what);
}

fn assert_same_in(kinds: &[TokenKind], config: &LmConfig, what: &str) {
    let folder = tempfile::tempdir().unwrap();
    for &tokens in kinds {
        let config = LmConfig { tokens, vocabulary: 300, context: 16, stride: Some(5), ..config.clone() };
        let direct = load(&config, &|_, _| {}).unwrap();
        let out = folder.path().join(format!("{tokens:?}"));
        let prepared = made(&config, &out).unwrap();
        let mapped = opened(&out, &config).unwrap();
        let name = format!("{what}, {tokens:?}");
        assert!(mapped.units == direct.units, "{name}");
        for (part, own) in
            [(&mapped.train, &direct.train), (&mapped.valid, &direct.valid), (&mapped.test, &direct.test)]
        {
            assert!(part == own, "{name}: {part:?} {own:?}");
        }
        assert!(of_batches(&mapped) == of_batches(&direct), "{name}");
        assert_eq!((mapped.extents, mapped.setting()), (direct.extents, direct.setting()), "{name}");
        let notes: Vec<String> = prepared.notes.iter().chain(&mapped.notes).cloned().collect();
        assert_eq!(notes, direct.notes, "{name}");
        assert_eq!((prepared.sampled, Prepared::read(&out).unwrap().files), (None, prepared.files), "{name}");
        assert_eq!(made(&config, &out).unwrap_err().class(), Class::Usage);
    }
}

#[test]
fn a_prepared_text_gives_the_batches_of_the_text_itself() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let long = put("long.txt", &lines(1500));
    let of = |train: Vec<PathBuf>| LmConfig { train, ..LmConfig::default() };
    assert_same(&of(vec![long.clone()]), "a file");
    let windows = LmConfig { batches: Batching::Windows, paragraphs: true, ..of(vec![long.clone()]) };
    assert_same(&windows, "paragraphs and windows");
    let marked = put("marked.txt", &format!("\u{feff}{}", lines(400).replace('\n', "\r\n")));
    let rows = lines(300).lines().map(|line| serde_json::json!({"text": line}).to_string() + "\n").collect::<String>();
    let json = put("rows.jsonl", &rows);
    let short = put("short.txt", "no line end");
    assert_same(&of(vec![marked.clone(), short.clone(), json.clone()]), "files of several kinds");
    let own = LmConfig { valid: vec![json.clone(), short], test: vec![marked], ..of(vec![long.clone()]) };
    assert_same(&own, "parts of their own");
    assert_same(
        &LmConfig { test: vec![json.clone()], valid_fraction: 0.3, ..of(vec![long.clone()]) },
        "a part of its own",
    );
    assert_same(&LmConfig { valid: vec![json], test_fraction: 0.4, ..of(vec![long]) }, "another part of its own");
    // Without line ends, cut at white space; without any, wherever.
    assert_same(&of(vec![put("words.txt", &lines(900).replace('\n', " "))]), "one line");
    let letters =
        LmConfig { valid_fraction: 0.45, test_fraction: 0.45, ..of(vec![put("letters.txt", &"öx".repeat(400))]) };
    assert_same_in(&[TokenKind::Characters, TokenKind::Bytes], &letters, "one word");
}

/// Cuts far from both ends of the text, in lines that are longer than what is looked through for their end.
#[test]
fn cuts_within_large_texts_are_where_the_text_itself_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    for (name, text) in [
        ("lines", lines(120_000)),
        (
            "long lines",
            lines(120_000)
                .split_inclusive('\n')
                .enumerate()
                .map(|(i, line)| if i % 9000 == 0 { line.to_owned() } else { line.replace('\n', " ") })
                .collect(),
        ),
        ("letters", "abcdefghi".repeat(400_000)),
    ] {
        fs::write(&path, &text).unwrap();
        for (valid_fraction, test_fraction) in [(0.05, 0.05), (0.3, 0.41)] {
            let config = LmConfig {
                train: vec![path.clone()],
                tokens: TokenKind::Bytes,
                valid_fraction,
                test_fraction,
                ..LmConfig::default()
            };
            let out = folder.path().join(format!("{name} {valid_fraction}"));
            made(&config, &out).unwrap();
            let (direct, mapped) = (load(&config, &|_, _| {}).unwrap(), opened(&out, &config).unwrap());
            assert!(
                mapped.train == direct.train && mapped.valid == direct.valid && mapped.test == direct.test,
                "{name}"
            );
            assert_eq!(mapped.extents, direct.extents, "{name}");
        }
    }
}

#[test]
fn subwords_of_large_texts_are_learned_from_a_sample() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    fs::write(&path, lines(120_000)).unwrap();
    let config = LmConfig { train: vec![path], vocabulary: 300, ..LmConfig::default() };
    let prepared = |name: &str, sample: u64| {
        let out = folder.path().join(name);
        prepare_sampled(&config, &out, false, None, &AtomicBool::new(false), &|_, _| {}, sample).unwrap()
    };
    let (one, again) = (prepared("one", 100_000), prepared("again", 100_000));
    assert_eq!(one, again);
    assert!(one.sampled.is_some_and(|bytes| (50_000..=100_000).contains(&bytes)), "{:?}", one.sampled);
    assert!(one.notes[0].contains("subwords were learned from"), "{:?}", one.notes);
    let mapped = opened(&folder.path().join("one"), &config).unwrap();
    let text = mapped.units.decode(&mapped.train.range(0..mapped.train.len()));
    let tidy = |text: &str| {
        text.split('\n').map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert!(tidy(&lines(120_000)).starts_with(&tidy(text.trim_end_matches('\n'))));
}

#[test]
fn what_is_not_what_it_was_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    fs::write(&path, lines(900)).unwrap();
    for tokens in KINDS {
        let config = LmConfig { train: vec![path.clone()], tokens, vocabulary: 300, ..LmConfig::default() };
        let out = folder.path().join(format!("{tokens:?}"));
        made(&config, &out).unwrap();
        let refused = |expected: &str| {
            let error = opened(&out, &config).unwrap_err();
            assert!(!error.is_config() && error.to_string().contains(expected), "{expected} in {error}");
        };
        let with = |name: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>, expected: &str| {
            let file = out.join(name);
            let whole = fs::read(&file).unwrap();
            fs::write(&file, change(whole.clone())).unwrap();
            refused(expected);
            fs::write(&file, whole).unwrap();
            opened(&out, &config).unwrap();
        };
        let cut = |bytes: Vec<u8>| bytes[..bytes.len() - 1].to_vec();
        for name in IDS {
            with(name, &cut, "prepare the text again");
            with(name, &|bytes| [bytes, vec![0]].concat(), "bytes, expected");
            fs::rename(out.join(name), out.join("elsewhere")).unwrap();
            refused(name);
            fs::rename(out.join("elsewhere"), out.join(name)).unwrap();
        }
        with(HEADER, &|bytes| bytes[..bytes.len() / 2].to_vec(), "is no JSON");
        with(HEADER, &|_| b"{\"format\": 2}".to_vec(), "has format 2, expected 1");
        with(HEADER, &|_| b"{\"format\": 1}".to_vec(), "does not describe a text");
        with(HEADER, &|_| b"7".to_vec(), "has format null, expected 1");
        let replaced = |from: &str, to: &str| {
            let (from, to) = (from.to_owned(), to.to_owned());
            move |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(&from, &to).into_bytes()
        };
        let vocabulary = format!("\"vocabulary\": {}", Prepared::read(&out).unwrap().vocabulary);
        with(HEADER, &replaced(&vocabulary, "\"vocabulary\": 70000"), "has a vocabulary of");
        let bytes = format!("\"tokens\": {}", Prepared::read(&out).unwrap().parts[0].tokens);
        with(HEADER, &replaced(&bytes, "\"tokens\": 18446744073709551615"), "bytes, expected");
        let kept = [TOKENIZER, VOCABULARY].into_iter().find(|name| out.join(name).is_file());
        if let Some(name) = kept {
            with(name, &cut, "its SHA-256 is");
            with(name, &|_| Vec::new(), "its SHA-256 is");
        }
        assert_eq!(kept.is_some(), matches!(tokens, TokenKind::Words | TokenKind::Subwords));
        fs::remove_file(out.join(HEADER)).unwrap();
        refused("has no prepared.json");
    }
    let nowhere = LmConfig { prepared: Some(folder.path().join("nowhere")), ..LmConfig::default() };
    let error = crate::data::TaskOptions::check(&nowhere).unwrap_err().to_string();
    assert!(error.contains("nowhere") && error.contains("check the path"), "{error}");
}

#[test]
fn words_of_a_vocabulary_are_checked() {
    for (text, expected) in [
        ("a\n<unk>\n", "no line '<eos>'"),
        ("a\n<eos>\n", "no line '<unk>'"),
        ("a\n<eos>\n<unk>\na\n", "the line 'a'"),
        ("a\n\n<eos>\n<unk>\n", "the line ''"),
        ("a b\n<eos>\n<unk>\n", "the line 'a b'"),
    ] {
        let error = WordVocabulary::parse(text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn texts_that_cannot_be_prepared_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let refused = |bytes: &[u8], config: LmConfig, class: Class, expected: &str| {
        let path = folder.path().join("text.txt");
        fs::write(&path, bytes).unwrap();
        let error = made(&LmConfig { train: vec![path], ..config }, &out).unwrap_err();
        assert!(error.class() == class && error.to_string().contains(expected), "{expected} in {error}");
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["text.txt"]);
    };
    let bytes = || LmConfig { tokens: TokenKind::Bytes, ..LmConfig::default() };
    refused(b"", bytes(), Class::Data, "text.txt: has no text");
    refused(b" \n \n", bytes(), Class::Data, "text.txt: has no text");
    refused(b"x", bytes(), Class::Data, "leaves no text to");
    let mut text = lines(60_000).into_bytes();
    text.truncate(text.iter().rposition(|byte| *byte == b'\n').unwrap());
    let (place, line) = (text.len() + 1, 60_000);
    text.extend(b"\n\xe9t\xe9");
    refused(&text, bytes(), Class::Data, &format!("text.txt:{}: is not UTF-8 from byte {place} (0xe9)", line + 1));
    let word = "x".repeat((1 << 24) + (1 << 20));
    let words = LmConfig { tokens: TokenKind::Words, ..LmConfig::default() };
    refused(format!("a {word} b").as_bytes(), words, Class::Data, "without white space from byte 2 on");
    let paragraphs = LmConfig { paragraphs: true, ..bytes() };
    refused(word.as_bytes(), paragraphs, Class::Data, "leave task.lm.paragraphs out");
    refused(b"a", LmConfig { vocabulary: 3, ..LmConfig::default() }, Class::Usage, "task.lm.vocabulary: is 3");

    let path = folder.path().join("text.txt");
    fs::write(&path, lines(100)).unwrap();
    let stopped =
        prepare(&LmConfig { train: vec![path], ..bytes() }, &out, false, None, &AtomicBool::new(true), &|_, _| {});
    assert_eq!(stopped.unwrap_err().class(), Class::Interrupted);
    assert!(!out.exists() && !folder.path().join("out.part").exists());
}

#[test]
fn a_folder_is_replaced_only_if_it_is_a_prepared_one_and_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (folder.path().join("text.txt"), folder.path().join("deep").join("out"));
    fs::write(&path, lines(300)).unwrap();
    let config = LmConfig { train: vec![path], tokens: TokenKind::Bytes, ..LmConfig::default() };
    let again = |overwrite| prepare(&config, &out, overwrite, None, &AtomicBool::new(false), &|_, _| {});
    again(false).unwrap();
    let data = opened(&out, &config).unwrap();
    let error = again(false).unwrap_err();
    assert!(error.class() == Class::Usage && error.to_string().contains("replace it with --overwrite"), "{error}");

    // What a killed run left is no prepared text, and is not taken for one; another process is left alone.
    let part = out.with_file_name("out.part");
    fs::create_dir(&part).unwrap();
    fs::write(part.join("train.bin"), "half").unwrap();
    fs::write(part.join(".lock"), "").unwrap();
    fs::write(out.join(".lock"), "").unwrap();
    let lock = crate::train::DirectoryLock::take(&part).unwrap();
    let error = again(true).unwrap_err();
    assert!(error.class() == Class::Usage && error.to_string().contains("in use by another process"), "{error}");
    drop(lock);
    assert_eq!(again(true).unwrap(), Prepared { notes: Vec::new(), ..Prepared::read(&out).unwrap() });
    assert!(!part.exists() && !out.with_file_name("out.old").exists() && !out.join(".lock").exists());
    // A text that was opened stays what it was.
    assert!(data.train == opened(&out, &config).unwrap().train);

    fs::write(part.with_file_name("thesis.txt"), "mine").unwrap();
    fs::create_dir(&part).unwrap();
    fs::write(part.join("thesis.txt"), "mine").unwrap();
    let error = again(true).unwrap_err();
    assert!(error.to_string().contains("thesis.txt is not of a prepared text"), "{error}");
    fs::remove_dir_all(&part).unwrap();
    fs::write(out.join("thesis.txt"), "mine").unwrap();
    let error = again(true).unwrap_err();
    assert!(error.to_string().contains("holds files that are not of a prepared text"), "{error}");
    assert!(out.join("thesis.txt").exists() && out.join(HEADER).exists());
}

/// A reader of "Parquet" files that hold a text a line.
#[test]
fn rows_are_read_by_the_reader_that_is_given() {
    fn rows(path: &Path, column: &str, take: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Result<(), String> {
        let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
        if column != "text" {
            return Err(format!("has no column '{column}'"));
        }
        let _ = text.lines().try_for_each(take);
        Ok(())
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, plain) = (folder.path().join("part-0.parquet"), folder.path().join("plain.txt"));
    // Texts without words leave no line.
    let text: String = lines(300).split_inclusive('\n').filter(|line| !line.trim().is_empty()).collect();
    fs::write(&path, &text).unwrap();
    fs::write(&plain, &text).unwrap();
    let config = |path: &Path| LmConfig { train: vec![path.into()], tokens: TokenKind::Bytes, ..LmConfig::default() };
    let with = |config: LmConfig, rows, stop: bool| {
        prepare(&config, &folder.path().join("out"), true, rows, &AtomicBool::new(stop), &|_, _| {})
    };
    let reader: Option<RowReader> = Some(rows);
    let (of_rows, of_text) = (with(config(&path), reader, false).unwrap(), with(config(&plain), None, false).unwrap());
    assert!(of_rows.files == of_text.files && of_rows.parts == of_text.parts);
    let error = |config, rows, stop| with(config, rows, stop).unwrap_err().to_string();
    assert!(error(config(&path), None, false).contains("build this program with --features parquet, or convert it"));
    let other = LmConfig { field: "body".into(), ..config(&path) };
    assert!(error(other, reader, false).contains("part-0.parquet: has no column 'body'"));
    assert!(error(config(&path), reader, true).contains("stopped"));
    let direct = crate::data::TaskOptions::check(&config(&path)).unwrap_err().to_string();
    assert!(direct.contains("is a Parquet file; prepare it with a 'regard data prepare'"), "{direct}");
}

#[test]
fn a_file_that_grows_while_it_is_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    fs::write(&path, lines(300)).unwrap();
    let size = fs::metadata(&path).unwrap().len();
    let config = LmConfig { train: vec![path.clone()], tokens: TokenKind::Bytes, ..LmConfig::default() };
    let grown = AtomicBool::new(false);
    let grow = |done: u64, _: u64| {
        if done >= 2 * size && !grown.swap(true, Relaxed) {
            fs::write(&path, lines(301)).unwrap();
        }
    };
    let error = prepare(&config, &folder.path().join("out"), false, None, &AtomicBool::new(false), &grow).unwrap_err();
    assert!(error.to_string().contains("was changed while it was read"), "{error}");
}

#[test]
fn a_prepared_text_is_named_as_such_and_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (folder.path().join("text.txt"), folder.path().join("out"));
    fs::write(&path, lines(300)).unwrap();
    made(&LmConfig { train: vec![path.clone()], tokens: TokenKind::Bytes, ..LmConfig::default() }, &out).unwrap();
    let check = |config: LmConfig| crate::data::TaskOptions::check(&config).unwrap_err();
    for config in [
        LmConfig { train: vec![out.clone()], ..LmConfig::default() },
        LmConfig { directory: Some(out.clone()), ..LmConfig::default() },
    ] {
        assert!(check(config).to_string().contains("name it with task.lm.prepared"));
    }
    let both = LmConfig { prepared: Some(out.clone()), valid: vec![path], ..LmConfig::default() };
    let error = check(both);
    assert!(
        error.is_config() && error.to_string().contains("task.lm.prepared: is set, and so is task.lm.valid"),
        "{error}"
    );
    let config = LmConfig { prepared: Some(out), vocabulary: 4000, ..LmConfig::default() };
    let options: &dyn crate::data::TaskOptions = &config;
    assert_eq!((options.shape().vocabulary, options.held().is_none()), (256, true));
}
