//! Options of the masked language model.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::data::{
    DataError, Objective, Progress, Shape, TaskData, TaskOptions,
    config::{check_file, check_fraction, check_vocabulary},
};

/// Masked language model (Devlin et al. 2019, trained as in Liu et al. 2019).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaskedLmConfig {
    /// UTF-8 files (plain, gzip or bzip2); none: the embedded text (plays of Shakespeare).
    pub paths: Vec<PathBuf>,
    /// Validation file; absent: the end of the last of `paths`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<PathBuf>,
    /// Test file; absent: the second half of the sentences to validate on, which are then the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<PathBuf>,
    /// Fraction of the sentences, at the end, held out if `valid` is absent, in (0, 1).
    pub valid_fraction: f64,
    /// Maximum vocabulary size.
    pub vocabulary: usize,
    /// Tokens per window, including begin and end tokens.
    pub context: usize,
    /// Fraction of tokens to predict, in (0, 1).
    pub mask_fraction: f64,
}

impl Default for MaskedLmConfig {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            valid: None,
            test: None,
            valid_fraction: 0.1,
            vocabulary: 4000,
            context: 128,
            mask_fraction: 0.15,
        }
    }
}

impl TaskOptions for MaskedLmConfig {
    fn summary(&self) -> &'static str {
        "masked language model on an embedded public-domain text or any UTF-8 files"
    }

    fn check(&self) -> Result<(), DataError> {
        check_vocabulary("masked_lm.vocabulary", self.vocabulary)?;
        if self.context < 3 {
            let problem = format!("is {}; must be at least 3, a token between begin and end", self.context);
            return Err(DataError::config("masked_lm.context", problem));
        }
        check_fraction("masked_lm.mask_fraction", self.mask_fraction)?;
        if self.valid.is_none() {
            check_fraction("masked_lm.valid_fraction", self.valid_fraction)?;
        }
        self.paths.iter().chain(&self.valid).chain(&self.test).try_for_each(|path| check_file(path))
    }

    fn load(&self, seed: u64, _: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        Ok(Box::new(super::load(self, seed, progress)?))
    }

    fn shape(&self) -> Shape {
        Shape { objective: Objective::Fill, vocabulary: self.vocabulary, max_length: self.context }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
