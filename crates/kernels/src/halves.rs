//! Numbers of 16 bits as f32, which every kernel computes in.

use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::{memory::arbitrary, parallel, simd};

/// Numbers that one thread converts at a time.
const BLOCK: usize = 1 << 15;

/// `from` in f32, on all threads.
pub fn widen_all<T: Half>(from: &[T]) -> Vec<f32> {
    let mut to = arbitrary(from.len());
    parallel::for_each_part(&mut to, BLOCK, |n, to| T::widen(&from[n * BLOCK..][..to.len()], to));
    to
}

/// A floating-point number of 16 bits.
pub trait Half: Copy + Send + Sync {
    /// `to = from`, exactly.
    ///
    /// # Panics
    /// If their lengths differ.
    fn widen(from: &[Self], to: &mut [f32]);
}

impl Half for bf16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        assert_eq!(from.len(), to.len(), "as many numbers as places");
        simd::vectorize(
            #[inline(always)]
            || to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from_bits(u32::from(from.to_bits()) << 16)),
        );
    }
}

impl Half for f16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
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
