//! Sizes of a measurement in a sweep.

use serde::{Deserialize, Serialize};

/// Sizes shared by all mechanisms of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sizes {
    /// Sequence length in tokens.
    pub length: usize,
    /// Head width.
    pub head_width: usize,
    /// Query heads.
    pub heads: usize,
    /// Batch size.
    pub batch: usize,
    /// Number of threads.
    pub threads: usize,
}

/// One of the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dimension {
    Length,
    HeadWidth,
    Heads,
    Batch,
    Threads,
}

impl Dimension {
    /// All dimensions, in order of priority for a chart axis.
    pub const ALL: [Self; 5] = [Self::Length, Self::HeadWidth, Self::Heads, Self::Batch, Self::Threads];

    /// Its name in tables and charts.
    pub fn title(self) -> &'static str {
        match self {
            Self::Length => "tokens",
            Self::HeadWidth => "head width",
            Self::Heads => "heads",
            Self::Batch => "batch",
            Self::Threads => "threads",
        }
    }

    /// Its value.
    pub fn of(self, sizes: Sizes) -> usize {
        match self {
            Self::Length => sizes.length,
            Self::HeadWidth => sizes.head_width,
            Self::Heads => sizes.heads,
            Self::Batch => sizes.batch,
            Self::Threads => sizes.threads,
        }
    }

    /// The sizes with this dimension changed.
    pub fn set(self, mut sizes: Sizes, value: usize) -> Sizes {
        match self {
            Self::Length => sizes.length = value,
            Self::HeadWidth => sizes.head_width = value,
            Self::Heads => sizes.heads = value,
            Self::Batch => sizes.batch = value,
            Self::Threads => sizes.threads = value,
        }
        sizes
    }

    /// The sizes without this dimension: equal for measurements that differ only in it.
    pub fn others(self, sizes: Sizes) -> Sizes {
        self.set(sizes, 0)
    }

    /// Dimensions that take more than one value.
    pub fn varied(all: impl Iterator<Item = Sizes> + Clone) -> Vec<Self> {
        let first = all.clone().next();
        let varies = |dimension: &Self| {
            all.clone().any(|sizes| first.is_some_and(|first| dimension.of(first) != dimension.of(sizes)))
        };
        Self::ALL.into_iter().filter(varies).collect()
    }

    /// Names and values of some of them, as `heads 8, threads 2`.
    pub fn words(dimensions: &[Self], sizes: Sizes) -> String {
        let words: Vec<String> = dimensions.iter().map(|d| format!("{} {}", d.title(), d.of(sizes))).collect();
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_varies() {
        let one = Sizes { length: 8, head_width: 4, heads: 2, batch: 1, threads: 1 };
        let two = Sizes { threads: 2, length: 16, ..one };
        assert_eq!(Dimension::varied([one, two].into_iter()), [Dimension::Length, Dimension::Threads]);
        assert!(Dimension::varied([one, one].into_iter()).is_empty());
        assert_eq!(Dimension::Threads.others(one), Dimension::Threads.others(Sizes { threads: 9, ..one }));
        assert_eq!(Dimension::words(&[Dimension::Heads, Dimension::Threads], two), "heads 2, threads 2");
    }
}
