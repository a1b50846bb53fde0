//! A log of readers with a planted taste, in the format of MIND.
//!
//! Every piece of news has a topic, which some words of its title tell. Every reader has a first and a second topic. What is
//! offered is clicked on with a probability that the topic alone decides ([`CLICK`]), each piece of news by itself, and all
//! anew until something is clicked on and something is not. No ranking of an impression can be expected to do better than the
//! one by these probabilities: of two neighbours in the wrong order, exchanging them raises the expectation of every measure.

use std::{io, path::Path};

use rand::{
    Rng,
    seq::{IndexedRandom, SliceRandom, index::sample},
};
use rand_chacha::ChaCha8Rng;
use regard_files::write_whole;
use serde::{Deserialize, Serialize};

use super::read::FILES;
use crate::data::{DataError, Streams};

/// Probabilities of a click on news of the first, the second and any other topic of a reader.
pub const CLICK: [f64; 3] = [0.5, 0.25, 0.04];

/// Words of a title, from and to.
const TITLE: [usize; 2] = [6, 12];
/// Share of the words of a title that tell its topic; at least one does.
const TELLING: f64 = 0.5;
/// Words of each topic, and words of no topic: few, so that minutes of training meet each of them often.
const WORDS: [usize; 2] = [12, 60];
/// Pieces of news that a reader has read, from and to; one reader in [`NEW_READERS`] has read none.
const HISTORY: [usize; 2] = [4, 24];
const NEW_READERS: u32 = 50;
/// Pieces of news that are offered in an impression, from and to.
const OFFERED: [usize; 2] = [8, 16];

/// Sizes of a generated log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GeneratedNews {
    /// Topics.
    pub topics: usize,
    /// Readers.
    pub users: usize,
    /// Pieces of news that training offers; the test offers as many others.
    pub news: usize,
    /// Impressions of training, those held out for validation included.
    pub impressions: usize,
    /// Impressions of the test.
    pub test_impressions: usize,
}

impl Default for GeneratedNews {
    fn default() -> Self {
        Self { topics: 8, users: 1000, news: 1000, impressions: 10_000, test_impressions: 2000 }
    }
}

/// Largest of these sizes: more than anybody needs, few enough to fit into memory.
const MOST: usize = 1_000_000;
/// Most topics: words have to be made for each.
const MOST_TOPICS: usize = 1000;

/// The files of a folder, with the probability of each click.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GeneratedFolder {
    /// `news.tsv` and `behaviors.tsv`.
    pub files: [String; 2],
    /// For everything offered, in its order.
    pub probabilities: Vec<f32>,
}

struct Reader {
    topics: [usize; 2],
    history: Vec<usize>,
}

impl GeneratedNews {
    pub(super) fn check(&self) -> Result<(), DataError> {
        let sizes = [
            ("topics", self.topics, 3, MOST_TOPICS),
            ("users", self.users, 2, MOST),
            ("news", self.news, OFFERED[1], MOST),
            ("impressions", self.impressions, 2, MOST),
            ("test_impressions", self.test_impressions, 1, MOST),
        ];
        match sizes.iter().find(|(_, size, least, most)| !(least..=most).contains(&size)) {
            Some((key, size, least, most)) => {
                let problem = format!("is {size}; must be from {least} to {most}");
                Err(DataError::config(&format!("news.generated.{key}"), problem))
            }
            None => Ok(()),
        }
    }

    /// Folders for training and for the test. Readers and what they had read are those of both; what the test offers is new.
    pub(super) fn generate(&self, seed: u64) -> [GeneratedFolder; 2] {
        let mut stream = Streams::new(seed, "generated news").at(0);
        let topic_of: Vec<usize> = (0..2 * self.news).map(|_| stream.random_range(0..self.topics)).collect();
        let mut lines: Vec<String> =
            topic_of.iter().enumerate().map(|(i, topic)| news_line(i, *topic, &mut stream)).collect();
        let mut by_topic = vec![Vec::new(); self.topics];
        (0..self.news).for_each(|i| by_topic[topic_of[i]].push(i));
        let readers: Vec<Reader> = (0..self.users).map(|_| reader(self.topics, &by_topic, &mut stream)).collect();

        let mut behaviors = |count: usize, from: usize| {
            let (mut text, mut probabilities) = (String::new(), Vec::new());
            for i in 0..count {
                let user = stream.random_range(0..readers.len());
                let reader = &readers[user];
                let size = stream.random_range(OFFERED[0]..=OFFERED[1]);
                let offered: Vec<usize> = sample(&mut stream, self.news, size).into_iter().map(|i| from + i).collect();
                let chances: Vec<f64> = offered.iter().map(|&i| reader.chance(topic_of[i])).collect();
                let clicked = clicks(&chances, &mut stream);
                text.push_str(&behavior_line(i, user, reader, &offered, &clicked));
                probabilities.extend(chances.iter().map(|chance| *chance as f32));
            }
            (text, probabilities)
        };
        let (train, of_train) = behaviors(self.impressions, 0);
        let (test, of_test) = behaviors(self.test_impressions, self.news);
        let all = lines.concat();
        lines.truncate(self.news);
        [
            GeneratedFolder { files: [lines.concat(), train], probabilities: of_train },
            GeneratedFolder { files: [all, test], probabilities: of_test },
        ]
    }

    /// Writes the folders `train` and `test` of a log of checked sizes below `folder`. Reading them as `task.news.train` and
    /// `task.news.test` gives the same log, but for the probabilities.
    ///
    /// # Errors
    /// A folder that cannot be written, with its path.
    pub fn write(&self, folder: &Path, seed: u64) -> io::Result<()> {
        for (name, generated) in ["train", "test"].into_iter().zip(self.generate(seed)) {
            let part = folder.join(name);
            std::fs::create_dir_all(&part)
                .map_err(|error| io::Error::new(error.kind(), format!("cannot make {}: {error}", part.display())))?;
            for (file, content) in FILES.into_iter().zip(&generated.files) {
                write_whole(&part.join(file), content.as_bytes())?;
            }
        }
        Ok(())
    }
}

impl Reader {
    fn chance(&self, topic: usize) -> f64 {
        CLICK[self.topics.iter().position(|own| *own == topic).unwrap_or(2)]
    }
}

/// A reader who has read what offers of every topic alike would have led to.
fn reader(topics: usize, by_topic: &[Vec<usize>], stream: &mut ChaCha8Rng) -> Reader {
    let both = sample(stream, topics, 2);
    let mut reader = Reader { topics: [both.index(0), both.index(1)], history: Vec::new() };
    if stream.random_range(0..NEW_READERS) == 0 {
        return reader;
    }
    let size = stream.random_range(HISTORY[0]..=HISTORY[1]);
    while reader.history.len() < size {
        let topic = stream.random_range(0..topics);
        let clicked = stream.random_bool(reader.chance(topic));
        // Without news of a topic there is nothing to read on it.
        if let (true, Some(news)) = (clicked, by_topic[topic].choose(stream)) {
            reader.history.push(*news);
        }
    }
    reader
}

fn clicks(chances: &[f64], stream: &mut ChaCha8Rng) -> Vec<bool> {
    loop {
        let clicked: Vec<bool> = chances.iter().map(|chance| stream.random_bool(*chance)).collect();
        if clicked.contains(&true) && clicked.contains(&false) {
            return clicked;
        }
    }
}

fn news_line(number: usize, topic: usize, stream: &mut ChaCha8Rng) -> String {
    let size = stream.random_range(TITLE[0]..=TITLE[1]);
    let telling = ((size as f64 * TELLING) as usize).max(1);
    let [own, common] = WORDS;
    let mut words: Vec<String> = (0..size)
        .map(|i| match i < telling {
            true => word(common + topic * own + stream.random_range(0..own)),
            false => word(stream.random_range(0..common)),
        })
        .collect();
    words.shuffle(stream);
    format!("N{}\ttopic{topic}\ttopic{topic}\t{}\t\t\t[]\t[]\n", number + 1, words.join(" "))
}

fn behavior_line(number: usize, user: usize, reader: &Reader, offered: &[usize], clicked: &[bool]) -> String {
    let history: Vec<String> = reader.history.iter().map(|news| format!("N{}", news + 1)).collect();
    let offered: Vec<String> =
        offered.iter().zip(clicked).map(|(news, clicked)| format!("N{}-{}", news + 1, u8::from(*clicked))).collect();
    // Readers of this format expect a time; one second after the other.
    let (day, second) = (1 + number / 43_200 % 28, number % 43_200);
    let time = format!(
        "1/{day}/2020 {}:{:02}:{:02} AM",
        [12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11][second / 3600],
        second / 60 % 60,
        second % 60
    );
    format!("{}\tU{}\t{time}\t{}\t{}\n", number + 1, user + 1, history.join(" "), offered.join(" "))
}

/// A word that can be pronounced, another one for every number below 421,875.
fn word(number: usize) -> String {
    const CONSONANTS: &[u8; 15] = b"bdfghklmnprstvz";
    const VOWELS: &[u8; 5] = b"aeiou";
    const SYLLABLES: usize = 75;
    // An odd step without a factor of the number of words visits each once, neighbours far apart.
    let mut rest = number * 104_729 % SYLLABLES.pow(3);
    let mut text = String::new();
    for _ in 0..3 {
        let syllable = rest % SYLLABLES;
        rest /= SYLLABLES;
        text.push(char::from(CONSONANTS[syllable / 5]));
        text.push(char::from(VOWELS[syllable % 5]));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, path::PathBuf};

    use super::{super::read, *};

    fn small() -> GeneratedNews {
        GeneratedNews { topics: 5, users: 60, news: 200, impressions: 4000, test_impressions: 300 }
    }

    fn parsed(folder: &GeneratedFolder) -> read::RawLog {
        let [news, behaviors] = folder.files.each_ref().map(|text| (text.as_bytes(), Path::new("generated")));
        read::parse([news, behaviors], 50).unwrap()
    }

    #[test]
    fn words_are_distinct() {
        let words: HashSet<String> = (0..50_000).map(word).collect();
        assert_eq!(words.len(), 50_000);
    }

    #[test]
    fn a_log_is_read_back_whole_and_clicks_follow_the_rule() {
        let [train, test] = small().generate(4);
        for (folder, impressions, news) in [(&train, 4000, 200), (&test, 300, 400)] {
            let read::RawLog { titles, log, left } = parsed(folder);
            assert_eq!((titles.len(), log.len(), left), (news, impressions, read::LeftOut::default()));
            assert_eq!(log.clicked.len(), folder.probabilities.len());
        }
        let log = parsed(&train).log;
        assert!(log.reader_count() == 60 && log.histories.len() == 60);
        // All clicks of an impression are drawn anew where there is none, so that shares lie above the probabilities; how far
        // depends on what else was offered, but the order of the three is that of the rule.
        let share = |chance: f64| {
            let of = log.clicked.iter().zip(&train.probabilities).filter(|(_, own)| **own == chance as f32);
            let (clicks, all) =
                of.fold((0.0, 0.0), |(clicks, all), (clicked, _)| (clicks + f64::from(u8::from(*clicked)), all + 1.0));
            clicks / all
        };
        let shares = CLICK.map(share);
        for (share, chance) in shares.iter().zip(CLICK) {
            assert!((chance - 0.02..1.3 * chance).contains(share), "{shares:?}");
        }
        // The topic is the only thing that decides.
        assert!(train.probabilities.iter().all(|own| CLICK.iter().any(|chance| *own == *chance as f32)));
    }

    #[test]
    fn a_seed_gives_a_log_and_files_are_written_whole() {
        assert_eq!(small().generate(1), small().generate(1));
        assert_ne!(small().generate(1)[0].files, small().generate(2)[0].files);
        let folder = tempfile::tempdir().unwrap();
        small().write(folder.path(), 1).unwrap();
        let text = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        for (name, generated) in ["train", "test"].into_iter().zip(small().generate(1)) {
            assert_eq!(FILES.map(|file| text(folder.path().join(name).join(file))), generated.files);
        }
        let path = folder.path().join("train/news.tsv");
        let error = small().write(&path, 1).unwrap_err().to_string();
        assert!(error.contains("cannot make") && error.contains("news.tsv"), "{error}");
    }

    #[test]
    fn sizes_are_checked() {
        small().check().unwrap();
        GeneratedNews::default().check().unwrap();
        for (config, expected) in [
            (GeneratedNews { topics: 2, ..small() }, "task.news.generated.topics: is 2; must be from 3 to 1000"),
            (GeneratedNews { news: 15, ..small() }, "task.news.generated.news: is 15"),
            (
                GeneratedNews { impressions: usize::MAX, ..small() },
                "task.news.generated.impressions: is 18446744073709551615",
            ),
            (GeneratedNews { test_impressions: 0, ..small() }, "task.news.generated.test_impressions: is 0"),
        ] {
            let error = config.check().unwrap_err();
            assert!(error.is_config() && error.to_string().contains(expected), "{error}");
        }
    }
}
