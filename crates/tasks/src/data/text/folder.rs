//! Sets that come as a folder: which of its files are the parts, and what their columns hold.
//!
//! The test sets of GLUE have no labels, so that its development set is the reported split here, and a part of the training
//! rows is held out to choose the model by.

use std::path::{Path, PathBuf};

use super::{
    fields::{Column, Columns, Fields},
    format::{TextFormat, present},
    rows::Labels,
};
use crate::data::DataError;

/// What a folder holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Folder {
    pub format: TextFormat,
    pub train: PathBuf,
    pub test: PathBuf,
    /// Columns of the files.
    pub fields: Fields,
    /// Labels of the files; none where the options say them.
    pub labels: Option<Labels>,
}

/// Files and columns of a task of GLUE, by names of the header. CoLA has no header.
pub(super) struct Glue {
    train: &'static [&'static str],
    dev: &'static [&'static str],
    label: &'static str,
    texts: &'static [&'static str],
    /// Classes by name; none where they are numbers.
    names: &'static [&'static str],
}

const TRAIN: &[&str] = &["train.tsv"];
const DEV: &[&str] = &["dev.tsv"];
const FOLLOWS: &[&str] = &["entailment", "not_entailment"];
const GENRES: &[&str] = &["entailment", "neutral", "contradiction"];
const SENTENCES: &[&str] = &["sentence1", "sentence2"];

impl Glue {
    pub(super) fn of(format: TextFormat) -> Option<Self> {
        let task = |label, texts, names| Some(Self { train: TRAIN, dev: DEV, label, texts, names });
        let genres = |dev| Some(Self { train: TRAIN, dev, label: "gold_label", texts: SENTENCES, names: GENRES });
        match format {
            TextFormat::Sst2 => task("label", &["sentence"], &[]),
            TextFormat::Mrpc => Some(Self {
                train: &["train.tsv", "msr_paraphrase_train.txt"],
                dev: &["dev.tsv", "msr_paraphrase_test.txt"],
                label: "Quality",
                texts: &["#1 String", "#2 String"],
                names: &[],
            }),
            TextFormat::Qqp => task("is_duplicate", &["question1", "question2"], &[]),
            TextFormat::Stsb => task("score", SENTENCES, &[]),
            TextFormat::Mnli => genres(&["dev_matched.tsv"]),
            TextFormat::MnliMismatched => genres(&["dev_mismatched.tsv"]),
            TextFormat::Qnli => task("label", &["question", "sentence"], FOLLOWS),
            TextFormat::Rte => task("label", SENTENCES, FOLLOWS),
            TextFormat::Wnli => task("label", SENTENCES, &[]),
            _ => None,
        }
    }
}

/// Columns of a file without a header.
fn placed(label: i64, text: Columns) -> Fields {
    Fields { label: Column::Place(label), text, second: None, header: false }
}

impl TextFormat {
    /// The columns and labels of the files of a set of this form; none where the options say them.
    pub(super) fn known(self) -> Option<(Fields, Option<Labels>)> {
        let numbers = |first, classes| Some(Labels::Numbers { first, classes });
        if let Some(Glue { label, texts, names, .. }) = Glue::of(self) {
            let fields = Fields {
                label: label.into(),
                text: texts[0].into(),
                second: texts.get(1).map(|name| Column::from(*name)),
                header: true,
            };
            let labels = match self {
                Self::Stsb => Some(Labels::Scores),
                _ if names.is_empty() => numbers(0, 2),
                _ => Some(Labels::Names(names.iter().map(|name| (*name).to_owned()).collect())),
            };
            return Some((fields, labels));
        }
        match self {
            // Source, label, the author's mark, sentence.
            Self::Cola => Some((placed(1, 3.into()), numbers(0, 2))),
            Self::AgNews => {
                let text = Columns::Several(vec![Column::Place(1), Column::Place(2)]);
                Some((placed(0, text), numbers(1, 4)))
            }
            Self::AclImdb => Some((placed(0, (-1).into()), None)),
            _ => None,
        }
    }
}

impl Folder {
    /// Finds out what a folder holds, as `format` if that is given.
    ///
    /// # Errors
    /// A folder that is not there, one of no known set, or one without the files of its set.
    pub fn of(path: &Path, format: Option<TextFormat>) -> Result<Self, DataError> {
        let about = std::fs::metadata(path).map_err(|source| DataError::read(path, source))?;
        let content = |problem: String| DataError::Content { path: path.into(), problem };
        if !about.is_dir() {
            return Err(content("is a file; task.text.path is a folder, files are task.text.train and test".into()));
        }
        let found = TextFormat::of_folder(path);
        let (format, folder) = match (format, found) {
            (None, Some(found)) => found,
            // Both forms of the task lie in the same folder.
            (Some(TextFormat::MnliMismatched), Some((TextFormat::Mnli, folder))) => {
                (TextFormat::MnliMismatched, folder)
            }
            (Some(format), Some((own, folder))) if format == own => (format, folder),
            (Some(format), _) => (format, path.to_owned()),
            (None, None) => {
                return Err(content(
                    "is no set that is known here; expected train/pos and test/neg (reviews), train.csv and test.csv \
                     (news), or the folder of a task of GLUE by its name, as SST-2; set task.text.format, or files by \
                     task.text.train and test"
                        .into(),
                ));
            }
        };
        let Some((fields, labels)) = format.known() else {
            return Err(DataError::config(
                "text.format",
                format!(
                    "is {}, the form of a file; set task.text.train and task.text.test in place of task.text.path",
                    format.name()
                ),
            ));
        };
        let [train, test] = match (format, Glue::of(format)) {
            (TextFormat::AclImdb, _) => ["train", "test"].map(|part| folder.join(part)),
            (TextFormat::AgNews, _) => {
                ["train.csv", "test.csv"].map(|name| present(&folder, &[name]).unwrap_or(folder.join(name)))
            }
            (_, glue) => {
                let [train, dev] = glue.map_or([TRAIN, DEV], |glue| [glue.train, glue.dev]);
                [train, dev].map(|names| present(&folder, names).unwrap_or(folder.join(names[0])))
            }
        };
        for part in [&train, &test] {
            std::fs::metadata(part).map_err(|source| DataError::read(part, source))?;
        }
        Ok(Self { format, train, test, fields, labels })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_parts_of_a_folder_are_found_and_what_lacks_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("MNLI");
        fs::create_dir(&folder).unwrap();
        for name in ["train.tsv", "dev_matched.tsv.gz", "dev_mismatched.tsv"] {
            fs::write(folder.join(name), "").unwrap();
        }
        let of = |format| Folder::of(&folder, format).unwrap();
        let matched = of(None);
        assert_eq!((matched.format, &matched.test), (TextFormat::Mnli, &folder.join("dev_matched.tsv.gz")));
        assert_eq!(matched.labels.unwrap().classes(), Some(3));
        assert_eq!(of(Some(TextFormat::MnliMismatched)).test, folder.join("dev_mismatched.tsv"));
        let lacks = Folder::of(&folder, Some(TextFormat::Rte)).unwrap_err().to_string();
        assert!(lacks.contains("dev.tsv") && lacks.contains("check the path"), "{lacks}");
        let file = Folder::of(&folder, Some(TextFormat::Csv)).unwrap_err();
        assert!(file.is_config() && file.to_string().contains("task.text.format: is csv, the form of a file"));
        let unknown = Folder::of(directory.path(), None);
        assert_eq!(unknown.unwrap().train, folder.join("train.tsv"), "a folder in it");
        let empty = tempfile::tempdir().unwrap();
        let unknown = Folder::of(empty.path(), None).unwrap_err();
        assert!(!unknown.is_config() && unknown.to_string().contains("set task.text.format"), "{unknown}");
        let absent = Folder::of(&empty.path().join("none"), None).unwrap_err().to_string();
        assert!(absent.contains("check the path"), "{absent}");
    }
}
