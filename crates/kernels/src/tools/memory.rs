//! Buffers that callers fill.

/// `len` numbers of arbitrary value, for callers that fill every element: zeros first would cost as much memory traffic as the
/// result itself, in one thread. With debug assertions they are NaN, which no test takes for a result.
pub fn arbitrary(len: usize) -> Vec<f32> {
    if cfg!(debug_assertions) {
        return vec![f32::NAN; len];
    }
    unwritten(len)
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn unwritten(len: usize) -> Vec<f32> {
    let mut buffer = Vec::with_capacity(len);
    // SAFETY: there is no instruction in it. But to the compiler it may have written any numbers to the memory that it is
    // handed; every bit pattern is one, so that from here on the memory holds `len` of them.
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
