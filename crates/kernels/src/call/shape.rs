//! Sizes of one attention call and the location of each head's rows in its buffers.

use crate::Error;

/// Order of the axes in every buffer of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// `q [B,H,N,D]`, `k [B,Hk,S,D]` (mixtures `[B,Hk,M,S,D]`), `v [B,Hk,S,Dv]`, `out [B,H,N,Dv]`: the layout of files.
    #[default]
    HeadFirst,
    /// `q [B,N,H,D]`, `k [B,S,Hk,D]` (mixtures `[B,S,M,Hk,D]`), `v [B,S,Hk,Dv]`, `out [B,N,H,Dv]`: what a projection of
    /// the tokens yields, so that no layer transposes.
    TokenFirst,
}

/// Sizes of one attention call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Batch rows `B`.
    pub batch: usize,
    /// Query heads `H`, a multiple of `key_heads`.
    pub heads: usize,
    /// Key and value heads `Hk`; query head `h` reads key head `h / (H / Hk)`.
    pub key_heads: usize,
    /// Queries `N`.
    pub queries: usize,
    /// Keys `S`.
    pub keys: usize,
    /// Head width `D` of queries and keys.
    pub head_width: usize,
    /// Head width `Dv` of values.
    pub value_width: usize,
    /// Keys per position `M` in the key buffer; 1 if keys are not a mixture or are shifted copies of one.
    pub components: usize,
    /// Axis order of all buffers.
    pub layout: Layout,
}

/// The rows of one head: element `(i, c)` is at `offset + i * stride + c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Index of the first element.
    pub offset: usize,
    /// Distance between rows.
    pub stride: usize,
    /// Number of rows.
    pub count: usize,
    /// Elements per row.
    pub width: usize,
}

impl Rows {
    /// Index of the first element of row `i`.
    #[inline(always)]
    pub fn start(&self, i: usize) -> usize {
        self.offset + i * self.stride
    }

    /// Row `i` of `data`.
    #[inline(always)]
    pub fn row<'a, T>(&self, data: &'a [T], i: usize) -> &'a [T] {
        let start = self.start(i);
        &data[start..start + self.width]
    }

    /// Row `i` of `data`, mutable.
    #[inline(always)]
    pub fn row_mut<'a, T>(&self, data: &'a mut [T], i: usize) -> &'a mut [T] {
        let start = self.start(i);
        &mut data[start..start + self.width]
    }

    /// Rows `from .. from + count` alone.
    #[inline(always)]
    pub fn slice(&self, from: usize, count: usize) -> Rows {
        debug_assert!(from + count <= self.count);
        Rows { offset: self.start(from), count, ..*self }
    }
}

impl AttentionShape {
    /// Infers the sizes from the tensors' shapes. `mixture` says whether `k` has an axis of components.
    ///
    /// # Errors
    /// Ranks other than 4 (5 for the keys of a mixture), sizes that disagree, `H` not a multiple of `Hk`, or a size 0.
    pub fn from_tensors(q: &[usize], k: &[usize], v: &[usize], layout: Layout, mixture: bool) -> Result<Self, Error> {
        let rank = |name: &'static str, seen: &[usize], expected: usize| {
            if seen.len() == expected { Ok(()) } else { Err(Error::rank(name, seen, expected)) }
        };
        rank("q", q, 4)?;
        rank("k", k, if mixture { 5 } else { 4 })?;
        rank("v", v, 4)?;
        let head_first = layout == Layout::HeadFirst;
        let (heads, queries) = if head_first { (q[1], q[2]) } else { (q[2], q[1]) };
        let (key_heads, keys, components) = match (head_first, mixture) {
            (true, false) => (k[1], k[2], 1),
            (true, true) => (k[1], k[3], k[2]),
            (false, false) => (k[2], k[1], 1),
            (false, true) => (k[3], k[1], k[2]),
        };
        let shape = AttentionShape {
            batch: q[0],
            heads,
            key_heads,
            queries,
            keys,
            head_width: q[3],
            value_width: v[3],
            components,
            layout,
        };
        for (name, tensor) in [("q", q), ("k", k), ("v", v)] {
            if tensor.contains(&0) {
                return Err(Error::shape(name, tensor, "every size at least 1"));
            }
        }
        Error::check_shape("k", k, &shape.key_shape(mixture))?;
        Error::check_shape("v", v, &shape.value_shape())?;
        if !heads.is_multiple_of(key_heads) {
            return Err(Error::option(
                "heads",
                format!("{heads} query heads over {key_heads} key heads"),
                "a number of query heads that is a multiple of the key heads",
            ));
        }
        Ok(shape)
    }

    /// Shape of `q`.
    pub fn query_shape(&self) -> Vec<usize> {
        self.order(self.heads, self.queries, self.head_width)
    }

    /// Shape of `k`; with the axis of components if `mixture`.
    pub fn key_shape(&self, mixture: bool) -> Vec<usize> {
        let Self { batch, key_heads, keys, head_width, components, .. } = *self;
        match (self.layout, mixture) {
            (_, false) => self.order(key_heads, keys, head_width),
            (Layout::HeadFirst, true) => vec![batch, key_heads, components, keys, head_width],
            (Layout::TokenFirst, true) => vec![batch, keys, components, key_heads, head_width],
        }
    }

    /// Shape of `v`.
    pub fn value_shape(&self) -> Vec<usize> {
        self.order(self.key_heads, self.keys, self.value_width)
    }

    /// Shape of `out`.
    pub fn out_shape(&self) -> Vec<usize> {
        self.order(self.heads, self.queries, self.value_width)
    }

    fn order(&self, heads: usize, tokens: usize, width: usize) -> Vec<usize> {
        match self.layout {
            Layout::HeadFirst => vec![self.batch, heads, tokens, width],
            Layout::TokenFirst => vec![self.batch, tokens, heads, width],
        }
    }

    /// Query heads that share one key head.
    #[inline(always)]
    pub fn group(&self) -> usize {
        self.heads / self.key_heads
    }

    /// Rows of query head `h` in `q` (and in its gradient).
    pub fn query_rows(&self, b: usize, h: usize) -> Rows {
        self.rows(b, h, self.heads, self.queries, self.head_width)
    }

    /// Rows of component `r` of key head `h` in `k` (and in its gradient).
    pub fn key_rows(&self, b: usize, h: usize, r: usize) -> Rows {
        let Self { key_heads, keys, head_width, components, .. } = *self;
        match self.layout {
            Layout::HeadFirst => self.rows(b, h * components + r, key_heads * components, keys, head_width),
            Layout::TokenFirst => self.rows(b, r * key_heads + h, key_heads * components, keys, head_width),
        }
    }

    /// Rows of key head `h` in `v` (and in its gradient).
    pub fn value_rows(&self, b: usize, h: usize) -> Rows {
        self.rows(b, h, self.key_heads, self.keys, self.value_width)
    }

    /// Rows of query head `h` in `out` (and in its gradient).
    pub fn out_rows(&self, b: usize, h: usize) -> Rows {
        self.rows(b, h, self.heads, self.queries, self.value_width)
    }

    fn rows(&self, b: usize, h: usize, heads: usize, count: usize, width: usize) -> Rows {
        match self.layout {
            Layout::HeadFirst => Rows { offset: (b * heads + h) * count * width, stride: width, count, width },
            Layout::TokenFirst => {
                Rows { offset: b * count * heads * width + h * width, stride: heads * width, count, width }
            }
        }
    }
}
