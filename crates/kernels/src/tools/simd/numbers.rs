//! Conversion of narrow formats to f32, in which every kernel computes.

use half::{bf16, f16};
use pulp::{MemMask, Simd};

/// An element type of caches and weights.
pub(crate) trait Number: Copy + Send + Sync {
    /// Its value as f32.
    fn wide(self) -> f32;

    /// Loads a vector.
    ///
    /// # Safety
    /// A full vector of elements must be readable at `at`.
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, at: *const Self) -> S::f32s {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::load_first(simd, at, S::F32_LANES) }
    }

    /// Loads `count` elements, padded with zeros.
    ///
    /// # Safety
    /// `count` elements must be readable at `at`, at most a vector's lanes.
    #[inline(always)]
    unsafe fn load_first<S: Simd>(simd: S, at: *const Self, count: usize) -> S::f32s {
        let mut vector = simd.splat_f32s(0.0);
        let lanes = (&raw mut vector).cast::<f32>();
        for lane in 0..count {
            // SAFETY: guaranteed by the caller; a vector is its lanes in order.
            unsafe { lanes.add(lane).write((*at.add(lane)).wide()) };
        }
        vector
    }
}

impl Number for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(_: S, at: *const Self) -> S::f32s {
        // SAFETY: guaranteed by the caller.
        unsafe { at.cast::<S::f32s>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_first<S: Simd>(simd: S, at: *const Self, count: usize) -> S::f32s {
        let mask = MemMask::new(simd.mask_between_m32s(0, count as u32).mask());
        // SAFETY: guaranteed by the caller; nothing beyond the mask is read.
        unsafe { simd.mask_load_ptr_f32s(mask, at) }
    }
}

/// Converts a vector of elements with dedicated instructions, if the instruction set has them: `$v4` for 16 lanes,
/// `$v3` for 8. Compilers emit scalar code for the loop over lanes.
#[cfg(target_arch = "x86_64")]
macro_rules! load_by_instructions {
    ($v4:expr, $v3:expr) => {
        #[inline(always)]
        unsafe fn load<S: Simd>(simd: S, at: *const Self) -> S::f32s {
            use std::{any::TypeId, mem::transmute_copy};
            if TypeId::of::<S>() == TypeId::of::<pulp::x86::V4>() {
                // SAFETY: guaranteed by the caller, and a value of this type proves that the processor has the
                // instructions. `S` is this type, so its vectors are too.
                unsafe { transmute_copy(&$v4(at)) }
            } else if TypeId::of::<S>() == TypeId::of::<pulp::x86::V3>() {
                // SAFETY: as above.
                unsafe { transmute_copy(&$v3(at)) }
            } else {
                // SAFETY: guaranteed by the caller.
                unsafe { Self::load_first(simd, at, S::F32_LANES) }
            }
        }
    };
}

/// Stored elements to vectors of f32.
///
/// # Safety
/// A full vector of elements must be readable, and the processor must have the instructions.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use half::{bf16, f16};

    #[inline(always)]
    pub unsafe fn bf16_v4(at: *const bf16) -> __m512 {
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())), 16)) }
    }

    #[inline(always)]
    pub unsafe fn bf16_v3(at: *const bf16) -> __m256 {
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())), 16)) }
    }

    #[inline(always)]
    pub unsafe fn f16_v4(at: *const f16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }

    /// As [`super::Number::wide`].
    #[inline(always)]
    pub unsafe fn f16_v3(at: *const f16) -> __m256 {
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            let and = |mask: i32| _mm256_and_si256(bits, _mm256_set1_epi32(mask));
            let size = _mm256_castsi256_ps(_mm256_slli_epi32(and(0x7fff), 13));
            let size = _mm256_mul_ps(size, _mm256_castsi256_ps(_mm256_set1_epi32((127 + 112) << 23)));
            let endless = _mm256_cmpeq_epi32(and(0x7c00), _mm256_set1_epi32(0x7c00));
            let endless = _mm256_and_si256(endless, _mm256_set1_epi32(0xff << 23));
            let rest = _mm256_or_si256(endless, _mm256_slli_epi32(and(0x8000), 16));
            _mm256_or_ps(size, _mm256_castsi256_ps(rest))
        }
    }

    #[inline(always)]
    pub unsafe fn i8_v4(at: *const i8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
    }

    #[inline(always)]
    pub unsafe fn i8_v3(at: *const i8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) }
    }
}

impl Number for i8 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from(self)
    }

    #[cfg(target_arch = "x86_64")]
    load_by_instructions!(x86::i8_v4, x86::i8_v3);
}

impl Number for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[cfg(target_arch = "x86_64")]
    load_by_instructions!(x86::bf16_v4, x86::bf16_v3);
}

impl Number for f16 {
    /// With vectorisable operations: a multiplication moves the exponent, which also normalises subnormals.
    #[inline(always)]
    fn wide(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let size = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        let endless = if bits & 0x7c00 == 0x7c00 { 0xff << 23 } else { 0 };
        f32::from_bits(size.to_bits() | endless | (bits & 0x8000) << 16)
    }

    #[cfg(target_arch = "x86_64")]
    load_by_instructions!(x86::f16_v4, x86::f16_v3);
}

#[cfg(test)]
mod tests {
    use pulp::WithSimd;

    use super::*;

    #[test]
    fn every_number_of_16_bits_is_itself() {
        fn check<T: Number + Into<f32>>(all: Vec<T>) {
            for x in &all {
                let (seen, expected): (f32, f32) = (x.wide(), (*x).into());
                assert!(seen == expected || seen.is_nan() && expected.is_nan(), "{seen}, not {expected}");
            }
            // Full vectors of every instruction set of this processor, and a remainder.
            for arch in archs() {
                let mut seen = vec![f32::NAN; all.len() + 3];
                arch.dispatch(Widen(&all, &mut seen[..all.len()]));
                arch.dispatch(Widen(&all[7..10], &mut seen[all.len()..]));
                for (seen, x) in seen.iter().zip(all.iter().chain(&all[7..10])) {
                    let wide = x.wide();
                    assert!(*seen == wide || seen.is_nan() && wide.is_nan(), "{arch:?}: {seen}, not {wide}");
                }
            }
        }
        check((0..=u16::MAX).map(bf16::from_bits).collect());
        check((0..=u16::MAX).map(f16::from_bits).collect());
        check((i8::MIN..=i8::MAX).collect());
        check((0..100).map(|i| i as f32).collect());
    }

    fn archs() -> Vec<pulp::Arch> {
        let mut archs = vec![pulp::Arch::Scalar, pulp::Arch::new()];
        #[cfg(target_arch = "x86_64")]
        archs.extend(pulp::x86::V3::try_new().map(pulp::Arch::V3));
        archs
    }

    struct Widen<'a, T>(&'a [T], &'a mut [f32]);

    impl<T: Number> WithSimd for Widen<'_, T> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            for (from, to) in self.0.chunks(S::F32_LANES).zip(self.1.chunks_mut(S::F32_LANES)) {
                // SAFETY: there are this many elements.
                let vector = unsafe {
                    match from.len() == S::F32_LANES {
                        true => T::load(simd, from.as_ptr()),
                        false => T::load_first(simd, from.as_ptr(), from.len()),
                    }
                };
                simd.partial_store_f32s(to, vector);
            }
        }
    }
}
