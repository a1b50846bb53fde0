//! Rows of files, with columns and labels as the options say.

use std::path::{Path, PathBuf};

use rand::Rng;

use super::{
    encode::words_of,
    load::{in_bytes, in_pieces, read},
    rows::{Form, Reading, Rows},
    *,
};
use crate::data::{
    ClassificationData, DataError, Sequences, Streams, TaskOptions, TextUnits, TokenKind,
    file::tests::{bzip2, gzip},
    plain_text::LONGEST_LINE,
};

/// Rows of a file with the columns and labels of `config`.
fn read_as(format: TextFormat, bytes: &[u8], path: &str, config: &TextConfig) -> Result<Rows, DataError> {
    let (fields, labels) = config.known();
    let most = if config.tokens == TokenKind::Bytes { config.max_length } else { usize::MAX };
    Form { format, fields, labels, reading: Reading::Labelled, most }.rows(bytes, Path::new(path))
}

fn read_rows(bytes: &[u8], path: &Path, config: &TextConfig) -> Result<Rows, DataError> {
    read_as(TextFormat::Tsv, bytes, path.to_str().unwrap(), config)
}

fn rows(bytes: &[u8], config: &TextConfig) -> Result<Sequences, DataError> {
    let rows = read_rows(bytes, Path::new("rows.tsv"), config)?;
    Ok(in_bytes(config, &[rows.clone(), rows.clone(), rows], config.classes)?.train)
}

fn load(config: &TextConfig, seed: u64) -> Result<ClassificationData, DataError> {
    in_bytes(config, &read(config, seed, &|_, _| {})?, config.classes)
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
    let data = pieces(&words(), &split).unwrap();
    let Some(TextUnits::Words(vocabulary)) = &data.units else { panic!("words") };
    // Five words and marks, the unknown word, the end of a line; padding besides.
    assert_eq!((vocabulary.len(), data.vocabulary, data.first_id), (7, 8, 1));
    assert_eq!(data.train.symbols(0).len(), 5);
    let ids: Vec<u32> = data.test.symbols(0).iter().map(|id| u32::from(*id)).collect();
    assert_eq!(vocabulary.decode(&ids), "the <unk> <unk> the bird");
    let subwords = TextConfig { tokens: TokenKind::Subwords, vocabulary: 300, max_length: 9, ..words() };
    let data = pieces(&subwords, &split).unwrap();
    let Some(TextUnits::Subwords(tokenizer)) = &data.units else { panic!("subwords") };
    assert_eq!((data.first_id, data.vocabulary), (0, tokenizer.vocabulary()));
    let ids: Vec<i32> = data.train.symbols(1).iter().map(|id| i32::from(*id)).collect();
    assert_eq!(tokenizer.decode(&ids).trim(), "the bird");
    assert_eq!(data.test.longest(), 9);
    let blank = read_rows(&b"0\tone\n0\t  \n"[..], Path::new("blank.tsv"), &words()).unwrap();
    let error = pieces(&words(), &[train.clone(), train, blank]).unwrap_err().to_string();
    assert!(error.starts_with("blank.tsv:2: a sequence without tokens"), "{error}");
}

fn pieces(config: &TextConfig, rows: &[Rows; 3]) -> Result<ClassificationData<u16>, DataError> {
    let encoder = TextEncoder::learn(config, &rows[0].texts, false)?;
    in_pieces(config, rows, config.classes, &encoder)
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
    assert!(problem(TextConfig { vocabulary: (1 << 16) + 1, ..words() }).contains("at most 65536"));
}

#[test]
fn rows_of_two_and_of_five_columns_are_read() {
    let two = rows(b"1\tgood\r\n0\tbad", &TextConfig::default()).unwrap();
    assert_eq!((two.len(), two.label(0), two.symbols(0)), (2, 1, &b"good"[..]));
    let five = rows(b"0\t8\t17\ttt004\tbad \xff one", &TextConfig::default()).unwrap();
    assert_eq!((five.label(0), five.symbols(0)), (0, &b"bad \xff one"[..]));
    // A tab within a text would leave its last piece alone.
    let error = rows(b"1\tgood\n0\tbad\tone\n", &TextConfig::default()).unwrap_err().to_string();
    assert!(error.starts_with("rows.tsv:2: 3 tab-separated columns, expected 2 as in the first row"), "{error}");
    // Columns behind the text do no harm, as some rows of the STS benchmark have them.
    let placed = TextConfig { text_column: 1.into(), ..TextConfig::default() };
    assert_eq!(rows(b"1\tgood\n0\tbad\tsource\n", &placed).unwrap().symbols(1), b"bad");
    let stars = TextConfig { label_column: 1.into(), first_label: 1, classes: 10, ..TextConfig::default() };
    assert_eq!(rows(b"1\t10\tfine", &stars).unwrap().label(0), 9);
    let sst = TextConfig { label_column: (-1).into(), text_column: 0.into(), header: true, ..TextConfig::default() };
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
        (b"0\tgood\n\n1\tbad\n", "rows.tsv:2: 1 tab-separated columns, expected 2 as in the first row"),
        (b"good\n", "rows.tsv:1: 1 tab-separated columns, where columns 0 (label) and -1"),
        (b"0\t\n", "rows.tsv:1: the text is empty"),
        (b"", "rows.tsv: has no rows"),
    ] {
        let error = rows(text, &TextConfig::default()).unwrap_err();
        assert!(!error.is_config() && error.to_string().starts_with(expected), "{error}");
    }
    let third = TextConfig { text_column: 2.into(), ..TextConfig::default() };
    let error = rows(b"0\tgood\n", &third).unwrap_err().to_string();
    assert!(error.contains("rows.tsv:1: 2 tab-separated columns, none is column 2"), "{error}");
    let endless = vec![b'x'; LONGEST_LINE + 10];
    assert!(rows(&endless, &TextConfig::default()).unwrap_err().to_string().contains("without a line end"));
}

/// Arbitrary bytes and columns give rows or an error, in every form of file; rows have valid labels.
#[test]
fn arbitrary_bytes_never_panic() {
    let mut stream = Streams::new(0, "fuzz").at(0);
    let tsv = b"\t\t\n\r0123ab\xff\xef\xbb\xbf \0";
    let csv = b",,\n\r\"\"0123ab\xff ";
    let json = b"{}{}:,\"\"\n\\0a";
    for (format, alphabet, sound) in [
        (TextFormat::Tsv, &tsv[..], &b"1\tab\n"[..]),
        (TextFormat::Csv, csv, b"1,ab\n"),
        (TextFormat::JsonLines, json, b"{\"label\":1,\"text\":\"a\"}\n"),
    ] {
        let (mut good, mut bad) = (0, 0);
        for _ in 0..20_000 {
            let length = stream.random_range(0..24);
            let mut bytes: Vec<u8> = (0..length).map(|_| alphabet[stream.random_range(0..alphabet.len())]).collect();
            if length < 12 {
                bytes.splice(0..0, sound.iter().copied());
            }
            let mut column = || match stream.random_range(0..20) {
                0 => i64::MIN,
                1 => i64::MAX,
                other => other % 7 - 3,
            };
            let (label_column, text_column) = (column().into(), column().into());
            let second_column = (length % 3 == 0).then(|| column().into());
            let odd = TextConfig {
                label_column,
                text_column,
                second_column,
                header: length % 5 == 0,
                ..TextConfig::default()
            };
            let config = if stream.random() { TextConfig::default() } else { odd };
            let config = TextConfig { classes: 3, max_length: 4, ..config };
            match read_as(format, &bytes, "rows", &config) {
                Ok(rows) => {
                    assert!(rows.targets.iter().all(|target| matches!(target, Target::Class(0..3))));
                    assert!(rows.texts.iter().flatten().all(|text| (1..5).contains(&text.len())));
                    good += 1;
                }
                Err(_) => bad += 1,
            }
        }
        assert!(good > 100 && bad > 100, "{format:?}: {good} good, {bad} bad");
    }
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

/// Texts of rows as text, with their targets.
fn shown(rows: &Rows) -> Vec<(Vec<String>, Target)> {
    let texts =
        rows.texts.iter().map(|row| row.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect());
    texts.zip(rows.targets.iter().copied()).collect()
}

#[test]
fn news_in_csv_are_title_and_description() {
    let text = b"3,\"Rates, again\",\"The bank said \"\"no\"\".\"\n1,A vote,Polls are open\n";
    let config = TextConfig { format: Some(TextFormat::AgNews), ..TextConfig::default() };
    let rows = read_as(TextFormat::AgNews, text, "train.csv", &config).unwrap();
    let expected = [("Rates, again The bank said \"no\".", 2), ("A vote Polls are open", 0)];
    assert_eq!(shown(&rows), expected.map(|(text, class)| (vec![text.to_owned()], Target::Class(class))));
    let error = read_as(TextFormat::AgNews, b"5,a,b\n", "train.csv", &config).unwrap_err().to_string();
    assert!(error.starts_with("train.csv:1: label `5`; expected a whole number from 1 to 4"), "{error}");
    let error = read_as(TextFormat::AgNews, b"1,a,b\n2,a\n", "train.csv", &config).unwrap_err().to_string();
    assert!(error.starts_with("train.csv:2: 2 comma-separated columns, none is column 2"), "{error}");
    // The same by the options of any such file, with a header that names the columns.
    let named = TextConfig {
        label_column: "topic".into(),
        text_column: Columns::Several(vec!["title".into(), "body".into()]),
        labels: vec!["world".into(), "trade".into()],
        ..TextConfig::default()
    };
    let rows = read_as(TextFormat::Csv, b"body,topic,title\nx y,trade,A\n", "a.csv", &named).unwrap();
    assert_eq!(shown(&rows), [(vec!["A x y".to_owned()], Target::Class(1))]);
    let error = read_as(TextFormat::Csv, b"body,topic,title\nx,sport,A\n", "a.csv", &named).unwrap_err().to_string();
    assert!(error.starts_with("a.csv:2: label `sport`; expected one of world, trade (task.text.labels)"), "{error}");
    let error = read_as(TextFormat::Csv, b"text,topic\nx,trade\n", "a.csv", &named).unwrap_err().to_string();
    assert!(error.contains("no column is named 'title', only text, topic; check task.text.text_column"), "{error}");
    let error = read_as(TextFormat::Csv, b"topic,title,body\ntrade,A\n", "a.csv", &named).unwrap_err().to_string();
    assert!(error.starts_with("a.csv:2: 2 comma-separated columns, expected 3 as the header has"), "{error}");
}

#[test]
fn json_lines_have_their_fields_by_name() {
    let read = |bytes: &[u8], config: &TextConfig| read_as(TextFormat::JsonLines, bytes, "a.jsonl", config);
    let plain = TextConfig::default();
    let lines =
        b"{\"text\": \"caf\\u00e9\\nbar\", \"label\": 1}\n{\"label\": \"0\", \"sentence\": \"so\", \"id\": 7}\n";
    let rows = read(lines, &plain).unwrap();
    let expected = [("caf\u{e9}\nbar", 1), ("so", 0)];
    assert_eq!(shown(&rows), expected.map(|(text, class)| (vec![text.to_owned()], Target::Class(class))));
    let pairs = TextConfig {
        label_column: "gold".into(),
        text_column: "premise".into(),
        second_column: Some("hypothesis".into()),
        regression: true,
        ..TextConfig::default()
    };
    let rows = read(b"{\"premise\":\"a\",\"hypothesis\":\"b\",\"gold\":2.5}", &pairs).unwrap();
    assert_eq!(shown(&rows), [(vec!["a".to_owned(), "b".to_owned()], Target::Score(2.5))]);
    for (text, config, expected) in [
        (&b"{\"text\":\"a\",\"label\":1}\n{\"text\":\"b\",\"lab"[..], &plain, "a.jsonl:2: no JSON object (EOF"),
        (b"[1]\n", &plain, "a.jsonl:1: no JSON object (invalid type: sequence"),
        (b"{\"label\":1,\"body\":\"a\"}\n", &plain, "a.jsonl:1: no 'text' among body"),
        (b"{\"label\":1,\"text\":[]}\n", &plain, "a.jsonl:1: 'text' is [], expected text"),
        (b"{\"text\":\"a\"}\n", &plain, "a.jsonl:1: no 'label' among text"),
        (b"{\"label\":1,\"text\":\"\"}\n", &plain, "a.jsonl:1: the text is empty"),
        (b"{\"premise\":\"a\",\"hypothesis\":\"b\",\"gold\":-1}\n", &pairs, "a.jsonl:1: score `-1`; expected a number"),
        (b"", &plain, "a.jsonl: has no rows; a row is a JSON object"),
    ] {
        let error = read(text, config).unwrap_err();
        assert!(!error.is_config() && error.to_string().starts_with(expected), "{error}");
    }
}

/// A small file of each task of GLUE in its form, with what its first row is read as.
const GLUE: [(TextFormat, &str, &[&str], Target); 9] = [
    (TextFormat::Cola, "mm01\t0\t*\tHim left.\nmm01\t1\t\tHe left.\n", &["Him left."], Target::Class(0)),
    (TextFormat::Sst2, "sentence\tlabel\na joy \t1\ndull \t0\n", &["a joy "], Target::Class(1)),
    (
        TextFormat::Mrpc,
        "\u{feff}Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tHe \"won.\tHe did win.\r\n0\t1\t2\ta\tb\r\n",
        &["He \"won.", "He did win."],
        Target::Class(1),
    ),
    (
        TextFormat::Qqp,
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWhy?\tHow?\t0\n4\tcut\n5\t6\t7\tA?\tA?\t1\n",
        &["Why?", "How?"],
        Target::Class(0),
    ),
    (
        TextFormat::Stsb,
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n\
         0\tg\tf\t2012\t1\tn\tn\tA man runs.\tA man is running.\t4.800\n1\tg\tf\t2012\t1\tn\tn\ta\tb\t0\n",
        &["A man runs.", "A man is running."],
        Target::Score(4.8),
    ),
    (
        TextFormat::Mnli,
        "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n0\tg\tIt rains.\tIt is dry.\tx\tcontradiction\n\
         1\tg\ta\tb\tx\tneutral\n",
        &["It rains.", "It is dry."],
        Target::Class(2),
    ),
    (
        TextFormat::Qnli,
        "index\tquestion\tsentence\tlabel\n0\tWho?\tShe.\tentailment\n1\tWhen?\tShe.\tnot_entailment\n",
        &["Who?", "She."],
        Target::Class(0),
    ),
    (
        TextFormat::Rte,
        "index\tsentence1\tsentence2\tlabel\n0\tIt rains.\tIt is wet.\tnot_entailment\n1\ta\tb\tentailment\n",
        &["It rains.", "It is wet."],
        Target::Class(1),
    ),
    (
        TextFormat::Wnli,
        "index\tsentence1\tsentence2\tlabel\n0\tShe saw it.\tShe saw the cup.\t1\n1\ta\tb\t0\n",
        &["She saw it.", "She saw the cup."],
        Target::Class(1),
    ),
];

#[test]
fn tasks_of_glue_are_read_from_their_folders() {
    let directory = tempfile::tempdir().unwrap();
    for (format, file, texts, target) in GLUE {
        let folder = directory.path().join(format.name());
        std::fs::create_dir(&folder).unwrap();
        let dev = if format == TextFormat::Mnli { "dev_matched.tsv" } else { "dev.tsv" };
        for name in ["train.tsv", dev] {
            std::fs::write(folder.join(name), file).unwrap();
        }
        let config = TextConfig { path: Some(folder.clone()), max_length: 64, ..TextConfig::default() };
        config.check().unwrap();
        let [train, valid, test] = read(&config, 1, &|_, _| {}).unwrap();
        let expected: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(shown(&test)[0], (expected, target), "{format:?}");
        assert_eq!((train.texts.len(), valid.texts.len(), test.texts.len()), (1, 1, 2), "{format:?}");
        let data = config.load(1, None, &|_, _| {}).unwrap();
        assert_eq!(data.shape(), config.shape(), "{format:?}");
        let notes = if format == TextFormat::Qqp {
            vec!["2 rows with fewer columns than the header were left out"]
        } else {
            vec![]
        };
        assert_eq!(data.notes(), notes, "{format:?}");
        // Cut in its last row, which all but one of the tasks refuse.
        let cut = file.trim_end().rsplit_once('\t').unwrap().0;
        std::fs::write(folder.join(dev), cut).unwrap();
        let error = config.load(1, None, &|_, _| {}).map(|_| ()).map_err(|error| error.to_string());
        match format {
            TextFormat::Qqp => assert_eq!(error, Ok(())),
            _ => assert!(error.as_ref().is_err_and(|error| error.contains(&format!("{dev}:"))), "{error:?}"),
        }
    }
}

#[test]
fn reviews_are_read_from_a_folder_by_side_or_by_stars() {
    let directory = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = directory.path().join("aclImdb").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for part in ["train", "test"] {
        put(&format!("{part}/pos/0_9.txt"), "A fine film.");
        put(&format!("{part}/neg/10_1.txt"), "Two hours\nof my life.");
        put(&format!("{part}/neg/2_4.txt"), "So so.");
        put(&format!("{part}/unsup/0_0.txt"), "Not looked at.");
    }
    let sides = TextConfig { path: Some(directory.path().into()), ..TextConfig::default() };
    sides.check().unwrap();
    let [_, _, test] = read(&sides, 1, &|_, _| {}).unwrap();
    let expected = [("Two hours\nof my life.", 0), ("So so.", 0), ("A fine film.", 1)];
    assert_eq!(shown(&test), expected.map(|(text, class)| (vec![text.to_owned()], Target::Class(class))));
    let stars = TextConfig { classes: 10, first_label: 1, ..sides.clone() };
    stars.check().unwrap();
    let [_, _, test] = read(&stars, 1, &|_, _| {}).unwrap();
    assert_eq!(test.targets, [0, 3, 8].map(Target::Class));
    assert_eq!(stars.load(1, None, &|_, _| {}).unwrap().shape(), stars.shape());
    let error = TextConfig { classes: 3, ..sides.clone() }.check().unwrap_err();
    assert!(error.is_config() && error.to_string().contains("have 2 classes (sides) from 0, or 10"), "{error}");
    put("test/pos/3_ten.txt", "Odd name.");
    let error = read(&stars, 1, &|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("3_ten.txt: label `ten`") && error.contains("identifier, _ and its stars"), "{error}");
    put("test/pos/3_ten.txt", " \n");
    let error = read(&sides, 1, &|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("3_ten.txt: has no text; remove the file"), "{error}");
    std::fs::remove_dir_all(directory.path().join("aclImdb/test/pos")).unwrap();
    let error = read(&sides, 1, &|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("test/pos") && error.contains("check the path"), "{error}");
}

#[test]
fn options_that_do_not_go_together_are_named() {
    let files = || TextConfig { train: Some("a".into()), test: Some("b".into()), ..TextConfig::default() };
    for (config, expected) in [
        (TextConfig { path: Some("x".into()), ..files() }, "task.text.train: is set and task.text.path too"),
        (
            TextConfig { second_column: Some((-1).into()), ..files() },
            "task.text.second_column: is -1, the column of a text",
        ),
        (TextConfig { second_column: Some(0.into()), ..files() }, "task.text.second_column: is 0"),
        (TextConfig { labels: vec!["a".into()], ..files() }, "task.text.labels: has 1; expected none, or two or more"),
        (TextConfig { labels: vec!["a".into(), "a".into()], ..files() }, "task.text.labels: has 'a' twice"),
        (
            TextConfig { labels: vec!["a".into(), "b".into()], regression: true, ..files() },
            "task.text.labels: has 2; expected none with task.text.regression",
        ),
        (
            TextConfig { second_column: Some(2.into()), max_length: 2, ..files() },
            "task.text.max_length: is 2; must be at least 3",
        ),
        (
            TextConfig { format: Some(TextFormat::AclImdb), ..files() },
            "task.text.format: is acl-imdb, the form of a folder",
        ),
    ] {
        let error = config.check().unwrap_err();
        assert!(error.is_config() && error.to_string().starts_with(expected), "{error}");
    }
}

#[test]
fn a_pair_is_one_sequence_and_the_longer_text_is_cut() {
    let rows = |texts: [&str; 2]| vec![texts.map(|text| text.as_bytes().into()).to_vec()];
    let config = |max_length| TextConfig { max_length, tokens: TokenKind::Bytes, ..TextConfig::default() };
    let encode = |max_length, texts: [&str; 2]| {
        let Encoded { symbols, first, dropped } =
            TextEncoder::learn(&config(max_length), &rows(texts), true).unwrap().encode(&texts);
        assert_eq!(symbols[first - 1], 256);
        let text = |part: &[u16]| part.iter().map(|symbol| char::from(*symbol as u8)).collect::<String>();
        (text(&symbols[..first - 1]), text(&symbols[first..]), dropped)
    };
    let cut = |a: &str, b: &str, dropped| (a.to_owned(), b.to_owned(), dropped);
    assert_eq!(encode(9, ["abcd", "wxyz"]), cut("abcd", "wxyz", 0));
    assert_eq!(encode(8, ["abcd", "wxyz"]), cut("abcd", "wxy", 1));
    assert_eq!(encode(6, ["abcdefgh", "w"]), cut("abcd", "w", 4));
    assert_eq!(encode(6, ["a", "stuvwxyz"]), cut("a", "stuv", 4));
    assert_eq!(encode(3, ["abc", "xyz"]), cut("a", "x", 4));
    // Words and subwords have a separator of their own.
    for (tokens, separator) in [(TokenKind::Words, 5), (TokenKind::Subwords, 2)] {
        let config = TextConfig { tokens, vocabulary: 300, max_length: 30, ..TextConfig::default() };
        let encoder = TextEncoder::learn(&config, &rows(["one two", "two three"]), true).unwrap();
        let encoded = encoder.encode(&["one", "three"]);
        let id = i32::from(encoded.symbols[encoded.first - 1]) + encoder.first_id();
        assert_eq!(id, separator + encoder.first_id());
        assert!((id as usize) < encoder.vocabulary());
        let others = encoded.symbols.iter().enumerate().filter(|(i, _)| *i != encoded.first - 1);
        assert!(others.clone().count() >= 2 && others.clone().all(|(_, symbol)| i32::from(*symbol) != separator));
    }
}

#[test]
fn batches_of_pairs_have_types_and_scores() {
    let text = b"2.5\tab\tc\n0\ta\tbcdef\n5\tabc\tdefghijklmnopqrstu\n";
    let config = TextConfig {
        text_column: 1.into(),
        second_column: Some(2.into()),
        regression: true,
        max_length: 20,
        ..TextConfig::default()
    };
    let rows = read_rows(text, Path::new("a.tsv"), &config).unwrap();
    let (_, labels) = config.known();
    let encoder = TextEncoder::learn(&config, &rows.texts, true).unwrap();
    let part = TextPart::of(&rows, &labels, &encoder).unwrap();
    assert_eq!((part.len(), part.truncated, part.dropped), (3, 1, 2));
    let (items, batch) = part.batches(crate::data::BatchOptions::new(3, 20)).unwrap().next().unwrap();
    assert_eq!(items, [0, 1, 2]);
    let length = batch.tokens.length;
    let types = batch.tokens.types.clone().unwrap();
    let ones = |row: usize| {
        let row = &types[row * length..(row + 1) * length];
        (row.iter().position(|kind| *kind == 1).unwrap(), row.iter().filter(|kind| **kind == 1).count())
    };
    assert_eq!([ones(0), ones(1), ones(2)], [(3, 1), (2, 5), (4, 16)]);
    let scores: Vec<f32> = batch.targets.iter().map(|target| crate::data::target_score(*target)).collect();
    assert_eq!((scores, batch.items()), (vec![2.5, 0.0, 5.0], 3));
}

#[test]
fn how_the_first_line_of_an_input_was_taken_is_told() {
    let input = |config: &TextConfig, text: &str, unlabelled| {
        let encoder = TextEncoder::learn(config, &[vec![text.as_bytes().into()]], false).unwrap();
        config.input(&encoder, None, text.as_bytes(), &InputOptions { format: None, unlabelled })
    };
    let rows = |config: &TextConfig, text| input(config, text, false).map(|input| (input.part.len(), input.note));
    let named = TextConfig { label_column: "label".into(), text_column: "text".into(), ..TextConfig::default() };
    assert_eq!(rows(&named, "text\nfine\ndull\n").unwrap(), (2, None));
    let note = "the first line is read as a row, since it does not name the columns: ";
    assert_eq!(rows(&named, "review\nfine\n").unwrap(), (2, Some(format!("{note}the text"))));
    assert_eq!(rows(&named, "1\tfine\n0\tdull\n").unwrap(), (2, Some(format!("{note}the target and the text"))));
    // Columns by place with a header: what looks like a row is none.
    let headed = TextConfig { header: true, ..TextConfig::default() };
    assert_eq!(rows(&headed, "label\ttext\n1\tfine\n").unwrap(), (1, None));
    assert_eq!(rows(&headed, "fine\ndull\n").unwrap(), (2, Some(format!("{note}the text"))));
    let error = rows(&headed, "1\tfine\n0\tdull\n").unwrap_err().to_string();
    assert!(error.contains("standard input:1: column 0 is '1', a label, where the names of the columns"), "{error}");
}

#[test]
fn what_is_left_out_of_a_set_is_told() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("train.csv", "1,one,two\n2,a,b\n"), ("test.csv", "1,one,two\n")] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let news = |config: TextConfig| {
        let config = TextConfig { path: Some(folder.path().into()), ..config };
        config.load(1, None, &|_, _| {}).unwrap().notes().to_vec()
    };
    assert_eq!(news(TextConfig::default()), Vec::<String>::new());
    let own = "the files are read as the set ag-news, whose columns and labels are known";
    let notes = news(TextConfig { classes: 2, first_label: 1, ..TextConfig::default() });
    assert!(notes.len() == 1 && notes[0].starts_with(own), "{notes:?}");
    let notes = news(TextConfig { text_column: 1.into(), ..TextConfig::default() });
    assert!(notes.len() == 1 && notes[0].starts_with(own), "{notes:?}");
    // What the set has is no surprise.
    assert_eq!(news(TextConfig { classes: 4, first_label: 1, ..TextConfig::default() }), Vec::<String>::new());
    let short = news(TextConfig { max_length: 4, ..TextConfig::default() });
    // One of the two rows for training is held out.
    let parts = ["0 training, 1 validation and 1 test", "1 training, 0 validation and 1 test"];
    let told = parts.map(|parts| {
        format!("{parts} rows are longer than the 4 tokens of task.text.max_length; their ends are left out")
    });
    assert!(short.len() == 1 && told.contains(&short[0]), "{short:?}");
}
