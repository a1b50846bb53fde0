//! Numbers of 16 bits as f32, which every kernel computes in.

use half::{bf16, f16};

use crate::{Rows, memory::arbitrary, parallel, simd};

/// Numbers that one thread converts at a time.
const BLOCK: usize = 1 << 15;

/// `from` in f32, on all threads.
pub fn widen_all<T: Half>(from: &[T]) -> Vec<f32> {
    let mut to = arbitrary(from.len());
    parallel::for_each_part(&mut to, BLOCK, |n, to| {
        let rows = Rows { offset: n * BLOCK, stride: to.len(), count: 1, width: to.len() };
        widen_rows(from, &rows, to);
    });
    to
}

/// Rows of `from` in f32, side by side.
///
/// # Panics
/// If a row does not lie within its slice, or `to` does not hold all of them.
pub fn widen_rows<T: Half>(from: &[T], rows: &Rows, to: &mut [f32]) {
    let to = &mut to[..rows.count * rows.width];
    simd::vectorize(
        #[inline(always)]
        || {
            for (i, to) in to.chunks_exact_mut(rows.width).enumerate() {
                simd::prefetch(from, rows, i);
                to.iter_mut().zip(rows.row(from, i)).for_each(|(to, from)| *to = from.wide());
            }
        },
    );
}

/// A floating-point number of 16 bits.
pub trait Half: Copy + Send + Sync {
    /// The same number.
    fn wide(self) -> f32;
}

impl Half for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Half for f16 {
    /// In operations that vectors have: the exponent is moved by a multiplication, which makes small numbers normal too.
    #[inline(always)]
    fn wide(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let size = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        let endless = if bits & 0x7c00 == 0x7c00 { 0xff << 23 } else { 0 };
        f32::from_bits(size.to_bits() | endless | (bits & 0x8000) << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_16_bits_is_itself() {
        fn check<T: Half + Into<f32>>(all: &[T]) {
            for (seen, expected) in widen_all(all).into_iter().zip(all.iter().map(|x| (*x).into())) {
                assert!(seen == expected || seen.is_nan() && expected.is_nan(), "{seen}, not {expected}");
            }
        }
        check(&(0..=u16::MAX).map(bf16::from_bits).collect::<Vec<_>>());
        check(&(0..=u16::MAX).map(f16::from_bits).collect::<Vec<_>>());
    }
}
