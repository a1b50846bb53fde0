//! Asking for rows before they are read.

use crate::Rows;

/// Rows ahead: as far as memory is slow, and so few that they stay in the L1 cache until their turn.
const AHEAD: usize = 8;

/// Asks the processor for the row that comes eight after row `i`, where it has such an instruction.
///
/// In the token-first layout the rows of one head lie a page or half of one apart, which no hardware foresees.
#[inline(always)]
pub fn prefetch<T>(data: &[T], rows: &Rows, i: usize) {
    if i + AHEAD < rows.count {
        fetch(&data[rows.start(i + AHEAD)..][..rows.width]);
    }
}

/// Asks the processor for these elements, where it has such an instruction.
#[inline(always)]
pub(super) fn fetch<T>(elements: &[T]) {
    for line in elements.chunks(64 / size_of::<T>()) {
        fetch_line(line.as_ptr());
    }
}

/// Asks the processor for the cache line of an address, which need not be that of anything.
#[inline(always)]
pub(super) fn fetch_line<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, without effect on any value; where there is no memory nothing happens.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
