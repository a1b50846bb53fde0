//! Base-2 log features of blocks of rows.
//!
//! With `x~ = sqrt(tau) x`: plain `ln phi_a(x) = w_a.x~ - |x~|^2 / 2 - ln(m) / 2`, hyperbolic the same for the rows
//! `[W; -W]` (Choromanski et al. 2021), and `phi(x) = elu(x) + 1` of `x` itself.

use std::f32::consts::LOG2_E;

use pulp::{MemMask, Simd, WithSimd};

use crate::{
    features::FeatureKind,
    gemm::{Matrix, Write, product},
    simd::{self, MultiplyAdd},
};

/// A feature map with its projection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeatureMap<'a> {
    pub kind: FeatureKind,
    /// `[R,D]`; empty with `elu`.
    pub projection: &'a [f32],
    pub width: usize,
    /// Score scale `tau`.
    pub scale: f32,
}

impl<'a> FeatureMap<'a> {
    pub fn new(kind: FeatureKind, projection: &'a [f32], width: usize, scale: f32) -> Self {
        Self { kind, projection, width, scale }
    }

    /// Rows `R` of the projection.
    pub fn rows(&self) -> usize {
        self.projection.len() / self.width
    }

    /// Features `m`.
    pub fn count(&self) -> usize {
        self.kind.count(self.rows(), self.width)
    }

    /// The transposed projection for [`FeatureMap::log_rows`]: `[D,R]`.
    pub fn turned(&self) -> Vec<f32> {
        let rows = self.rows();
        let mut turned = vec![0.0; self.projection.len()];
        if rows > 0 {
            simd::transpose(Matrix::rows(self.projection, self.width), (rows, self.width), &mut turned, rows);
        }
        turned
    }

    /// `log2 phi` of `n` rows `x [n,D]` with contiguous elements: `logs [n,m]`. The bits of a row do not depend on the
    /// number of rows. Prefetches `ahead` meanwhile.
    pub fn log_rows(&self, turned: &[f32], x: Matrix, n: usize, logs: &mut [f32], ahead: &[f32]) {
        let (width, m, rows) = (self.width, self.count(), self.rows());
        let logs = &mut logs[..n * m];
        if self.kind == FeatureKind::Elu {
            return self.elu_rows(x, logs);
        }
        let w = Matrix::rows(turned, rows);
        let factor = self.scale.sqrt() * LOG2_E;
        simd::tile_product_fetching((n, rows, width), factor, x, w, Write::Over, logs, m, ahead);
        self.lower(x, logs);
    }

    /// The same from the projection, not transposed.
    pub fn logs(&self, x: Matrix, n: usize, logs: &mut [f32]) {
        let (width, m, rows) = (self.width, self.count(), self.rows());
        let logs = &mut logs[..n * m];
        if self.kind == FeatureKind::Elu {
            return self.elu_rows(x, logs);
        }
        let w = Matrix::rows(self.projection, width).transposed();
        product((n, rows, width), self.scale.sqrt() * LOG2_E, x, w, Write::Over, logs, m);
        self.lower(x, logs);
    }

    fn elu_rows(&self, x: Matrix, logs: &mut [f32]) {
        simd::vectorize(
            #[inline(always)]
            || {
                for (i, logs) in logs.chunks_exact_mut(self.width).enumerate() {
                    for (l, &x) in logs.iter_mut().zip(&x.data[i * x.row..][..self.width]) {
                        *l = log_elu(x);
                    }
                }
            },
        );
    }

    /// Converts projections of rows to log features.
    fn lower(&self, x: Matrix, logs: &mut [f32]) {
        let (half, norm) = (0.5 * self.scale * LOG2_E, 0.5 * (self.count() as f32).log2());
        let (width, rows) = (self.width, self.rows());
        simd::arch().dispatch(Lower { x, width, rows, features: self.count(), half, norm, logs });
    }

    /// The same with columns in and out: `x [D,n]` and `logs [m,n]`, both in rows of `stride`, a multiple of
    /// [`simd::LANES`]; the remainder after the columns is overwritten.
    pub fn log_columns(&self, x: &[f32], n: usize, logs: &mut [f32], stride: usize) {
        let (width, rows, m) = (self.width, self.rows(), self.count());
        let whole = n.next_multiple_of(simd::LANES);
        if self.kind == FeatureKind::Elu {
            simd::vectorize(
                #[inline(always)]
                || {
                    for (logs, x) in logs[..m * stride].chunks_exact_mut(stride).zip(x.chunks_exact(stride)) {
                        for (l, &x) in logs[..whole].iter_mut().zip(x) {
                            *l = log_elu(x);
                        }
                    }
                },
            );
            return;
        }
        let w = Matrix::rows(self.projection, width);
        // Independent of the number of keys, so that it does not affect the bits.
        let factor = self.scale.sqrt() * LOG2_E;
        simd::tile_product((rows, n, width), factor, w, Matrix::rows(x, stride), Write::Over, logs, stride);
        let (half, norm) = (0.5 * self.scale * LOG2_E, 0.5 * (m as f32).log2());
        let hyperbolic = self.kind == FeatureKind::Hyperbolic;
        let (ups, downs) = logs[..m * stride].split_at_mut(rows * stride);
        simd::vectorize(
            #[inline(always)]
            || {
                for start in (0..whole).step_by(simd::LANES) {
                    let block = |row: usize| row * stride + start..row * stride + start + simd::LANES;
                    let squares = sum_rows(width, |d, sum| {
                        for (sum, &x) in sum.iter_mut().zip(&x[block(d)]) {
                            *sum = x.multiply_add(x, *sum);
                        }
                    });
                    let lowered = squares.map(|square| half.multiply_add(square, norm));
                    if hyperbolic {
                        for a in 0..rows {
                            let both = downs[block(a)].iter_mut().zip(&ups[block(a)]);
                            for ((down, &up), lowered) in both.zip(&lowered) {
                                *down = -up - lowered;
                            }
                        }
                    }
                    for a in 0..rows {
                        for (up, lowered) in ups[block(a)].iter_mut().zip(&lowered) {
                            *up -= lowered;
                        }
                    }
                }
            },
        );
    }

    /// Propagates gradients `slopes [n,m]` of the natural log features to `grad_x [n,D]` (added); overwrites `slopes`.
    pub fn pull(&self, slopes: &mut [f32], x: Matrix, n: usize, grad_x: &mut [f32], stride: usize) {
        let (width, m, rows) = (self.width, self.count(), self.rows());
        let slopes = &mut slopes[..n * m];
        if self.kind == FeatureKind::Elu {
            for (i, slopes) in slopes.chunks_exact(m).enumerate() {
                let grad = &mut grad_x[i * stride..][..width];
                for ((grad, slope), &x) in grad.iter_mut().zip(slopes).zip(&x.data[i * x.row..]) {
                    *grad += if x > 0.0 { slope / (1.0 + x) } else { *slope };
                }
            }
            return;
        }
        let to = (&mut *grad_x, stride);
        simd::arch().dispatch(Pull { x, width, rows, features: m, scale: self.scale, slopes: &mut *slopes, to });
        let w = Matrix::rows(self.projection, width);
        product((n, width, rows), self.scale.sqrt(), Matrix::rows(slopes, m), w, Write::Add, grad_x, stride);
    }

    /// The same with `slopes` as columns, `[m,n]` in rows of `stride`, a multiple of [`simd::LANES`]; `totals [stride]`
    /// is scratch.
    pub fn pull_columns(
        &self,
        (slopes, stride, n): (&mut [f32], usize, usize),
        x: Matrix,
        totals: &mut [f32],
        grad_x: &mut [f32],
    ) {
        let (width, m, rows) = (self.width, self.count(), self.rows());
        if self.kind == FeatureKind::Elu {
            for j in 0..n {
                let grad = &mut grad_x[j * width..(j + 1) * width];
                for (d, (grad, &x)) in grad.iter_mut().zip(&x.data[j * x.row..]).enumerate() {
                    let slope = slopes[d * stride + j];
                    *grad += if x > 0.0 { slope / (1.0 + x) } else { slope };
                }
            }
            return;
        }
        let hyperbolic = self.kind == FeatureKind::Hyperbolic;
        let whole = n.next_multiple_of(simd::LANES);
        let scale = self.scale;
        simd::vectorize(
            #[inline(always)]
            || {
                for start in (0..whole).step_by(simd::LANES) {
                    let sums = sum_rows(m, |a, sum| {
                        for (sum, &slope) in sum.iter_mut().zip(&slopes[a * stride + start..][..simd::LANES]) {
                            *sum += slope;
                        }
                    });
                    totals[start..start + simd::LANES].copy_from_slice(&sums.map(|sum| -scale * sum));
                }
                for ((grad, x), &total) in grad_x.chunks_exact_mut(width).zip(x.data.chunks(x.row)).zip(&totals[..n]) {
                    simd::add_scaled(grad, total, &x[..width]);
                }
                if hyperbolic {
                    let (ups, downs) = slopes[..m * stride].split_at_mut(rows * stride);
                    for (up, down) in ups.chunks_exact_mut(stride).zip(downs.chunks_exact(stride)) {
                        simd::add_scaled(&mut up[..whole], -1.0, &down[..whole]);
                    }
                }
            },
        );
        let w = Matrix::rows(self.projection, width);
        let slopes = Matrix::rows(slopes, stride).transposed();
        product((n, width, rows), scale.sqrt(), slopes, w, Write::Add, grad_x, width);
    }
}

/// Arguments of [`FeatureMap::lower`]. Explicitly vectorised: for the same over arrays the compiler emits three times
/// as many instructions.
struct Lower<'a> {
    x: Matrix<'a>,
    width: usize,
    rows: usize,
    features: usize,
    half: f32,
    norm: f32,
    logs: &'a mut [f32],
}

impl WithSimd for Lower<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, width, rows, features, half, norm, logs } = self;
        let count = logs.len() / features;
        assert!(x.column == 1 && x.holds(count, width), "rows outside their buffer");
        let (x_vectors, vectors) = (Vectors::of(simd, width), Vectors::of(simd, rows));
        for i in 0..count {
            // SAFETY: row `i` of `x` and of the logs is within its slice, as are all vectors of a row.
            unsafe {
                let x = x.data.as_ptr().add(i * x.row);
                let mut squares = simd.splat_f32s(0.0);
                x_vectors.each(
                    #[inline(always)]
                    |part| {
                        let x = part.load(x);
                        squares = simd.mul_add_e_f32s(x, x, squares);
                    },
                );
                let lowered = simd.splat_f32s(half.multiply_add(simd.reduce_sum_f32s(squares), norm));
                let up = logs.as_mut_ptr().add(i * features);
                let down = up.add(rows);
                vectors.each(
                    #[inline(always)]
                    |part| {
                        let log = part.load(up);
                        part.store(up, simd.sub_f32s(log, lowered));
                        if features > rows {
                            let other = simd.sub_f32s(simd.neg_f32s(log), lowered);
                            part.store(down, other);
                        }
                    },
                );
            }
        }
    }
}

/// Arguments of [`FeatureMap::pull`]: each row of `to` gets `-scale` times the sum of its gradients times `x`, and for
/// features of both signs the gradients become their differences.
struct Pull<'a> {
    x: Matrix<'a>,
    width: usize,
    rows: usize,
    features: usize,
    scale: f32,
    slopes: &'a mut [f32],
    to: (&'a mut [f32], usize),
}

impl WithSimd for Pull<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, width, rows, features, scale, slopes, to: (to, stride) } = self;
        let count = slopes.len() / features;
        assert!(x.column == 1 && x.holds(count, width), "rows outside their buffer");
        assert!(Matrix::rows(to, stride).holds(count, width), "gradients outside their buffer");
        let (x_vectors, vectors) = (Vectors::of(simd, width), Vectors::of(simd, rows));
        let zero = simd.splat_f32s(0.0);
        for i in 0..count {
            // SAFETY: row `i` of each matrix is within its slice, as are all vectors of a row.
            unsafe {
                let up = slopes.as_mut_ptr().add(i * features);
                let down = up.add(rows);
                let mut sum = zero;
                vectors.each(
                    #[inline(always)]
                    |part| {
                        let slope = part.load(up);
                        sum = simd.add_f32s(sum, slope);
                        if features > rows {
                            let other = part.load(down);
                            sum = simd.add_f32s(sum, other);
                            part.store(up, simd.sub_f32s(slope, other));
                        }
                    },
                );
                let total = simd.splat_f32s(-scale * simd.reduce_sum_f32s(sum));
                let (x, to) = (x.data.as_ptr().add(i * x.row), to.as_mut_ptr().add(i * stride));
                x_vectors.each(
                    #[inline(always)]
                    |part| {
                        let x = part.load(x);
                        let old = part.load(to);
                        part.store(to, simd.mul_add_e_f32s(total, x, old));
                    },
                );
            }
        }
    }
}

/// The vectors of a row, the last of which may be partial.
struct Vectors<S: Simd> {
    simd: S,
    len: usize,
    last: MemMask<S::m32s>,
}

/// Offset of a vector of a row, and which of its elements exist: without a mask if all do, since masks cost
/// instructions except on AVX-512.
#[derive(Clone, Copy)]
struct Part<S: Simd> {
    simd: S,
    at: usize,
    mask: Option<MemMask<S::m32s>>,
}

impl<S: Simd> Vectors<S> {
    /// The vectors of `len` elements, at least one.
    #[inline(always)]
    fn of(simd: S, len: usize) -> Self {
        let last = MemMask::new(simd.mask_between_m32s(0, (len % S::F32_LANES) as u32).mask());
        Self { simd, len, last }
    }

    /// Every vector.
    #[inline(always)]
    fn each(&self, mut vector: impl FnMut(Part<S>)) {
        let (simd, whole) = (self.simd, self.len / S::F32_LANES * S::F32_LANES);
        for at in (0..whole).step_by(S::F32_LANES) {
            vector(Part { simd, at, mask: None });
        }
        if whole < self.len {
            vector(Part { simd, at: whole, mask: Some(self.last) });
        }
    }
}

impl<S: Simd> Part<S> {
    /// Its elements in a row that starts at `row`.
    ///
    /// # Safety
    /// The row holds these elements.
    #[inline(always)]
    unsafe fn load(&self, row: *const f32) -> S::f32s {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.mask {
                None => row.add(self.at).cast::<S::f32s>().read_unaligned(),
                Some(mask) => self.simd.mask_load_ptr_f32s(mask, row.add(self.at)),
            }
        }
    }

    /// Writes its elements.
    ///
    /// # Safety
    /// As for [`Part::load`], with exclusive access.
    #[inline(always)]
    unsafe fn store(&self, row: *mut f32, numbers: S::f32s) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.mask {
                None => row.add(self.at).cast::<S::f32s>().write_unaligned(numbers),
                Some(mask) => self.simd.mask_store_ptr_f32s(mask, row.add(self.at), numbers),
            }
        }
    }
}

/// `log2 (elu(x) + 1)`.
#[inline(always)]
fn log_elu(x: f32) -> f32 {
    let above = simd::log2(1.0 + if x > 0.0 { x } else { 0.0 });
    if x > 0.0 { above } else { x * LOG2_E }
}

/// Sums `count` rows of one vector each in four accumulators, which are more accurate than one and independent of each
/// other; `add(row, sum)` adds one.
#[inline(always)]
fn sum_rows(count: usize, add: impl Fn(usize, &mut [f32; simd::LANES])) -> [f32; simd::LANES] {
    const RUNS: usize = 4;
    let mut sums = [[0.0f32; simd::LANES]; RUNS];
    let whole = count / RUNS * RUNS;
    for row in (0..whole).step_by(RUNS) {
        for (run, sum) in sums.iter_mut().enumerate() {
            add(row + run, sum);
        }
    }
    for row in whole..count {
        add(row, &mut sums[row - whole]);
    }
    std::array::from_fn(|lane| (sums[0][lane] + sums[1][lane]) + (sums[2][lane] + sums[3][lane]))
}

/// `log2 sum_a 2^(x_a + y_a)`: the log of a feature product from log features.
pub(crate) fn log_product(x: &[f32], y: &[f32]) -> f32 {
    let terms = || x.iter().zip(y).map(|(x, y)| x + y);
    let top = terms().fold(f32::NEG_INFINITY, f32::max);
    if top == f32::NEG_INFINITY { top } else { top + terms().map(|term| simd::exp2(term - top)).sum::<f32>().log2() }
}
