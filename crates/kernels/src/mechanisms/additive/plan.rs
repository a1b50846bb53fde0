//! Shared by both passes: the call's sizes and tensors, its blocks of rows, and the running average.

use std::ops::Range;

use crate::{AttentionShape, Mask, Rows, View, mechanism::AdditiveScores, simd::MultiplyAdd};

use super::Additive;

/// Rows per task. A product packs `w_t` again for each block: with 512 channels 256 rows took a tenth less time than
/// 128, 512 rows only slightly less, and a block of `u` and one of the output still fit in an L2 cache of 2 MiB.
pub(super) const BLOCK: usize = 256;

/// One call: its sizes and its tensors.
pub(super) struct Plan<'a> {
    pub shape: AttentionShape,
    pub mask: &'a Mask,
    pub causal: bool,
    /// Whether the score vector of a head covers all channels.
    pub released: bool,
    /// Whether values are shared with queries.
    pub shared: bool,
    /// `1 / sqrt(D)`.
    pub scale: f32,
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub w_q: &'a [f32],
    pub w_k: &'a [f32],
    pub w_t: &'a [f32],
    /// For each batch row the first row that sees a real token; rows before it output 0.
    first: Vec<usize>,
}

/// One of the two softmax averages, of the queries or of the gated keys.
#[derive(Clone, Copy)]
pub(super) struct Average<'a> {
    /// `[B,H,N]`: weight of each token in the average; in the causal form, in the average of its own prefix, so that
    /// the average before it counts with one minus the weight.
    pub weights: &'a [f32],
    /// `[B,blocks + 1,H*D]`: the average over the rows before each block, and over all; without causality over all, in
    /// slot 0.
    pub state: &'a [f32],
}

impl<'a> Plan<'a> {
    /// Reads inputs that have passed `out_shape`.
    pub fn new(operator: &'a Additive, inputs: &[View<'a, f32>]) -> Self {
        let shapes: Vec<_> = inputs.iter().map(|view| view.shape).collect();
        let shape = operator.shape(&shapes).expect("inputs checked by out_shape");
        let mask = &operator.mask;
        let tokens = shape.keys;
        let first = |b| {
            let seen = mask.valid_row(b).map_or(Some(0), |row| row.iter().position(|&real| real != 0));
            seen.map_or(tokens, |token| if mask.causal { token } else { 0 })
        };
        let rest = &inputs[inputs.len() - 3..];
        Self {
            first: (0..shape.batch).map(first).collect(),
            shape,
            mask,
            causal: mask.causal,
            released: operator.scores == AdditiveScores::Released,
            shared: operator.shared_value,
            scale: 1.0 / (shape.head_width as f32).sqrt(),
            q: inputs[0].data,
            k: inputs[1].data,
            v: if operator.shared_value { inputs[0].data } else { inputs[2].data },
            w_q: rest[0].data,
            w_k: rest[1].data,
            w_t: rest[2].data,
        }
    }

    /// Channels of all heads.
    pub fn width(&self) -> usize {
        self.shape.heads * self.shape.head_width
    }

    /// Blocks of rows in a sequence.
    pub fn blocks(&self) -> usize {
        self.shape.queries.div_ceil(BLOCK)
    }

    /// Batch row and block of a task.
    pub fn place(&self, task: usize) -> (usize, usize) {
        (task / self.blocks(), task % self.blocks())
    }

    /// All rows of a block.
    pub fn block(&self, block: usize) -> Range<usize> {
        block * BLOCK..((block + 1) * BLOCK).min(self.shape.queries)
    }

    /// Rows of a block that see a real token.
    pub fn seeing(&self, b: usize, block: usize) -> Range<usize> {
        let rows = self.block(block);
        rows.start.max(self.first[b]).min(rows.end)..rows.end
    }

    /// First row of a batch row that sees a real token; the number of tokens where none does.
    pub fn first(&self, b: usize) -> usize {
        self.first[b]
    }

    /// Says of each batch row whether tokens outside of this part of the sequence are seen by all its rows.
    pub fn see_outside(&mut self, seen: impl Iterator<Item = bool>) {
        self.first.iter_mut().zip(seen).filter(|(_, seen)| *seen).for_each(|(first, _)| *first = 0);
    }

    /// Range of a head's average for a block in [`Average::state`] and similar buffers.
    pub fn slot(&self, b: usize, block: usize, h: usize) -> Range<usize> {
        let block = if self.causal { block } else { 0 };
        self.partial(b, block, h)
    }

    /// Range of a head's partial sum over a block.
    pub fn partial(&self, b: usize, block: usize, h: usize) -> Range<usize> {
        let start = (b * (self.blocks() + 1) + block) * self.width() + h * self.shape.head_width;
        start..start + self.shape.head_width
    }

    /// Place of a head's scalar for a block in a buffer `[B,H,blocks]`.
    pub fn deviation(&self, b: usize, block: usize, h: usize) -> usize {
        (b * self.shape.heads + h) * self.blocks() + block
    }

    /// Range of a head's scalars for these rows in a buffer `[B,H,N]`.
    pub fn scalars(&self, b: usize, h: usize, rows: &Range<usize>) -> Range<usize> {
        let start = (b * self.shape.heads + h) * self.shape.queries;
        start + rows.start..start + rows.end
    }

    /// A head's rows in `q`, `k`, `v` and their gradients.
    pub fn head(&self, b: usize, h: usize, rows: &Range<usize>) -> Rows {
        self.shape.query_rows(b, h).slice(rows.start, rows.len())
    }

    /// A head's rows in a buffer `[B,N,H*D]`.
    pub fn token_first(&self, b: usize, h: usize, rows: &Range<usize>) -> Rows {
        let (width, head_width) = (self.width(), self.shape.head_width);
        let offset = (b * self.shape.queries + rows.start) * width + h * head_width;
        Rows { offset, stride: width, count: rows.len(), width: head_width }
    }

    /// A head's rows in a task's scratch buffer `[H,BLOCK,D]`.
    pub fn in_block(&self, h: usize, count: usize) -> Rows {
        let width = self.shape.head_width;
        Rows { offset: h * BLOCK * width, stride: width, count, width }
    }

    /// A head's score vector.
    pub fn vector<'v>(&self, vectors: &'v [f32], h: usize) -> &'v [f32] {
        let seen = if self.released { self.width() } else { self.shape.head_width };
        &vectors[h * seen..(h + 1) * seen]
    }

    /// Fills `gated` with `p_i = g_q * k_i` of these rows, `g_q` the average that row `i` sees. `state` is scratch for
    /// `D` floats.
    #[inline(always)]
    pub fn gate(
        &self,
        average: Average,
        (b, block, h): (usize, usize, usize),
        rows: &Range<usize>,
        state: &mut [f32],
        gated: &mut [f32],
    ) {
        let head = self.head(b, h, rows);
        let weights = &average.weights[self.scalars(b, h, rows)];
        state.copy_from_slice(&average.state[self.slot(b, block, h)]);
        for (i, gated) in gated.chunks_exact_mut(self.shape.head_width).take(rows.len()).enumerate() {
            if self.causal {
                follow(state, weights[i], head.row(self.q, i));
            }
            multiply(gated, state, head.row(self.k, i));
        }
    }
}

/// Adds a token to a running average in which it has `weight`.
///
/// A weight of 0 marks padding, whose content may be anything and must not be read.
#[inline(always)]
pub(super) fn follow(average: &mut [f32], weight: f32, token: &[f32]) {
    if weight != 0.0 {
        for (average, &token) in average.iter_mut().zip(token) {
            *average = weight.multiply_add(token - *average, *average);
        }
    }
}

/// `to = a * b`.
#[inline(always)]
pub(super) fn multiply(to: &mut [f32], a: &[f32], b: &[f32]) {
    for ((to, &a), &b) in to.iter_mut().zip(a).zip(b) {
        *to = a * b;
    }
}

/// `y += alpha x`.
#[inline(always)]
pub(super) fn add_scaled(y: &mut [f32], alpha: f32, x: &[f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = alpha.multiply_add(x, *y);
    }
}
