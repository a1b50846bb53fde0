//! Matrix transposition.

#[cfg(target_arch = "x86_64")]
use super::prefetch::fetch_line;
use crate::gemm::Matrix;

/// Rows and columns of a block.
const BLOCK: usize = 16;

/// `dst = src^T` for contiguous `src [rows,columns]`; `dst` in rows of `stride`.
///
/// # Panics
/// If a matrix is not within its slice.
pub fn transpose(src: Matrix, (rows, columns): (usize, usize), dst: &mut [f32], stride: usize) {
    assert!(src.column == 1 && src.holds(rows, columns), "matrix outside its buffer");
    assert!(stride >= rows && Matrix::rows(dst, stride).holds(columns, rows), "transpose outside its buffer");
    #[cfg(target_arch = "x86_64")]
    let done = match super::arch() {
        pulp::Arch::V4(v4) => {
            let (whole_rows, whole_columns) = (rows / BLOCK * BLOCK, columns / BLOCK * BLOCK);
            v4.vectorize(
                #[inline(always)]
                || {
                    for i in (0..whole_rows).step_by(BLOCK) {
                        for c in (0..whole_columns).step_by(BLOCK) {
                            // A page of rows is read in a few blocks: too few for hardware to prefetch the next page.
                            for row in i + 2 * BLOCK..(i + 3 * BLOCK).min(rows) {
                                fetch_line(src.data.as_ptr().wrapping_add(row * src.row + c));
                            }
                            let dst = &mut dst[c * stride + i..];
                            avx512(v4, &src.data[i * src.row + c..], src.row, dst, stride);
                        }
                    }
                },
            );
            (whole_rows, whole_columns)
        }
        _ => (0, 0),
    };
    #[cfg(not(target_arch = "x86_64"))]
    let done = (0, 0);
    if done == (rows, columns) {
        return;
    }
    for i0 in (0..rows).step_by(BLOCK) {
        for c0 in (0..columns).step_by(BLOCK) {
            if i0 < done.0 && c0 < done.1 {
                continue;
            }
            for c in c0..(c0 + BLOCK).min(columns) {
                for i in i0..(i0 + BLOCK).min(rows) {
                    dst[c * stride + i] = src.data[i * src.row + c];
                }
            }
        }
    }
}

/// One block: neighbours are interleaved as floats, then as pairs, then as register quarters, twice.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn avx512(v4: pulp::x86::V4, src: &[f32], row: usize, dst: &mut [f32], stride: usize) {
    let f = v4.avx512f;
    let rows: [_; BLOCK] = std::array::from_fn(|i| {
        let row = &src[i * row..][..BLOCK];
        // SAFETY: the slice holds the 16 floats that are read.
        unsafe { f._mm512_loadu_ps(row.as_ptr()) }
    });
    let singles: [_; BLOCK] = std::array::from_fn(|i| {
        let (a, b) = (rows[i & !1], rows[i | 1]);
        f._mm512_castps_pd(if i & 1 == 0 { f._mm512_unpacklo_ps(a, b) } else { f._mm512_unpackhi_ps(a, b) })
    });
    // Quarter `l` of element `4 g + c` is column `4 l + c` of rows `4 g .. 4 g + 4`.
    let pairs: [_; BLOCK] = std::array::from_fn(|i| {
        let (a, b) = (singles[(i & !3) + (i >> 1 & 1)], singles[(i & !3) + (i >> 1 & 1) + 2]);
        f._mm512_castpd_ps(if i & 1 == 0 { f._mm512_unpacklo_pd(a, b) } else { f._mm512_unpackhi_pd(a, b) })
    });
    for c in 0..4 {
        let [a, b, d, e] = [pairs[c], pairs[4 + c], pairs[8 + c], pairs[12 + c]];
        let even = (f._mm512_shuffle_f32x4::<0x88>(a, b), f._mm512_shuffle_f32x4::<0x88>(d, e));
        let odd = (f._mm512_shuffle_f32x4::<0xdd>(a, b), f._mm512_shuffle_f32x4::<0xdd>(d, e));
        let columns = [
            f._mm512_shuffle_f32x4::<0x88>(even.0, even.1),
            f._mm512_shuffle_f32x4::<0x88>(odd.0, odd.1),
            f._mm512_shuffle_f32x4::<0xdd>(even.0, even.1),
            f._mm512_shuffle_f32x4::<0xdd>(odd.0, odd.1),
        ];
        for (quarter, column) in columns.into_iter().enumerate() {
            let dst = &mut dst[(4 * quarter + c) * stride..][..BLOCK];
            // SAFETY: the slice holds the 16 floats that are written.
            unsafe { f._mm512_storeu_ps(dst.as_mut_ptr(), column) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_moves_to_its_place() {
        for (rows, columns) in [(1, 1), (16, 16), (33, 50), (5, 64), (64, 7), (0, 3)] {
            let (from, to) = (columns + 3, rows + 2);
            let src: Vec<f32> = (0..rows * from).map(|i| i as f32).collect();
            let mut dst = vec![f32::NAN; columns * to];
            transpose(Matrix::rows(&src, from), (rows, columns), &mut dst, to);
            for i in 0..rows {
                for c in 0..columns {
                    assert_eq!(dst[c * to + i], src[i * from + c]);
                }
            }
            assert!((0..columns).all(|c| dst[c * to + rows..][..2].iter().all(|x| x.is_nan())));
        }
    }
}
