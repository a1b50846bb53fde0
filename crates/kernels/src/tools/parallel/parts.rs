//! Scratch memory in parts, with each size next to its name.

/// Floats between cache lines: parts start on one, since vectors that straddle two lines cost two accesses.
const LINE: usize = 16;

/// Lends a block parts of one scratch buffer, of arbitrary content: `with_parts!(x = rows * columns, sums = rows, { .. })`.
macro_rules! with_parts {
    ($($name:ident = $size:expr),+, $body:block) => {
        $crate::parallel::lend_parts([$($size),+], |[$($name),+]| $body)
    };
}
pub(crate) use with_parts;

/// The expansion of [`with_parts`].
pub(crate) fn lend_parts<const PARTS: usize, R>(
    sizes: [usize; PARTS],
    task: impl FnOnce([&mut [f32]; PARTS]) -> R,
) -> R {
    let floats = Parts::floats(|parts| sizes.map(|size| parts.take(size)));
    super::with_scratch(floats + LINE, |scratch| {
        let first = scratch.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        let mut parts = Parts::new(&mut scratch[first..]);
        task(sizes.map(|size| parts.take(size)))
    })
}

/// Hands out consecutive parts of a buffer, for a type whose fields they become.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    /// `None` if sizes are only counted.
    rest: Option<&'a mut [f32]>,
    floats: usize,
}

impl<'a> Parts<'a> {
    /// Parts of `memory`, which is itself a part with the length from [`Parts::floats`].
    pub fn new(memory: &'a mut [f32]) -> Self {
        Self { rest: Some(memory), floats: 0 }
    }

    /// Floats needed for the parts that `lay_out` takes; it receives empty ones.
    pub fn floats<T>(lay_out: impl FnOnce(&mut Self) -> T) -> usize {
        let mut parts = Self { rest: None, floats: 0 };
        lay_out(&mut parts);
        parts.floats
    }

    /// The next `len` floats, of arbitrary content.
    pub fn take(&mut self, len: usize) -> &'a mut [f32] {
        let whole = len.next_multiple_of(LINE);
        self.floats += whole;
        let Some(memory) = self.rest.take() else { return &mut [] };
        let (part, rest) = memory.split_at_mut(whole);
        self.rest = Some(rest);
        &mut part[..len]
    }
}
