//! Uninitialised buffers for callers to fill.

/// `len` arbitrary floats, for callers that fill every element: zeroing first would cost as much memory traffic as the
/// result itself, in one thread. With debug assertions they are NaN, so that tests notice unwritten elements.
pub fn arbitrary(len: usize) -> Vec<f32> {
    if cfg!(debug_assertions) {
        return vec![f32::NAN; len];
    }
    unwritten(len)
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn unwritten(len: usize) -> Vec<f32> {
    let mut buffer = Vec::with_capacity(len);
    // SAFETY: it contains no instructions. But to the compiler it may have written any floats to the memory passed to
    // it; every bit pattern is a valid float, so that from here on the memory holds `len` of them.
    unsafe {
        std::arch::asm!("/* {} */", in(reg) buffer.as_mut_ptr(), options(nostack, preserves_flags));
        buffer.set_len(len);
    }
    buffer
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn unwritten(len: usize) -> Vec<f32> {
    vec![0.0; len]
}
