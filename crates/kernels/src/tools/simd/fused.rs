//! Products that are added to something.

/// `a b + c` in one step.
pub trait MultiplyAdd {
    /// `self * b + c`, rounded once; on WebAssembly, which has no such instruction, rounded twice: a correctly rounded
    /// result would be a call of a library for each number.
    #[must_use]
    fn multiply_add(self, b: Self, c: Self) -> Self;
}

impl MultiplyAdd for f32 {
    #[inline(always)]
    fn multiply_add(self, b: Self, c: Self) -> Self {
        if cfg!(target_arch = "wasm32") { self * b + c } else { self.mul_add(b, c) }
    }
}
