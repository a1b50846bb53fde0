//! Threads and scratch memory: the only place that knows rayon.
//!
//! A kernel cuts its work into tasks whose number and bounds depend on sizes alone, never on the number of threads;
//! each task does its sums in a fixed order and owns its part of the output. So any number of threads gives the same bits.

mod disjoint;

pub use disjoint::Disjoint;

use std::cell::RefCell;

use rayon::prelude::*;

use crate::simd;

/// Runs `task(0) .. task(count - 1)` on the current pool, in any order.
pub fn for_each(count: usize, task: impl Fn(usize) + Sync + Send) {
    if count == 1 {
        task(0);
    } else {
        (0..count).into_par_iter().with_max_len(1).for_each(task);
    }
}

/// What `task` makes of `0 .. count`, in this order.
pub fn map<T: Send>(count: usize, task: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
    (0..count).into_par_iter().with_max_len(1).map(task).collect()
}

/// Floats of a long buffer that one task passes over.
const BLOCK: usize = 1 << 14;

/// Fills a buffer with zeros.
pub fn clear(buffer: &mut [f32]) {
    buffer.par_chunks_mut(BLOCK).for_each(|block| block.fill(0.0));
}

/// Adds `copies`, each of the length of `sums`, one after another.
pub fn add_copies(sums: &mut [f32], copies: &[f32]) {
    let len = sums.len();
    if copies.is_empty() {
        return;
    }
    sums.par_chunks_mut(BLOCK).enumerate().for_each(|(n, sums)| {
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

/// Threads of the current pool.
pub fn threads() -> usize {
    rayon::current_num_threads()
}

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    static SHARED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Largest buffer, in floats, that a thread keeps between calls: 64 MiB.
const SHARED_MOST: usize = 1 << 24;

/// Lends `task` a buffer of `len` floats of arbitrary content, kept by the thread between calls.
///
/// A task that asks again inside `task` gets a buffer of its own.
pub fn with_scratch<R>(len: usize, task: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = SCRATCH.take();
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    let result = task(&mut buffer[..len]);
    SCRATCH.replace(buffer);
    result
}

/// Lends `call` a buffer of `len` floats of arbitrary content for what the tasks of one call share, kept by the calling
/// thread: a large buffer that comes fresh from the system costs more time to be mapped than to be filled.
///
/// Beyond 64 MiB it is given back. A call inside `call` gets a buffer of its own.
pub fn with_shared<R>(len: usize, call: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = SHARED.take();
    if buffer.len() < len {
        buffer = vec![0.0; len];
    }
    let result = call(&mut buffer[..len]);
    if buffer.len() <= SHARED_MOST {
        SHARED.replace(buffer);
    }
    result
}

/// Frees the scratch memory of all threads, so that what is measured next pays for its own.
pub fn release_scratch() {
    let release = || {
        SCRATCH.take();
        SHARED.take();
    };
    release();
    rayon::broadcast(|_| {
        release();
    });
}

/// Lends `task` parts of these sizes of one scratch buffer, each of which starts at a cache line: vectors that straddle two
/// lines cost two accesses.
pub fn with_parts<const PARTS: usize, R>(sizes: [usize; PARTS], task: impl FnOnce([&mut [f32]; PARTS]) -> R) -> R {
    const LINE: usize = 16;
    let rounded = sizes.map(|size| size.next_multiple_of(LINE));
    with_scratch(rounded.iter().sum::<usize>() + LINE, |scratch| {
        let first = scratch.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        let mut parts = split(&mut scratch[first..], rounded);
        for (part, size) in parts.iter_mut().zip(sizes) {
            *part = &mut std::mem::take(part)[..size];
        }
        task(parts)
    })
}

/// Cuts a scratch buffer into consecutive parts of these sizes.
///
/// # Panics
/// If the buffer is shorter than their sum.
pub fn split<const PARTS: usize>(mut scratch: &mut [f32], sizes: [usize; PARTS]) -> [&mut [f32]; PARTS] {
    sizes.map(|size| {
        let (part, rest) = std::mem::take(&mut scratch).split_at_mut(size);
        scratch = rest;
        part
    })
}
