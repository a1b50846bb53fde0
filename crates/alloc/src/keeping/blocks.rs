//! Blocks mapped from the system, by size class, and the lists of free ones.

use std::{
    alloc::Layout,
    ptr,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// Minimum size of a large block in bytes. The allocator of musl maps and unmaps every block of 128 KiB or more, and has no
/// switch against it.
const LARGE: usize = if cfg!(target_env = "musl") { 128 << 10 } else { 1 << 20 };

/// Bytes of a huge page, on processors that have them.
const HUGE: usize = 2 << 20;

/// Upper bound on the page size; the size of every block that fills a huge page is a multiple of it.
const PAGE: usize = 64 << 10;

/// Classes per power of two: a block is at most an eighth larger than requested.
const STEPS: usize = 8;

/// Classes up to 2^48 bytes, the address space of processors.
const CLASSES: usize = (48 - LARGE.ilog2() as usize) * STEPS;

/// A size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    bytes: usize,
    index: usize,
}

impl Class {
    /// The class of a layout; `None` for one that the system allocator serves.
    pub fn of(layout: Layout) -> Option<Self> {
        if layout.size() < LARGE || layout.align() > 4096 {
            return None;
        }
        let step = |size: usize| 1 << (size.ilog2() - STEPS.ilog2());
        let bytes = layout.size().checked_next_multiple_of(step(layout.size()))?;
        let index = (bytes.ilog2() - LARGE.ilog2()) as usize * STEPS + bytes / step(bytes) - STEPS;
        (index < CLASSES).then_some(Self { bytes, index })
    }
}

/// Content of a freed block: a link to the one freed before it.
struct Freed {
    next: *mut Freed,
}

/// Freed blocks.
struct Kept {
    /// The most recently freed block of each class.
    last: [*mut Freed; CLASSES],
    /// When each class was last requested.
    asked: [u64; CLASSES],
    now: u64,
    bytes: usize,
    most: usize,
}

// SAFETY: the pointers refer to memory owned by the holder of the lock.
unsafe impl Send for Kept {}

/// Only ever locked with `try_lock`: if it is taken, the caller goes without. So it is safe in a forked child, where
/// the thread that held it may no longer exist.
static KEPT: Mutex<Kept> =
    Mutex::new(Kept { last: [ptr::null_mut(); CLASSES], asked: [0; CLASSES], now: 0, bytes: 0, most: 1 << 30 });

/// Bytes in blocks that have an owner, and their peak.
static OWNED: AtomicUsize = AtomicUsize::new(0);
static MOST_OWNED: AtomicUsize = AtomicUsize::new(0);

/// A block of a class, and whether it has been used before; if not, it holds zeros. Null if out of memory.
pub(super) fn take(class: Class) -> (*mut u8, bool) {
    let owned = OWNED.fetch_add(class.bytes, Relaxed) + class.bytes;
    let most = MOST_OWNED.fetch_max(owned, Relaxed).max(owned);
    if let Ok(mut kept) = KEPT.try_lock() {
        kept.now += 1;
        kept.asked[class.index] = kept.now;
        if let Some(block) = kept.pop(class) {
            return (block, true);
        }
        // Never keep more than was once in use: sizes no longer requested make room.
        kept.shrink(most - owned);
    }
    let block = map(class.bytes);
    if block.is_null() {
        OWNED.fetch_sub(class.bytes, Relaxed);
    }
    (block, false)
}

/// Takes a block back.
///
/// # Safety
/// It came from [`take`] with this class and is no longer used.
pub(super) unsafe fn give(class: Class, block: *mut u8) {
    OWNED.fetch_sub(class.bytes, Relaxed);
    match KEPT.try_lock() {
        Ok(mut kept) if class.bytes <= kept.most => {
            let room = kept.most - class.bytes;
            kept.shrink(room);
            // SAFETY: the block is ours, longer than this and aligned to a page.
            unsafe { kept.push(class, block) };
        }
        // SAFETY: an unused mapping of this length.
        _ => unsafe { unmap(block, class.bytes) },
    }
}

pub(super) fn keep_at_most(bytes: usize) {
    if let Ok(mut kept) = KEPT.try_lock() {
        kept.most = bytes;
        kept.shrink(bytes);
    }
}

pub(super) fn release() {
    if let Ok(mut kept) = KEPT.try_lock() {
        kept.shrink(0);
    }
    MOST_OWNED.store(OWNED.load(Relaxed), Relaxed);
}

impl Kept {
    fn pop(&mut self, class: Class) -> Option<*mut u8> {
        let block = self.last[class.index];
        if block.is_null() {
            return None;
        }
        // SAFETY: written by `push` and not handed out since.
        self.last[class.index] = unsafe { (*block).next };
        self.bytes -= class.bytes;
        Some(block.cast())
    }

    /// # Safety
    /// The block must be of this class and have no other owner.
    unsafe fn push(&mut self, class: Class, block: *mut u8) {
        let block = block.cast::<Freed>();
        // SAFETY: guaranteed by the caller.
        unsafe { block.write(Freed { next: self.last[class.index] }) };
        self.last[class.index] = block;
        self.bytes += class.bytes;
    }

    /// Unmaps blocks until at most `bytes` are left, first those of the least recently requested class.
    fn shrink(&mut self, bytes: usize) {
        while self.bytes > bytes {
            let full = (0..CLASSES).filter(|n| !self.last[*n].is_null());
            let Some(index) = full.min_by_key(|n| self.asked[*n]) else { return };
            let unit = LARGE << (index / STEPS);
            let class = Class { bytes: unit + unit / STEPS * (index % STEPS), index };
            if let Some(block) = self.pop(class) {
                // SAFETY: a block of this class, just taken from the list.
                unsafe { unmap(block, class.bytes) };
            }
        }
    }
}

/// `bytes` bytes of zeros, aligned to a huge page if they fill one; null if out of memory.
fn map(bytes: usize) -> *mut u8 {
    debug_assert!(bytes < HUGE || bytes.is_multiple_of(PAGE));
    let spare = if bytes >= HUGE { HUGE } else { 0 };
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, of which only the returned part stays mapped; the unmapped parts are whole pages of it.
    unsafe {
        let start = libc::mmap(ptr::null_mut(), bytes + spare, access, kind, -1, 0);
        if start == libc::MAP_FAILED {
            return ptr::null_mut();
        }
        let start = start.cast::<u8>();
        if spare == 0 {
            return start;
        }
        let before = start.addr().next_multiple_of(HUGE) - start.addr();
        let block = start.add(before);
        if before > 0 {
            libc::munmap(start.cast(), before);
        }
        if before < spare {
            libc::munmap(block.add(bytes).cast(), spare - before);
        }
        // Failure is harmless.
        libc::madvise(block.cast(), bytes, libc::MADV_HUGEPAGE);
        block
    }
}

/// # Safety
/// Must be an unused mapping of this length.
unsafe fn unmap(block: *mut u8, bytes: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { libc::munmap(block.cast(), bytes) };
}

#[cfg(test)]
mod tests {
    use std::alloc::GlobalAlloc;

    use super::{super::Keeping, *};

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 64).unwrap()
    }

    #[test]
    fn classes_hold_what_is_asked_for_and_little_more() {
        assert_eq!(Class::of(layout(LARGE - 1)), None);
        assert_eq!(Class::of(Layout::from_size_align(LARGE, 1 << 16).unwrap()), None);
        let mut before = 0;
        for size in (20..30).flat_map(|bits| [1usize << bits, (1 << bits) + 1, (1 << bits) * 11 / 8, (2 << bits) - 1]) {
            let Class { bytes, index } = Class::of(layout(size)).unwrap();
            assert!(bytes >= size && bytes - size <= size / STEPS && bytes.is_multiple_of(PAGE), "{size}: {bytes}");
            assert_eq!(Class::of(layout(bytes)), Some(Class { bytes, index }), "{size}");
            assert!(index >= before, "classes grow with sizes");
            before = index;
        }
    }

    /// A single test, since the blocks are shared by the process; those that another left are given back first.
    #[test]
    fn blocks_come_back_and_leave_when_others_need_room() {
        let _alone = crate::LARGE_BLOCKS.lock();
        release();
        let (size, other) = (layout((5 << 20) - 4096), layout(9 << 20));
        // SAFETY: every block is freed once with its own layout and used only before that.
        unsafe {
            let first = Keeping.alloc(size);
            first.write_bytes(7, size.size());
            assert_eq!(first.addr() % HUGE, 0);
            Keeping.dealloc(first, size);
            let again = Keeping.alloc_zeroed(size);
            assert_eq!(again, first, "the same block, without a fault");
            assert!((0..size.size()).all(|n| *again.add(n) == 0));
            let second = Keeping.alloc(size);
            assert_ne!(second, again);
            *second = 3;
            assert_eq!(Keeping.realloc(second, size, size.size() + 1000), second, "there is room at its end");
            let grown = Keeping.realloc(second, layout(size.size() + 1000), 100 << 20);
            assert_eq!(*grown, 3);
            Keeping.dealloc(grown, layout(100 << 20));
            assert_eq!(KEPT.lock().unwrap().bytes, (104 << 20) + (5 << 20));
            let most = MOST_OWNED.load(Relaxed);
            // From now on no more is kept than was once in use.
            let small = Keeping.alloc(layout(LARGE));
            let large = Keeping.alloc(other);
            assert!(KEPT.lock().unwrap().bytes + OWNED.load(Relaxed) <= most);
            keep_at_most(LARGE);
            Keeping.dealloc(large, other);
            assert!(KEPT.lock().unwrap().bytes <= LARGE, "too large to be kept");
            Keeping.dealloc(small, layout(LARGE));
            Keeping.dealloc(again, size);
            release();
            assert_eq!((KEPT.lock().unwrap().bytes, OWNED.load(Relaxed)), (0, 0));
            keep_at_most(1 << 30);
        }
    }
}
