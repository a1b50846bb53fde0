//! Options of summarisation.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::data::{
    DataError, Objective, Progress, Shape, TaskData, TaskOptions,
    config::{check_file, check_vocabulary},
};

/// Names of the files of each split in a folder: the first that is there counts.
const NAMES: [(&str, &[&str]); 3] =
    [("train", &["train"]), ("valid", &["valid", "val", "dev", "validation"]), ("test", &["test"])];

/// Endings of the files, before those of compression; PubMed's lines are in files called `.txt`.
const ENDINGS: [&str; 4] = [".jsonl", ".ndjson", ".json", ".txt"];

/// Endings of compressed files.
const COMPRESSED: [&str; 3] = ["", ".gz", ".bz2"];

/// Summaries of documents: files with a JSON object in each line, plain, gzip or bzip2, in the form of SciTLDR (Cachola et
/// al. 2020), QMSum (Zhong et al. 2021), CNN/DailyMail (Nallapati et al. 2016), PubMed (Cohan et al. 2018), or simply
/// `document` and `summary`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SummaryConfig {
    /// Directory of the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// File of the training split, a path relative to `directory`; absent: `train.jsonl` and the like there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<PathBuf>,
    /// File of the validation split; absent: `valid.jsonl`, `val.jsonl`, `dev.jsonl` or `validation.jsonl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<PathBuf>,
    /// File of the test split; absent: `test.jsonl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<PathBuf>,
    /// Maximum size of the shared vocabulary.
    pub vocabulary: usize,
    /// Tokens per document, with the end token; longer ones are truncated.
    pub max_document: usize,
    /// Tokens per summary, with the end token; longer ones are not trained on. Also the maximum length of summaries that are
    /// written.
    pub max_summary: usize,
    /// Sentences at the beginning of a document that are the baseline.
    pub lead: usize,
}

impl Default for SummaryConfig {
    fn default() -> Self {
        Self {
            directory: None,
            train: None,
            valid: None,
            test: None,
            vocabulary: 8000,
            max_document: 512,
            max_summary: 64,
            lead: 1,
        }
    }
}

impl SummaryConfig {
    /// The files of the training, validation and test split.
    ///
    /// # Errors
    /// No directory where one is needed; a missing file.
    pub(super) fn files(&self) -> Result<[PathBuf; 3], DataError> {
        let file = |own: &Option<PathBuf>, (split, names): (&str, &[&str])| match (own, &self.directory) {
            (Some(own), directory) => {
                let path = directory.as_ref().map_or(own.clone(), |directory| directory.join(own));
                check_file(&path)?;
                Ok(path)
            }
            (None, Some(directory)) => find(directory, split, names),
            (None, None) => {
                let problem = format!(
                    "is not set; give the directory of the files: --set task.summary.directory=DIR, or this one: --set \
                     task.summary.{split}=FILE"
                );
                Err(DataError::config(&format!("summary.{split}"), problem))
            }
        };
        Ok([file(&self.train, NAMES[0])?, file(&self.valid, NAMES[1])?, file(&self.test, NAMES[2])?])
    }
}

/// The file of a split in a directory.
fn find(directory: &Path, split: &str, names: &[&str]) -> Result<PathBuf, DataError> {
    std::fs::read_dir(directory).map_err(|source| DataError::read(directory, source))?;
    let endings = || ENDINGS.iter().flat_map(|ending| COMPRESSED.map(|compressed| format!("{ending}{compressed}")));
    let mut paths =
        names.iter().flat_map(|name| endings().map(move |ending| directory.join(format!("{name}{ending}"))));
    paths.find(|path| path.is_file()).ok_or_else(|| {
        let problem = format!(
            "has no {}.jsonl (nor with .ndjson, .json or .txt, nor with .gz or .bz2 after that); name the file with \
             task.summary.{split}=FILE",
            names.join(".jsonl, ")
        );
        DataError::Content { path: directory.into(), problem }
    })
}

impl TaskOptions for SummaryConfig {
    fn summary(&self) -> &'static str {
        "summaries of documents from JSON lines (plain, .gz, .bz2), measured in ROUGE beside the first sentences"
    }

    fn check(&self) -> Result<(), DataError> {
        check_vocabulary("summary.vocabulary", self.vocabulary)?;
        let error = |key: &str, problem: String| Err(DataError::config(&format!("summary.{key}"), problem));
        for (key, length) in [("max_document", self.max_document), ("max_summary", self.max_summary)] {
            if length < 2 {
                return error(key, format!("is {length}; must be at least 2, a token and the end"));
            }
        }
        if self.max_summary > self.max_document {
            let (summary, document) = (self.max_summary, self.max_document);
            return error("max_summary", format!("is {summary}; must be at most max_document ({document})"));
        }
        if self.lead == 0 {
            return error("lead", "is 0; must be at least 1, the first sentence".into());
        }
        self.files().map(drop)
    }

    fn load(&self, _: u64, _: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        Ok(Box::new(super::load(self, progress)?))
    }

    fn shape(&self) -> Shape {
        let objective = Objective::Summarize { longest: self.max_summary };
        Shape { objective, vocabulary: self.vocabulary, max_length: self.max_document }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_options_of_summaries_are_named() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["train.jsonl", "val.jsonl.gz", "test.txt.bz2"] {
            std::fs::write(directory.path().join(name), "x").unwrap();
        }
        let config = SummaryConfig { directory: Some(directory.path().into()), ..Default::default() };
        config.check().unwrap();
        type Change<'a> = (&'a dyn Fn(&mut SummaryConfig), &'a str);
        let changes: [Change; 6] = [
            (&|c| c.directory = None, "task.summary.train: is not set; give the directory"),
            (&|c| c.vocabulary = 200, "task.summary.vocabulary: is 200; must be from 261"),
            (&|c| c.max_document = 1, "task.summary.max_document: is 1"),
            (&|c| c.max_summary = 0, "task.summary.max_summary: is 0"),
            (&|c| c.max_summary = 600, "task.summary.max_summary: is 600; must be at most max_document (512)"),
            (&|c| c.lead = 0, "task.summary.lead: is 0"),
        ];
        for (change, expected) in changes {
            let mut config = config.clone();
            change(&mut config);
            let error = config.check().unwrap_err();
            assert!(error.is_config() && error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn files_are_found_by_their_usual_names_or_named() {
        let directory = tempfile::tempdir().unwrap();
        let config = SummaryConfig { directory: Some(directory.path().into()), ..Default::default() };
        let error = config.check().unwrap_err();
        assert!(!error.is_config() && error.to_string().contains("has no train.jsonl (nor"), "{error}");
        for name in ["train.jsonl.gz", "dev.jsonl.gz", "test.txt"] {
            std::fs::write(directory.path().join(name), "x").unwrap();
        }
        let names = |config: &SummaryConfig| {
            config.files().unwrap().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        };
        assert_eq!(names(&config), ["train.jsonl.gz", "dev.jsonl.gz", "test.txt"]);
        let mine = SummaryConfig { test: Some("dev.jsonl.gz".into()), ..config.clone() };
        assert_eq!(names(&mine), ["train.jsonl.gz", "dev.jsonl.gz", "dev.jsonl.gz"]);
        std::fs::remove_file(directory.path().join("dev.jsonl.gz")).unwrap();
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("has no valid.jsonl, val.jsonl, dev.jsonl, validation.jsonl (nor"), "{error}");
        assert!(error.contains("task.summary.valid=FILE"), "{error}");
        let error = mine.check().unwrap_err().to_string();
        assert!(error.contains("has no valid.jsonl"), "{error}");
        let folder = SummaryConfig { valid: Some(".".into()), ..config };
        assert!(folder.check().unwrap_err().to_string().contains("is a directory"));
    }
}
