//! Allocators for programs that compute on large buffers: [`Keeping`] keeps freed blocks, [`CountingAllocator`] also
//! counts bytes.
//!
//! The choice of an allocator belongs to the program, not to a library: declare either one in the binary.

mod counting;
mod keeping;

pub use counting::{CountingAllocator, Peak, current_bytes, peak_bytes, peak_resident_bytes, reset_peak};
pub use keeping::{Keeping, keep_at_most, keep_freed_buffers, release};

/// Held by tests that allocate large blocks: these are shared by the process, and a test may count them.
#[cfg(test)]
static LARGE_BLOCKS: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// The README example is a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
