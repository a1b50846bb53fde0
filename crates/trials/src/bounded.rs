//! Memory that has an end: what asks for more than any small input can need gets none, and the process ends.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ptr::null_mut,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Most bytes of one block.
const LARGEST: usize = 1 << 30;
/// Most bytes at once.
const MOST: usize = 2 << 30;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator within these bounds.
pub struct Bounded;

impl Bounded {
    /// Counts `size` more bytes, unless that is too much.
    fn admit(size: usize) -> bool {
        let fits = size <= LARGEST && LIVE.fetch_add(size, Relaxed) + size <= MOST;
        if !fits && size <= LARGEST {
            LIVE.fetch_sub(size, Relaxed);
        }
        fits
    }
}

// SAFETY: requests are handed on unchanged or refused with a null pointer.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::admit(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller's promises are handed on, here and below.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !Self::admit(layout.size()) {
            return null_mut();
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) };
        LIVE.fetch_sub(layout.size(), Relaxed);
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !Self::admit(size) {
            return null_mut();
        }
        // SAFETY: as above.
        let grown = unsafe { System.realloc(block, layout, size) };
        LIVE.fetch_sub(if grown.is_null() { size } else { layout.size() }, Relaxed);
        grown
    }
}
