//! Prefetching of rows.

use crate::Rows;

/// Prefetch distance in rows: enough to hide memory latency, few enough to stay in the L1 cache until used.
const AHEAD: usize = 8;

/// Prefetches the row eight after row `i`, where the processor has such an instruction.
///
/// In the token-first layout the rows of one head are a page or half a page apart, which hardware prefetchers miss.
#[inline(always)]
pub fn prefetch<T>(data: &[T], rows: &Rows, i: usize) {
    if i + AHEAD < rows.count {
        fetch(&data[rows.start(i + AHEAD)..][..rows.width]);
    }
}

/// Prefetches these elements, where the processor has such an instruction.
#[inline(always)]
pub(super) fn fetch<T>(elements: &[T]) {
    for line in elements.chunks(64 / size_of::<T>()) {
        fetch_line(line.as_ptr());
    }
}

/// Prefetches the cache line of an address, which need not be valid.
#[inline(always)]
pub(super) fn fetch_line<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint without effect on any value; an invalid address does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
