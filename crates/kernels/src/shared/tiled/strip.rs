//! Strips: up to 64 neighbouring queries, each one lane of a few vectors.
//!
//! A tile of scores is stored key by key, `[keys][lanes]`. Maximum, denominator, mask and gradient of a query then stay
//! in its lane, there are no horizontal sums, and the products read keys and values in place: only queries are
//! transposed, once per task.

use std::ops::Range;

use crate::{
    Rows,
    gemm::Matrix,
    parallel::runs,
    simd::{self, LANES},
};

/// Queries per strip: four AVX-512 registers. Six keys by four registers of scores are computed at a time.
pub(super) const STRIP: usize = 64;

/// A range of neighbouring queries.
#[derive(Clone, Debug)]
pub(super) struct Strip {
    pub queries: Range<usize>,
    /// Number of queries, rounded up to full vectors.
    pub lanes: usize,
}

impl Strip {
    /// Cuts a range of queries into strips, the last of which may be shorter.
    pub fn cut(queries: Range<usize>) -> impl Iterator<Item = Self> {
        runs(queries, STRIP).map(|queries| Self { lanes: queries.len().next_multiple_of(LANES), queries })
    }

    /// `dst [width][lanes] = ` the strip's rows of a full tensor, transposed; 0 in lanes without a query.
    pub fn turn(&self, data: &[f32], rows: &Rows, dst: &mut [f32]) {
        let first = rows.start(self.queries.start);
        self.turn_rows(Matrix::rows(&data[first..], rows.stride), rows.width, dst);
    }

    /// The same for only the rows of the strip.
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

/// Contiguous rows: in place, or copied to `buffer` if rows of other heads are interleaved.
///
/// In the token-first layout rows of a head are so far apart that they map to few sets of the L1 cache.
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
