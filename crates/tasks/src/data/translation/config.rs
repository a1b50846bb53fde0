//! Options of translation.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::data::{
    DataError, Objective, Progress, Shape, TaskData, TaskOptions,
    config::{check_file, check_vocabulary},
};

/// File name endings of compressed files.
const ENDINGS: [&str; 3] = ["", ".gz", ".bz2"];

/// Sentence translation: pairs of files with one sentence per line, such as `train.en` and `train.de`, plain, gzip or
/// bzip2 (`train.en.gz`). The default names are those of Multi30k (Elliott et al. 2016).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TranslationConfig {
    /// Directory of the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Source language: the ending of its file names.
    pub source: String,
    /// Target language.
    pub target: String,
    /// Training sentences: the name of a pair of files without the language, or a path relative to `directory`.
    pub train: PathBuf,
    /// Validation sentences.
    pub valid: PathBuf,
    /// Test sentences.
    pub test: PathBuf,
    /// Maximum size of the shared vocabulary.
    pub vocabulary: usize,
    /// Tokens per sentence, with the end token; longer pairs are dropped in training and truncated in evaluation. Also
    /// the maximum length of translations.
    pub max_length: usize,
}

impl Default for TranslationConfig {
    fn default() -> Self {
        Self {
            directory: None,
            source: "en".into(),
            target: "de".into(),
            train: "train".into(),
            valid: "val".into(),
            test: "test_2016_flickr".into(),
            vocabulary: 8000,
            max_length: 80,
        }
    }
}

impl TranslationConfig {
    /// Source and target file of training, validation and test sentences.
    ///
    /// # Errors
    /// No directory; a missing file.
    pub(in crate::data) fn files(&self) -> Result<[[PathBuf; 2]; 3], DataError> {
        let Some(directory) = &self.directory else {
            let problem = "is not set; give the directory of the files: --set task.translation.directory=DIR";
            return Err(DataError::config("translation.directory", problem));
        };
        let pair = |name: &Path| -> Result<[PathBuf; 2], DataError> {
            let file = |language: &str| find(&directory.join(name), language);
            Ok([file(&self.source)?, file(&self.target)?])
        };
        Ok([pair(&self.train)?, pair(&self.valid)?, pair(&self.test)?])
    }
}

/// The file `STEM.LANGUAGE`, compressed or not.
fn find(stem: &Path, language: &str) -> Result<PathBuf, DataError> {
    let named = |ending: &str| {
        let mut name = stem.as_os_str().to_owned();
        name.push(format!(".{language}{ending}"));
        PathBuf::from(name)
    };
    let found = ENDINGS.iter().map(|ending| named(ending)).find(|path| path.exists());
    let Some(path) = found else {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        let remedy =
            "check task.translation: directory, the names of the files and the languages; .gz and .bz2 are found too";
        return Err(DataError::Read { path: named(""), source, remedy: remedy.into() });
    };
    check_file(&path)?;
    Ok(path)
}

impl TaskOptions for TranslationConfig {
    fn summary(&self) -> &'static str {
        "translation of sentences from pairs of files (plain, .gz, .bz2), measured in BLEU"
    }

    fn check(&self) -> Result<(), DataError> {
        let error = |key: &str, problem: String| Err(DataError::config(&format!("translation.{key}"), problem));
        for (key, language) in [("source", &self.source), ("target", &self.target)] {
            if language.is_empty() || language.contains(['/', '\\']) {
                return error(key, format!("is '{language}'; must be what the names of files end with, as 'en'"));
            }
        }
        if self.source == self.target {
            return error("target", format!("is '{}', the source too; they must differ", self.target));
        }
        check_vocabulary("translation.vocabulary", self.vocabulary)?;
        if self.max_length < 2 {
            return error("max_length", format!("is {}; must be at least 2, a token and the end", self.max_length));
        }
        self.files().map(drop)
    }

    fn load(&self, _: u64, _: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        Ok(Box::new(super::load(self, progress)?))
    }

    fn shape(&self) -> Shape {
        Shape { objective: Objective::Translate, vocabulary: self.vocabulary, max_length: self.max_length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_options_of_translation_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let problem = |change: &dyn Fn(&mut TranslationConfig)| {
            let mut config = TranslationConfig { directory: Some(directory.path().into()), ..Default::default() };
            change(&mut config);
            let error = config.check().unwrap_err();
            (error.is_config(), error.to_string())
        };
        type Change<'a> = (&'a dyn Fn(&mut TranslationConfig), &'a str);
        let changes: [Change; 6] = [
            (&|c| c.directory = None, "task.translation.directory: is not set; give the directory"),
            (&|c| c.target = "en".into(), "task.translation.target: is 'en', the source too"),
            (&|c| c.source = "a/b".into(), "task.translation.source: is 'a/b'"),
            (&|c| c.vocabulary = 200, "task.translation.vocabulary: is 200; must be from 261"),
            (&|c| c.vocabulary = usize::MAX, "task.translation.vocabulary: is 18446744073709551615"),
            (&|c| c.max_length = 1, "task.translation.max_length: is 1"),
        ];
        for (change, expected) in changes {
            let (config, error) = problem(change);
            assert!(config && error.contains(expected), "{error}");
        }
        let (config, error) = problem(&|_| {});
        assert!(!config && error.contains("train.en") && error.contains("check task.translation"), "{error}");
    }

    #[test]
    fn files_are_found_under_any_ending_and_anywhere() {
        let directory = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        for name in ["train.en.gz", "train.de", "val.en", "val.de.bz2"] {
            std::fs::write(directory.path().join(name), "x").unwrap();
        }
        for name in ["mine.en", "mine.de"] {
            std::fs::write(elsewhere.path().join(name), "x").unwrap();
        }
        let test = elsewhere.path().join("mine");
        let config = TranslationConfig { directory: Some(directory.path().into()), test, ..Default::default() };
        config.check().unwrap();
        let [train, valid, test] = config.files().unwrap();
        let names = [train, valid, test].map(|pair| pair.map(|path| path.file_name().unwrap().to_owned()));
        assert_eq!(names, [["train.en.gz", "train.de"], ["val.en", "val.de.bz2"], ["mine.en", "mine.de"]]);
        std::fs::create_dir(elsewhere.path().join("folder.en")).unwrap();
        let folder = TranslationConfig { valid: elsewhere.path().join("folder"), ..config };
        assert!(folder.check().unwrap_err().to_string().contains("is a directory"));
    }
}
