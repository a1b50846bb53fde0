//! News recommendation: which of the news offered to someone will be clicked on, by the titles read before.

mod batches;
mod config;
mod generate;
mod log;
mod read;

pub(crate) use self::batches::{NewsRows, check_rows, histories, titles};
pub use self::{
    config::NewsConfig,
    generate::{CLICK, GeneratedNews},
    log::{Impression, ImpressionLog, ImpressionPart},
};

use std::path::{Path, PathBuf};

use self::{
    log::Lists,
    read::{FILES, RawLog},
};
use super::{
    Batches, DataError, Objective, Progress, Shape, Split, SplitBatches, Task, TextTokenizer, TextUnits, TokenKind,
    WordVocabulary, file::Meter, order::hold_out, text::words_of,
};

/// Impressions in three parts. Those for validation are all impressions of some readers of the log of training.
#[derive(Clone, Debug)]
pub struct NewsData {
    train: ImpressionLog,
    test: ImpressionLog,
    /// Impressions of [`Self::train`] to train on, and those held out.
    kept: Vec<u32>,
    held: Vec<u32>,
    /// All impressions of [`Self::test`].
    tested: Vec<u32>,
    /// The clicks in impressions to train on: the impression and the place in it.
    clicks: Vec<[u32; 2]>,
    units: TextUnits,
    first_id: i32,
    vocabulary: usize,
    max_length: usize,
    history: usize,
    negatives: usize,
    generated: bool,
    notes: Vec<String>,
}

impl NewsData {
    fn part(&self, split: Split) -> ImpressionPart<'_> {
        match split {
            Split::Valid => ImpressionPart { log: &self.train, chosen: &self.held },
            Split::Test => ImpressionPart { log: &self.test, chosen: &self.tested },
        }
    }
}

impl Task for NewsData {
    fn shape(&self) -> Shape {
        let objective = Objective::Rank { history: self.history, candidates: self.negatives + 1 };
        Shape { objective, vocabulary: self.vocabulary, max_length: self.max_length }
    }

    /// An item is a click with so many pieces of news of its impression that were not clicked on, drawn anew each time
    /// (Wu et al. 2019); where there are fewer, they come several times.
    fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError> {
        batches::training(&self.train, &self.clicks, self.negatives, seed, rows)
    }

    /// Everything that was offered in `rows` impressions; the last piece of news stands for what shorter impressions lack.
    /// Figures come from [`Task::impressions`].
    fn split(&self, split: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
        batches::evaluation(self.part(split), rows)
    }

    fn setting(&self) -> String {
        format!(
            "{}{} impressions for training, {} for validation, {} for the test, titles of at most {} {}, histories of at most {}",
            if self.generated { "generated: " } else { "" },
            self.kept.len(),
            self.held.len(),
            self.tested.len(),
            self.max_length,
            self.units.name(),
            self.history
        )
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn units(&self) -> Option<&TextUnits> {
        Some(&self.units)
    }

    fn first_id(&self) -> i32 {
        self.first_id
    }

    fn impressions(&self, split: Split) -> Option<ImpressionPart<'_>> {
        Some(self.part(split))
    }
}

/// Reads or generates the data of checked options.
fn load(config: &NewsConfig, seed: u64, progress: Progress<'_>) -> Result<NewsData, DataError> {
    let [train, test] = match (&config.train, &config.test) {
        (Some(train), Some(test)) => {
            let paths: Vec<PathBuf> =
                [train, test].iter().flat_map(|folder| FILES.map(|file| folder.join(file))).collect();
            let meter = Meter::new(paths.iter().map(PathBuf::as_path), progress);
            [read::folder(train, config.history, &meter)?, read::folder(test, config.history, &meter)?]
        }
        _ => generated(config, seed)?,
    };
    let notes = [("task.news.train", &train), ("task.news.test", &test)];
    let notes = notes.into_iter().flat_map(|(name, raw)| raw.left.notes(name)).collect();
    let (units, first_id) = units(config, &train.titles)?;
    let [train, test] = [train, test].map(|raw| encoded(raw, &units, first_id, config.max_length));

    let readers = train.reader_count();
    if readers < 2 {
        let path = config.train.clone().unwrap_or_default().join(FILES[1]);
        let problem =
            "has impressions of a single user, of whom none can be held out for validation; expected two or more";
        return Err(DataError::Content { path, problem: problem.into() });
    }
    let mut is_held = vec![false; readers];
    hold_out(readers, config.valid_fraction, seed)[0].iter().for_each(|reader| is_held[*reader] = true);
    let (held, kept): (Vec<u32>, Vec<u32>) =
        (0..train.len() as u32).partition(|&i| is_held[train.readers[i as usize] as usize]);
    let clicks = |&i: &u32| {
        let clicked = train.impression(i as usize).clicked.iter().zip(0..);
        clicked.filter(|(clicked, _)| **clicked).map(move |(_, place)| [i, place]).collect::<Vec<[u32; 2]>>()
    };
    Ok(NewsData {
        clicks: kept.iter().flat_map(clicks).collect(),
        tested: (0..test.len() as u32).collect(),
        kept,
        held,
        vocabulary: units.vocabulary() + first_id as usize,
        units,
        first_id,
        train,
        test,
        max_length: config.max_length,
        history: config.history,
        negatives: config.negatives,
        generated: config.train.is_none(),
        notes,
    })
}

fn generated(config: &NewsConfig, seed: u64) -> Result<[RawLog; 2], DataError> {
    let read = |folder: &generate::GeneratedFolder, name: &str| {
        let paths = FILES.map(|file| Path::new(name).join(file));
        let [news, behaviors] = folder.files.each_ref().map(String::as_bytes);
        let mut raw = read::parse([(news, &paths[0]), (behaviors, &paths[1])], config.history)?;
        raw.log.probabilities = Some(folder.probabilities.clone());
        Ok::<_, DataError>(raw)
    };
    let [train, test] = config.generated.generate(seed);
    Ok([read(&train, "generated/train")?, read(&test, "generated/test")?])
}

/// The vocabulary of some titles, and the id of its first entry: 0 is padding.
fn units(config: &NewsConfig, titles: &[String]) -> Result<(TextUnits, i32), DataError> {
    Ok(match config.tokens {
        TokenKind::Subwords => {
            (TextUnits::Subwords(TextTokenizer::train(titles.iter().map(String::as_str), config.vocabulary)?), 0)
        }
        _ => {
            let words: Vec<String> = titles.iter().map(|title| words_of(title)).collect();
            (TextUnits::Words(WordVocabulary::count(&words.join(" "), config.vocabulary - 1, 1)), 1)
        }
    })
}

/// The log with the tokens of its titles.
fn encoded(raw: RawLog, units: &TextUnits, first_id: i32, most: usize) -> ImpressionLog {
    let mut titles = Lists::default();
    for title in &raw.titles {
        let ids = match units {
            TextUnits::Words(words) => words.encode(&words_of(title)),
            // A title has no line ends.
            other => other.encode(title).unwrap_or_default(),
        };
        titles.push(ids.into_iter().take(most).map(|id| id as i32 + first_id));
    }
    ImpressionLog { titles, ..raw.log }
}

#[cfg(test)]
mod tests;
