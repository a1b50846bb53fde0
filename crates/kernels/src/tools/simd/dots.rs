//! Dot products of a few rows with many: matrix products in which one operand is a few vectors.

use pulp::{Simd, WithSimd};

use super::numbers::Number;
use crate::gemm::Matrix;

/// Maximum number of the few rows.
pub const FEW: usize = 8;

/// `dst[r * stride + j] = alpha x_r.y_j` for `rows` dense rows `x [rows,width]`, at most [`FEW`], and `count` rows of `y`.
///
/// Every row of `y` is read once for all of `x`; each product is summed in the same order, whatever the other rows.
///
/// # Panics
/// If a matrix is not within its slice, rows of `y` are not contiguous, or there are more than [`FEW`] rows.
pub fn dots(
    (rows, count, width): (usize, usize, usize),
    alpha: f32,
    x: &[f32],
    y: Matrix,
    dst: &mut [f32],
    stride: usize,
) {
    assert!(rows <= FEW, "{rows} rows, more than {FEW}");
    assert!(Matrix::rows(x, width).holds(rows, width), "rows outside their buffer");
    assert!(y.column == 1 && y.holds(count, width), "operand outside its buffer");
    assert!(stride >= count && Matrix::rows(dst, stride).holds(rows, count), "products outside their buffer");
    run(Dots { rows, count, width, alpha, x, y: y.data, y_stride: y.row, dst, stride });
}

/// The same with dense rows of `y` in their storage format, converted in registers.
///
/// # Panics
/// If a matrix is not within its slice, or there are more than [`FEW`] rows.
pub(crate) fn dots_stored<T: Number>(
    (rows, count, width): (usize, usize, usize),
    x: &[f32],
    y: &[T],
    dst: &mut [f32],
    stride: usize,
) {
    assert!(rows <= FEW, "{rows} rows, more than {FEW}");
    assert!(Matrix::rows(x, width).holds(rows, width), "rows outside their buffer");
    assert!(count.checked_mul(width).is_some_and(|len| len <= y.len()), "operand outside its buffer");
    assert!(stride >= count && Matrix::rows(dst, stride).holds(rows, count), "products outside their buffer");
    run(Dots { rows, count, width, alpha: 1.0, x, y, y_stride: width, dst, stride });
}

fn run<T: Number>(dots: Dots<T>) {
    if dots.width == 0 {
        return (0..dots.rows).for_each(|r| dots.dst[r * dots.stride..][..dots.count].fill(0.0));
    }
    super::arch().dispatch(dots);
}

/// Checked arguments.
struct Dots<'a, T> {
    rows: usize,
    count: usize,
    width: usize,
    alpha: f32,
    x: &'a [f32],
    y: &'a [T],
    y_stride: usize,
    dst: &'a mut [f32],
    stride: usize,
}

impl<T: Number> WithSimd for Dots<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Eight accumulators where possible, enough to hide the latency of an addition; more if there are registers, so
        // that each loaded element is used several times.
        let many = S::REGISTER_COUNT >= 32;
        match self.rows {
            0 => {}
            // Narrow formats are memory-bound: four at a time are as fast, and more than eight are slower.
            1 if size_of::<T>() < 4 => self.rows::<S, 1, 4>(simd),
            1 => self.rows::<S, 1, 8>(simd),
            2 => self.rows::<S, 2, 4>(simd),
            3 if many => self.rows::<S, 3, 4>(simd),
            3 => self.rows::<S, 3, 3>(simd),
            4 if many => self.rows::<S, 4, 4>(simd),
            4 => self.rows::<S, 4, 2>(simd),
            5 if many => self.rows::<S, 5, 4>(simd),
            5 => self.rows::<S, 5, 2>(simd),
            6 if many => self.rows::<S, 6, 4>(simd),
            6 => self.rows::<S, 6, 1>(simd),
            7 if many => self.rows::<S, 7, 3>(simd),
            7 => self.rows::<S, 7, 1>(simd),
            _ if many => self.rows::<S, 8, 3>(simd),
            _ => self.rows::<S, 8, 1>(simd),
        }
    }
}

impl<T: Number> Dots<'_, T> {
    #[inline(always)]
    fn rows<S: Simd, const ROWS: usize, const OTHERS: usize>(&mut self, simd: S) {
        let mut other = 0;
        // SAFETY: these rows are within the sizes, which were checked against the slices.
        unsafe {
            while other + OTHERS <= self.count {
                self.block::<S, ROWS, OTHERS>(simd, other);
                other += OTHERS;
            }
            while other < self.count {
                self.block::<S, ROWS, 1>(simd, other);
                other += 1;
            }
        }
    }

    /// # Safety
    /// There are `ROWS` rows of `x`, and rows `other .. other + OTHERS` of `y`.
    #[inline(always)]
    unsafe fn block<S: Simd, const ROWS: usize, const OTHERS: usize>(&mut self, simd: S, other: usize) {
        debug_assert!(ROWS <= self.rows && other + OTHERS <= self.count, "block outside its product");
        let last = self.width / S::F32_LANES * S::F32_LANES;
        let mut sums = [[simd.splat_f32s(0.0); OTHERS]; ROWS];
        // SAFETY: guaranteed by the caller; the last vector of a row is masked to the existing elements.
        unsafe {
            let x = self.x.as_ptr();
            let y = self.y.as_ptr().add(other * self.y_stride);
            for at in (0..last).step_by(S::F32_LANES) {
                let mut others = [simd.splat_f32s(0.0); OTHERS];
                for (o, vector) in others.iter_mut().enumerate() {
                    *vector = T::load(simd, y.add(o * self.y_stride + at));
                }
                for r in 0..ROWS {
                    let x = f32::load(simd, x.add(r * self.width + at));
                    for o in 0..OTHERS {
                        sums[r][o] = simd.mul_add_e_f32s(x, others[o], sums[r][o]);
                    }
                }
            }
            for o in (0..OTHERS).filter(|_| last < self.width) {
                let y = T::load_first(simd, y.add(o * self.y_stride + last), self.width - last);
                for r in 0..ROWS {
                    let x = f32::load_first(simd, x.add(r * self.width + last), self.width - last);
                    sums[r][o] = simd.mul_add_e_f32s(x, y, sums[r][o]);
                }
            }
        }
        for r in 0..ROWS {
            let dst = &mut self.dst[r * self.stride + other..][..OTHERS];
            for (dst, sum) in dst.iter_mut().zip(sums[r]) {
                *dst = self.alpha * simd.reduce_sum_f32s(sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_definition_at_every_size() {
        let number = |i: usize| ((i * 7919) % 211) as f32 / 105.5 - 1.0;
        for rows in 0..=FEW {
            for (count, width) in [(0, 4), (1, 1), (7, 16), (9, 64), (20, 37), (3, 130), (2, 0)] {
                let y_stride = width + 3;
                let x: Vec<f32> = (0..rows * width).map(number).collect();
                let y: Vec<f32> = (0..count * y_stride).map(|i| number(i + 50)).collect();
                let mut dst = vec![f32::NAN; rows * (count + 1)];
                dots((rows, count, width), 0.5, &x, Matrix::rows(&y, y_stride), &mut dst, count + 1);
                for r in 0..rows {
                    for j in 0..count {
                        let terms = (0..width).map(|c| f64::from(x[r * width + c]) * f64::from(y[j * y_stride + c]));
                        let (want, seen) = (0.5 * terms.sum::<f64>(), f64::from(dst[r * (count + 1) + j]));
                        assert!(
                            (seen - want).abs() < 1e-5 * want.abs().max(1.0),
                            "{rows} {count} {width}: {seen}, not {want}"
                        );
                    }
                    assert!(dst[r * (count + 1) + count].is_nan(), "nothing beside the products is touched");
                }
            }
        }
    }
}
