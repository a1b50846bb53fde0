//! Files of tasks.

use std::{io::Write, path::PathBuf};

use regard_files::text::decode_text;
use regard_tasks::data::{
    CharLmConfig, ListOpsConfig, LmConfig, MaskedLmConfig, NewsConfig, SummaryConfig, TaskConfig, TaskData, TaskName,
    TextConfig, TextLines, TokenKind, TranslationConfig, listops as expressions, load_listops,
};

use super::{Target, put, scratch};

const PROSE: &str = "One day, at 3.5 miles from here.\r\n\"Stop!\" she said. So he did?\n\nA größer heading\n<|endoftext|>\nNext one.\n";
const WORDS: [&str; 12] =
    ["\r\n", "\r", "\n", "\u{feff}", "\0", "\t", "<|endoftext|>", "\u{ff}", "é", "\u{10ffff}", " ", ". "];

fn loads(task: &TaskConfig) -> Option<TaskData> {
    task.load(1, None, &|_, _| {}).ok()
}

/// Text from bytes, whole and by lines, which must agree.
pub fn lines() -> Target {
    let samples =
        vec![PROSE.into(), format!("\u{feff}{PROSE}").into(), b"\xff\xfea\0".to_vec(), b"a\r\r\n\rb".to_vec()];
    Target::new("lines", samples, &WORDS, |input| {
        let lines: Result<Vec<String>, _> = TextLines::new(input, "fuzz").collect();
        match (decode_text(input), lines) {
            (Ok(text), Ok(lines)) => {
                let whole: Vec<&str> = text.split('\n').collect();
                let whole = whole.strip_suffix(&[""]).unwrap_or(&whole);
                // The last line may have an end that lacks its second half.
                let same = lines
                    .iter()
                    .zip(whole)
                    .all(|(one, other)| one == other.strip_suffix('\r').unwrap_or(other) || one == other);
                assert!(lines.len() == whole.len() && same, "whole text and lines differ");
                true
            }
            (Err(_), Err(_)) => true,
            (whole, lines) => panic!("text: {whole:?}, lines: {lines:?}"),
        }
    })
}

/// The text form of expressions.
pub fn listops() -> Target {
    let samples = vec![b"[MAX 2 9 [MIN 4 7 ] 0 ]".to_vec(), b"[SM 1 2 [MED 3 4 ] ]".to_vec(), b"7".to_vec()];
    Target::new("listops", samples, &["[MIN ", "[MAX ", "[MED ", "[SM ", "] ", " ", "9 "], |input| {
        let symbols = expressions::parse(&String::from_utf8_lossy(input));
        let _ = expressions::evaluate(input);
        symbols.is_ok_and(|symbols| {
            let text = expressions::format(&symbols);
            assert_eq!(expressions::parse(&text).expect("its own text"), symbols);
            true
        })
    })
}

/// Entries of the cache: whatever lies there, the set is the same.
pub fn cache() -> Target {
    let directory = scratch();
    let listops =
        ListOpsConfig { min_length: 3, max_length: 20, train: 4, valid: 2, test: 2, ..ListOpsConfig::default() };
    let load =
        move |path: &std::path::Path| load_listops(&listops, 1, Some(path), &|_, _| {}).expect("a generated set");
    let expected = load(directory.path());
    let file =
        std::fs::read_dir(directory.path()).expect("a directory").next().expect("a file").expect("an entry").path();
    let sound = std::fs::read(&file).expect("the entry");
    Target::new("cache", vec![sound.clone()], &[], move |input| {
        std::fs::write(&file, input).expect("a file in a temporary directory");
        let data = load(directory.path());
        assert!(
            (&data.train, &data.valid, &data.test) == (&expected.train, &expected.valid, &expected.test),
            "another set"
        );
        assert_eq!(data.notes.is_empty(), input == sound, "damage goes with a note");
        true
    })
}

/// Rows of labels and texts in a file of this name.
fn rows(name: &'static str, file: &'static str, samples: Vec<Vec<u8>>) -> Target {
    let directory = scratch();
    let train = put(&directory, file, b"");
    let task = TextConfig {
        train: Some(train.clone()),
        test: Some(train.clone()),
        classes: 4,
        max_length: 64,
        ..TextConfig::default()
    };
    let task = TaskConfig { name: TaskName::Text, text: task, ..TaskConfig::default() };
    Target::new(name, samples, &WORDS, move |input| {
        put(&directory, file, input);
        loads(&task).is_some()
    })
}

/// Columns separated by tabs.
pub fn text() -> Target {
    let samples =
        vec![b"0\tgood\r\n3\tbad \xff one\n1\tx\n".to_vec(), b"2\t8\t\"Wall St. Bears\"\n0\t17\tb\n".to_vec()];
    rows("text", "train.tsv", samples)
}

/// Columns separated by commas.
pub fn text_csv() -> Target {
    let samples = vec![b"0,good\r\n3,\"a \"\"b\"\", c\"\n1,x\n".to_vec(), b"2,8,\"two\nlines\"\n0,17,\xff\n".to_vec()];
    rows("text-csv", "train.csv", samples)
}

/// JSON objects with label and text.
pub fn text_json() -> Target {
    let samples = vec![
        b"{\"label\": 1, \"text\": \"good\"}\n{\"sentence\": \"\\u00e9\", \"label\": \"3\"}\n".to_vec(),
        b"{\"label\":0,\"text\":\"a\",\"id\":[{}]}\n{\"label\":2,\"text\":\"b\"}\n".to_vec(),
    ];
    rows("text-json", "train.jsonl", samples)
}

fn characters(name: &'static str, samples: Vec<Vec<u8>>) -> Target {
    let directory = scratch();
    let path = put(&directory, "text", b"");
    let char_lm = CharLmConfig { path: Some(path), context: 4, ..CharLmConfig::default() };
    let task = TaskConfig { name: TaskName::CharLm, char_lm, ..TaskConfig::default() };
    Target::new(name, samples, &WORDS, move |input| {
        put(&directory, "text", input);
        loads(&task).is_some()
    })
}

/// A text for a character model.
pub fn char_lm() -> Target {
    characters("char-lm", vec![PROSE.into(), format!("\u{feff}{PROSE}").into()])
}

/// The same, compressed.
pub fn gzip() -> Target {
    let file = |text: &str, level| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
        encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).expect("in memory")
    };
    let one = file(PROSE, flate2::Compression::best());
    let samples = vec![[&one[..], &one].concat(), file(&PROSE.repeat(9), flate2::Compression::none()), one];
    characters("gzip", samples)
}

/// The same, compressed by the other program.
pub fn bzip2() -> Target {
    let file = |text: &str| {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
        encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).expect("in memory")
    };
    let one = file(PROSE);
    characters("bzip2", vec![[&one[..], &one].concat(), file(&PROSE.repeat(9)), one])
}

/// Texts for a masked model, with a vocabulary learned from them.
pub fn masked_lm() -> Target {
    let directory = scratch();
    let path = put(&directory, "text", b"");
    let masked_lm = MaskedLmConfig { paths: vec![path], vocabulary: 300, context: 8, ..MaskedLmConfig::default() };
    let task = TaskConfig { name: TaskName::MaskedLm, masked_lm, ..TaskConfig::default() };
    Target::new("masked-lm", vec![PROSE.into()], &WORDS, move |input| {
        put(&directory, "text", input);
        loads(&task).is_some()
    })
}

fn language(name: &'static str, file: &'static str, samples: Vec<Vec<u8>>) -> Target {
    let directory = scratch();
    let train = vec![put(&directory, file, b"")];
    let tokens = [TokenKind::Words, TokenKind::Characters, TokenKind::Bytes, TokenKind::Subwords];
    let tasks = tokens.map(|tokens| {
        let lm = LmConfig {
            tokens,
            train: train.clone(),
            vocabulary: 300,
            context: 4,
            paragraphs: tokens == TokenKind::Words,
            ..LmConfig::default()
        };
        TaskConfig { name: TaskName::Lm, lm, ..TaskConfig::default() }
    });
    Target::new(name, samples, &[&WORDS[..], &["{\"text\": \"", "\"}\n", "<eos>"]].concat(), move |input| {
        put(&directory, file, input);
        tasks.iter().filter(|task| loads(task).is_some()).count() > 0
    })
}

/// A text in three parts, of tokens of every kind.
pub fn lm() -> Target {
    language("lm", "text.txt", vec![PROSE.repeat(4).into(), PROSE.repeat(9).into()])
}

/// The same in lines of JSON.
pub fn json_lines() -> Target {
    let line = format!("{}\n", serde_json::json!({ "id": 1, "text": PROSE }));
    language("json-lines", "text.jsonl", vec![line.repeat(5).into(), line.repeat(9).into()])
}

/// Documents and their summaries, in all forms.
pub fn summary() -> Target {
    let directory = scratch();
    put(&directory, "train.jsonl", b"{\"document\": \"two nine. four.\", \"summary\": \"two\"}\n");
    let file = |name: &str| Some(PathBuf::from(name));
    let summary = SummaryConfig {
        directory: Some(directory.path().into()),
        valid: file("train.jsonl"),
        test: file("test.jsonl"),
        vocabulary: 300,
        max_document: 8,
        max_summary: 8,
        ..SummaryConfig::default()
    };
    let task = TaskConfig { name: TaskName::Summary, summary, ..TaskConfig::default() };
    let turn = serde_json::json!({ "speaker": "A", "content": PROSE });
    let query = serde_json::json!({ "query": "What?", "answer": PROSE });
    let samples = [
        serde_json::json!({ "document": PROSE, "summary": ["a", "b"] }),
        serde_json::json!({ "article_text": [PROSE, "c"], "abstract_text": ["<S> d </S>", "e"] }),
        serde_json::json!({ "meeting_transcripts": [turn], "general_query_list": [query] }),
    ];
    let samples = samples.map(|line| format!("{line}\n").into_bytes()).to_vec();
    let pieces = ["{\"document\": \"", "\", \"summary\": [\"", "\"]}\n", "null", "<S>", "\"meeting_transcripts\": ["];
    Target::new("summary", samples, &[&WORDS[..], &pieces].concat(), move |input| {
        put(&directory, "test.jsonl", input);
        loads(&task).is_some()
    })
}

/// One side of pairs of sentences.
pub fn translation() -> Target {
    let directory = scratch();
    for name in ["train.en", "val.en", "val.de"] {
        put(&directory, name, b"two nine\nseven three one\nfour\n");
    }
    let name = |name: &str| PathBuf::from(name);
    let translation = TranslationConfig {
        directory: Some(directory.path().into()),
        train: name("train"),
        valid: name("val"),
        test: name("val"),
        vocabulary: 300,
        max_length: 8,
        ..TranslationConfig::default()
    };
    let task = TaskConfig { name: TaskName::Translation, translation, ..TaskConfig::default() };
    let samples = vec!["zwei neun\r\nsieben drei eins\r\nvier\r\n".into(), "\u{feff}fünf\n\nx y z\n".into()];
    Target::new("translation", samples, &WORDS, move |input| {
        put(&directory, "train.de", input);
        loads(&task).is_some()
    })
}

/// One of the two files of a log of news.
fn log(name: &'static str, file: &'static str) -> Target {
    let news = "N1\ta\tb\tRain again\t\t\t[]\t[]\nN2\ta\tb\tBread rises: why?\t\t\t[]\t[]\n";
    let behaviors = "1\tU1\t11/11/2019 9:05:58 AM\tN1 N2\tN1-0 N2-1\n2\tU2\t-\t\tN2-0 N1-1\n";
    let directory = scratch();
    let [_, second] = [("news.tsv", news), ("behaviors.tsv", behaviors)]
        .map(|(name, content)| put(&directory, name, content.as_bytes()));
    let folder = second.parent().map(PathBuf::from);
    let news_config =
        NewsConfig { train: folder.clone(), test: folder, history: 2, max_length: 3, ..NewsConfig::default() };
    let task = TaskConfig { name: TaskName::News, news: news_config, ..TaskConfig::default() };
    // Each piece of news has an id of its own.
    let samples = match file {
        "news.tsv" => vec![news.into(), format!("{news}{}", news.replace('N', "M")).into()],
        _ => vec![behaviors.into(), behaviors.repeat(2).into()],
    };
    let words = [&WORDS[..], &["N1", "-1", "-0", "\tU3\t", "-"]].concat();
    Target::new(name, samples, &words, move |input| {
        put(&directory, file, input);
        let Some(data) = loads(&task) else { return false };
        let batch = data.batches(1, 3).expect("clicks")(0);
        assert!(batch.items() > 0 && batch.readers.is_some(), "a batch without readers");
        true
    })
}

/// Titles.
pub fn news() -> Target {
    log("news", "news.tsv")
}

/// What was read, offered and clicked on.
pub fn behaviors() -> Target {
    log("behaviors", "behaviors.tsv")
}
