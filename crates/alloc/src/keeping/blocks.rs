//! Blocks mapped from the system, by size class, and the lists of free ones.
//!
//! A step asks for the sizes of the step before it, or, where sequences differ in length, for none of them. So a request takes
//! a free block of its class, else one that is cut out of free neighbours, and only then a new one, whose pages the system has
//! to clear.

use std::{
    alloc::Layout,
    ptr,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

/// Minimum size of a large block in bytes. The allocator of musl maps and unmaps every block of 128 KiB or more, and has no
/// switch against it.
const LARGE: usize = if cfg!(target_env = "musl") { 128 << 10 } else { 1 << 20 };

/// Bytes of a huge page, on processors that have them.
const HUGE: usize = 2 << 20;

/// Upper bound on the page size, and the unit in which blocks are cut and joined: only those of a multiple of it.
const PAGE: usize = 64 << 10;

/// Classes per power of two: a block is at most an eighth larger than requested.
const STEPS: usize = 8;

/// Classes up to 2^48 bytes, the address space of processors. Those below [`LARGE`] are of what was left of others.
const CLASSES: usize = (48 - PAGE.ilog2() as usize) * STEPS;

/// A size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
        let bytes = layout.size().checked_next_multiple_of(Self::step(layout.size()))?;
        Some(Self::exactly(bytes)).filter(|class| class.index < CLASSES)
    }

    /// The class of blocks of so many bytes.
    fn exactly(bytes: usize) -> Self {
        let index = (bytes.ilog2() - PAGE.ilog2()) as usize * STEPS + bytes / Self::step(bytes) - STEPS;
        Self { bytes, index }
    }

    /// The largest class of a multiple of [`PAGE`] within so many bytes, which are one too.
    fn within(bytes: usize) -> Self {
        let step = Self::step(bytes).max(PAGE);
        Self::exactly(bytes / step * step)
    }

    /// The class of an index.
    fn at(index: usize) -> Self {
        let unit = PAGE << (index / STEPS);
        Self { bytes: unit + unit / STEPS * (index % STEPS), index }
    }

    /// Bytes between classes of about this size.
    fn step(size: usize) -> usize {
        1 << (size.ilog2() - STEPS.ilog2())
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
    // Only what was handed out is on record.
    let handed = |block: *mut u8| {
        MOST_OWNED.fetch_max(owned, Relaxed);
        block
    };
    if let Ok(mut kept) = KEPT.try_lock() {
        kept.now += 1;
        kept.asked[class.index] = kept.now;
        if let Some(block) = kept.pop(class).or_else(|| kept.cut(class)) {
            return (handed(block), true);
        }
        // Never keep more than was once in use: sizes no longer requested make room.
        kept.shrink(MOST_OWNED.load(Relaxed).saturating_sub(owned));
    }
    let block = map(class.bytes);
    if block.is_null() {
        OWNED.fetch_sub(class.bytes, Relaxed);
        return (block, false);
    }
    (handed(block), false)
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
    if let Some(mut kept) = patiently() {
        kept.most = bytes;
        kept.shrink(bytes);
    }
}

pub(super) fn release() {
    if let Some(mut kept) = patiently() {
        kept.shrink(0);
        MOST_OWNED.store(OWNED.load(Relaxed), Relaxed);
    }
}

/// What is kept, after waiting for other threads; `None` in a forked child without the thread that had it.
fn patiently() -> Option<MutexGuard<'static, Kept>> {
    (0..10_000).find_map(|_| KEPT.try_lock().inspect_err(|_| thread::yield_now()).ok())
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

    /// A block of this class out of free ones that lie side by side, those with the least to spare. What is left of them stays
    /// free.
    fn cut(&mut self, class: Class) -> Option<*mut u8> {
        if self.bytes < class.bytes || !class.bytes.is_multiple_of(PAGE) {
            return None;
        }
        let mut free: Vec<(*mut Freed, Class)> = Vec::new();
        for own in (0..CLASSES).map(Class::at).filter(|own| own.bytes.is_multiple_of(PAGE)) {
            let mut block = self.last[own.index];
            while !block.is_null() {
                free.push((block, own));
                // SAFETY: written by `push` and not handed out since.
                block = unsafe { (*block).next };
            }
        }
        free.sort_unstable();
        // Of the shortest neighbours from each block on that suffice, the best fit: bytes to spare, first and last block.
        let mut best: Option<(usize, [usize; 2])> = None;
        let (mut first, mut bytes) = (0, 0);
        for (last, (block, own)) in free.iter().enumerate() {
            let follows = last > 0 && block.addr() == free[last - 1].0.addr() + free[last - 1].1.bytes;
            if !follows {
                (first, bytes) = (last, 0);
            }
            bytes += own.bytes;
            while bytes - free[first].1.bytes >= class.bytes {
                bytes -= free[first].1.bytes;
                first += 1;
            }
            if bytes >= class.bytes && best.is_none_or(|(spare, _)| bytes - class.bytes < spare) {
                best = Some((bytes - class.bytes, [first, last]));
            }
        }
        let (mut spare, [first, last]) = best?;
        free[first..=last].iter().for_each(|(block, own)| self.unlink(*block, *own));
        let start = free[first].0.cast::<u8>();
        // SAFETY: the neighbours are mapped, have no owner and are as long as the block and what is spare.
        let mut rest = unsafe { start.add(class.bytes) };
        while spare > 0 {
            let piece = Class::within(spare);
            // SAFETY: as above.
            unsafe {
                self.push(piece, rest);
                rest = rest.add(piece.bytes);
            }
            spare -= piece.bytes;
        }
        Some(start)
    }

    /// Takes this block off the list of its class.
    fn unlink(&mut self, block: *mut Freed, class: Class) {
        let mut link: *mut *mut Freed = &raw mut self.last[class.index];
        // SAFETY: the block is in the list, all of whose links were written by `push` and not handed out since.
        unsafe {
            while *link != block {
                link = &raw mut (**link).next;
            }
            *link = (*block).next;
        }
        self.bytes -= class.bytes;
    }

    /// Unmaps blocks until at most `bytes` are left, first those of the least recently requested class.
    fn shrink(&mut self, bytes: usize) {
        while self.bytes > bytes {
            let full = (0..CLASSES).filter(|n| !self.last[*n].is_null());
            let Some(index) = full.min_by_key(|n| self.asked[*n]) else { return };
            let class = Class::at(index);
            if let Some(block) = self.pop(class) {
                // SAFETY: a block of this class, just taken from the list.
                unsafe { unmap(block, class.bytes) };
            }
        }
    }
}

/// Of every mapping.
const ACCESS: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
const KIND: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Where the newest mapping starts.
static NEWEST: AtomicUsize = AtomicUsize::new(0);

/// `bytes` bytes of zeros, on huge pages where they fill some; null if out of memory. They lie below the newest mapping if
/// there is room, so that free blocks are neighbours.
fn map(bytes: usize) -> *mut u8 {
    let below = NEWEST.load(Relaxed).checked_sub(bytes).filter(|below| *below > 0 && bytes.is_multiple_of(PAGE));
    let block = below.and_then(|below| map_at(below, bytes)).unwrap_or_else(|| map_aligned(bytes));
    if !block.is_null() {
        NEWEST.store(block.addr(), Relaxed);
        if bytes >= HUGE {
            // SAFETY: a mapping of this length. Failure is harmless.
            unsafe { libc::madvise(block.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
    }
    block
}

/// A mapping at this address, if nothing else is there.
fn map_at(address: usize, bytes: usize) -> Option<*mut u8> {
    // SAFETY: a new mapping, which replaces none; where the system does not know the flag, the address is a wish.
    let block = unsafe {
        let wish = ptr::without_provenance_mut(address);
        libc::mmap(wish, bytes, ACCESS, KIND | libc::MAP_FIXED_NOREPLACE, -1, 0)
    };
    if block == libc::MAP_FAILED {
        return None;
    }
    if block.addr() != address {
        // SAFETY: just mapped.
        unsafe { unmap(block.cast(), bytes) };
        return None;
    }
    Some(block.cast())
}

/// A mapping where the system has room, aligned to a huge page if it fills one.
fn map_aligned(bytes: usize) -> *mut u8 {
    debug_assert!(bytes < HUGE || bytes.is_multiple_of(PAGE));
    let spare = if bytes >= HUGE { HUGE } else { 0 };
    // SAFETY: a new mapping, of which only the returned part stays mapped; the unmapped parts are whole pages of it.
    unsafe {
        let start = libc::mmap(ptr::null_mut(), bytes + spare, ACCESS, KIND, -1, 0);
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

    #[test]
    fn blocks_are_cut_from_free_neighbours_and_joined_again() {
        let _alone = crate::LARGE_BLOCKS.lock();
        release();
        let [whole, half, third] = [64, 32, 20].map(|mebibytes| layout(mebibytes << 20));
        // SAFETY: every block is freed once with its own layout and used only before that.
        unsafe {
            let block = Keeping.alloc(whole);
            block.write_bytes(1, whole.size());
            Keeping.dealloc(block, whole);
            let [first, second, last] = [third, half, layout(LARGE)].map(|layout| Keeping.alloc(layout));
            assert_eq!([first, second], [block, block.add(third.size())], "no new mapping");
            assert_eq!(last, second.add(half.size()));
            assert_eq!(KEPT.lock().unwrap().bytes, whole.size() - third.size() - half.size() - LARGE);
            for (block, layout) in [(first, third), (second, half), (last, layout(LARGE))] {
                block.write_bytes(2, layout.size());
                Keeping.dealloc(block, layout);
            }
            assert_eq!(Keeping.alloc_zeroed(whole), block, "the pieces are one again");
            assert!((0..whole.size()).all(|n| *block.add(n) == 0));
            assert_eq!(KEPT.lock().unwrap().bytes, 0);
            Keeping.dealloc(block, whole);
        }
        release();
    }

    /// Owners write all of their blocks: one that overlaps another, or a broken list, would show.
    #[test]
    fn blocks_of_changing_sizes_never_overlap() {
        let _alone = crate::LARGE_BLOCKS.lock();
        release();
        let mut random = 1u64;
        let mut draw = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        let mut owned: Vec<(*mut u8, Layout, u8)> = Vec::new();
        // SAFETY: as above.
        let ends = |block: *mut u8, layout: Layout| [block, unsafe { block.add(layout.size() - 1) }];
        for round in 0..3000 {
            if owned.len() < 12 && draw(3) > 0 {
                let layout = layout(LARGE + draw(24 << 20));
                // SAFETY: as above.
                let block = unsafe { Keeping.alloc(layout) };
                let mark = round as u8;
                for byte in ends(block, layout) {
                    // SAFETY: the ends are in the block, here and below.
                    unsafe { *byte = mark };
                }
                owned.push((block, layout, mark));
            } else if !owned.is_empty() {
                let (block, layout, mark) = owned.swap_remove(draw(owned.len()));
                // SAFETY: as above.
                unsafe {
                    ends(block, layout).into_iter().for_each(|byte| assert_eq!(*byte, mark));
                    Keeping.dealloc(block, layout);
                }
            }
            let mut spans: Vec<_> = owned.iter().map(|(block, layout, _)| (block.addr(), layout.size())).collect();
            spans.sort_unstable();
            assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            assert!(KEPT.lock().unwrap().bytes + OWNED.load(Relaxed) <= MOST_OWNED.load(Relaxed));
        }
        // SAFETY: as above.
        owned.into_iter().for_each(|(block, layout, _)| unsafe { Keeping.dealloc(block, layout) });
        release();
        assert_eq!((KEPT.lock().unwrap().bytes, OWNED.load(Relaxed)), (0, 0));
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
