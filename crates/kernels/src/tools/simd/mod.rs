//! Vector arithmetic: the only processor-specific code.
//!
//! Loops are written over plain slices in blocks of [`LANES`] and run inside [`vectorize`], which compiles them for each
//! instruction set and picks the widest one that the processor has, and [`limit`] allows, at run time.

mod dots;
mod fused;
mod instructions;
mod math;
mod norms;
mod numbers;
mod prefetch;
mod product;
mod spread;
mod transpose;

pub(crate) use dots::dots_stored;
pub use dots::{FEW, dots};
pub(crate) use fused::MultiplyAdd;
pub(crate) use instructions::arch;
pub use instructions::{Vectors, limit, vectors};
pub use math::{
    exp, exp2, gelu, gelu_slope, gelu_tanh, gelu_tanh_slope, log2, relu, relu_slope, silu, silu_slope, tanh, tanh_slope,
};
pub(crate) use norms::square_norms;
pub(crate) use numbers::Number;
pub(crate) use prefetch::prefetch;
pub(crate) use product::{tile_product, tile_product_fetching, tile_product_plus};
pub(crate) use spread::{Places, Spread, product_of_rows};
pub(crate) use transpose::transpose;

/// Floats that loops process at a time: one AVX-512 register, two of AVX2, four of NEON.
pub const LANES: usize = 16;

/// Stride of rows of `n` floats: an odd number of full vectors, so that one column of many rows does not map to few
/// cache sets.
pub fn row_stride(n: usize) -> usize {
    (n.div_ceil(LANES) | 1) * LANES
}

/// Runs `body` compiled for the widest vectors of this processor. `body` and all it calls must be `#[inline(always)]`.
#[inline(always)]
pub fn vectorize<R>(body: impl FnOnce() -> R) -> R {
    arch().dispatch(body)
}

/// Sum of `f` over the indices `0..len`, in a fixed order that fits vectors: [`LANES`] running sums, then a tree.
#[inline(always)]
pub fn sum(len: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let whole = len / LANES * LANES;
    let mut start = 0;
    while start < whole {
        for (lane, total) in lanes.iter_mut().enumerate() {
            *total += f(start + lane);
        }
        start += LANES;
    }
    for i in whole..len {
        lanes[i - whole] += f(i);
    }
    tree(lanes)
}

/// `sum_i x_i`, in the order of [`dot`].
#[inline(always)]
pub fn total(x: &[f32]) -> f32 {
    let (blocks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for block in blocks {
        for (total, &x) in lanes.iter_mut().zip(block) {
            *total += x;
        }
    }
    for (total, &x) in lanes.iter_mut().zip(rest) {
        *total += x;
    }
    tree(lanes)
}

/// `sum_i a_i b_i`. Full blocks of lanes keep the running sums in one register: at head widths five times as fast as a
/// loop over indices.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for (lane, total) in lanes.iter_mut().enumerate() {
            *total = a[lane].multiply_add(b[lane], *total);
        }
    }
    for ((total, &a), &b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *total = a.multiply_add(b, *total);
    }
    tree(lanes)
}

/// `sum_i (a_i - b_i) c_i`, in the order of [`dot`].
#[inline(always)]
pub fn dot_difference(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    let (c_blocks, c_rest) = c.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for ((a, b), c) in a_blocks.iter().zip(b_blocks).zip(c_blocks) {
        for (lane, total) in lanes.iter_mut().enumerate() {
            *total = (a[lane] - b[lane]).multiply_add(c[lane], *total);
        }
    }
    for (((total, &a), &b), &c) in lanes.iter_mut().zip(a_rest).zip(b_rest).zip(c_rest) {
        *total = (a - b).multiply_add(c, *total);
    }
    tree(lanes)
}

/// `sum_i f(x_i, y_i)`, in the order of [`dot`].
#[inline(always)]
pub fn sum_pairs(x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let (x_blocks, x_rest) = x.as_chunks::<LANES>();
    let (y_blocks, y_rest) = y.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for (x, y) in x_blocks.iter().zip(y_blocks) {
        for (lane, total) in lanes.iter_mut().enumerate() {
            *total += f(x[lane], y[lane]);
        }
    }
    for ((total, &x), &y) in lanes.iter_mut().zip(x_rest).zip(y_rest) {
        *total += f(x, y);
    }
    tree(lanes)
}

/// Sum of the lanes in a fixed order.
#[inline(always)]
pub fn tree(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Largest element; negative infinity if empty. NaN is skipped.
#[inline(always)]
pub fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut blocks = values.chunks_exact(LANES);
    for block in &mut blocks {
        for (lane, &value) in lanes.iter_mut().zip(block) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(blocks.remainder()) {
        *lane = if value > *lane { value } else { *lane };
    }
    largest_lane(lanes)
}

/// Largest of the lanes, by halves.
#[inline(always)]
pub fn largest_lane(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = if lanes[lane + width] > lanes[lane] { lanes[lane + width] } else { lanes[lane] };
        }
        width /= 2;
    }
    lanes[0]
}

/// `y_i *= x_i`.
#[inline(always)]
pub fn multiply(y: &mut [f32], x: &[f32]) {
    assert_eq!(x.len(), y.len());
    for (y, &x) in y.iter_mut().zip(x) {
        *y *= x;
    }
}

/// `y_i = f(y_i, x_i)`, in full vectors even for short slices.
#[inline(always)]
pub fn each_pair(y: &mut [f32], x: &[f32], f: impl Fn(f32, f32) -> f32) {
    assert_eq!(x.len(), y.len());
    let (y_blocks, y_rest) = y.as_chunks_mut::<LANES>();
    let (x_blocks, x_rest) = x.as_chunks::<LANES>();
    for (y, x) in y_blocks.iter_mut().zip(x_blocks) {
        let mut lanes = *y;
        for (lane, &x) in lanes.iter_mut().zip(x) {
            *lane = f(*lane, x);
        }
        *y = lanes;
    }
    for (y, &x) in y_rest.iter_mut().zip(x_rest) {
        *y = f(*y, x);
    }
}

/// `y += alpha x`.
#[inline(always)]
pub fn add_scaled(y: &mut [f32], alpha: f32, x: &[f32]) {
    assert_eq!(x.len(), y.len());
    for (y, &x) in y.iter_mut().zip(x) {
        *y += alpha * x;
    }
}
