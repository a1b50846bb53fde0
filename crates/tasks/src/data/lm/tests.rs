use super::*;

/// A text whose `i`-th word is `wI`, and the data of it.
fn counting(words: usize, config: LmConfig) -> Result<LmData, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    let text: String = (0..words).map(|i| format!("w{i:04}{}", if i % 10 == 9 { "\n" } else { " " })).collect();
    std::fs::write(&path, text).unwrap();
    load(&LmConfig { train: vec![path], ..config }, &|_, _| {})
}

fn words(context: usize) -> LmConfig {
    LmConfig { tokens: TokenKind::Words, context, vocabulary: 10_000, ..LmConfig::default() }
}

fn rows(batch: &Batch) -> Vec<(Vec<i32>, Vec<i32>)> {
    let length = batch.tokens.length;
    let pairs = batch.tokens.ids.chunks_exact(length).zip(batch.targets.chunks_exact(length));
    pairs.map(|(inputs, targets)| (inputs.to_vec(), targets.to_vec())).collect()
}

#[test]
fn rows_of_streams_go_on_where_they_ended_and_an_epoch_holds_the_text() {
    let data = counting(1000, words(8)).unwrap();
    // 900 words and a line end for each ten of them.
    assert_eq!((data.train.len(), data.valid.len(), data.test.len()), (990, 55, 55));
    let mut batches = data.batches(3, 4).unwrap();
    let order = data.stream_order(3, 4).unwrap();
    assert_eq!(order.windows, 30);
    let epoch: Vec<Batch> = (0..30).map(&mut batches).collect();
    for pair in epoch.windows(2) {
        for ((_, before), (after, _)) in rows(&pair[0]).iter().zip(rows(&pair[1])) {
            assert_eq!(before.last(), after.first());
        }
    }
    let mut targets: Vec<usize> = order.starts(0).iter().flat_map(|start| start + 1..start + 1 + 240).collect();
    let train = data.train.range(0..data.train.len());
    let streams: Vec<i32> =
        (0..4).flat_map(|row| epoch.iter().flat_map(move |batch| rows(batch)[row].1.clone())).collect();
    assert_eq!(streams, targets.iter().map(|place| train[*place] as i32).collect::<Vec<_>>());
    targets.dedup();
    assert_eq!(targets.len(), 960, "no token twice");

    // A function of data, seed and index alone.
    let again = data.batches(3, 4).unwrap()(17);
    assert_eq!(rows(&again), rows(&epoch[17]));
    let offsets: Vec<usize> = (0..20).map(|epoch| order.starts(30 * epoch)[0]).collect();
    assert!(offsets.iter().any(|offset| *offset != offsets[0]) && offsets.iter().all(|offset| *offset < 8));
    let largest = (0..2000).flat_map(|index| order.starts(index)).max().unwrap();
    assert!(largest + 8 < data.train.len());
}

#[test]
fn windows_depend_on_seed_and_index() {
    let data = counting(1000, LmConfig { batches: Batching::Windows, ..words(8) }).unwrap();
    let of = |seed, index| rows(&data.batches(seed, 5).unwrap()(index));
    assert_eq!(of(1, 7), of(1, 7));
    assert!(of(1, 7) != of(1, 8) && of(1, 7) != of(2, 7));
    for (inputs, targets) in of(4, 2) {
        assert_eq!(inputs[1..], targets[..7]);
    }
}

#[test]
fn evaluation_scores_every_token_after_the_first_once_whatever_the_stride() {
    for stride in [1, 3, 8] {
        let config = LmConfig { stride: Some(stride), valid_stride: Some(8), ..words(8) };
        let data = counting(1000, config).unwrap();
        for split in [Split::Valid, Split::Test] {
            let text = data.text(split);
            let text: Vec<i32> = text.range(0..text.len()).iter().map(|id| *id as i32).collect();
            let batches: Vec<Batch> = data.split(split, 3).unwrap().collect();
            assert_eq!(data.split(split, 3).unwrap().len(), batches.len());
            let scored: Vec<i32> =
                batches.iter().flat_map(|batch| batch.targets.iter().copied().filter(|target| *target >= 0)).collect();
            assert_eq!(scored, text[1..], "stride {stride}");
        }
        let batches: Vec<Batch> = data.split(Split::Test, 3).unwrap().collect();
        let (_, targets) = &rows(&batches[0])[1];
        assert_eq!(targets.iter().filter(|target| **target >= 0).count(), stride);
        assert!(targets[..8 - stride].iter().all(|target| *target == -1));
    }
}

#[test]
fn wikitext_counts_as_its_authors_do() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("wiki.train.tokens", " \n = Title = \n \n A <unk> word , A word \n"),
        ("wiki.valid.tokens", " A new word \n"),
        ("wiki.test.tokens", " word A \n"),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let config = LmConfig { directory: Some(folder.path().into()), ..words(4) };
    let data = load(&config, &|_, _| {}).unwrap();
    let TextUnits::Words(vocabulary) = &data.units else { panic!("words") };
    // Four line ends; A, = and word twice; the others once.
    assert_eq!(vocabulary.words(), ["<eos>", "=", "A", "word", ",", "<unk>", "Title"]);
    assert!(data.train == [0, 1, 6, 1, 0, 0, 2, 5, 3, 4, 2, 3, 0]);
    assert!(data.valid == [2, 5, 3, 0] && data.test == [3, 2, 0]);
    assert_eq!(data.shape().vocabulary, 7);
    assert!(
        data.notes[0].contains("a vocabulary of 7, not 10000") && data.notes[1].contains("25.00 %"),
        "{:?}",
        data.notes
    );
    let extent = data.extent(Split::Test).unwrap();
    assert_eq!((extent.words, extent.characters, extent.bytes, extent.of_words), (3, 9, 9, true));
}

#[test]
fn subwords_are_learned_from_the_training_text_or_read_from_a_run() {
    let config = LmConfig { vocabulary: 300, context: 16, ..LmConfig::default() };
    let data = counting(2000, config.clone()).unwrap();
    assert_eq!(data.shape().vocabulary, 300);
    assert!(data.units.decode(&data.train.range(0..99)).starts_with("w0000 w0001 w0002"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, data.tokenizer().unwrap().json()).unwrap();
    let again = counting(2000, LmConfig { tokenizer: Some(path), vocabulary: 4000, ..config }).unwrap();
    assert!(again.units == data.units && again.train == data.train);
    assert!(again.notes.is_empty(), "{:?}", again.notes);
}

#[test]
fn texts_that_are_too_short_say_what_they_leave() {
    let error = counting(30, words(40)).unwrap_err().to_string();
    assert!(error.contains("leaves") && error.contains("at least 41 are needed"), "{error}");
    let data = counting(100, words(10)).unwrap();
    let error = data.batches(0, 20).err().unwrap();
    assert!(error.is_config() && error.to_string().contains("task.lm.batches: streams of 20 rows"), "{error}");
    let check = |config: LmConfig| crate::data::TaskOptions::check(&config).unwrap_err();
    for (config, expected) in [
        (LmConfig { context: 0, ..LmConfig::default() }, "task.lm.context: is 0"),
        (
            LmConfig { stride: Some(129), ..LmConfig::default() },
            "task.lm.stride: is 129; must be from 1 to task.lm.context (128)",
        ),
        (LmConfig { valid_stride: Some(0), ..LmConfig::default() }, "task.lm.valid_stride: is 0"),
        (LmConfig { vocabulary: 100, ..LmConfig::default() }, "task.lm.vocabulary: is 100"),
        (LmConfig { vocabulary: 2, ..words(8) }, "task.lm.vocabulary: is 2; must be at least 3"),
        (LmConfig { tokenizer: Some("x".into()), ..words(8) }, "task.lm.tokenizer: is set, but tokens are no subwords"),
        (
            LmConfig { valid_fraction: 0.5, test_fraction: 0.5, ..LmConfig::default() },
            "task.lm.valid_fraction: is 1 with that of the test text",
        ),
    ] {
        let error = check(config);
        assert!(error.is_config() && error.to_string().starts_with(expected), "{error}");
    }
}

#[test]
fn the_embedded_text_serves_where_none_is_given() {
    for tokens in [TokenKind::Characters, TokenKind::Bytes] {
        let data = load(&LmConfig { tokens, ..LmConfig::default() }, &|_, _| {}).unwrap();
        let total = data.train.len() + data.valid.len() + data.test.len();
        assert_eq!(total, 1_115_394);
        assert!(data.units.decode(&data.train.range(0..14)) == "First Citizen:");
    }
}
