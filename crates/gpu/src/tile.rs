//! How a kernel is cut into tiles.

/// The kernels of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Outputs and log-sum-exp, by tiles of queries.
    Forward,
    /// Gradients of the queries, by tiles of queries.
    Queries,
    /// Gradients of keys, values and the terms of the scores, by tiles of keys.
    Keys,
}

/// A block of threads and what it holds in shared memory: `rows` of one sequence stay, `columns` of the other pass by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Tokens of the sequence whose results the block writes.
    pub rows: usize,
    /// Tokens of the other sequence at a time.
    pub columns: usize,
    /// Threads along columns and channels.
    pub across: usize,
    /// Threads along rows.
    pub down: usize,
}

/// Rows and columns of a tile, best first: a row of a larger tile costs less traffic, for it shares what passes by with more
/// others. Each fits 32 KiB of shared memory, as Metal and software Vulkan have it, up to some width.
const SIZES: [[usize; 2]; 7] = [[64, 32], [64, 16], [32, 16], [32, 8], [16, 8], [16, 4], [8, 4]];

impl Tile {
    /// Tiles that fit `shared` bytes of memory and `threads` threads, for `width` channels of queries and keys and
    /// `value_width` of values: those of least traffic first.
    pub fn fitting(pass: Pass, [width, value_width]: [usize; 2], shared: usize, threads: usize) -> Vec<Self> {
        let all = SIZES.iter().map(|&[rows, columns]| Self::of(rows, columns));
        all.filter(|tile| {
            tile.floats(pass, [width, value_width]) * size_of::<f32>() <= shared && tile.threads() <= threads
        })
        .collect()
    }

    /// Each thread has four rows, where there are eight threads to share them.
    fn of(rows: usize, columns: usize) -> Self {
        Self { rows, columns, across: columns.min(8), down: (rows / 4).max(4) }
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        self.across * self.down
    }

    /// Rows of a thread.
    pub fn rows_each(&self) -> usize {
        self.rows / self.down
    }

    /// Columns of a thread.
    pub fn columns_each(&self) -> usize {
        self.columns / self.across
    }

    /// Floats in shared memory.
    pub fn floats(&self, pass: Pass, [width, value_width]: [usize; 2]) -> usize {
        let Self { rows, columns, across, .. } = *self;
        let (both, pairs) = (width + 1 + value_width + 1, rows * (columns + 1));
        match pass {
            Pass::Forward => rows * (width + 1) + columns * both + pairs + rows * across + columns,
            Pass::Queries => (rows + columns) * both + pairs + rows * across + columns,
            Pass::Keys => (rows + columns) * both + 2 * pairs + rows + 2 * columns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit_where_they_are_offered() {
        for width in [1, 6, 32, 64, 128, 256] {
            for pass in [Pass::Forward, Pass::Queries, Pass::Keys] {
                let tiles = Tile::fitting(pass, [width, width], 32 << 10, 256);
                assert!(!tiles.is_empty(), "{width} {pass:?}");
                for tile in tiles {
                    assert!(tile.floats(pass, [width, width]) * 4 <= 32 << 10 && tile.threads() <= 256);
                    // Threads share rows and columns evenly, and the sums of one number of each find room among the pairs.
                    assert_eq!([tile.rows % tile.down, tile.columns % tile.across], [0, 0]);
                    assert!(tile.threads() <= tile.rows * (tile.columns + 1));
                }
            }
        }
        assert!(Tile::fitting(Pass::Keys, [4096, 4096], 32 << 10, 256).is_empty());
    }
}
