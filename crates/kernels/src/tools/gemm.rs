//! Single-threaded matrix products on tiles.

use crate::{
    parallel::{self, Memory},
    simd,
};

/// Largest right-hand side, in floats, that stays in the L1 cache while it is reused: 48 KiB.
const NEAR: usize = 12_288;

/// From this many rows on it pays to transpose a right-hand side with contiguous columns.
const TURN: usize = 8;

/// With so few rows copying the right-hand side does not pay off, while a few of its columns fit in the L1 cache.
const FEW: usize = 16;
const FEW_DEEP: usize = 128;

/// A matrix in a slice: element `(i, j)` is at `data[i * row + j * column]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Elements, from `(0, 0)` on.
    pub data: &'a [f32],
    /// Distance between rows.
    pub row: usize,
    /// Distance between columns.
    pub column: usize,
}

impl<'a> Matrix<'a> {
    /// Rows of `stride` elements each.
    pub fn rows(data: &'a [f32], stride: usize) -> Self {
        Self { data, row: stride, column: 1 }
    }

    /// The transposed view.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self { data: self.data, row: self.column, column: self.row }
    }

    /// The same without the rows before `row`.
    ///
    /// # Panics
    /// If that row starts past the end of the slice.
    #[must_use]
    pub fn skip_rows(self, row: usize) -> Self {
        Self { data: &self.data[row * self.row..], ..self }
    }

    /// Its first `rows` of `columns` elements, if contiguous; empty otherwise.
    pub(crate) fn dense(&self, rows: usize, columns: usize) -> &'a [f32] {
        if self.row == columns && self.column == 1 { &self.data[..rows * columns] } else { &[] }
    }

    /// Whether so many rows and columns are within the slice, for any strides.
    pub(crate) fn holds(&self, rows: usize, columns: usize) -> bool {
        if rows == 0 || columns == 0 {
            return true;
        }
        let last = |count: usize, stride: usize| (count - 1).checked_mul(stride);
        let place =
            last(rows, self.row).zip(last(columns, self.column)).and_then(|(row, column)| row.checked_add(column));
        place.is_some_and(|place| place < self.data.len())
    }
}

/// What a product does with the old content of its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `dst = alpha a b`; old content, NaN included, is never read.
    Over,
    /// `dst += alpha a b`.
    Add,
}

/// `dst (=|+=) alpha a b` with `a [m,k]`, `b [k,n]`, `dst [m,n]` in rows of `stride`.
///
/// # Panics
/// If a matrix is not within its slice.
#[inline]
pub fn product(
    sizes: (usize, usize, usize),
    alpha: f32,
    a: Matrix,
    b: Matrix,
    write: Write,
    dst: &mut [f32],
    stride: usize,
) {
    product_fetching(sizes, alpha, a, b, write, dst, stride, &[]);
}

/// The same; small products meanwhile prefetch `ahead`, which is needed next.
///
/// # Panics
/// As for [`product`].
#[allow(clippy::too_many_arguments)]
#[inline]
pub fn product_fetching(
    (m, n, k): (usize, usize, usize),
    alpha: f32,
    a: Matrix,
    b: Matrix,
    write: Write,
    dst: &mut [f32],
    stride: usize,
    ahead: &[f32],
) {
    assert!(a.holds(m, k) && b.holds(k, n), "operand outside its buffer");
    assert!(Matrix::rows(dst, stride).holds(m, n), "product outside its buffer");
    assert!(stride >= n, "rows of the product overlap");
    if m == 0 || n == 0 {
        return;
    }
    if b.column == 1 && (k * n <= NEAR || m <= FEW && k <= FEW_DEEP) {
        return simd::tile_product_fetching((m, n, k), alpha, a, b, write, dst, stride, ahead);
    }
    if b.row == 1 && k * n <= NEAR && m >= TURN {
        let row = simd::row_stride(n);
        return parallel::lend(Memory::Turned, k * row, |turned| {
            simd::transpose(b.transposed(), (n, k), turned, row);
            simd::tile_product((m, n, k), alpha, a, Matrix::rows(turned, row), write, dst, stride);
        });
    }
    large((m, n, k), alpha, a, b, write, dst, stride);
}

/// A product of any size and strides, checked: by a library that packs both operands.
#[cfg(not(target_arch = "wasm32"))]
fn large(
    (m, n, k): (usize, usize, usize),
    alpha: f32,
    a: Matrix,
    b: Matrix,
    write: Write,
    dst: &mut [f32],
    stride: usize,
) {
    // SAFETY: all three matrices are within their slices, as the caller checked, rows of `dst` do not overlap, and
    // `dst` is borrowed mutably, so it is neither operand.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            dst.as_mut_ptr(),
            1,
            stride as isize,
            write == Write::Add,
            a.data.as_ptr(),
            a.column as isize,
            a.row as isize,
            b.data.as_ptr(),
            b.column as isize,
            b.row as isize,
            1.0,
            alpha,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// The same for WebAssembly, where the library would be most of a module: one tile, with the rows of `b` made contiguous.
#[cfg(target_arch = "wasm32")]
fn large(
    (m, n, k): (usize, usize, usize),
    alpha: f32,
    a: Matrix,
    b: Matrix,
    write: Write,
    dst: &mut [f32],
    stride: usize,
) {
    if b.column == 1 {
        return simd::tile_product((m, n, k), alpha, a, b, write, dst, stride);
    }
    let row = simd::row_stride(n);
    parallel::lend(Memory::Turned, k * row, |turned| {
        for (l, turned) in turned.chunks_exact_mut(row).enumerate() {
            for (j, x) in turned[..n].iter_mut().enumerate() {
                *x = b.data[l * b.row + j * b.column];
            }
        }
        simd::tile_product((m, n, k), alpha, a, Matrix::rows(turned, row), write, dst, stride);
    });
}

/// `dst = src^T` for contiguous `src [rows,columns]`; `dst` is dense.
pub fn transpose(src: Matrix, (rows, columns): (usize, usize), dst: &mut [f32]) {
    simd::transpose(src, (rows, columns), dst, rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strided_product_agrees_with_the_definition_and_never_reads_what_it_overwrites() {
        let (m, n, k) = (5, 7, 3);
        let a: Vec<f32> = (0..m * 10).map(|i| (i as f32 * 0.37).sin()).collect();
        let b: Vec<f32> = (0..n * 4).map(|i| (i as f32 * 0.91).cos()).collect();
        let mut dst = vec![f32::NAN; m * 9];
        product((m, n, k), 2.0, Matrix::rows(&a, 10), Matrix::rows(&b, 4).transposed(), Write::Over, &mut dst, 9);
        product((m, n, k), 1.0, Matrix::rows(&a, 10), Matrix::rows(&b, 4).transposed(), Write::Add, &mut dst, 9);
        for i in 0..m {
            for j in 0..n {
                let want: f32 = 3.0 * (0..k).map(|l| a[i * 10 + l] * b[j * 4 + l]).sum::<f32>();
                assert!((dst[i * 9 + j] - want).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn strides_that_wrap_do_not_fit() {
        let data = [1.0; 8];
        for (row, column) in [(1 << 63, 1), (1, 1 << 63), (usize::MAX, 1), (usize::MAX, usize::MAX), (8, 1)] {
            let matrix = Matrix { data: &data, row, column };
            assert!(!matrix.holds(3, 3) && matrix.holds(1, 1) && matrix.holds(0, 3), "{row} {column}");
        }
        let mut dst = [0.0; 9];
        let wrapping = Matrix { data: &data, row: 1 << 63, column: 1 };
        let whole = std::panic::catch_unwind(move || {
            product((3, 3, 2), 1.0, wrapping, Matrix::rows(&data, 3), Write::Over, &mut dst, 3);
        });
        assert!(whole.is_err(), "every other row would lie outside");
        assert!(!Matrix::rows(&data, usize::MAX / 2 + 1).holds(3, 1));
    }

    #[test]
    fn a_sum_without_terms_reads_nothing() {
        let mut dst = vec![f32::NAN; 20 * 20];
        let nothing = Matrix::rows(&[], 7);
        for b in [nothing, nothing.transposed()] {
            dst.fill(f32::NAN);
            product((20, 20, 0), 1.0, nothing, b, Write::Over, &mut dst, 20);
            product((20, 20, 0), 1.0, nothing, b, Write::Add, &mut dst, 20);
            assert!(dst.iter().all(|x| *x == 0.0));
        }
    }
}
