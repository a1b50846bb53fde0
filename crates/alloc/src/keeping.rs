//! Large blocks of memory: kept for the next request, and on huge pages.
//!
//! A buffer of megabytes that comes fresh from the system costs a fault for each page when it is first touched, and every
//! fault clears its page: for the mechanisms of linear cost that takes longer than the arithmetic. The outputs and gradients
//! of one call have the sizes of those of the call before, so a process that keeps freed blocks pays once.

use std::alloc::{GlobalAlloc, Layout, System};

#[cfg(target_os = "linux")]
mod blocks;

/// The system's allocator for all but large blocks, from 1 MiB on. Those are mapped by themselves, on huge pages where the
/// system gives them on request, and kept when they are freed: at most as many bytes as were in use at once, and at
/// most as many as [`keep_at_most`] says. On other systems than Linux it is the system's allocator.
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

// SAFETY: small blocks are the system's. A large one is a mapping of at least its size at the border of a page, handed out
// once until it is given back; the layout alone tells which of the two a block is.
#[cfg(target_os = "linux")]
unsafe impl GlobalAlloc for Keeping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match blocks::Class::of(layout) {
            Some(class) => blocks::take(class).0,
            // SAFETY: the caller's promises are handed on, here and below.
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
            // SAFETY: the block has at least this size and is nobody else's.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match blocks::Class::of(layout) {
            // SAFETY: a block of this layout was taken from this class, and its owner is done with it.
            Some(class) => unsafe { blocks::give(class, block) },
            // SAFETY: as above.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size, rounded up to the alignment, does not overflow.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (blocks::Class::of(layout), blocks::Class::of(new)) {
            // SAFETY: as above.
            (None, None) => unsafe { System.realloc(block, layout, size) },
            (old, class) if old == class => block,
            _ => {
                // SAFETY: two blocks, each of at least the bytes copied; the old one is given up if there is a new one.
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

// SAFETY: every request is handed to the system's allocator unchanged.
#[cfg(not(target_os = "linux"))]
unsafe impl GlobalAlloc for Keeping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are handed on, here and below.
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

/// Sets how many bytes of freed blocks [`Keeping`] keeps at most; 1 GiB unless set.
pub fn keep_at_most(bytes: usize) {
    #[cfg(target_os = "linux")]
    blocks::keep_at_most(bytes);
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
}

/// Lets freed buffers stay with the process, for the next step to take again.
///
/// Every step allocates and frees the same hundreds of megabytes. By default large blocks go back to the system, which must
/// clear each page when it gives it out again: a fifth of the time of a training step.
/// To be called once, before any thread starts.
pub fn keep_freed_buffers() {
    keep_at_most(usize::MAX);
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets two numbers of the allocator of smaller blocks; blocks already handed out are not affected.
    unsafe {
        // The largest that version 2.36 takes on 64 bits.
        const MOST: libc::c_int = 32 << 20;
        libc::mallopt(libc::M_MMAP_THRESHOLD, MOST);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

/// Gives what [`Keeping`] has kept back to the system, and forgets how much was in use.
pub fn release() {
    #[cfg(target_os = "linux")]
    blocks::release();
}
