//! What a call of attention over pairs is, without its tensors.

use crate::{
    Pass, Passes, Tile, Traffic,
    kernel::{
        Form,
        ranges::{first_key, last_key},
    },
    traffic::of_kernel,
};

/// What scores are, and which keys a query sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Scores are half squared distances, negative, instead of products.
    pub distances: bool,
    /// Hides keys after the query's own position; query `i` of `N` is at position `i + S - N`.
    pub causal: bool,
    /// Largest distance between a query's position and a visible key.
    pub window: Option<usize>,
}

/// Sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences, `B`.
    pub batch: usize,
    /// Queries, `N`.
    pub queries: usize,
    /// Keys, `S`.
    pub keys: usize,
    /// Query heads, `H`.
    pub heads: usize,
    /// Key heads, `Hk`.
    pub key_heads: usize,
    /// Components, `M`.
    pub components: usize,
    /// Channels of queries and keys, `D`.
    pub width: usize,
    /// Channels of values, `Dv`.
    pub value_width: usize,
}

/// All that decides how a call runs, but for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What scores are.
    pub call: Call,
    /// Sizes.
    pub sizes: Sizes,
    /// There is padding.
    pub padded: bool,
    /// There are slopes.
    pub slopes: bool,
    /// Axes of the log prior, 0 without one.
    pub prior_axes: usize,
}

impl Setting {
    pub(crate) fn form(&self, tile: Tile) -> Form {
        Form {
            tile,
            width: self.sizes.width,
            value_width: self.sizes.value_width,
            components: self.sizes.components,
            distances: self.call.distances,
            causal: self.call.causal,
            window: self.call.window.is_some(),
            padded: self.padded,
            slopes: self.slopes,
            prior: self.prior_axes > 0,
            positions: self.prior_axes == 3,
        }
    }

    pub(crate) fn reach(&self) -> usize {
        self.call.window.unwrap_or(0).min(self.sizes.queries + self.sizes.keys)
    }

    pub(crate) fn tiles(&self, pass: Pass, shared: usize, threads: usize) -> Vec<Tile> {
        Tile::fitting(pass, [self.sizes.width, self.sizes.value_width], shared, threads)
    }

    /// Calls of one kind run best by the same tile: all but lengths are alike, and these up to a factor of 2.
    #[cfg(feature = "autotune")]
    pub(crate) fn kind(&self, pass: Pass) -> String {
        let Sizes { batch, queries, keys, heads, .. } = self.sizes;
        let about = |size: usize| size.next_power_of_two();
        let sizes = Sizes { batch: about(batch * heads), queries: about(queries), keys: about(keys), ..self.sizes };
        let window = self.call.window.map(about);
        format!("{pass:?} {:?}", Self { call: Call { window, ..self.call }, sizes, ..*self })
    }

    /// Bytes of the forward and of the backward pass, with floats of `float` bytes, on a device with `shared` bytes of shared
    /// memory and `threads` threads for a block of them; nothing where no tile fits.
    pub fn traffic(&self, float: usize, shared: usize, threads: usize) -> Option<[Traffic; 2]> {
        let of = |pass| {
            let tile = *self.tiles(pass, shared, threads).first()?;
            Some(of_kernel(pass, &self.form(tile), &self.sizes, self.reach(), float))
        };
        Some([of(Pass::Forward)?, of(Pass::Queries)?.plus(of(Pass::Keys)?)])
    }
}

impl Setting {
    /// Pairs of a head that blocks of so many queries look at, each at all keys that one of them may see.
    fn pairs(&self, block: usize) -> usize {
        let Sizes { queries: n, keys: s, .. } = self.sizes;
        let (causal, limited, reach) = (self.call.causal, self.call.window.is_some(), self.reach());
        let seen = |first: usize| {
            let last = n.min(first + block);
            let end = last_key(last, n, s, reach, causal, limited);
            (last - first) * end.saturating_sub(first_key(first, n, s, reach, limited))
        };
        (0..n).step_by(block).map(seen).sum()
    }

    /// Bytes of both passes of causal scores on a window and features before it, where `far` is what the features' kernels move:
    /// theirs, those of the kernels for the window, and those of tensor operations that join both, which read or write numbers of
    /// the outputs' size 11 times forward and 4 times backward.
    pub fn window_traffic(&self, far: [Traffic; 2], float: usize, shared: usize, threads: usize) -> Option<[u64; 2]> {
        let near = self.traffic(float, shared, threads)?;
        let Sizes { batch, queries, heads, value_width, .. } = self.sizes;
        let outputs = (batch * queries * heads * value_width * float) as u64;
        let join = [11, 4].map(|times| times * outputs);
        Some(std::array::from_fn(|pass| near[pass].total() + far[pass].total() + join[pass]))
    }

    /// Fewest bytes of the composed form of the same: for each pair that blocks of 128 queries or as many as the window look at,
    /// 21 numbers forward (two products, their scales and logarithms, choice, mask, exponentials, product with the values), and
    /// backward these again and as many for Burn's rules.
    pub fn window_composed_bytes(&self, float: usize) -> [u64; 2] {
        const FEWEST: usize = 128;
        let pairs = self.pairs(FEWEST.max(self.reach()));
        let forward = (21 * self.sizes.batch * self.sizes.heads * pairs * float) as u64;
        [forward, 2 * forward]
    }

    /// Fewest bytes of the forward and of the backward pass of the form that is composed of tensor operations, with floats of
    /// `float` bytes: see [`Passes`].
    pub fn composed_bytes(&self, float: usize) -> [u64; 2] {
        /// Bytes of a block of queries, and tensors of the size of its scores.
        const BLOCK: usize = (192 << 20) / 6;
        let Sizes { batch, queries: n, keys: s, heads, key_heads, components, width, value_width } = self.sizes;
        let Call { distances, causal, window } = self.call;
        let block = (BLOCK / (batch * heads * components * s * float).max(1)).clamp(1, n.max(1));
        let limited = window.is_some();
        let masked = causal || limited || self.padded;
        let passes = match distances || components > 1 {
            true => Passes::mixture(components, distances, masked),
            false => Passes::softmax(masked),
        };
        // Products read and write rows too.
        let queries = batch * n * heads * (width + value_width);
        let keys = batch * s * key_heads * (components * width + value_width);
        let [forward, backward] = passes.bytes((batch * heads * self.pairs(block)) as u64, float);
        let own = ((queries + keys) * float) as u64;
        [forward + own, backward + 3 * own]
    }
}
