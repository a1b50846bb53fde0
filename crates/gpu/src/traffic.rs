//! Bytes that go between a device's memory and its threads, counted.
//!
//! A kernel's count follows its loops: what a block of threads loads into shared memory or reads at once counts once, whichever of
//! its threads reads it; single numbers that are the same for a whole block do not count. The count of a composed form is a lower
//! bound: each tensor operation reads its operands once and writes its result once, and tensors with
//! a number for each pair of a query and a key count so, and inputs and results once.

use crate::{
    Pass, Sizes,
    kernel::{
        Form,
        ranges::{first_key, first_query, last_key, last_query},
    },
};

/// Bytes of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the device's memory.
    pub read: u64,
    /// To it.
    pub written: u64,
}

impl Traffic {
    /// Of one after the other.
    #[must_use]
    pub fn plus(&self, other: Self) -> Self {
        Self { read: self.read + other.read, written: self.written + other.written }
    }

    /// Both.
    pub fn total(&self) -> u64 {
        self.read + self.written
    }
}

/// Bytes of float32.
const WIDE: usize = 4;

/// Of one kernel, with floats of `float` bytes.
pub(crate) fn of_kernel(pass: Pass, form: &Form, sizes: &Sizes, reach: usize, float: usize) -> Traffic {
    let Sizes { batch, queries: n, keys: s, heads, key_heads, components, width, value_width } = *sizes;
    let (rows, columns) = (form.tile.rows, form.tile.columns);
    let per_key = (usize::from(form.positions) + usize::from(form.padded)) * WIDE;
    let (mut read, mut written) = (0, 0);
    match pass {
        Pass::Forward | Pass::Queries => {
            for first in (0..n).step_by(rows) {
                let last = n.min(first + rows);
                let start = first_key(first, n, s, reach, form.window) / columns * columns;
                let end = last_key(last, n, s, reach, form.causal, form.window).div_ceil(columns) * columns;
                let met = s.min(end).saturating_sub(start);
                let tokens = last - first;
                read += met * ((value_width + components * width) * float + components * per_key);
                read += tokens * width * float;
                if pass == Pass::Forward {
                    written += tokens * (value_width * float + WIDE);
                } else {
                    // The output, its gradient and the log-sum-exp.
                    read += tokens * (2 * value_width * float + WIDE);
                    written += tokens * (width * float + WIDE);
                }
            }
            read *= heads;
            written *= heads;
        }
        Pass::Keys => {
            for first in (0..s).step_by(rows) {
                let last = s.min(first + rows);
                let start = first_query(first, n, s, reach, form.causal, form.window) / columns * columns;
                let end = last_query(last, n, s, reach, form.window).div_ceil(columns) * columns;
                let met = n.min(end).saturating_sub(start);
                let tokens = last - first;
                let group = heads / key_heads;
                read += components * group * met * ((width + value_width) * float + 2 * WIDE);
                read += tokens * ((value_width + components * width) * float + components * group * per_key);
                written += tokens * (value_width + components * width) * float;
                written += tokens * components * group * usize::from(form.prior) * WIDE + components * WIDE;
            }
            read *= key_heads;
            written *= key_heads;
        }
    }
    Traffic { read: (batch * read) as u64, written: (batch * written) as u64 }
}

/// How often the composed form of a call reads or writes a number for each pair of a query and a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// In the forward pass.
    pub forward: usize,
    /// In the backward pass, which makes the forward pass of each block again.
    pub backward: usize,
}

impl Passes {
    /// Of softmax. Forward: the product writes scores; the maximum reads them; differences, exponentials and quotients each
    /// read and write; the sum and the product with the values read. A mask fills scores and exponentials. Backward, for each of
    /// these what Burn's rule for it reads and writes: product 2, quotient 10, sum 3, exponential 3, product 2.
    pub const fn softmax(masked: bool) -> Self {
        let fills = if masked { 4 } else { 0 };
        Self { forward: 10 + fills, backward: 10 + fills + 20 + fills }
    }

    /// Of a mixture of keys. Each component: the product writes, quotients and priors read and write; with distances the double of
    /// the product reads and writes, norms write, differences read two and write. Then a log-sum-exp over components, where there
    /// are several, and a softmax.
    pub const fn mixture(components: usize, distances: bool, masked: bool) -> Self {
        let softmax = Self::softmax(masked);
        let (sum, sum_back) = if components > 1 { (6 * components + 5, 2 * components + 3) } else { (0, 0) };
        let apart = if distances { 6 * components } else { 0 };
        let forward = 5 * components + apart + sum + softmax.forward - 1;
        let rules = softmax.backward - softmax.forward - 2 + 5 * components + apart + sum_back;
        Self { forward, backward: forward + rules }
    }
}

impl Passes {
    /// Bytes of the forward and of the backward pass over these pairs, with floats of `float` bytes.
    pub fn bytes(&self, pairs: u64, float: usize) -> [u64; 2] {
        [self.forward, self.backward].map(|passes| passes as u64 * pairs * float as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tile;

    #[test]
    fn a_small_call_is_counted_by_hand() {
        let form = Form {
            tile: Tile { rows: 2, columns: 2, across: 1, down: 1 },
            width: 3,
            value_width: 5,
            components: 2,
            distances: true,
            causal: true,
            window: false,
            padded: true,
            slopes: false,
            prior: true,
            positions: true,
        };
        let sizes =
            Sizes { batch: 1, queries: 3, keys: 3, heads: 2, key_heads: 1, components: 2, width: 3, value_width: 5 };
        let of = |pass| of_kernel(pass, &form, &sizes, 0, 4);
        // Queries 0 and 1 meet keys 0 and 1, query 2 all three: 5 keys a head, of each its value, its keys, priors and padding.
        let keys = 2 * 5 * (5 + 2 * 3 + 2 + 2) * 4;
        assert_eq!(of(Pass::Forward), Traffic { read: keys + 2 * 3 * 3 * 4, written: 2 * 3 * (5 + 1) * 4 });
        assert_eq!(of(Pass::Queries), Traffic { read: keys + 2 * 3 * (3 + 11) * 4, written: 2 * 3 * (3 + 1) * 4 });
        // Keys 0 and 1 meet all queries, key 2 those from the tile of query 2 on: 4 queries, for 2 heads and components.
        let queries = 2 * 2 * 4 * (3 + 5 + 2) * 4;
        let own = 3 * (5 + 2 * 3 + 2 * 2 * 2) * 4;
        let written = 3 * (5 + 2 * 3 + 2 * 2) * 4 + 2 * 2 * 4;
        assert_eq!(of(Pass::Keys), Traffic { read: queries + own, written });
    }
}
