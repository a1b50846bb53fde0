//! Current and peak memory use of a program.

use std::{
    alloc::{GlobalAlloc, Layout},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use crate::Keeping;

static CURRENT: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// An allocator that counts bytes. A binary that declares it as the `#[global_allocator]` can measure the peak of any
/// part of its run; the system's own figure cannot, since it only grows.
///
/// One atomic addition and one maximum per allocation: negligible next to filling a tensor. Blocks come from
/// [`Keeping`], which keeps large ones and puts them on huge pages.
pub struct CountingAllocator;

fn grow(bytes: usize) {
    let now = CURRENT.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(now, Relaxed);
}

// SAFETY: every request is forwarded unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are passed on, here and below.
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

/// Peak bytes in use since the start or the last [`reset_peak`]: allocated bytes if [`CountingAllocator`] is installed,
/// else resident bytes if the system reports them.
pub fn peak_bytes() -> Option<u64> {
    match PEAK.load(Relaxed) {
        0 => peak_resident_bytes(),
        peak => Some(peak as u64),
    }
}

/// Bytes currently allocated; only if [`CountingAllocator`] is installed.
pub fn current_bytes() -> Option<u64> {
    (PEAK.load(Relaxed) > 0).then(|| CURRENT.load(Relaxed) as u64)
}

/// Resets the peak. Does not affect the system's own figure.
pub fn reset_peak() {
    PEAK.store(CURRENT.load(Relaxed), Relaxed);
}

/// Measures a part of a program: its peak bytes in use beyond those in use when it started.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    before: Option<u64>,
}

impl Peak {
    /// Starts measuring and resets the peak.
    pub fn start() -> Self {
        let before = current_bytes();
        reset_peak();
        Self { before }
    }

    /// Bytes so far; only if [`CountingAllocator`] is installed.
    pub fn bytes(&self) -> Option<u64> {
        self.before.map(|before| (PEAK.load(Relaxed) as u64).saturating_sub(before))
    }
}

/// Peak resident set size of this process; Linux only.
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
        let _alone = crate::LARGE_BLOCKS.lock();
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
