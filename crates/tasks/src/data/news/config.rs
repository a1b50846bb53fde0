//! Options of news recommendation.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{GeneratedNews, read::FILES};
use crate::data::{
    DataError, Objective, Progress, Shape, TaskData, TaskOptions, TokenKind,
    config::{check_file, check_fraction, check_vocabulary},
};

/// Fewest words of a vocabulary: one, the unknown word, the end of a line and padding.
const FEWEST_WORDS: usize = 4;

/// Largest of the sizes of an item of a batch: far more than anyone reads.
const MOST: usize = 1 << 16;

/// Ranking news by what someone has read, from folders in the format of MIND, or generated where none is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NewsConfig {
    /// Folder of training, with `news.tsv` and `behaviors.tsv` (plain, gzip or bzip2, detected by content).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<PathBuf>,
    /// Folder of the test, likewise; MIND's dev part, as its test part has no labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<PathBuf>,
    /// Fraction of the readers of training whose impressions are held out for validation, in (0, 1); drawn by the seed.
    pub valid_fraction: f64,
    /// Units of titles: words or subwords.
    pub tokens: TokenKind,
    /// Maximum size of their vocabulary, which is learned from the titles of training.
    pub vocabulary: usize,
    /// Tokens kept of each title.
    pub max_length: usize,
    /// Pieces of news kept of each history, the last ones.
    pub history: usize,
    /// What was not clicked on, for each click in training.
    pub negatives: usize,
    /// The log that is generated where no folder is given.
    pub generated: GeneratedNews,
}

impl Default for NewsConfig {
    fn default() -> Self {
        Self {
            train: None,
            test: None,
            valid_fraction: 0.05,
            tokens: TokenKind::Words,
            vocabulary: 40_000,
            max_length: 30,
            history: 50,
            negatives: 4,
            generated: GeneratedNews::default(),
        }
    }
}

impl TaskOptions for NewsConfig {
    fn summary(&self) -> &'static str {
        "ranking news by what someone has read, from folders as MIND's, or generated"
    }

    fn check(&self) -> Result<(), DataError> {
        let error = |key: &str, problem: String| Err(DataError::config(&format!("news.{key}"), problem));
        for (key, folder) in [("train", &self.train), ("test", &self.test)] {
            // A preset that is for a log of others says so by an empty path.
            if folder.as_ref().is_some_and(|folder| folder.as_os_str().is_empty()) {
                return error(key, "is not set; must be a folder with news.tsv and behaviors.tsv".into());
            }
        }
        match (&self.train, &self.test) {
            (Some(_), None) => {
                return error("test", "is not set, but task.news.train is; give both folders or neither".into());
            }
            (None, Some(_)) => {
                return error("train", "is not set, but task.news.test is; give both folders or neither".into());
            }
            (None, None) => self.generated.check()?,
            (Some(_), Some(_)) => {}
        }
        check_fraction("news.valid_fraction", self.valid_fraction)?;
        for (key, size) in [("max_length", self.max_length), ("history", self.history), ("negatives", self.negatives)] {
            if !(1..=MOST).contains(&size) {
                return error(key, format!("is {size}; must be from 1 to {MOST}"));
            }
        }
        match self.tokens {
            TokenKind::Words if self.vocabulary < FEWEST_WORDS => {
                return error("vocabulary", format!("is {}; must be at least {FEWEST_WORDS}", self.vocabulary));
            }
            TokenKind::Words => {}
            TokenKind::Subwords => check_vocabulary("news.vocabulary", self.vocabulary)?,
            TokenKind::Bytes => return error("tokens", "is 'bytes'; must be words or subwords".into()),
            TokenKind::Characters => return error("tokens", "is 'characters'; must be words or subwords".into()),
        }
        let folders = [&self.train, &self.test].into_iter().flatten();
        folders.flat_map(|folder| FILES.map(|file| folder.join(file))).try_for_each(|path| check_file(&path))
    }

    fn load(&self, seed: u64, _: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        Ok(Box::new(super::load(self, seed, progress)?))
    }

    fn shape(&self) -> Shape {
        let objective = Objective::Rank { history: self.history, candidates: self.negatives + 1 };
        Shape { objective, vocabulary: self.vocabulary, max_length: self.max_length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_options_of_news_are_named() {
        NewsConfig::default().check().unwrap();
        let here = || Some(PathBuf::from("nowhere"));
        for (config, expected, usage) in [
            (
                NewsConfig { train: here(), test: Some("".into()), ..Default::default() },
                "task.news.test: is not set",
                true,
            ),
            (NewsConfig { train: here(), ..Default::default() }, "task.news.test: is not set", true),
            (NewsConfig { test: here(), ..Default::default() }, "task.news.train: is not set", true),
            (NewsConfig { train: here(), test: here(), ..Default::default() }, "cannot read nowhere", false),
            (NewsConfig { negatives: usize::MAX, ..Default::default() }, "task.news.negatives: is 1844", true),
            (NewsConfig { history: 0, ..Default::default() }, "task.news.history: is 0", true),
            (NewsConfig { max_length: 0, ..Default::default() }, "task.news.max_length: is 0", true),
            (NewsConfig { valid_fraction: 1.0, ..Default::default() }, "task.news.valid_fraction: is 1", true),
            (NewsConfig { vocabulary: 3, ..Default::default() }, "task.news.vocabulary: is 3", true),
            (NewsConfig { tokens: TokenKind::Bytes, ..Default::default() }, "task.news.tokens: is 'bytes'", true),
        ] {
            let error = config.check().unwrap_err();
            assert!(error.is_config() == usage && error.to_string().contains(expected), "{error}");
        }
    }
}
