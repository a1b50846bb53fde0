//! Options of the tasks whose tokens are pieces of words.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{check_file, check_fraction};
use crate::data::{DataError, tokenizer::SMALLEST_VOCABULARY};

/// Largest vocabulary: more than any model of words has, few enough that its logits fit somewhere.
const LARGEST_VOCABULARY: usize = 1 << 20;

/// What the name of a compressed file ends with.
const ENDINGS: [&str; 3] = ["", ".gz", ".bz2"];

/// Translation of sentences: pairs of files with one sentence per line, such as `train.en` and `train.de`, plain, gzip or bzip2
/// (`train.en.gz`). The defaults of the names are those of Multi30k (Elliott et al. 2016).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TranslationConfig {
    /// Where the files are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Language translated from: what the names of its files end with.
    pub source: String,
    /// Language translated to.
    pub target: String,
    /// Training sentences: the name of a pair of files without the language, or a path, which counts from `directory`.
    pub train: PathBuf,
    /// Validation sentences.
    pub valid: PathBuf,
    /// Test sentences.
    pub test: PathBuf,
    /// Ids of the vocabulary that both languages share, at most.
    pub vocabulary: usize,
    /// Tokens of a sentence with its end; longer pairs are left out of training and cut in evaluation. Also the longest
    /// translation.
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

/// Masked language model (Devlin et al. 2019, trained as in Liu et al. 2019).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaskedLmConfig {
    /// UTF-8 files (plain, gzip or bzip2); none: the embedded text (plays of Shakespeare).
    pub paths: Vec<PathBuf>,
    /// A file to validate on; absent: the end of the last of `paths`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<PathBuf>,
    /// Part of the sentences, at the end, kept for validation where `valid` is absent, in (0, 1).
    pub valid_fraction: f64,
    /// Ids of the vocabulary, at most.
    pub vocabulary: usize,
    /// Tokens of a window, with its begin and end.
    pub context: usize,
    /// Share of the tokens to be predicted, in (0, 1).
    pub mask_fraction: f64,
}

impl Default for MaskedLmConfig {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            valid: None,
            valid_fraction: 0.1,
            vocabulary: 4000,
            context: 128,
            mask_fraction: 0.15,
        }
    }
}

impl TranslationConfig {
    /// # Errors
    /// No directory, invalid languages, sizes out of range ([`DataError::is_config`]); missing files.
    pub fn check(&self) -> Result<(), DataError> {
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

impl MaskedLmConfig {
    /// # Errors
    /// Sizes out of range ([`DataError::is_config`]); a missing file.
    pub fn check(&self) -> Result<(), DataError> {
        check_vocabulary("masked_lm.vocabulary", self.vocabulary)?;
        if self.context < 3 {
            let problem = format!("is {}; must be at least 3, a token between begin and end", self.context);
            return Err(DataError::config("masked_lm.context", problem));
        }
        check_fraction("masked_lm.mask_fraction", self.mask_fraction)?;
        if self.valid.is_none() {
            check_fraction("masked_lm.valid_fraction", self.valid_fraction)?;
        }
        self.paths.iter().chain(&self.valid).try_for_each(|path| check_file(path))
    }
}

fn check_vocabulary(key: &str, vocabulary: usize) -> Result<(), DataError> {
    if (SMALLEST_VOCABULARY..=LARGEST_VOCABULARY).contains(&vocabulary) {
        return Ok(());
    }
    Err(DataError::config(
        key,
        format!("is {vocabulary}; must be from {SMALLEST_VOCABULARY} (special ids and bytes) to {LARGEST_VOCABULARY}"),
    ))
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

    #[test]
    fn impossible_options_of_masked_models_are_named() {
        MaskedLmConfig::default().check().unwrap();
        for (config, expected) in [
            (MaskedLmConfig { context: 2, ..Default::default() }, "task.masked_lm.context: is 2"),
            (MaskedLmConfig { mask_fraction: 1.0, ..Default::default() }, "task.masked_lm.mask_fraction: is 1"),
            (MaskedLmConfig { valid_fraction: 0.0, ..Default::default() }, "task.masked_lm.valid_fraction: is 0"),
            (MaskedLmConfig { vocabulary: 0, ..Default::default() }, "task.masked_lm.vocabulary: is 0"),
            (MaskedLmConfig { paths: vec!["nowhere".into()], ..Default::default() }, "cannot read nowhere"),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
