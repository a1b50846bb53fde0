use std::{collections::HashSet, fs};

use regard_nn::models::{Readers, TokenBatch};

use super::*;
use crate::data::{Batch, TaskOptions};

fn small() -> NewsConfig {
    let generated = GeneratedNews { topics: 4, users: 40, news: 60, impressions: 200, test_impressions: 30 };
    NewsConfig { valid_fraction: 0.2, max_length: 10, history: 6, generated, ..NewsConfig::default() }
}

fn loaded(config: &NewsConfig, seed: u64) -> NewsData {
    config.check().unwrap();
    load(config, seed, &|_, _| {}).unwrap()
}

/// Without padding.
fn rows(tokens: &TokenBatch) -> Vec<Vec<i32>> {
    let rows = tokens.ids.chunks_exact(tokens.length).enumerate();
    let length = |i: usize| {
        let padding = tokens.padding.as_ref();
        padding.map_or(tokens.length, |padding| padding.row(i).iter().filter(|real| **real != 0).count())
    };
    rows.map(|(i, row)| row[..length(i)].to_vec()).collect()
}

fn readers(batch: &Batch) -> &Readers {
    batch.readers.as_ref().unwrap()
}

#[test]
fn a_reader_is_trained_on_or_held_out_and_every_impression_is_somewhere() {
    let data = loaded(&small(), 3);
    let readers = |chosen: &[u32]| chosen.iter().map(|i| data.train.readers[*i as usize]).collect::<HashSet<u32>>();
    let [kept, held] = [&data.kept, &data.held].map(|chosen| readers(chosen));
    assert!(kept.is_disjoint(&held));
    // A fifth of the 40 readers that have impressions.
    assert_eq!((held.len(), kept.len() + held.len()), (8, data.train.reader_count()));
    let mut all: Vec<u32> = data.kept.iter().chain(&data.held).copied().collect();
    all.sort_unstable();
    assert_eq!(all, (0..200).collect::<Vec<_>>());
    assert_eq!(data.tested.len(), 30);
    assert_ne!(loaded(&small(), 4).held, data.held);
    assert!(
        data.setting().starts_with("generated: ") && data.setting().contains("30 for the test"),
        "{}",
        data.setting()
    );
    assert_eq!(data.shape().objective, Objective::Rank { history: 6, candidates: 5 });
    assert_eq!(data.impressions(Split::Test).unwrap().log.news(), 120);
}

#[test]
fn a_training_batch_sets_each_click_against_others_of_its_impression() {
    let data = loaded(&small(), 3);
    let mut batches = data.batches(7, 8).unwrap();
    let steps = data.clicks.len() / 8;
    let mut seen = Vec::new();
    for step in 0..steps {
        let batch = batches(step as u64);
        let Readers { histories, candidates } = readers(&batch);
        assert_eq!((batch.targets.len(), batch.items(), histories.batch, candidates.len()), (8, 8, 8, 40));
        assert!(batch.targets.iter().all(|target| *target == 0));
        assert!(batch.tokens.length <= 10 && histories.length <= 6);
        let titles = rows(&batch.tokens);
        let news: HashSet<&Vec<i32>> = titles.iter().collect();
        assert_eq!(news.len(), titles.len(), "each title once");
        for (history, offered) in rows(histories).iter().zip(candidates.chunks_exact(5)) {
            let text = |row: &i32| titles[*row as usize].clone();
            seen.push((history.iter().map(text).collect::<Vec<_>>(), offered.iter().map(text).collect::<Vec<_>>()));
        }
    }
    // Each click of the kept impressions once an epoch, but for those that fill no batch.
    assert_eq!(seen.len(), steps * 8);
    for (history, offered) in &seen {
        let title = |news: &u32| data.train.title(*news as usize).to_vec();
        let found = data.kept.iter().map(|i| data.train.impression(*i as usize)).find_map(|impression| {
            let of = |clicked: bool| {
                let all = impression.offered.iter().zip(impression.clicked);
                all.filter(move |(_, own)| **own == clicked).map(|(news, _)| title(news)).collect::<HashSet<_>>()
            };
            let others = of(false);
            let fits = impression.history.iter().map(title).collect::<Vec<_>>() == *history
                && of(true).contains(&offered[0])
                && offered[1..].iter().all(|other| others.contains(other));
            fits.then_some(others.len())
        });
        // None comes twice where there are enough.
        let distinct: HashSet<&Vec<i32>> = offered[1..].iter().collect();
        assert_eq!(Some(distinct.len()), found.map(|others| others.min(4)), "{offered:?}");
    }
    let mut again = data.batches(7, 8).unwrap();
    let (one, other) = (batches(5), again(5));
    assert_eq!((one.tokens, one.readers), (other.tokens, other.readers));
    assert_ne!(data.batches(8, 8).unwrap()(5).tokens, again(5).tokens);
    assert!(data.batches(7, 0).is_err() && data.split(Split::Test, 0).is_err());
}

#[test]
fn a_split_offers_everything_and_names_the_click() {
    let data = loaded(&small(), 3);
    let batches: Vec<Batch> = data.split(Split::Test, 7).unwrap().collect();
    assert_eq!(batches.iter().map(|batch| batch.targets.len()).collect::<Vec<_>>(), [7, 7, 7, 7, 2]);
    let mut i = 0;
    for batch in &batches {
        let titles = rows(&batch.tokens);
        let candidates = &readers(batch).candidates;
        let each = candidates.len() / batch.targets.len();
        for (offered, target) in candidates.chunks_exact(each).zip(&*batch.targets) {
            let impression = data.test.impression(i);
            for (row, news) in offered.iter().zip(impression.offered) {
                assert_eq!(titles[*row as usize], data.test.title(*news as usize));
            }
            assert!(impression.clicked[*target as usize]);
            i += 1;
        }
    }
    assert_eq!(i, 30);
}

#[test]
fn folders_are_read_as_the_log_that_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let generated = loaded(&small(), 3);
    small().generated.write(folder.path(), 3).unwrap();
    let [train, test] = ["train", "test"].map(|name| Some(folder.path().join(name)));
    let config = NewsConfig { train, test, ..small() };
    let read = loaded(&config, 3);
    assert_eq!((&read.kept, &read.held, &read.clicks), (&generated.kept, &generated.held, &generated.clicks));
    // What was generated knows its probabilities, what was read does not.
    let known = |data: &NewsData| data.test.probabilities.is_some();
    assert!(known(&generated) && !known(&read));
    let plain = |log: &ImpressionLog| ImpressionLog { probabilities: None, ..log.clone() };
    assert_eq!((read.train.clone(), read.test.clone()), (plain(&generated.train), plain(&generated.test)));
    assert!(!read.setting().starts_with("generated"));

    // A small log by hand, in subwords, with an empty history, a title without a word and an unknown id.
    let train = folder.path().join("train");
    let news = "N7\tnews\tlocal\tBridge closes; bridge opens\t\t\t[]\t[]\nN8\tnews\tlocal\t\t\t\t[]\t[]\nN9\tfood\tbread\tBread rises\t\t\t\t\n";
    let behaviors =
        "1\tU1\t11/11/2019 9:05:58 AM\t\tN7-1 N8-0 N1-0\n2\tU2\t11/11/2019 9:06:00 AM\tN7 N9\tN8-0 N9-1 N7-0\n";
    fs::write(train.join("news.tsv"), news).unwrap();
    fs::write(train.join("behaviors.tsv"), behaviors).unwrap();
    let config = NewsConfig { tokens: TokenKind::Subwords, vocabulary: 300, ..config };
    let data = loaded(&config, 1);
    assert_eq!((data.kept.len(), data.held.len(), data.notes().len()), (1, 1, 1));
    assert!(data.notes()[0].contains("left out 1 ids"), "{:?}", data.notes());
    assert_eq!(data.units().unwrap().name(), "subwords");
    let batch = data.batches(1, 4).unwrap()(0);
    assert!(batch.tokens.ids.iter().all(|id| (*id as usize) < data.shape().vocabulary));

    // One reader cannot be split.
    fs::write(train.join("behaviors.tsv"), "1\tU1\tnow\t\tN7-1 N8-0\n").unwrap();
    let error = load(&config, 1, &|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("behaviors.tsv: has impressions of a single user"), "{error}");
}
