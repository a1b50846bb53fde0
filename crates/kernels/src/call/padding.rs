//! The contents of padding never matter.
//!
//! Masks select: no kernel accumulates a masked score or multiplies a masked weight, so ordinary values in padding
//! leave no trace. But 0 times infinity is NaN, and a sum over many rows at once cannot skip one. Padded tokens that
//! hold infinities, NaN, or values whose products overflow therefore read as zeros: their rows are scanned before each
//! pass, and only a tensor that holds such a value is copied.

use std::{borrow::Cow, ops::Range};

use crate::{Layout, Mask, View, parallel, simd};

/// From this magnitude on, squares summed over a head and products with them approach the f32 overflow threshold: 2^40.
const WILD: f32 = (1u64 << 40) as f32;

/// Elements that one thread scans in some ten microseconds.
const SMALL: usize = 1 << 17;
/// Approximate number of elements per piece of padding, the unit of work for tasks.
const LONG: usize = 1 << 14;
const TASKS: usize = 64;

/// Element types of tensors.
pub(crate) trait Number: Copy + Default + Send + Sync {
    /// Whether all are finite and below 2^40 in magnitude.
    fn tame(numbers: &[Self]) -> bool;
}

impl Number for f32 {
    fn tame(numbers: &[Self]) -> bool {
        // Without the sign, the bits of floats are ordered by magnitude, with infinity and NaN at the top.
        let size = |x: &f32| x.to_bits() & !(1 << 31);
        let (blocks, rest) = numbers.as_chunks::<{ 4 * simd::LANES }>();
        let largest = simd::vectorize(
            #[inline(always)]
            || {
                let mut largest = [0u32; 4 * simd::LANES];
                for block in blocks {
                    for (largest, x) in largest.iter_mut().zip(block) {
                        *largest = size(x).max(*largest);
                    }
                }
                largest
            },
        );
        largest.into_iter().chain(rest.iter().map(size)).all(|size| size < WILD.to_bits())
    }
}

impl Number for f64 {
    fn tame(numbers: &[Self]) -> bool {
        numbers.iter().all(|x| x.abs() < f64::from(WILD))
    }
}

/// The tensors of a call as kernels and twins read them.
#[derive(Debug)]
pub(crate) struct Inputs<'a, T: Clone>(Vec<(Cow<'a, [T]>, &'a [usize])>);

impl<'a, T: Number> Inputs<'a, T> {
    /// The tensors `inputs` of these `names`, of which `q` and `x` hold one row per query, `k`, `v` and `x_kv` one per
    /// key, and the others no tokens. If there is no separate tensor of keys or values, the queries serve as these too.
    pub fn new(names: &[&str], layout: Layout, mask: &Mask, inputs: &[View<'a, T>]) -> Self {
        let masked = mask.valid.is_some() || mask.query_valid.is_some();
        let own = names.contains(&"x_kv") || ["k", "v"].iter().all(|name| names.contains(name));
        let read = |(name, input): (&&str, &View<'a, T>)| {
            let data = match (*name, masked) {
                ("q" | "x", true) => silenced(name, layout, input, |b, tokens| {
                    let (asked, seen) = (mask.query_row(b, tokens), mask.valid_row(b));
                    move |t| {
                        let padded = |row: Option<&[u8]>| row.is_some_and(|real| real[t] == 0);
                        padded(asked) && (own || padded(seen))
                    }
                }),
                ("k" | "v" | "x_kv", true) => silenced(name, layout, input, |b, _| {
                    let seen = mask.valid_row(b);
                    move |t| seen.is_some_and(|real| real[t] == 0)
                }),
                _ => Cow::Borrowed(input.data),
            };
            (data, input.shape)
        };
        Self(names.iter().zip(inputs).map(read).collect())
    }

    /// The elements of the tensors, in the order of the call.
    pub fn into_data(self) -> Vec<Cow<'a, [T]>> {
        self.0.into_iter().map(|(data, _)| data).collect()
    }

    /// The tensors, in the order of the call.
    pub fn views(&self) -> Vec<View<'_, T>> {
        self.0.iter().map(|(data, shape)| View { data, shape }).collect()
    }
}

/// The tensor with zeros in its `padded` tokens, if any of them is not tame.
fn silenced<'a, 'm, T: Number, P: Fn(usize) -> bool + 'm>(
    name: &str,
    layout: Layout,
    input: &View<'a, T>,
    padded: impl Fn(usize, usize) -> P,
) -> Cow<'a, [T]> {
    let pieces = Tokens::of(name, layout, input.shape).pieces(padded);
    let wild = |pieces: &[Range<usize>]| pieces.iter().any(|piece| !T::tame(&input.data[piece.clone()]));
    // Waking threads costs more than scanning a few elements.
    let found = match pieces.iter().map(|piece| piece.len()).sum::<usize>() {
        0..SMALL => wild(&pieces),
        _ => {
            let tasks: Vec<_> = pieces.chunks(pieces.len().div_ceil(TASKS)).collect();
            parallel::map(tasks.len(), |task| wild(tasks[task])).contains(&true)
        }
    };
    if !found {
        return Cow::Borrowed(input.data);
    }
    let mut data = input.data.to_vec();
    pieces.into_iter().for_each(|piece| data[piece].fill(T::default()));
    Cow::Owned(data)
}

/// Memory layout of the tokens of a tensor: `[batch, outer, count, width]`.
struct Tokens {
    batch: usize,
    outer: usize,
    count: usize,
    width: usize,
}

impl Tokens {
    fn of(name: &str, layout: Layout, shape: &[usize]) -> Self {
        let axis = match (name, layout) {
            ("x" | "x_kv", _) | (_, Layout::TokenFirst) => 1,
            (_, Layout::HeadFirst) => shape.len() - 2,
        };
        let product = |sizes: &[usize]| sizes.iter().product();
        Self {
            batch: shape[0],
            outer: product(&shape[1..axis]),
            count: shape[axis],
            width: product(&shape[axis + 1..]),
        }
    }

    /// Index ranges of padded tokens, with adjacent ones merged into pieces of bounded length.
    fn pieces<P: Fn(usize) -> bool>(&self, padded: impl Fn(usize, usize) -> P) -> Vec<Range<usize>> {
        let most = (LONG / self.width).max(1);
        let mut pieces = Vec::new();
        for b in 0..self.batch {
            let padded = padded(b, self.count);
            let mut runs: Vec<Range<usize>> = Vec::new();
            for t in (0..self.count).filter(|t| padded(*t)) {
                match runs.last_mut() {
                    Some(run) if run.end == t && run.len() < most => run.end += 1,
                    _ => runs.push(t..t + 1),
                }
            }
            for part in b * self.outer..(b + 1) * self.outer {
                let start = |t: usize| (part * self.count + t) * self.width;
                pieces.extend(runs.iter().map(|run| start(run.start)..start(run.end)));
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Padding;

    fn mask(real: &[u8]) -> Mask {
        Mask::none().with_valid(Some(Arc::new(Padding::new(1, real.len(), real.to_vec()).unwrap())))
    }

    #[test]
    fn only_tensors_with_wild_padding_are_copied() {
        let shape = [1, 2, 3, 2];
        let mut k: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let mask = mask(&[1, 0, 1]);
        let read = |k: &[f32], layout: Layout| {
            let inputs = Inputs::new(&["k", "v"], layout, &mask, &[View::new(k, &shape), View::new(k, &shape)]);
            let owned = inputs.0.iter().all(|(data, _)| matches!(data, Cow::Owned(_)));
            (owned, inputs.views()[0].data.to_vec())
        };
        assert_eq!(read(&k, Layout::HeadFirst), (false, k.clone()));
        // A real token may hold anything.
        k[0] = f32::NAN;
        assert!(!read(&k, Layout::HeadFirst).0);
        k[0] = 0.0;
        for junk in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -WILD, 3e38] {
            k[8] = junk;
            let (owned, seen) = read(&k, Layout::HeadFirst);
            assert!(owned);
            assert_eq!(seen, [0.0, 1.0, 0.0, 0.0, 4.0, 5.0, 6.0, 7.0, 0.0, 0.0, 10.0, 11.0]);
        }
    }

    #[test]
    fn queries_are_silenced_where_nobody_reads_them() {
        let (shape, q) = ([1, 2, 1, 1], [f64::NAN, f64::NAN]);
        let mut mask = mask(&[0, 1]);
        mask.query_valid = Some(Arc::new(Padding::new(1, 2, vec![0, 0]).unwrap()));
        let read = |names: &[&str]| {
            let views = vec![View::new(&q, &shape); names.len()];
            Inputs::new(names, Layout::TokenFirst, &mask, &views).views()[0].data.to_vec()
        };
        assert_eq!(read(&["q", "k", "v"]), [0.0, 0.0]);
        // The second token is a real key, so that what it holds counts.
        assert!(read(&["q", "v"])[0] == 0.0 && read(&["q", "v"])[1].is_nan());
    }
}
