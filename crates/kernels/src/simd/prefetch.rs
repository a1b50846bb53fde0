//! Asking for rows before they are read.

use crate::Rows;

/// Rows ahead: as far as memory is slow, and so few that they stay in the first cache until their turn.
const AHEAD: usize = 8;

/// Asks the processor for the row that comes eight after row `i`, where it has such an instruction.
///
/// In the token-first layout the rows of one head lie a page or half of one apart, which no hardware foresees.
#[inline(always)]
pub fn prefetch<T>(data: &[T], rows: &Rows, i: usize) {
    #[cfg(target_arch = "x86_64")]
    if i + AHEAD < rows.count {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let row = &data[rows.start(i + AHEAD)..][..rows.width];
        for line in row.chunks(64 / size_of::<T>()) {
            // SAFETY: a hint, without effect on any value; the address lies within the slice.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (data, rows, i);
}
