//! Strips: up to 64 neighbouring queries, each of them one lane of a few vectors.
//!
//! A tile of scores lies key by key, `[keys][lanes]`. Maximum, denominator, mask and gradient of a query then stay in its lane,
//! no vector is ever added up to one number, and the products read keys and values where they lie: only queries are
//! transposed, once per task.

use std::ops::Range;

use crate::{
    Rows,
    gemm::Matrix,
    parallel::runs,
    simd::{self, LANES},
};

/// Queries of a strip: four AVX-512 registers. Six keys by four registers of scores are formed at a time.
pub(super) const STRIP: usize = 64;

/// Some neighbouring queries.
#[derive(Clone, Debug)]
pub(super) struct Strip {
    pub queries: Range<usize>,
    /// Queries, rounded up to whole vectors.
    pub lanes: usize,
}

impl Strip {
    /// Cuts a range of queries into strips, the last of which may be shorter.
    pub fn cut(queries: Range<usize>) -> impl Iterator<Item = Self> {
        runs(queries, STRIP).map(|queries| Self { lanes: queries.len().next_multiple_of(LANES), queries })
    }

    /// `dst [width][lanes] = ` the strip's rows of a whole tensor; 0 in lanes without a query.
    pub fn turn(&self, data: &[f32], rows: &Rows, dst: &mut [f32]) {
        let first = rows.start(self.queries.start);
        self.turn_rows(Matrix::rows(&data[first..], rows.stride), rows.width, dst);
    }

    /// The same for rows of the strip alone.
    pub fn turn_rows(&self, rows: Matrix, width: usize, dst: &mut [f32]) {
        if self.queries.len() < self.lanes {
            dst[..width * self.lanes].fill(0.0);
        }
        simd::transpose(rows, (self.queries.len(), width), dst, self.lanes);
    }

    /// `dst [queries][width] = src`, which is `[width][lanes]`.
    pub fn turn_back(&self, src: &[f32], width: usize, dst: &mut [f32]) {
        simd::transpose(Matrix::rows(src, self.lanes), (width, self.queries.len()), dst, width);
    }
}

/// Rows side by side: where they lie, or copied to `buffer` when rows of other heads lie between them.
///
/// In the token-first layout rows of a head lie so far apart that they fall on a few places of the L1 cache.
pub(super) fn side_by_side<'a>(data: &'a [f32], rows: &Rows, buffer: &'a mut [f32]) -> Matrix<'a> {
    let width = rows.width;
    if rows.stride == width {
        return Matrix::rows(&data[rows.offset..], width);
    }
    for (i, copy) in buffer.chunks_exact_mut(width).take(rows.count).enumerate() {
        simd::prefetch(data, rows, i);
        copy.copy_from_slice(rows.row(data, i));
    }
    Matrix::rows(buffer, width)
}
