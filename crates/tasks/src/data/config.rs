//! The tasks by name, and the options of each.

use std::{fmt, path::Path, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    CharLmConfig, CopyConfig, DataError, ImageConfig, ListOpsConfig, LmConfig, MaskedLmConfig, NewsConfig,
    PathfinderConfig, Progress, RetrievalConfig, SummaryConfig, TaskData, TaskOptions, TextConfig, TranslationConfig,
    tokenizer::SMALLEST_VOCABULARY,
};

/// Largest vocabulary: more than any language model has, few enough that its logits fit into memory.
const LARGEST_VOCABULARY: usize = 1 << 20;

/// One line per task: its variant of [`TaskName`], its name, its options and their type.
macro_rules! tasks {
    ($($(#[$about:meta])* $variant:ident = $name:literal, $options:ident: $type:ty;)*) => {
        /// A task by name.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum TaskName {
            $($(#[$about])* $variant,)*
        }

        impl TaskName {
            /// Every task, in the order of lists and reports.
            pub const ALL: &[TaskName] = &[$(Self::$variant,)*];

            /// Its name in configurations, on the command line and in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        /// The chosen task, and the options of each task (those of the others are ignored).
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct TaskConfig {
            /// The task.
            pub name: TaskName,
            /// Seed of the generated data or of the validation split; absent: the seed of the run. Set it to train with
            /// several seeds on the same data.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub seed: Option<u64>,
            $(
                #[doc = concat!("Options of `", $name, "`.")]
                pub $options: $type,
            )*
        }

        impl TaskConfig {
            /// The options of the chosen task.
            pub fn options(&self) -> &dyn TaskOptions {
                match self.name {
                    $(TaskName::$variant => &self.$options,)*
                }
            }
        }
    };
}

tasks! {
    /// Long Range Arena ListOps: the value of a nested expression over lists of digits.
    #[default]
    Listops = "listops", listops: ListOpsConfig;
    /// Long Range Arena Pathfinder: whether a dashed contour joins two discs.
    Pathfinder = "pathfinder", pathfinder: PathfinderConfig;
    /// Byte-level text classification.
    Text = "text", text: TextConfig;
    /// Whether two documents belong together.
    Retrieval = "retrieval", retrieval: RetrievalConfig;
    /// Long Range Arena image: the class of a small picture, pixel by pixel.
    Image = "image", image: ImageConfig;
    /// Character language model.
    CharLm = "char-lm", char_lm: CharLmConfig;
    /// Copying a random word over a long distance.
    Copy = "copy", copy: CopyConfig;
    /// Sentence translation.
    Translation = "translation", translation: TranslationConfig;
    /// Summaries of documents.
    Summary = "summary", summary: SummaryConfig;
    /// Masked language model.
    MaskedLm = "masked-lm", masked_lm: MaskedLmConfig;
    /// Language model on texts in three parts.
    Lm = "lm", lm: LmConfig;
    /// News recommendation.
    News = "news", news: NewsConfig;
}

impl TaskName {
    /// One line for a list.
    pub fn summary(self) -> &'static str {
        TaskConfig { name: self, ..TaskConfig::default() }.options().summary()
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TaskName {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        Self::ALL.iter().copied().find(|task| task.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|task| task.name()).collect();
            DataError::config("name", format!("no task is called `{name}`; the tasks are {}", names.join(", ")))
        })
    }
}

impl TaskConfig {
    /// Checks for invalid options of the chosen task ([`DataError::is_config`]) and missing files.
    ///
    /// # Errors
    /// The first problem found.
    pub fn check(&self) -> Result<(), DataError> {
        self.options().check()
    }

    /// Checks the options, then generates or reads the data.
    ///
    /// `seed` is the run's, overridden by [`TaskConfig::seed`]. Generated sets are cached in `cache_dir`, if given; a
    /// damaged file there is replaced and a cache that cannot be written is skipped, with a note in the result.
    /// `progress` is called from the calling thread.
    ///
    /// ```
    /// use regard_tasks::data::{CharLmConfig, TaskConfig, TaskName};
    ///
    /// let char_lm = CharLmConfig { context: 64, ..CharLmConfig::default() };
    /// let task = TaskConfig { name: TaskName::CharLm, char_lm, ..TaskConfig::default() };
    /// let text = task.load(1, None, &|_done, _total| {})?;
    /// assert_eq!(text.shape().max_length, 64);
    /// assert_eq!(text.shape().vocabulary, 65); // characters of the embedded text
    /// # Ok::<(), regard_tasks::data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// As for [`TaskConfig::check`]; missing or corrupt data.
    pub fn load(&self, seed: u64, cache_dir: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        self.check()?;
        self.options().load(self.seed.unwrap_or(seed), cache_dir, progress)
    }
}

pub(super) fn check_fraction(key: &str, fraction: f64) -> Result<(), DataError> {
    if fraction > 0.0 && fraction < 1.0 {
        return Ok(());
    }
    Err(DataError::config(key, format!("is {fraction}; must lie between 0 and 1, both excluded")))
}

pub(super) fn check_file(path: &Path) -> Result<(), DataError> {
    let about = std::fs::metadata(path).map_err(|source| DataError::read(path, source))?;
    if about.is_dir() {
        return Err(DataError::Content {
            path: path.into(),
            problem: "is a directory; give the path of a file in it".into(),
        });
    }
    Ok(())
}

pub(super) fn check_vocabulary(key: &str, vocabulary: usize) -> Result<(), DataError> {
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
    fn names_round_trip_and_unknown_ones_are_refused() {
        for &task in TaskName::ALL {
            assert_eq!(task.name().parse::<TaskName>().unwrap(), task);
            assert_eq!(serde_json::to_string(&task).unwrap(), format!("\"{task}\""));
        }
        let error = "list-ops".parse::<TaskName>().unwrap_err();
        assert!(
            error.is_config()
                && error.to_string().contains("listops, pathfinder, text, retrieval, image, char-lm, copy"),
            "{error}"
        );
    }

    #[test]
    fn absent_keys_take_their_defaults_and_unknown_ones_are_refused() {
        let config: TaskConfig = serde_json::from_str(r#"{"name":"char-lm","char_lm":{"context":64}}"#).unwrap();
        let char_lm = CharLmConfig { context: 64, ..CharLmConfig::default() };
        assert_eq!(config, TaskConfig { name: TaskName::CharLm, char_lm, ..TaskConfig::default() });
        let again: TaskConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
        assert!(serde_json::from_str::<TaskConfig>(r#"{"listops":{"min_lenght":5}}"#).is_err());
    }

    #[test]
    fn impossible_options_are_named() {
        let listops = |change: &dyn Fn(&mut ListOpsConfig)| {
            let mut config = TaskConfig::default();
            config.check().unwrap();
            change(&mut config.listops);
            config.check()
        };
        type Change<'a> = (&'a dyn Fn(&mut ListOpsConfig), &'a str);
        let changes: [Change; 6] = [
            (&|c| c.depth = 0, "task.listops.depth: is 0"),
            (&|c| c.max_arguments = 1, "task.listops.max_arguments: is 1"),
            (&|c| c.max_length = 501, "task.listops.min_length: is 500 and max_length is 501"),
            (&|c| c.min_length = usize::MAX, "task.listops.min_length: is 18446744073709551615"),
            (&|c| c.depth = 3, "trees of depth 3 with up to 10 arguments have at most 122 tokens"),
            (&|c| c.valid = 0, "task.listops.valid: is 0"),
        ];
        for (change, expected) in changes {
            let error = listops(change).unwrap_err();
            assert!(error.is_config() && error.to_string().contains(expected), "{error}");
        }
        let char_lm = CharLmConfig { valid_fraction: f64::NAN, ..CharLmConfig::default() };
        assert!(char_lm.check().unwrap_err().is_config());
        assert!(CharLmConfig { context: 0, ..CharLmConfig::default() }.check().unwrap_err().is_config());
        type CopyChange<'a> = (&'a dyn Fn(&mut CopyConfig), &'a str);
        let changes: [CopyChange; 6] = [
            (&|c| c.length = 1023, "task.copy.length: is 1023"),
            (&|c| c.length = 2, "task.copy.length: is 2"),
            (&|c| c.symbols = 65_536, "task.copy.symbols: is 65536"),
            (&|c| c.length = usize::MAX - 1, "task.copy.length: is 18446744073709551614"),
            (&|c| c.test = 0, "task.copy.test: is 0"),
            (&|c| c.train = usize::MAX, "task.copy.train: is 18446744073709551615"),
        ];
        for (change, expected) in changes {
            let mut config = TaskConfig { name: TaskName::Copy, ..TaskConfig::default() };
            config.check().unwrap();
            change(&mut config.copy);
            let error = config.check().unwrap_err();
            assert!(error.is_config() && error.to_string().contains(expected), "{error}");
        }
        assert!(TextConfig::default().check().unwrap_err().to_string().contains("task.text.train: is not set"));
    }

    #[test]
    fn missing_files_are_missing_data_and_not_a_wrong_option() {
        let directory = tempfile::tempdir().unwrap();
        let absent = directory.path().join("absent.tsv");
        let text = TextConfig { train: Some(absent.clone()), test: Some(absent.clone()), ..TextConfig::default() };
        let error = text.check().unwrap_err();
        assert!(matches!(&error, DataError::Read { path, .. } if *path == absent), "{error}");
        assert!(!error.is_config());
        let error =
            CharLmConfig { path: Some(directory.path().into()), ..CharLmConfig::default() }.check().unwrap_err();
        assert!(!error.is_config() && error.to_string().contains("is a directory"), "{error}");
    }
}
