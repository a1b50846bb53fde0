//! One buffer, written by many tasks that each own different elements.

use std::marker::PhantomData;

use crate::Rows;

/// A mutable slice that tasks may write concurrently, each its own rows.
///
/// In the token-first layout the rows of different heads are interleaved in memory, so the slice cannot be split into
/// one contiguous part per task.
pub struct Disjoint<'a, T> {
    data: *mut T,
    len: usize,
    marker: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `row` and `range`, whose callers guarantee that no element is accessed by two at once.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above; the pointer itself carries no thread affinity.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Borrows the slice for the lifetime of the tasks.
    pub fn new(data: &'a mut [T]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), marker: PhantomData }
    }

    /// Row `i` of `rows`, mutable.
    ///
    /// # Safety
    /// No two live borrows, of any thread, may share an element.
    ///
    /// # Panics
    /// If the row is not within the slice.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn row(&self, rows: &Rows, i: usize) -> &mut [T] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.range(rows.start(i), rows.width) }
    }

    /// Elements `start .. start + len`, mutable.
    ///
    /// # Safety
    /// No two live borrows, of any thread, may share an element.
    ///
    /// # Panics
    /// If they are not within the slice.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn range(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "row outside its buffer");
        // SAFETY: in bounds as just checked, and the caller guarantees exclusive access to these elements.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), len) }
    }
}
