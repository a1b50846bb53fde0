//! Allocators for programs that compute on large buffers: [`Keeping`] keeps freed blocks, [`CountingAllocator`] also
//! counts bytes.
//!
//! The choice of an allocator belongs to the program, not to a library: declare either one in the binary.

mod counting;
mod keeping;

pub use counting::{CountingAllocator, Peak, current_bytes, peak_bytes, peak_resident_bytes, reset_peak};
pub use keeping::{Keeping, keep_at_most, keep_freed_buffers, release};

/// The README example is a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
