//! The binary `regard`: see the library beside it.

use std::process::ExitCode;

use regard_alloc::{CountingAllocator, keep_freed_buffers};

/// Peaks of memory are measured one mechanism at a time, in one process.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    keep_freed_buffers();
    regard_cli::main()
}
