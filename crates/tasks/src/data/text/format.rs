//! The form of a file or a folder of texts, and how it is told by its name.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The form of a file or a folder of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TextFormat {
    /// Lines of columns separated by tabs; quotes mean nothing.
    Tsv,
    /// Columns separated by commas, in double quotes where they hold a comma, a quote or a line end (RFC 4180).
    Csv,
    /// A JSON object a line.
    JsonLines,
    /// The folder of Maas et al. 2011: a file for each review.
    AclImdb,
    /// A folder with train.csv and test.csv: class from 1, title, description (Zhang et al. 2015).
    AgNews,
    /// GLUE: is a sentence grammatical.
    Cola,
    /// GLUE: is a sentence positive.
    Sst2,
    /// GLUE: do two sentences say the same.
    Mrpc,
    /// GLUE: do two questions ask the same.
    Qqp,
    /// GLUE: how alike are two sentences, 0 to 5.
    Stsb,
    /// GLUE: entailment in many genres, reported on the genres of the training rows.
    Mnli,
    /// The same, reported on other genres.
    MnliMismatched,
    /// GLUE: does a sentence answer a question.
    Qnli,
    /// GLUE: does a sentence follow from another.
    Rte,
    /// GLUE: does a sentence with a pronoun replaced follow from the original.
    Wnli,
}

/// Name and summary of each form.
pub const FORMATS: [(&str, &str, TextFormat); 15] = [
    ("tsv", "Columns separated by tabs", TextFormat::Tsv),
    ("csv", "Columns separated by commas, with quotes", TextFormat::Csv),
    ("json-lines", "A JSON object a line", TextFormat::JsonLines),
    ("acl-imdb", "Folder of reviews, a file each", TextFormat::AclImdb),
    ("ag-news", "Folder with train.csv and test.csv: class from 1, title, description", TextFormat::AgNews),
    ("cola", "GLUE: is a sentence grammatical", TextFormat::Cola),
    ("sst2", "GLUE: is a sentence positive", TextFormat::Sst2),
    ("mrpc", "GLUE: do two sentences say the same", TextFormat::Mrpc),
    ("qqp", "GLUE: do two questions ask the same", TextFormat::Qqp),
    ("stsb", "GLUE: how alike are two sentences", TextFormat::Stsb),
    ("mnli", "GLUE: entailment, reported on the genres of training", TextFormat::Mnli),
    ("mnli-mismatched", "GLUE: entailment, reported on other genres", TextFormat::MnliMismatched),
    ("qnli", "GLUE: does a sentence answer a question", TextFormat::Qnli),
    ("rte", "GLUE: does a sentence follow from another", TextFormat::Rte),
    ("wnli", "GLUE: does a sentence with a pronoun replaced follow", TextFormat::Wnli),
];

/// Endings of compressed files.
const COMPRESSED: [&str; 2] = [".gz", ".bz2"];

impl TextFormat {
    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        FORMATS.iter().find(|(_, _, format)| *format == self).map_or("", |(name, ..)| name)
    }

    /// The form of a file by its name, the ending of a compressed one left out: `.csv`, `.jsonl`, `.ndjson` and `.json`, and
    /// all others as tab-separated columns.
    pub fn of_file(path: &Path) -> Self {
        let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().to_lowercase());
        let plain = COMPRESSED.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
        match plain.rsplit_once('.').map(|(_, ending)| ending) {
            Some("csv") => Self::Csv,
            Some("jsonl" | "ndjson" | "json") => Self::JsonLines,
            _ => Self::Tsv,
        }
    }

    /// The form of a folder, and which folder it is, `path` or one in it: by the files of reviews and of news, and for GLUE by
    /// the folder's name.
    pub(super) fn of_folder(path: &Path) -> Option<(Self, PathBuf)> {
        let below = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut folders: Vec<PathBuf> = below.filter(|entry| entry.is_dir()).collect();
        folders.sort();
        folders.insert(0, path.into());
        folders.into_iter().find_map(|folder| Some((Self::of_one(&folder)?, folder)))
    }

    fn of_one(folder: &Path) -> Option<Self> {
        if folder.join("train/pos").is_dir() && folder.join("test/neg").is_dir() {
            return Some(Self::AclImdb);
        }
        if ["train.csv", "test.csv"].iter().all(|name| present(folder, &[name]).is_some()) {
            return Some(Self::AgNews);
        }
        let name = std::path::absolute(folder).ok()?;
        let plain: String = name.file_name()?.to_string_lossy().to_lowercase();
        let plain: String = plain.chars().filter(char::is_ascii_alphanumeric).collect();
        let plain = plain.strip_prefix("glue").unwrap_or(&plain);
        let named = FORMATS.iter().find(|(name, ..)| *name == plain).map(|(_, _, format)| *format);
        named.filter(|_| present(folder, &["train.tsv", "msr_paraphrase_train.txt"]).is_some())
    }
}

/// The first of these files that a folder has, plain or compressed.
pub(super) fn present(folder: &Path, names: &[&str]) -> Option<PathBuf> {
    let endings = [""].into_iter().chain(COMPRESSED);
    let all = names.iter().flat_map(|name| endings.clone().map(move |ending| folder.join(format!("{name}{ending}"))));
    all.into_iter().find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_are_those_of_configurations() {
        for (name, _, format) in FORMATS {
            assert_eq!((format.name(), serde_json::to_value(format).unwrap()), (name, name.into()));
        }
    }

    #[test]
    fn a_file_is_told_by_its_ending() {
        for (name, format) in [
            ("a/train.csv", TextFormat::Csv),
            ("TRAIN.CSV.GZ", TextFormat::Csv),
            ("x.jsonl.bz2", TextFormat::JsonLines),
            ("x.json", TextFormat::JsonLines),
            ("csv", TextFormat::Tsv),
            ("x.tsv.gz", TextFormat::Tsv),
            ("x.csv.txt", TextFormat::Tsv),
        ] {
            assert_eq!(TextFormat::of_file(Path::new(name)), format, "{name}");
        }
    }

    #[test]
    fn a_folder_is_told_by_its_files_or_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let folder = |name: &str, files: &[&str]| {
            let folder = directory.path().join(name);
            for file in files {
                let file = folder.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, "").unwrap();
            }
            TextFormat::of_folder(&folder).map(|(format, own)| (format, own.strip_prefix(&folder).unwrap().to_owned()))
        };
        let within = |name: &str| PathBuf::from(name);
        assert_eq!(folder("glue-sst2", &["SST-2/train.tsv"]), Some((TextFormat::Sst2, within("SST-2"))));
        assert_eq!(folder("STS-B", &["train.tsv.gz"]), Some((TextFormat::Stsb, within(""))));
        assert_eq!(folder("MRPC", &["msr_paraphrase_train.txt"]), Some((TextFormat::Mrpc, within(""))));
        assert_eq!(folder("news", &["train.csv", "test.csv"]), Some((TextFormat::AgNews, within(""))));
        let reviews = folder("r", &["aclImdb/train/pos/0_9.txt", "aclImdb/test/neg/0_1.txt"]);
        assert_eq!(reviews, Some((TextFormat::AclImdb, within("aclImdb"))));
        assert_eq!(folder("other", &["train.tsv"]), None);
        assert_eq!(folder("CoLA", &["dev.tsv"]), None);
    }
}
