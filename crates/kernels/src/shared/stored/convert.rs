//! Whole buffers to and from formats of 16 bits.

use half::{bf16, f16};

use crate::{
    memory::arbitrary,
    parallel::{Disjoint, for_each},
    simd::{self, Number},
};

/// Elements of a task.
const SHARE: usize = 1 << 15;

/// A format of 16 bits.
#[allow(private_bounds)] // Its conversions are public, the loads of vectors are not.
pub trait Half: Number + Default {
    /// The nearest number of the format, of two the even one; beyond its range infinity.
    fn nearest(x: f32) -> Self;
}

// Both without branches, so that loops are vectorised.

impl Half for bf16 {
    #[inline(always)]
    fn nearest(x: f32) -> Self {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        // Rounding would carry some NaN into infinity.
        let quiet = bits >> 16 | 0x40;
        Self::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
    }
}

impl Half for f16 {
    #[inline(always)]
    fn nearest(x: f32) -> Self {
        let sign = x.to_bits() & 1 << 31;
        let size = x.to_bits() ^ sign;
        // Below 2^-14 the steps are those of f32 between 1/2 and 1: an addition rounds.
        let tiny = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let normal = size.wrapping_sub(112 << 23).wrapping_add(0xfff + (size >> 13 & 1)) >> 13;
        let endless = if size > 0xff << 23 { 0x7e00 } else { 0x7c00 };
        let finite = if size < 113 << 23 { tiny } else { normal };
        let bits = if size >= 143 << 23 { endless } else { finite };
        Self::from_bits((bits | sign >> 16) as u16)
    }
}

/// The same numbers in f32.
pub fn widened<T: Half>(from: &[T]) -> Vec<f32> {
    let mut to = arbitrary(from.len());
    convert(from, &mut to, T::wide);
    to
}

/// The nearest numbers of another format.
pub fn narrowed<T: Half>(from: &[f32]) -> Vec<T> {
    let mut to = vec![T::default(); from.len()];
    convert(from, &mut to, T::nearest);
    to
}

#[inline(always)]
fn convert<A: Copy + Sync, B: Copy + Send + Sync>(from: &[A], to: &mut [B], one: impl Fn(A) -> B + Sync + Copy) {
    let to = Disjoint::new(to);
    for_each(from.len().div_ceil(SHARE), |task| {
        let start = task * SHARE;
        let from = &from[start..(start + SHARE).min(from.len())];
        // SAFETY: shares do not overlap.
        let to = unsafe { to.range(start, from.len()) };
        simd::vectorize(
            #[inline(always)]
            || to.iter_mut().zip(from).for_each(|(to, from)| *to = one(*from)),
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number of 16 bits, what lies halfway to the next, and the neighbours of that.
    fn samples(all: impl Fn(u16) -> f32) -> Vec<f32> {
        let near = |bits: u16| {
            let (x, next) = (all(bits), all(bits.wrapping_add(1)));
            let middle = ((f64::from(x) + f64::from(next)) / 2.0) as f32;
            [x, middle, middle.next_up(), middle.next_down()]
        };
        (0..=u16::MAX).flat_map(near).chain([65_519.0, 65_520.0, f32::MAX, -f32::MAX, 1e-10, -0.0]).collect()
    }

    #[test]
    fn numbers_become_the_nearest_of_their_format() {
        fn check<T: Half + std::fmt::Debug>(samples: &[f32], expected: impl Fn(f32) -> T, bits: impl Fn(T) -> u16) {
            for (x, seen) in samples.iter().zip(narrowed::<T>(samples)) {
                let expected = expected(*x);
                let same = if x.is_nan() { seen.wide().is_nan() } else { bits(seen) == bits(expected) };
                assert!(same, "{x:e}: {seen:?}, expected {expected:?}");
            }
        }
        check(&samples(|bits| bf16::from_bits(bits).to_f32()), bf16::from_f32, bf16::to_bits);
        check(&samples(|bits| f16::from_bits(bits).to_f32()), f16::from_f32, f16::to_bits);
    }

    #[test]
    fn what_has_16_bits_comes_back_unchanged() {
        let numbers: Vec<f16> = (0..SHARE + 7).map(|i| f16::from_f32(i as f32 * 0.25 - 100.0)).collect();
        assert_eq!(narrowed::<f16>(&widened(&numbers)), numbers);
        assert!(widened::<bf16>(&[]).is_empty());
    }
}
