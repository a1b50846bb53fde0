//! Matrix products on scattered rows, without gather and scatter steps.
//!
//! A tile of six result rows stays in registers while the rows of the second matrix, packed once for all result rows,
//! stream by. Every element is summed in row order, independent of the other rows of the call.

use pulp::{Simd, WithSimd};

use super::prefetch::fetch;
use crate::{
    gemm::Write,
    parallel::{self, Disjoint, Memory},
};

/// Start offsets of the rows of a matrix in its slice.
#[derive(Clone, Copy, Debug)]
pub enum Places<'a> {
    /// At a constant stride.
    Every(usize),
    /// At these offsets.
    At(&'a [usize]),
}

impl Places<'_> {
    /// Start of row `i`.
    #[inline(always)]
    pub fn start(&self, i: usize) -> usize {
        match self {
            Self::Every(stride) => i.checked_mul(*stride).expect("a row outside its slice"),
            Self::At(starts) => starts[i],
        }
    }
}

/// A matrix with scattered rows in a slice, element `j` of row `i` at `rows.start(i) + j * step`.
#[derive(Clone, Copy, Debug)]
pub struct Spread<'a> {
    /// Elements.
    pub data: &'a [f32],
    /// Start offsets of rows.
    pub rows: Places<'a>,
    /// Distance between neighbours in a row.
    pub step: usize,
}

impl<'a> Spread<'a> {
    /// Rows with contiguous elements.
    pub fn new(data: &'a [f32], rows: Places<'a>) -> Self {
        Self { data, rows, step: 1 }
    }
}

/// Result rows in registers.
const TALL: usize = 6;
/// Rows of the second matrix packed at a time: 128 of 64 floats are 32 KiB, most of an L1 cache.
const DEEP: usize = 128;
/// Maximum floats of a packed row.
const WIDE: usize = 64;

/// `dst_i (=|+=) factor_i sum_l a_il b_l` for `m` rows of `n` elements, `k` terms per sum; `b`'s rows are contiguous.
///
/// # Safety
/// The rows of `dst` must be distinct and accessed by nothing else during the call.
///
/// # Panics
/// If a row is not within its slice, or `b` has a step other than 1.
pub unsafe fn product_of_rows(
    (m, n, k): (usize, usize, usize),
    a: Spread,
    b: Spread,
    factors: Option<&[f32]>,
    write: Write,
    dst: &Disjoint<f32>,
    places: Places,
) {
    assert_eq!(b.step, 1, "rows of the second matrix have their elements side by side");
    // For small products, zeroing fresh memory first would be noticeable.
    parallel::lend(Memory::Panel, DEEP * WIDE, |memory| {
        let size = (m, n, k);
        super::arch().dispatch(Product { size, a, b, factors, write, dst, places, memory });
    });
}

struct Product<'a, 'd> {
    size: (usize, usize, usize),
    a: Spread<'a>,
    b: Spread<'a>,
    factors: Option<&'a [f32]>,
    write: Write,
    dst: &'a Disjoint<'d, f32>,
    places: Places<'a>,
    memory: &'a mut [f32],
}

impl WithSimd for Product<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // 24 of the 32 registers of AVX-512 are accumulators, 12 of the 16 of AVX2; as many of the 32 of NEON.
        if S::F32_LANES == 16 { self.run::<S, 4>(simd) } else { self.run::<S, 2>(simd) }
    }
}

impl Product<'_, '_> {
    #[inline(always)]
    fn run<S: Simd, const V: usize>(mut self, simd: S) {
        let (m, n, k) = self.size;
        let width = V * S::F32_LANES;
        let memory = std::mem::take(&mut self.memory);
        for left in (0..n).step_by(width) {
            let columns = left..(left + width).min(n);
            if k == 0 && self.write == Write::Over {
                (0..m).for_each(|i| self.row(i, &columns).fill(0.0));
            }
            for top in (0..k).step_by(DEEP) {
                let deep = DEEP.min(k - top);
                let panel = &mut memory[..deep * width];
                for (l, packed) in panel.chunks_exact_mut(width).enumerate() {
                    let start = self.b.rows.start(top + l) + left;
                    let row = &self.b.data[start..start + columns.len()];
                    match <&[f32; WIDE]>::try_from(row) {
                        // A copy of a known size needs no call.
                        Ok(row) if width == WIDE => packed.copy_from_slice(row),
                        _ => {
                            let (given, rest) = packed.split_at_mut(row.len());
                            given.copy_from_slice(row);
                            rest.fill(0.0);
                        }
                    }
                }
                // The rows of the next panel, deeper down or to the right.
                let (next, right) = if top + deep < k { (top + deep, left) } else { (0, left + width) };
                let right = right..(right + width).min(n);
                for l in next..(next + DEEP).min(k) {
                    let start = self.b.rows.start(l);
                    fetch(&self.b.data[start + right.start.min(n)..start + right.end]);
                }
                let panel = S::as_simd_f32s(panel).0;
                let over = self.write == Write::Over && top == 0;
                let mut first = 0;
                while first + TALL <= m {
                    self.tile::<S, V, TALL>(simd, first, (top, deep), panel, &columns, over);
                    first += TALL;
                }
                match m - first {
                    1 => self.tile::<S, V, 1>(simd, first, (top, deep), panel, &columns, over),
                    2 => self.tile::<S, V, 2>(simd, first, (top, deep), panel, &columns, over),
                    3 => self.tile::<S, V, 3>(simd, first, (top, deep), panel, &columns, over),
                    4 => self.tile::<S, V, 4>(simd, first, (top, deep), panel, &columns, over),
                    5 => self.tile::<S, V, 5>(simd, first, (top, deep), panel, &columns, over),
                    _ => {}
                }
            }
        }
    }

    /// Rows `first .. first + R` of the result: their partial sums from one packed panel.
    #[inline(always)]
    fn tile<S: Simd, const V: usize, const R: usize>(
        &self,
        simd: S,
        first: usize,
        (top, deep): (usize, usize),
        panel: &[S::f32s],
        columns: &std::ops::Range<usize>,
        over: bool,
    ) {
        let step = self.a.step;
        let mut rows = [std::ptr::null::<f32>(); R];
        for (r, row) in rows.iter_mut().enumerate() {
            // Checked up to the last element that is read: `add` below goes no further.
            let elements = |count: usize| count.checked_mul(step).expect("a step outside its slice");
            let row_data = &self.a.data[self.a.rows.start(first + r)..][elements(top)..];
            *row = row_data[..=elements(deep - 1)].as_ptr();
        }
        self.fetch(first + R, R, (top, deep), columns);
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        for (l, b) in panel.as_chunks::<V>().0[..deep].iter().enumerate() {
            for r in 0..R {
                // SAFETY: `l < deep`, and each row was just found to hold an element at every step up to `deep`.
                let x = simd.splat_f32s(unsafe { *rows[r].add(l * step) });
                for v in 0..V {
                    sums[r][v] = simd.mul_add_f32s(x, b[v], sums[r][v]);
                }
            }
        }
        for r in 0..R {
            let factor = simd.splat_f32s(self.factors.map_or(1.0, |factors| factors[first + r]));
            let row = self.row(first + r, columns);
            let finish = |sum, old| match over {
                true => simd.mul_f32s(factor, sum),
                false => simd.mul_add_f32s(factor, sum, old),
            };
            if row.len() == V * S::F32_LANES {
                let row = S::as_mut_simd_f32s(row).0;
                for v in 0..V {
                    row[v] = finish(sums[r][v], row[v]);
                }
            } else {
                for (part, sum) in row.chunks_mut(S::F32_LANES).zip(sums[r]) {
                    simd.partial_store_f32s(part, finish(sum, simd.partial_load_f32s(part)));
                }
            }
        }
    }

    /// Prefetches the parts of the rows that the next tile reads and writes, which hardware prefetchers miss.
    #[inline(always)]
    fn fetch(&self, first: usize, count: usize, (top, deep): (usize, usize), columns: &std::ops::Range<usize>) {
        for i in first..(first + count).min(self.size.0) {
            if self.a.step == 1 {
                let start = self.a.rows.start(i) + top;
                fetch(&self.a.data[start..start + deep]);
            }
            fetch(self.row(i, columns));
        }
    }

    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    fn row(&self, i: usize, columns: &std::ops::Range<usize>) -> &mut [f32] {
        // SAFETY: the caller of `product_of_rows` guarantees exclusive access to these rows, and it borrows one at a
        // time.
        unsafe { self.dst.range(self.places.start(i) + columns.start, columns.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All sizes around the tile sizes against the definition, with rows in any order.
    #[test]
    fn agrees_with_the_definition_on_rows_anywhere() {
        let number = |i: usize| ((i * 7919) % 211) as f32 / 105.5 - 1.0;
        for (m, n, k) in [(1, 1, 1), (6, 64, 128), (13, 70, 130), (7, 130, 5), (2, 16, 300), (0, 4, 4), (3, 5, 0)] {
            let (a_stride, b_stride, c_stride) = (2 * k + 3, n + 2, n + 1);
            let a: Vec<f32> = (0..m * a_stride).map(number).collect();
            let b: Vec<f32> = (0..k * b_stride).map(|i| number(i + 50)).collect();
            // Backwards, so that the result cannot depend on ascending rows.
            let backwards = |count: usize, stride| (0..count).rev().map(|i| i * stride).collect::<Vec<usize>>();
            let (a_at, b_at, c_at) = (backwards(m, a_stride), backwards(k, b_stride), backwards(m, c_stride));
            let factors: Vec<f32> = (0..m).map(|i| 0.5 + i as f32).collect();
            let mut c = vec![f32::NAN; m * c_stride];
            let a_rows = Spread { data: &a, rows: Places::At(&a_at), step: 2 };
            let b_rows = Spread::new(&b, Places::At(&b_at));
            for (write, factors) in [(Write::Over, None), (Write::Add, Some(&factors[..]))] {
                let dst = Disjoint::new(&mut c);
                // SAFETY: the rows are distinct, and nothing else accesses the buffer.
                unsafe { product_of_rows((m, n, k), a_rows, b_rows, factors, write, &dst, Places::At(&c_at)) };
            }
            for i in 0..m {
                for j in 0..n {
                    let sum: f64 = (0..k).map(|l| f64::from(a[a_at[i] + 2 * l]) * f64::from(b[b_at[l] + j])).sum();
                    let want = sum * (1.0 + f64::from(factors[i]));
                    let seen = f64::from(c[c_at[i] + j]);
                    assert!((seen - want).abs() < 1e-4 * want.abs().max(1.0), "{m} {n} {k}: {seen}, not {want}");
                }
                assert!(c[c_at[i] + n].is_nan(), "nothing beside the row is touched");
            }
        }
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn rows_outside_are_refused() {
        let (a, b, mut c) = ([1.0; 4], [1.0; 4], [0.0; 4]);
        let dst = Disjoint::new(&mut c);
        let (a, b) = (Spread::new(&a, Places::Every(3)), Spread::new(&b, Places::Every(2)));
        // SAFETY: nothing else accesses the rows.
        unsafe { product_of_rows((2, 2, 2), a, b, None, Write::Over, &dst, Places::Every(2)) };
    }

    /// A stride whose multiple wraps around to an index inside the slice.
    #[test]
    fn strides_that_wrap_are_refused() {
        let (a, b) = ([1.0; 8], [1.0; 8]);
        let refused = |rows: Places, step: usize| {
            std::panic::catch_unwind(|| {
                let mut c = [0.0; 16];
                let dst = Disjoint::new(&mut c);
                let (a, b) = (Spread { data: &a, rows, step }, Spread::new(&b, Places::Every(2)));
                // SAFETY: nothing else accesses the rows.
                unsafe { product_of_rows((3, 2, 3), a, b, None, Write::Over, &dst, Places::Every(2)) };
            })
            .is_err()
        };
        assert!(!refused(Places::Every(2), 1));
        assert!(refused(Places::Every(1 << 63), 1));
        assert!(refused(Places::Every(0), 1 << 63));
        assert!(refused(Places::At(&[0, usize::MAX, 1]), 1));
    }
}
