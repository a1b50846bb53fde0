//! Products of small tiles: blocks of the result stay in registers, without packing.

use pulp::{MemMask, Simd, WithSimd};

use super::prefetch::{fetch, fetch_line};
use crate::gemm::{Matrix, Write};

/// `dst (=|+=) alpha a b` with `a [m,k]`, `b [k,n]` with contiguous rows (`b.column == 1`), `dst [m,n]` in rows of
/// `stride`.
///
/// Each element is summed over `k` in order from 0, so it does not depend on where its block begins.
///
/// # Panics
/// If a matrix is not within its slice, or rows of `b` are not contiguous.
pub fn tile_product(
    sizes: (usize, usize, usize),
    alpha: f32,
    a: Matrix,
    b: Matrix,
    write: Write,
    dst: &mut [f32],
    stride: usize,
) {
    tile_product_fetching(sizes, alpha, a, b, write, dst, stride, &[]);
}

/// The same; meanwhile prefetches `ahead`, which is needed next: a product leaves memory idle, and the next step would
/// wait for it.
///
/// # Panics
/// As there.
#[allow(clippy::too_many_arguments)]
pub fn tile_product_fetching(
    sizes: (usize, usize, usize),
    alpha: f32,
    a: Matrix,
    b: Matrix,
    write: Write,
    dst: &mut [f32],
    stride: usize,
    ahead: &[f32],
) {
    let (m, n, k) = sizes;
    assert!(a.holds(m, k) && b.holds(k, n) && b.column == 1, "operand outside its buffer");
    assert!(Matrix::rows(dst, stride).holds(m, n) && stride >= n, "product outside its buffer");
    if m > 0 && n > 0 {
        // About as many parts as there are iterations of the outermost loop over `k` in all blocks.
        let turns = (m * n * k).div_ceil(24 * LINE * LINE);
        let share = ahead.len().div_ceil(LINE).div_ceil(turns.max(1));
        let ahead = Ahead { rest: ahead, share };
        super::arch().dispatch(Product { sizes, alpha, a, b, addends: None, write, dst, stride, ahead });
    }
}

/// `dst = alpha a b + addends`, one addend per row; otherwise as [`tile_product`].
///
/// # Panics
/// As for [`tile_product`], or if there are fewer addends than rows.
pub fn tile_product_plus(
    sizes: (usize, usize, usize),
    alpha: f32,
    a: Matrix,
    b: Matrix,
    addends: &[f32],
    dst: &mut [f32],
    stride: usize,
) {
    let (m, n, k) = sizes;
    assert!(a.holds(m, k) && b.holds(k, n) && b.column == 1, "operand outside its buffer");
    assert!(Matrix::rows(dst, stride).holds(m, n) && stride >= n, "product outside its buffer");
    assert!(addends.len() >= m, "fewer addends than rows");
    if m > 0 && n > 0 {
        let addends = Some(addends);
        let ahead = Ahead { rest: &[], share: 0 };
        super::arch().dispatch(Product { sizes, alpha, a, b, addends, write: Write::Over, dst, stride, ahead });
    }
}

/// Floats per cache line.
const LINE: usize = 16;

/// Rows per block addressed by one pointer.
const HALF: usize = 6;

/// Checked arguments of [`tile_product`].
struct Product<'a> {
    sizes: (usize, usize, usize),
    alpha: f32,
    a: Matrix<'a>,
    b: Matrix<'a>,
    addends: Option<&'a [f32]>,
    write: Write,
    dst: &'a mut [f32],
    stride: usize,
    ahead: Ahead<'a>,
}

/// Memory to prefetch, in portions.
struct Ahead<'a> {
    rest: &'a [f32],
    /// Cache lines per portion.
    share: usize,
}

impl Ahead<'_> {
    #[inline(always)]
    fn fetch(&mut self) {
        let (share, rest) = self.rest.split_at((self.share * LINE).min(self.rest.len()));
        fetch(share);
        self.rest = rest;
    }
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (m, n, _) = self.sizes;
        // Registers for accumulators, rows of `b` and one element of `a`: 24 + 4 + 1 of 32 (AVX-512, NEON), 12 + 2 + 1
        // of 16.
        let many = S::REGISTER_COUNT >= 32;
        let mut start = 0;
        while start < n {
            let vectors = (n - start).div_ceil(S::F32_LANES);
            let take = match vectors {
                // Fewer accumulators than these stall: an addition takes four cycles, and two issue per cycle.
                _ if !many && m == 1 => 1 << vectors.min(8).ilog2(),
                _ if !many && m <= 3 => 1 << vectors.min(4).ilog2(),
                _ if !many => vectors.min(2),
                1..=4 => vectors,
                5 | 6 | 9 => 3,
                _ => 4,
            };
            let end = (start + take * S::F32_LANES).min(n);
            match take {
                8 => self.rows::<S, 1, 8>(simd, (start, end)),
                4 if !many && m == 1 => self.rows::<S, 1, 4>(simd, (start, end)),
                4 if !many && m == 2 => self.rows::<S, 2, 4>(simd, (start, end)),
                4 if !many => self.rows::<S, 3, 4>(simd, (start, end)),
                1 if many => self.rows::<S, 12, 1>(simd, (start, end)),
                1 => self.rows::<S, 6, 1>(simd, (start, end)),
                2 if many => self.rows::<S, 12, 2>(simd, (start, end)),
                2 => self.rows::<S, 6, 2>(simd, (start, end)),
                3 => self.rows::<S, 8, 3>(simd, (start, end)),
                _ => self.rows::<S, 6, 4>(simd, (start, end)),
            }
            start = end;
        }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn rows<S: Simd, const ROWS: usize, const VECTORS: usize>(&mut self, simd: S, columns: (usize, usize)) {
        // Masks are free with AVX-512; elsewhere they cost instructions in the innermost loop.
        if S::F32_LANES < 16 && columns.1 - columns.0 == VECTORS * S::F32_LANES {
            self.blocks::<S, ROWS, VECTORS, true>(simd, columns);
        } else {
            self.blocks::<S, ROWS, VECTORS, false>(simd, columns);
        }
    }

    #[inline(always)]
    fn blocks<S: Simd, const ROWS: usize, const VECTORS: usize, const WHOLE: bool>(
        &mut self,
        simd: S,
        columns: (usize, usize),
    ) {
        let m = self.sizes.0;
        let mut row = 0;
        // SAFETY: these rows and columns are within the sizes, which were checked against the slices.
        unsafe {
            while row + ROWS <= m {
                self.block::<S, ROWS, VECTORS, WHOLE>(simd, row, columns);
                row += ROWS;
            }
            if ROWS > 8 && row + 8 <= m {
                self.block::<S, 8, VECTORS, WHOLE>(simd, row, columns);
                row += 8;
            }
            if row + 4 <= m {
                self.block::<S, 4, VECTORS, WHOLE>(simd, row, columns);
                row += 4;
            }
            if row + 2 <= m {
                self.block::<S, 2, VECTORS, WHOLE>(simd, row, columns);
                row += 2;
            }
            if row < m {
                self.block::<S, 1, VECTORS, WHOLE>(simd, row, columns);
            }
        }
    }

    /// One block of the result.
    ///
    /// # Safety
    /// Rows `row .. row + ROWS` and columns `start .. end` are within the product, and `end - start` is more than
    /// `VECTORS - 1` vectors and at most `VECTORS`; if `WHOLE`, it is `VECTORS`.
    #[inline(always)]
    unsafe fn block<S: Simd, const ROWS: usize, const VECTORS: usize, const WHOLE: bool>(
        &mut self,
        simd: S,
        row: usize,
        (start, end): (usize, usize),
    ) {
        let rest = end - start - (VECTORS - 1) * S::F32_LANES;
        let mask = MemMask::new(simd.mask_between_m32s(0, rest as u32).mask());
        debug_assert!(row + ROWS <= self.sizes.0 && end <= self.sizes.1, "block outside its product");
        let mut sums = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
        // SAFETY: guaranteed by the caller; each matrix is within its slice from the first to the last element used,
        // and the last vector of a row is masked to the existing columns.
        unsafe {
            // Two pointers, so that few row offsets are needed.
            let mut upper = self.a.data.as_ptr().wrapping_add(row * self.a.row);
            let mut lower = upper.wrapping_add(HALF * self.a.row);
            let mut b = self.b.data.as_ptr().wrapping_add(start);
            // The part of `a` for the next block may be far away.
            let next = row + 2 * ROWS <= self.sizes.0 && self.a.column == 1;
            let mut rest = self.sizes.2;
            while rest > 0 {
                let steps = rest.min(LINE);
                rest -= steps;
                self.ahead.fetch();
                if next {
                    for r in ROWS..2 * ROWS {
                        fetch_line(upper.wrapping_add(r * self.a.row));
                    }
                }
                for _ in 0..steps {
                    let mut columns = [simd.splat_f32s(0.0); VECTORS];
                    for v in 0..VECTORS - 1 {
                        columns[v] = b.add(v * S::F32_LANES).cast::<S::f32s>().read_unaligned();
                    }
                    let last = b.wrapping_add((VECTORS - 1) * S::F32_LANES);
                    columns[VECTORS - 1] = match WHOLE {
                        true => last.cast::<S::f32s>().read_unaligned(),
                        false => simd.mask_load_ptr_f32s(mask, last),
                    };
                    for r in 0..ROWS {
                        let a = if r < HALF { upper.add(r * self.a.row) } else { lower.add((r - HALF) * self.a.row) };
                        let x = simd.splat_f32s(*a);
                        for v in 0..VECTORS {
                            sums[r][v] = simd.mul_add_e_f32s(x, columns[v], sums[r][v]);
                        }
                    }
                    upper = upper.wrapping_add(self.a.column);
                    lower = lower.wrapping_add(self.a.column);
                    b = b.wrapping_add(self.b.row);
                }
            }
            let alpha = simd.splat_f32s(self.alpha);
            for r in 0..ROWS {
                let addend = simd.splat_f32s(self.addends.map_or(0.0, |addends| addends[row + r]));
                let dst = self.dst.as_mut_ptr().add((row + r) * self.stride + start);
                for v in 0..VECTORS {
                    let dst = dst.wrapping_add(v * S::F32_LANES);
                    let last = !WHOLE && v + 1 == VECTORS;
                    let sum = sums[r][v];
                    let value = if self.write == Write::Over {
                        simd.mul_add_e_f32s(alpha, sum, addend)
                    } else if last {
                        simd.mul_add_e_f32s(alpha, sum, simd.mask_load_ptr_f32s(mask, dst))
                    } else {
                        simd.mul_add_e_f32s(alpha, sum, dst.cast::<S::f32s>().read_unaligned())
                    };
                    if last {
                        simd.mask_store_ptr_f32s(mask, dst, value);
                    } else {
                        dst.cast::<S::f32s>().write_unaligned(value);
                    }
                }
            }
        }
    }
}
