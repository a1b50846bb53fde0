//! Partition of rows into blocks and of scratch into parts, by sizes alone.

use std::ops::Range;

/// Rows of one tile product.
pub(super) const CHUNK: usize = 64;

/// Blocks of rows owned by tasks, all of one size except the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// Total number of rows.
    pub total: usize,
    /// Rows per block.
    pub rows: usize,
    /// Number of blocks.
    pub count: usize,
}

impl Blocks {
    /// At most `count` blocks of `total` rows, each a multiple of `unit` long.
    pub fn new(total: usize, count: usize, unit: usize) -> Self {
        let rows = total.div_ceil(count.max(1)).next_multiple_of(unit);
        Self { total, rows, count: total.div_ceil(rows) }
    }

    /// Blocks for `streams` independent sequences of `total` rows: enough to keep some tens of cores busy, none much
    /// shorter than 256 rows, so that the data saved per block is small compared to the block.
    pub fn spread(total: usize, streams: usize) -> Self {
        const TASKS: usize = 64;
        const LEAST: usize = 256;
        Self::new(total, total.div_ceil(LEAST).min(TASKS.div_ceil(streams)), CHUNK)
    }

    /// Batch row, block and head of a task. Heads vary fastest: in the token-first layout they share pages.
    pub fn task(&self, task: usize, heads: usize) -> (usize, usize, usize) {
        (task / heads / self.count, task / heads % self.count, task % heads)
    }

    /// Rows of block `i`.
    pub fn range(&self, i: usize) -> Range<usize> {
        i * self.rows..((i + 1) * self.rows).min(self.total)
    }
}
