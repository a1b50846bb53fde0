//! Records of what the parts of a model did in one pass, for inspection.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Collects records from all layers that a forward pass goes through.
#[derive(Debug)]
pub struct Log<T> {
    records: Mutex<Vec<T>>,
}

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self { records: Mutex::default() }
    }
}

impl<T> Log<T> {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a record.
    pub(crate) fn push(&self, record: T) {
        self.lock().push(record);
    }

    /// All records so far, in the order in which they were made; the log is empty then.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        // A panic elsewhere leaves the records whole.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
