//! Selection of the vector instruction set.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::Error;

/// Vector instruction sets, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Vectors {
    /// Scalar code.
    Scalar,
    /// 4 floats, 32 registers.
    Neon,
    /// 8 floats, 16 registers, with fused multiply-adds.
    Avx2,
    /// 16 floats, 32 registers.
    Avx512,
}

impl Vectors {
    /// All variants, narrowest first.
    pub const ALL: &[Self] = &[Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// The instruction set with this name.
    ///
    /// # Errors
    /// Not an instruction set of this processor.
    pub fn named(name: &str) -> Result<Self, Error> {
        let available = || Self::ALL.iter().copied().filter(|vectors| vectors.available());
        available().find(|vectors| vectors.name() == name).ok_or_else(|| {
            let names: Vec<&str> = available().map(Self::name).collect();
            Error::option("vectors", name, format!("one of those that this processor has: {}", names.join(", ")))
        })
    }

    /// Whether this processor supports it.
    pub fn available(self) -> bool {
        self <= of(pulp::Arch::new()) && self.arch().is_some()
    }

    fn arch(self) -> Option<pulp::Arch> {
        match self {
            Self::Scalar => Some(pulp::Arch::Scalar),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => pulp::aarch64::Neon::try_new().map(pulp::Arch::Neon),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => pulp::x86::V3::try_new().map(pulp::Arch::V3),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => pulp::x86::V4::try_new().map(pulp::Arch::V4),
            #[allow(unreachable_patterns)]
            _ => None,
        }
    }
}

/// The widest allowed, as an index into [`Vectors::ALL`].
static WIDEST: AtomicU8 = AtomicU8::new(u8::MAX);

/// Limits the whole process to at most these vectors from now on, to compare instruction sets. Large dense products use
/// a library that chooses by itself.
pub fn limit(widest: Vectors) {
    WIDEST.store(widest as u8, Relaxed);
}

/// The vectors in use.
pub fn vectors() -> Vectors {
    of(arch())
}

/// The widest instruction set that the processor has and [`limit`] allows. A WebAssembly module has the one that it was
/// compiled for, so that code for others is left out.
#[inline(always)]
pub(crate) fn arch() -> pulp::Arch {
    if cfg!(target_arch = "wasm32") {
        return pulp::Arch::new();
    }
    let widest = WIDEST.load(Relaxed);
    if widest == u8::MAX { pulp::Arch::new() } else { narrowed(widest) }
}

#[cold]
fn narrowed(widest: u8) -> pulp::Arch {
    let allowed = Vectors::ALL.iter().copied().rev().filter(|vectors| *vectors as u8 <= widest);
    allowed.filter_map(Vectors::arch).next().unwrap_or(pulp::Arch::Scalar)
}

fn of(arch: pulp::Arch) -> Vectors {
    match arch {
        #[cfg(target_arch = "aarch64")]
        pulp::Arch::Neon(_) => Vectors::Neon,
        #[cfg(target_arch = "x86_64")]
        pulp::Arch::V3(_) => Vectors::Avx2,
        #[cfg(target_arch = "x86_64")]
        pulp::Arch::V4(_) => Vectors::Avx512,
        _ => Vectors::Scalar,
    }
}
