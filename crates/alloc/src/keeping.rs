//! Large blocks of memory: kept for the next request, and on huge pages.
//!
//! A fresh buffer of megabytes costs a page fault per page on first touch, and every fault clears its page: for
//! mechanisms of linear cost that takes longer than the arithmetic. Outputs and gradients have the same sizes from call
//! to call, so a process that keeps freed blocks pays only once.

use std::alloc::{GlobalAlloc, Layout, System};

#[cfg(target_os = "linux")]
mod blocks;

/// The system allocator, except for large blocks (1 MiB and more; with musl 128 KiB). Those are mapped separately, on huge
/// pages where the system provides them on request, and kept when freed, for requests of that size or smaller ones: at most as
/// many bytes as were in use at once, and at most the limit of [`keep_at_most`]. On systems other than Linux it is the system
/// allocator.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: regard_alloc::Keeping = regard_alloc::Keeping;
/// let before = vec![1.0f32; 1 << 20];
/// drop(before);
/// assert!(vec![0.0f32; 1 << 20].iter().all(|x| *x == 0.0));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Keeping;

// SAFETY: small blocks come from the system. A large one is a page-aligned mapping of at least its size, handed out to
// one owner at a time; the layout alone tells which of the two a block is.
#[cfg(target_os = "linux")]
unsafe impl GlobalAlloc for Keeping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match blocks::Class::of(layout) {
            Some(class) => blocks::take(class).0,
            // SAFETY: the caller's guarantees are passed on, here and below.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = blocks::Class::of(layout) else {
            // SAFETY: as above.
            return unsafe { System.alloc_zeroed(layout) };
        };
        let (block, used) = blocks::take(class);
        if used {
            // SAFETY: the block has at least this size and no other owner.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match blocks::Class::of(layout) {
            // SAFETY: a block of this layout was taken from this class, and its owner frees it.
            Some(class) => unsafe { blocks::give(class, block) },
            // SAFETY: as above.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the size, rounded up to the alignment, does not overflow.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (blocks::Class::of(layout), blocks::Class::of(new)) {
            // SAFETY: as above.
            (None, None) => unsafe { System.realloc(block, layout, size) },
            (old, class) if old == class => block,
            _ => {
                // SAFETY: two blocks, each of at least the bytes copied; the old one is freed only if there is a new
                // one.
                unsafe {
                    let moved = self.alloc(new);
                    if !moved.is_null() {
                        moved.copy_from_nonoverlapping(block, size.min(layout.size()));
                        self.dealloc(block, layout);
                    }
                    moved
                }
            }
        }
    }
}

// SAFETY: every request is forwarded to the system allocator unchanged.
#[cfg(not(target_os = "linux"))]
unsafe impl GlobalAlloc for Keeping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are passed on, here and below.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Sets the maximum bytes of freed blocks that [`Keeping`] keeps; default: 1 GiB.
pub fn keep_at_most(bytes: usize) {
    #[cfg(target_os = "linux")]
    blocks::keep_at_most(bytes);
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
}

/// Keeps freed buffers in the process, for reuse by the next step.
///
/// Every step allocates and frees the same hundreds of megabytes. By default large blocks go back to the system, which
/// must clear each page when it hands it out again: a fifth of the time of a training step. Call this once, before any
/// thread starts.
pub fn keep_freed_buffers() {
    keep_at_most(usize::MAX);
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets two parameters of the allocator for smaller blocks; blocks already handed out are not affected.
    unsafe {
        // The largest value that version 2.36 accepts on 64 bits.
        const MOST: libc::c_int = 32 << 20;
        libc::mallopt(libc::M_MMAP_THRESHOLD, MOST);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

/// Returns the blocks kept by [`Keeping`] to the system, and resets the record of how much was in use.
pub fn release() {
    #[cfg(target_os = "linux")]
    blocks::release();
}
