//! Blocks mapped from the system, by classes of size, and those that wait for their next owner.

use std::{
    alloc::Layout,
    ptr,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// Bytes from which a block is large.
const LARGE: usize = 1 << 20;

/// Bytes of a huge page, on processors that have them.
const HUGE: usize = 2 << 20;

/// Bytes that no page is longer than, and that every size of a block is a multiple of.
const PAGE: usize = 64 << 10;

/// Classes from one power of two to the next: a block is at most an eighth longer than what was asked for.
const STEPS: usize = 8;

/// Classes up to 2^48 bytes, which is all that processors address.
const CLASSES: usize = (48 - LARGE.ilog2() as usize) * STEPS;

/// A size of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    bytes: usize,
    index: usize,
}

impl Class {
    /// The class of a layout; `None` for one that is the system allocator's.
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

/// What a freed block holds: the one freed before it.
struct Freed {
    next: *mut Freed,
}

/// Freed blocks.
struct Kept {
    /// The last one freed of each class.
    last: [*mut Freed; CLASSES],
    /// When each class was last asked for.
    asked: [u64; CLASSES],
    now: u64,
    bytes: usize,
    most: usize,
}

// SAFETY: the pointers are to memory that belongs to whoever holds the lock.
unsafe impl Send for Kept {}

/// Only ever tried: whoever finds it locked does without. So it can be used in a forked child, in which the thread that held
/// it may not live on.
static KEPT: Mutex<Kept> =
    Mutex::new(Kept { last: [ptr::null_mut(); CLASSES], asked: [0; CLASSES], now: 0, bytes: 0, most: 1 << 30 });

/// Bytes in blocks that have an owner, and the most at once.
static OWNED: AtomicUsize = AtomicUsize::new(0);
static MOST_OWNED: AtomicUsize = AtomicUsize::new(0);

/// A block of a class, and whether it has been used before; if not, it holds zeros. Null if there is no memory.
pub(super) fn take(class: Class) -> (*mut u8, bool) {
    let owned = OWNED.fetch_add(class.bytes, Relaxed) + class.bytes;
    let most = MOST_OWNED.fetch_max(owned, Relaxed).max(owned);
    if let Ok(mut kept) = KEPT.try_lock() {
        kept.now += 1;
        kept.asked[class.index] = kept.now;
        if let Some(block) = kept.pop(class) {
            return (block, true);
        }
        // Never more than was once in use: sizes that are no longer asked for make room.
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
/// It came from [`take`] with this class, and nobody uses it any more.
pub(super) unsafe fn give(class: Class, block: *mut u8) {
    OWNED.fetch_sub(class.bytes, Relaxed);
    match KEPT.try_lock() {
        Ok(mut kept) if class.bytes <= kept.most => {
            let room = kept.most - class.bytes;
            kept.shrink(room);
            // SAFETY: the block is ours, longer than this and aligned to a page.
            unsafe { kept.push(class, block) };
        }
        // SAFETY: a mapping of this length that nobody uses.
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
        // SAFETY: written by `push`, and nobody else's since.
        self.last[class.index] = unsafe { (*block).next };
        self.bytes -= class.bytes;
        Some(block.cast())
    }

    /// # Safety
    /// The block must be of this class and nobody else's.
    unsafe fn push(&mut self, class: Class, block: *mut u8) {
        let block = block.cast::<Freed>();
        // SAFETY: the caller's promise.
        unsafe { block.write(Freed { next: self.last[class.index] }) };
        self.last[class.index] = block;
        self.bytes += class.bytes;
    }

    /// Unmaps blocks until at most `bytes` are left, first those of the class that was asked for longest ago.
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

/// `bytes` bytes of zeros, from the border of a huge page on if they fill one; null if there are none.
fn map(bytes: usize) -> *mut u8 {
    debug_assert!(bytes.is_multiple_of(PAGE));
    let spare = if bytes >= HUGE { HUGE } else { 0 };
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, of which only what is handed out stays; the parts given back are whole pages of it.
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
        // A refusal changes nothing.
        libc::madvise(block.cast(), bytes, libc::MADV_HUGEPAGE);
        block
    }
}

/// # Safety
/// A mapping of this length that nobody uses.
unsafe fn unmap(block: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
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

    /// One test: the blocks are those of the whole process.
    #[test]
    fn blocks_come_back_and_leave_when_others_need_room() {
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
            // Whatever comes now, no more is held than was once in use.
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
