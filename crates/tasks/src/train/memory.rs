//! How much memory a run takes.

use std::{
    alloc::{GlobalAlloc, Layout},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use regard_kernels::memory::{Keeping, keep_at_most};

static CURRENT: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// An allocator that counts bytes. A binary that declares it the `#[global_allocator]` can measure the peak of any part of
/// its run, which the system's own figure cannot: that one only grows.
///
/// One atomic addition and one maximum per allocation, which is nothing next to the buffers of tensors. Blocks are those of
/// [`Keeping`], which keeps large ones and has them on huge pages.
pub struct CountingAllocator;

fn grow(bytes: usize) {
    let now = CURRENT.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(now, Relaxed);
}

// SAFETY: every request is handed on unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are handed on, here and below.
        let block = unsafe { Keeping.alloc(layout) };
        if !block.is_null() {
            grow(layout.size());
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let block = unsafe { Keeping.alloc_zeroed(layout) };
        if !block.is_null() {
            grow(layout.size());
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { Keeping.dealloc(block, layout) };
        CURRENT.fetch_sub(layout.size(), Relaxed);
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let block = unsafe { Keeping.realloc(block, layout, size) };
        if !block.is_null() {
            if size >= layout.size() {
                grow(size - layout.size());
            } else {
                CURRENT.fetch_sub(layout.size() - size, Relaxed);
            }
        }
        block
    }
}

/// Lets freed buffers stay with the process, for the next step to take again.
///
/// Every step allocates and frees the same hundreds of megabytes. By default large blocks go back to the system, which must
/// clear each page when it gives it out again: a fifth of the time of a training step.
/// Call it once, before any thread starts.
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

/// Largest number of bytes in use at once since the start or the last [`reset_peak`]: allocated ones where
/// [`CountingAllocator`] is in place, else resident ones as far as the system tells.
pub fn peak_bytes() -> Option<u64> {
    match PEAK.load(Relaxed) {
        0 => peak_resident_bytes(),
        peak => Some(peak as u64),
    }
}

/// Bytes allocated now; only where [`CountingAllocator`] is in place.
pub fn current_bytes() -> Option<u64> {
    (PEAK.load(Relaxed) > 0).then(|| CURRENT.load(Relaxed) as u64)
}

/// Resets the peak. The system's own figure does not change.
pub fn reset_peak() {
    PEAK.store(CURRENT.load(Relaxed), Relaxed);
}

/// Largest resident set of this process since its start; Linux only.
pub fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static COUNTING: CountingAllocator = CountingAllocator;

    #[test]
    fn a_buffer_shows_in_the_peak_after_it_is_gone() {
        const SIZE: usize = 300 << 20;
        let before = current_bytes().unwrap();
        drop(std::hint::black_box(vec![0u8; SIZE]));
        assert!(peak_bytes().unwrap() >= before + SIZE as u64 / 2);
        let mut grown = Vec::<u8>::with_capacity(16);
        grown.reserve_exact(SIZE);
        assert!(current_bytes().unwrap() >= SIZE as u64 / 2);
        std::hint::black_box(&grown);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_resident_peak_is_known_on_linux() {
        assert!(peak_resident_bytes().unwrap() > 1 << 20);
    }
}
