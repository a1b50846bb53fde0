//! Squared norms of rows.

use pulp::{Simd, WithSimd};

use crate::Rows;

/// `norms_i = |x_i + shift|^2` over `rows` of `data`.
///
/// Explicitly vectorised: for the same loop over arrays the compiler emits four times as many instructions.
///
/// # Panics
/// If a row is not within its slice, or the shift has another width.
pub fn square_norms(data: &[f32], rows: &Rows, shift: Option<&[f32]>, norms: &mut [f32]) {
    assert!(shift.is_none_or(|shift| shift.len() == rows.width), "a shift of another width");
    super::arch().dispatch(SquareNorms { data, rows, shift, norms });
}

struct SquareNorms<'a> {
    data: &'a [f32],
    rows: &'a Rows,
    shift: Option<&'a [f32]>,
    norms: &'a mut [f32],
}

impl WithSimd for SquareNorms<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let zero = simd.splat_f32s(0.0);
        for (i, norm) in self.norms.iter_mut().enumerate().take(self.rows.count) {
            let (row, rest) = S::as_simd_f32s(self.rows.row(self.data, i));
            let rest = simd.partial_load_f32s(rest);
            let mut sums = zero;
            match self.shift.map(|shift| S::as_simd_f32s(shift)) {
                None => {
                    for &x in row {
                        sums = simd.mul_add_e_f32s(x, x, sums);
                    }
                    sums = simd.mul_add_e_f32s(rest, rest, sums);
                }
                Some((shift, shift_rest)) => {
                    let rest = simd.add_f32s(rest, simd.partial_load_f32s(shift_rest));
                    for (&x, &shift) in row.iter().zip(shift) {
                        let x = simd.add_f32s(x, shift);
                        sums = simd.mul_add_e_f32s(x, x, sums);
                    }
                    sums = simd.mul_add_e_f32s(rest, rest, sums);
                }
            }
            *norm = simd.reduce_sum_f32s(sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_of_every_width_with_and_without_a_shift() {
        for width in [1, 7, 16, 50, 64] {
            let data: Vec<f32> = (0..3 * (width + 1)).map(|i| (i as f32 * 0.7).sin()).collect();
            let shift: Vec<f32> = (0..width).map(|i| (i as f32 * 0.3).cos()).collect();
            let rows = Rows { offset: 1, stride: width + 1, count: 2, width };
            for shift in [None, Some(&shift[..])] {
                let mut norms = [0.0; 2];
                square_norms(&data, &rows, shift, &mut norms);
                for (i, norm) in norms.into_iter().enumerate() {
                    let row = rows.row(&data, i).iter().enumerate();
                    let want: f32 = row.map(|(c, x)| (x + shift.map_or(0.0, |shift| shift[c])).powi(2)).sum();
                    assert!((norm - want).abs() < 1e-5 * want, "width {width}: {norm}, not {want}");
                }
            }
        }
    }
}
