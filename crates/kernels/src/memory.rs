//! Large blocks of memory: kept for the next request, and on huge pages.
//!
//! A buffer of megabytes that comes fresh from the system costs a fault for each page when it is first touched, and every
//! fault clears its page: for the mechanisms of linear cost that takes longer than the arithmetic. The outputs and gradients
//! of one call have the sizes of those of the call before, so a process that keeps freed blocks pays once.
//!
//! An allocator is the business of the program, not of a library: [`Keeping`] is there to be declared.

use std::alloc::{GlobalAlloc, Layout, System};

#[cfg(target_os = "linux")]
mod blocks;

/// The system's allocator for all but large blocks, from 1 MiB on. Those are mapped by themselves, on huge pages where the
/// system gives them on request, and kept when they are freed: at most as many bytes as were in use at once, and at
/// most as many as [`keep_at_most`] says. On other systems than Linux it is the system's allocator.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: regard_kernels::memory::Keeping = regard_kernels::memory::Keeping;
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

/// Gives what [`Keeping`] has kept back to the system, and forgets how much was in use.
pub fn release() {
    #[cfg(target_os = "linux")]
    blocks::release();
}

/// `len` numbers of arbitrary value, for callers that fill every element: zeros first would cost as much memory traffic as the
/// result itself, in one thread. With debug assertions they are NaN, which no test takes for a result.
pub fn arbitrary(len: usize) -> Vec<f32> {
    if cfg!(debug_assertions) {
        return vec![f32::NAN; len];
    }
    unwritten(len)
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn unwritten(len: usize) -> Vec<f32> {
    let mut buffer = Vec::with_capacity(len);
    // SAFETY: there is no instruction in it. But to the compiler it may have written any numbers to the memory that it is
    // handed; every bit pattern is one, so that from here on the memory holds `len` of them.
    unsafe {
        std::arch::asm!("/* {} */", in(reg) buffer.as_mut_ptr(), options(nostack, preserves_flags));
        buffer.set_len(len);
    }
    buffer
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn unwritten(len: usize) -> Vec<f32> {
    vec![0.0; len]
}
