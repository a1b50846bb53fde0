//! Allocators for programs that compute on large buffers: [`Keeping`] keeps freed blocks, [`CountingAllocator`] also measures.
//!
//! An allocator is the business of the program, not of a library: both are there to be declared.

mod counting;
mod keeping;

pub use counting::{CountingAllocator, Peak, current_bytes, peak_bytes, peak_resident_bytes, reset_peak};
pub use keeping::{Keeping, keep_at_most, keep_freed_buffers, release};

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
