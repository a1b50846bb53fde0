//! What knows nothing of attention: vectors, products of matrices, threads, memory, random bits.

pub(crate) mod gemm;
pub mod memory;
pub mod parallel;
pub mod random;
pub mod simd;
