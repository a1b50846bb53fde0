//! Options of ListOps.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{CLASSES, TOKENS};
use crate::data::{DataError, Held, Objective, Progress, Shape, TaskData, TaskOptions, cache};

/// Maximum tokens of a requested tree.
const LONGEST_TREE: usize = 1 << 16;

/// The ListOps generator; the defaults are those of Long Range Arena.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListOpsConfig {
    /// Depth of a tree, including the root; a node at the last level is always a digit.
    pub depth: u32,
    /// Maximum arguments of an operator; each has 2 to `max_arguments`.
    pub max_arguments: u32,
    /// A tree is kept iff it has more tokens than this ...
    pub min_length: usize,
    /// ... and fewer than this; also the model's maximum length.
    pub max_length: usize,
    /// Number of training trees.
    pub train: usize,
    /// Number of validation trees.
    pub valid: usize,
    /// Number of test trees.
    pub test: usize,
}

impl Default for ListOpsConfig {
    fn default() -> Self {
        Self {
            depth: 10,
            max_arguments: 10,
            min_length: 500,
            max_length: 2000,
            train: 96_000,
            valid: 2_000,
            test: 2_000,
        }
    }
}

impl ListOpsConfig {
    /// The longest tree that `depth` and `max_arguments` allow, saturating.
    fn longest(&self) -> usize {
        (1..self.depth).fold(1usize, |below, _| below.saturating_mul(self.max_arguments as usize).saturating_add(2))
    }
}

impl TaskOptions for ListOpsConfig {
    fn summary(&self) -> &'static str {
        "Long Range Arena ListOps, generated: value (0-9) of a nested list expression"
    }

    fn check(&self) -> Result<(), DataError> {
        let error = |key: &str, problem: String| Err(DataError::config(&format!("listops.{key}"), problem));
        // The generator recurses once per level.
        if !(1..=1000).contains(&self.depth) {
            return error("depth", format!("is {}; must be from 1 to 1000 (Long Range Arena: 10)", self.depth));
        }
        if self.max_arguments < 2 {
            let seen = self.max_arguments;
            return error("max_arguments", format!("is {seen}; an operator takes at least 2 (Long Range Arena: 10)"));
        }
        if self.max_length.saturating_sub(self.min_length) < 2 {
            return error(
                "min_length",
                format!(
                    "is {} and max_length is {}; a tree is kept iff min_length < length < max_length, so max_length \
                     must exceed min_length by 2 or more",
                    self.min_length, self.max_length
                ),
            );
        }
        // Thousands of trees are grown at once; some may reach the maximum length.
        if self.max_length > LONGEST_TREE {
            let seen = self.max_length;
            return error("max_length", format!("is {seen}, expected at most {LONGEST_TREE} (Long Range Arena: 2000)"));
        }
        if self.longest() <= self.min_length {
            return error(
                "min_length",
                format!(
                    "is {}, but trees of depth {} with up to {} arguments have at most {} tokens; lower min_length or \
                     raise depth or max_arguments",
                    self.min_length,
                    self.depth,
                    self.max_arguments,
                    self.longest()
                ),
            );
        }
        for (key, count) in [("train", self.train), ("valid", self.valid), ("test", self.test)] {
            if count == 0 {
                return error(key, "is 0; must be at least 1".into());
            }
        }
        Ok(())
    }

    fn load(&self, seed: u64, cache_dir: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        Ok(Box::new(cache::load_listops(self, seed, cache_dir, progress)?))
    }

    fn shape(&self) -> Shape {
        Shape {
            objective: Objective::Classify { classes: CLASSES },
            vocabulary: TOKENS.len() + 1,
            max_length: self.max_length,
        }
    }

    fn smallest_batch(&self, rows: usize) -> [usize; 2] {
        [rows.min(self.train), self.min_length.saturating_add(1)]
    }

    fn held(&self) -> Option<Held> {
        let trees: u128 = [self.train, self.valid, self.test].iter().map(|count| *count as u128).sum();
        Some(Held {
            what: format!("{trees} trees of more than {} tokens need at least", self.min_length),
            bytes: trees * (self.min_length as u128 + 1),
            remedy: "lower task.listops.train",
        })
    }
}
