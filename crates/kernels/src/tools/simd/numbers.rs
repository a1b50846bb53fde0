//! Numbers of fewer bits as f32, which every kernel computes in.

use half::{bf16, f16};
use pulp::{MemMask, Simd};

/// A number as caches and weights store it.
pub(crate) trait Number: Copy + Send + Sync {
    /// The same number.
    fn wide(self) -> f32;

    /// A vector of them.
    ///
    /// # Safety
    /// There are so many from `at` on.
    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, at: *const Self) -> S::f32s {
        // SAFETY: the caller's promise is handed on.
        unsafe { Self::load_first(simd, at, S::F32_LANES) }
    }

    /// A vector of `count` of them and zeros.
    ///
    /// # Safety
    /// There are so many from `at` on, not more than a vector has lanes.
    #[inline(always)]
    unsafe fn load_first<S: Simd>(simd: S, at: *const Self, count: usize) -> S::f32s {
        let mut vector = simd.splat_f32s(0.0);
        let lanes = (&raw mut vector).cast::<f32>();
        for lane in 0..count {
            // SAFETY: the caller's promise; a vector is its lanes one after another.
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
        // SAFETY: the caller's promise; nothing beyond the mask is read.
        unsafe { simd.mask_load_ptr_f32s(mask, at) }
    }
}

/// Widens a vector of numbers by instructions made for that, where the vectors in use have them: `$v4` on 16 of them, `$v3`
/// on 8. Compilers turn the loop over lanes into scalar code.
#[cfg(target_arch = "x86_64")]
macro_rules! load_by_instructions {
    ($v4:expr, $v3:expr) => {
        #[inline(always)]
        unsafe fn load<S: Simd>(simd: S, at: *const Self) -> S::f32s {
            use std::{any::TypeId, mem::transmute_copy};
            if TypeId::of::<S>() == TypeId::of::<pulp::x86::V4>() {
                // SAFETY: the caller's promise, and the processor has what a value of this type stands for. Vectors of `S` are
                // those of the type that it is.
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

/// Stored numbers to vectors of f32.
///
/// # Safety
/// There are as many as a vector has lanes, and the processor has the instructions.
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

    /// As [`super::Number::wide`] does it.
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
    /// In operations that vectors have: the exponent is moved by a multiplication, which makes small numbers normal too.
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
            // Whole vectors of every instruction set that this processor has, and a rest.
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
                // SAFETY: there are so many.
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
