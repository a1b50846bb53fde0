//! Code independent of attention: vectors, matrix products, threads, memory, random bits.

pub(crate) mod bf16;
pub(crate) mod gemm;
pub mod memory;
pub mod parallel;
pub mod random;
pub mod simd;
