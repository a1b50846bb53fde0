//! Threads and scratch memory: the only code that uses rayon.
//!
//! A kernel cuts its work into tasks whose number and bounds depend on sizes alone, never on the number of threads;
//! each task does its sums in a fixed order and owns its part of the output. So any number of threads gives the same bits.

mod disjoint;
mod parts;
mod team;

pub use disjoint::Disjoint;
pub(crate) use parts::{Parts, lend_parts, with_parts};
pub use team::{Team, threads};

use std::{cell::RefCell, ops::Range};

use crate::simd;

/// Runs `task(0) .. task(count - 1)` on this thread and those of the current pool, in any order.
pub fn for_each(count: usize, task: impl Fn(usize) + Sync) {
    match threads().min(count) {
        0 | 1 => (0..count).for_each(task),
        threads => team::share(count, threads - 1, &task),
    }
}

/// Results of `task` for `0 .. count`, in order.
pub(crate) fn map<T: Send>(count: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let mut made: Vec<Option<T>> = (0..count).map(|_| None).collect();
    for_each_part(&mut made, 1, |n, made| made[0] = Some(task(n)));
    made.into_iter().flatten().collect()
}

/// `range` in runs of `length`, the last of which may be shorter.
pub(crate) fn runs(
    range: Range<usize>,
    length: usize,
) -> impl DoubleEndedIterator<Item = Range<usize>> + ExactSizeIterator {
    let end = range.end;
    range.step_by(length.max(1)).map(move |start| start..(start + length).min(end))
}

/// Runs `task(n, part)` for the parts of `len` elements of a buffer, the last of which may be shorter.
///
/// # Panics
/// If `len` is 0.
pub fn for_each_part<T: Send>(buffer: &mut [T], len: usize, task: impl Fn(usize, &mut [T]) + Sync) {
    let (count, total) = (buffer.len().div_ceil(len), buffer.len());
    let shared = Disjoint::new(buffer);
    for_each(count, |n| {
        let start = n * len;
        // SAFETY: each task has its own part.
        task(n, unsafe { shared.range(start, len.min(total - start)) });
    });
}

/// Floats of a long buffer per task.
const BLOCK: usize = 1 << 14;

/// Fills a buffer with zeros.
pub(crate) fn clear(buffer: &mut [f32]) {
    for_each_part(buffer, BLOCK, |_, block| block.fill(0.0));
}

/// Adds `copies`, each of the length of `sums`, one after another.
pub(crate) fn add_copies(sums: &mut [f32], copies: &[f32]) {
    let len = sums.len();
    if copies.is_empty() {
        return;
    }
    for_each_part(sums, BLOCK, |n, sums| {
        let block = n * BLOCK..n * BLOCK + sums.len();
        simd::vectorize(
            #[inline(always)]
            || {
                for copy in copies.chunks_exact(len) {
                    simd::add_scaled(sums, 1.0, &copy[block.clone()]);
                }
            },
        );
    });
}

/// Buffers that a thread keeps between calls: mapping a large fresh buffer takes more time than filling it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    /// For one task.
    Scratch,
    /// For data shared by the tasks of one call.
    Shared,
    /// For the transposed operand of a product.
    Turned,
    /// For packed rows of a product.
    Panel,
}

thread_local! {
    static KEPT: [RefCell<Vec<f32>>; 4] = const { [const { RefCell::new(Vec::new()) }; 4] };
}

/// Largest buffer of a kind, in floats, that a thread keeps between calls: 64 MiB.
const KEPT_MOST: usize = 1 << 24;

/// Lends `task` a buffer of `len` floats of arbitrary content; beyond 64 MiB it is freed afterwards.
///
/// A nested request for the same kind gets a separate buffer.
pub(crate) fn lend<R>(memory: Memory, len: usize, task: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = KEPT.with(|kept| kept[memory as usize].take());
    if buffer.len() < len {
        drop(std::mem::take(&mut buffer));
        buffer = vec![0.0; len];
    }
    let result = task(&mut buffer[..len]);
    if buffer.len() <= KEPT_MOST {
        KEPT.with(|kept| kept[memory as usize].replace(buffer));
    }
    result
}

/// Lends `task` scratch memory, `len` floats of arbitrary content.
pub(crate) fn with_scratch<R>(len: usize, task: impl FnOnce(&mut [f32]) -> R) -> R {
    lend(Memory::Scratch, len, task)
}

/// Lends `call` `len` floats of arbitrary content, shared by its tasks.
pub(crate) fn with_shared<R>(len: usize, call: impl FnOnce(&mut [f32]) -> R) -> R {
    lend(Memory::Shared, len, call)
}

/// Frees the buffers that threads keep between calls, so that the next measurement starts without them.
pub fn release_scratch() {
    team::on_all(|| KEPT.with(|kept| kept.iter().for_each(|buffer| drop(buffer.take()))));
}

/// Cuts a scratch buffer into consecutive parts of these sizes.
///
/// # Panics
/// If the buffer is shorter than their sum.
pub(crate) fn split<const PARTS: usize>(mut scratch: &mut [f32], sizes: [usize; PARTS]) -> [&mut [f32]; PARTS] {
    sizes.map(|size| {
        let (part, rest) = std::mem::take(&mut scratch).split_at_mut(size);
        scratch = rest;
        part
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::{Matrix, Write, product};

    /// Floats that this thread keeps.
    fn kept() -> usize {
        KEPT.with(|kept| kept.iter().map(|buffer| buffer.borrow().len()).sum())
    }

    #[test]
    fn buffers_of_every_kind_are_released() {
        for memory in [Memory::Scratch, Memory::Shared, Memory::Turned, Memory::Panel] {
            release_scratch();
            assert_eq!(kept(), 0);
            lend(memory, 100, |buffer| assert_eq!(buffer.len(), 100));
            assert_eq!(kept(), 100);
        }
        release_scratch();
        let (a, mut dst) = (vec![1.0; 16 * 16], vec![0.0; 16 * 16]);
        let rows = Matrix::rows(&a, 16);
        product((16, 16, 16), 1.0, rows, rows.transposed(), Write::Over, &mut dst, 16);
        assert!(kept() > 0, "the operand was turned");
        release_scratch();
        assert_eq!(kept(), 0);
    }

    #[test]
    fn a_buffer_beyond_the_limit_is_given_back() {
        for memory in [Memory::Scratch, Memory::Shared] {
            release_scratch();
            lend(memory, KEPT_MOST + 1, |buffer| buffer[KEPT_MOST] = 1.0);
            assert_eq!(kept(), 0);
            lend(memory, KEPT_MOST, |_| lend(memory, 10, |inner| assert_eq!(inner.len(), 10)));
            assert_eq!(kept(), KEPT_MOST);
        }
        release_scratch();
    }
}
