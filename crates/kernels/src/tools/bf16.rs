//! Products of matrices of bf16 with sums in f32, by the processor's own instructions for them.
//!
//! `vdpbf16ps` multiplies 32 pairs at a time, twice as many as f32 allows. Both matrices are first copied into panels: the
//! elements of two neighbouring terms of a sum side by side, as the instruction wants them.

#![cfg(target_arch = "x86_64")]

use std::{arch::x86_64::*, sync::OnceLock};

use half::bf16;

use crate::{
    parallel::{Disjoint, for_each},
    simd::{Vectors, vectorize, vectors},
    stored::Half,
};

/// Rows and columns that the innermost loop computes: 24 vectors of sums, two of columns, one of a row's element.
const ROWS: usize = 12;
const COLUMNS: usize = 32;

/// Pairs of terms at a time: a panel of columns of that depth (24 KiB) stays in the L1 cache.
const DEEP: usize = 192;

/// Panels of rows and of columns of a task: 192 x 256 results; its rows (144 KiB at a time) stay in the L2 cache.
const TALL: usize = 16;
const WIDE: usize = 8;

/// Whether this processor has the instructions, and may use them.
pub(crate) fn available() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16"))
        && vectors() == Vectors::Avx512
}

/// Numbers of a matrix, which are rounded to bf16 if they are not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Numbers<'a> {
    Bf16(&'a [bf16]),
    F32(&'a [f32]),
}

/// A matrix in a slice: element `(i, j)` is at `i * row + j * column`, and one of the two is 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    pub data: Numbers<'a>,
    pub row: usize,
    pub column: usize,
}

impl<'a> Matrix<'a> {
    /// Rows of `width` elements.
    pub fn rows(data: Numbers<'a>, width: usize) -> Self {
        Self { data, row: width, column: 1 }
    }

    /// The transposed view.
    pub fn transposed(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }

    fn len(&self) -> usize {
        match self.data {
            Numbers::Bf16(data) => data.len(),
            Numbers::F32(data) => data.len(),
        }
    }
}

/// `dst = a b` with `a [m,k]`, `b [k,n]`, `dst [m,n]`. Any number of threads gives the same bits.
///
/// # Panics
/// Without the instructions, or if a matrix has another size than its slice.
pub(crate) fn product((m, n, k): (usize, usize, usize), a: Matrix, b: Matrix, dst: &mut [f32]) {
    assert!(available(), "instructions for bf16");
    assert_eq!([a.len(), b.len(), dst.len()], [m * k, k * n, m * n], "matrices of other sizes");
    if k == 0 {
        return dst.fill(0.0);
    }
    let pairs = k.div_ceil(2);
    let left = packed::<ROWS>(a, (m, k));
    let right = packed::<COLUMNS>(b.transposed(), (n, k));
    let across = n.div_ceil(WIDE * COLUMNS);
    let dst = Disjoint::new(dst);
    for_each(m.div_ceil(TALL * ROWS) * across, |task| {
        let (top, first) = (task / across * TALL, task % across * WIDE);
        let panels_down = top..(top + TALL).min(m.div_ceil(ROWS));
        let panels_across = first..(first + WIDE).min(n.div_ceil(COLUMNS));
        for start in (0..pairs).step_by(DEEP) {
            let deep = DEEP.min(pairs - start);
            for j in panels_across.clone() {
                let right = &right[(j * pairs + start) * COLUMNS..][..deep * COLUMNS];
                for i in panels_down.clone() {
                    let left = &left[(i * pairs + start) * ROWS..][..deep * ROWS];
                    // SAFETY: the instructions are there.
                    let sums = unsafe { tile(left, right) };
                    let width = COLUMNS.min(n - j * COLUMNS);
                    for (row, sums) in sums.iter().enumerate().take(ROWS.min(m - i * ROWS)) {
                        // SAFETY: tiles do not overlap, and each task takes its own rows one at a time.
                        let dst = unsafe { dst.range((i * ROWS + row) * n + j * COLUMNS, width) };
                        match start {
                            0 => dst.copy_from_slice(&sums[..width]),
                            _ => dst.iter_mut().zip(sums).for_each(|(dst, sum)| *dst += sum),
                        }
                    }
                }
            }
        }
    });
}

/// Sums of the products of panels: `left` has pairs of [`ROWS`] rows, `right` of [`COLUMNS`] columns.
///
/// # Safety
/// The processor must have the instructions.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn tile(left: &[u32], right: &[u32]) -> [[f32; COLUMNS]; ROWS] {
    /// # Safety
    /// 64 bytes must be readable.
    #[inline(always)]
    unsafe fn columns(at: *const u32) -> __m512bh {
        // SAFETY: guaranteed by the caller; both types are 64 bytes of numbers.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(at.cast::<__m512i>().read_unaligned()) }
    }
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (left, right) in left.as_chunks::<ROWS>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
        // SAFETY: a chunk is two vectors.
        let right = unsafe { [columns(right.as_ptr()), columns(right.as_ptr().add(16))] };
        for (sums, row) in sums.iter_mut().zip(left) {
            // SAFETY: both types are 64 bytes of numbers.
            let row = unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(*row as i32)) };
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = _mm512_dpbf16_ps(*sum, row, right);
            }
        }
    }
    // SAFETY: two vectors are 32 floats.
    unsafe { std::mem::transmute::<[[__m512; 2]; ROWS], [[f32; COLUMNS]; ROWS]>(sums) }
}

/// The rows of a matrix `[count,k]` in panels of `P`: for each pair of columns the pairs of all rows of a panel, the first
/// in the low half. What is missing of the last panel and pair is 0.
fn packed<const P: usize>(matrix: Matrix, (count, k): (usize, usize)) -> Vec<u32> {
    let pairs = k.div_ceil(2);
    let mut panels = vec![0; count.div_ceil(P) * pairs * P];
    let parts = Disjoint::new(&mut panels);
    for_each(count.div_ceil(P), |panel| {
        // SAFETY: panels do not overlap.
        let out = unsafe { parts.range(panel * pairs * P, pairs * P) };
        let rows = P.min(count - panel * P);
        let matrix = (matrix.row, matrix.column, panel * P * matrix.row, matrix.data);
        vectorize(
            #[inline(always)]
            || match matrix {
                (row, column, at, Numbers::Bf16(data)) => {
                    pack::<P, _>(&data[at..], [row, column], [rows, k], out, |x| x.to_bits());
                }
                (row, column, at, Numbers::F32(data)) => {
                    pack::<P, _>(&data[at..], [row, column], [rows, k], out, |x| bf16::nearest(x).to_bits());
                }
            },
        );
    });
    panels
}

#[inline(always)]
fn pack<const P: usize, T: Copy>(
    data: &[T],
    [row, column]: [usize; 2],
    [rows, k]: [usize; 2],
    out: &mut [u32],
    bits: impl Fn(T) -> u16,
) {
    let pair = |first: T, second: T| u32::from(bits(first)) | u32::from(bits(second)) << 16;
    let whole = k / 2;
    if row == 1 {
        for (p, out) in out.chunks_exact_mut(P).enumerate().take(whole) {
            let [first, second] = [2 * p, 2 * p + 1].map(|c| &data[c * column..][..rows]);
            for ((out, first), second) in out.iter_mut().zip(first).zip(second) {
                *out = pair(*first, *second);
            }
        }
    } else {
        for lane in 0..rows {
            let data = &data[lane * row..][..k];
            for (out, both) in out[lane..].iter_mut().step_by(P).zip(data.as_chunks::<2>().0) {
                *out = pair(both[0], both[1]);
            }
        }
    }
    if k % 2 == 1 {
        for lane in 0..rows {
            out[whole * P + lane] = u32::from(bits(data[lane * row + (k - 1) * column]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, salt: usize) -> Vec<bf16> {
        (0..count).map(|i| bf16::from_f32(((i * 37 + salt * 11) % 41) as f32 / 16.0 - 1.25)).collect()
    }

    /// Elements are multiples of 2^-4, and their products and sums exact in f32.
    #[test]
    fn products_are_exact_where_f32_is() {
        // Where there are none, dense layers convert instead.
        if !available() {
            return;
        }
        for (m, n, k) in [(1, 1, 1), (12, 32, 2), (13, 33, 7), (5, 70, 400), (200, 300, 31), (3, 3, 0), (197, 31, 801)]
        {
            let (rows, b) = (numbers(m * k, 1), numbers(k * n, 2));
            let singles: Vec<f32> = b.iter().map(|x| x.to_f32()).collect();
            let turned: Vec<bf16> = (0..k * m).map(|at| rows[at % m * k + at / m]).collect();
            for (a, b) in [
                (Matrix::rows(Numbers::Bf16(&rows), k), Matrix::rows(Numbers::F32(&singles), n)),
                (Matrix::rows(Numbers::Bf16(&turned), m).transposed(), Matrix::rows(Numbers::Bf16(&b), n)),
            ] {
                let mut dst = vec![f32::NAN; m * n];
                product((m, n, k), a, b, &mut dst);
                for i in 0..m {
                    for j in 0..n {
                        let want: f32 = (0..k).map(|l| rows[i * k + l].to_f32() * singles[l * n + j]).sum();
                        assert_eq!(dst[i * n + j], want, "({i}, {j}) of {m} x {n} x {k}");
                    }
                }
            }
        }
    }

    #[test]
    fn weights_are_rounded_to_the_nearest() {
        // Where there are none, dense layers convert instead.
        if !available() {
            return;
        }
        let (x, w) = ([bf16::ONE; 2], [1.0 + 2f32.powi(-9), 0.1]);
        let mut dst = [0.0];
        product((1, 1, 2), Matrix::rows(Numbers::Bf16(&x), 2), Matrix::rows(Numbers::F32(&w), 1), &mut dst);
        assert_eq!(dst, [1.0 + bf16::from_f32(0.1).to_f32()]);
    }
}
