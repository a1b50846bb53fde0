//! One buffer, written by many tasks that each own other elements of it.

use std::marker::PhantomData;

use crate::Rows;

/// A mutable slice that tasks may write at the same time, each its own rows.
///
/// In the token-first layout the rows of different heads alternate in memory, so no splitting of the slice into
/// contiguous parts can hand each task its own.
pub struct Disjoint<'a, T> {
    data: *mut T,
    len: usize,
    marker: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `row` and `range`, whose callers promise that no element is reached by two at once.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above; the pointer itself carries no thread affinity.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Takes the slice for the life of the tasks.
    pub fn new(data: &'a mut [T]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), marker: PhantomData }
    }

    /// Row `i` of `rows`, to write.
    ///
    /// # Safety
    /// No two live borrows, of any thread, may share an element.
    ///
    /// # Panics
    /// If the row does not lie within the slice.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn row(&self, rows: &Rows, i: usize) -> &mut [T] {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.range(rows.start(i), rows.width) }
    }

    /// Elements `start .. start + len`, to write.
    ///
    /// # Safety
    /// No two live borrows, of any thread, may share an element.
    ///
    /// # Panics
    /// If they do not lie within the slice.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn range(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "row outside its buffer");
        // SAFETY: in bounds as just checked, and the caller promises that nobody else holds these elements.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), len) }
    }
}
