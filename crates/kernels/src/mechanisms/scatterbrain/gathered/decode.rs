//! Decoding token by token with a block layout: all keys and values, and the feature sums of each block of keys.
//!
//! A token reads the keys of the blocks that its row sees. The sums of the blocks that the row does not see are merged
//! when a row of blocks begins, and serve all of its tokens.

use std::{ops::Range, sync::Arc};

use crate::{
    Decode, Error, Layout, Mask, Saved, Softmax, Storage, View,
    cache::Cache,
    gemm::Matrix,
    operator::reorder_rows,
    parallel::{self, Disjoint, with_parts},
    scatterbrain::{Problem, Scatterbrain, band::states::StateShape},
    simd,
    support::SupportOptions,
};

/// State of causal attention with a block layout.
#[derive(Debug)]
pub struct BlockCache {
    /// The operator without its support, whose layout no token alone has.
    operator: Scatterbrain,
    support: SupportOptions,
    /// Which blocks of keys each block of queries sees, limited by causality.
    layout: Vec<Vec<bool>>,
    cache: Cache,
    tokens: usize,
    /// The row of blocks whose hidden blocks are merged.
    merged: Option<usize>,
    batch: usize,
    /// One per batch row and key head.
    sums: Vec<Sums>,
}

/// Scales and sums of the features of the keys of one batch row and key head.
#[derive(Clone, Debug, Default)]
struct Sums {
    /// Of each block; of all keys in one, if features are summed over the support too.
    blocks: Vec<f32>,
    /// Of the earlier blocks that the present row does not see.
    hidden: Vec<f32>,
}

impl BlockCache {
    /// An empty state; none without a layout.
    pub fn new(operator: &Scatterbrain, storage: Storage) -> Option<Self> {
        let support = operator.support.clone()?;
        let mut layout = support.blocks().ok()?;
        // Tokens have a row and a column.
        layout.truncate(layout[0].len());
        layout.iter_mut().enumerate().for_each(|(row, columns)| columns.truncate(row + 1));
        let mask = Mask { causal: true, ..Mask::none() };
        let exact = Softmax { layout: Layout::TokenFirst, mask, scale: operator.scale, ..Softmax::default() };
        Some(Self {
            cache: Cache::new(Arc::new(exact), operator.layout, None, storage),
            operator: Scatterbrain { support: None, ..operator.clone() },
            support,
            layout,
            tokens: 0,
            merged: None,
            batch: 0,
            sums: Vec::new(),
        })
    }

    /// Adds the next token to the keys and values, and to the sums of its block.
    ///
    /// # Panics
    /// If the inputs do not hold one token per batch row, their sizes differ from the first, or the layout has no room.
    fn take(&mut self, inputs: &[View<f32>]) {
        if let Err(error) = self.check(1) {
            panic!("{error}");
        }
        let problem = self.operator.problem(inputs);
        let shape = problem.shape;
        assert_eq!((shape.queries, shape.keys), (1, 1), "a decoder takes one token at a time");
        if self.tokens == 0 {
            self.batch = shape.batch;
            self.sums = vec![Sums::default(); shape.batch * shape.key_heads];
        }
        assert_eq!(self.sums.len(), shape.batch * shape.key_heads, "sizes changed since the first token");
        self.cache.append(inputs);
        if let Some(map) = problem.features {
            let state = state_shape(&problem);
            let begins = if problem.naive { self.tokens == 0 } else { self.tokens.is_multiple_of(self.support.block) };
            parallel::for_each_part(&mut self.sums, 1, |n, sums| {
                let (b, hk) = (n / shape.key_heads, n % shape.key_heads);
                let blocks = &mut sums[0].blocks;
                if begins {
                    blocks.resize(blocks.len() + state.len(), 0.0);
                }
                let at = blocks.len() - state.len();
                let own = &mut blocks[at..];
                if begins {
                    state.clear(own);
                }
                let key = Matrix::rows(shape.key_rows(b, hk, 0).row(problem.k, 0), shape.head_width);
                let value = Matrix::rows(shape.value_rows(b, hk).row(problem.v, 0), shape.value_width);
                with_parts!(logs = state.features, risen = state.features, {
                    map.logs(key, 1, logs);
                    state.absorb(own, logs, value, risen, None, &[]);
                });
            });
        }
        self.tokens += 1;
    }

    /// Keys that the last token sees, as ascending ranges.
    fn seen(&self, row: usize) -> Vec<Range<usize>> {
        let mut seen: Vec<Range<usize>> = Vec::new();
        for block in (0..=row).filter(|&block| self.layout[row][block]) {
            let start = block * self.support.block;
            let end = (start + self.support.block).min(self.tokens);
            match seen.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => seen.push(start..end),
            }
        }
        seen
    }

    /// Adds the features of the keys that the last token does not see to its output of exact attention.
    fn add_features(&mut self, inputs: &[View<f32>], row: usize, saved: &Saved, out: &mut [f32]) {
        let problem = self.operator.problem(inputs);
        let Some(map) = problem.features else { return };
        let (shape, state) = (problem.shape, state_shape(&problem));
        let sees = &self.layout[row];
        let merges = !problem.naive && self.merged != Some(row);
        let own_hidden = problem.naive || !sees[row];
        let written = Disjoint::new(out);
        parallel::for_each_part(&mut self.sums, 1, |n, sums| {
            let (b, hk) = (n / shape.key_heads, n % shape.key_heads);
            let Sums { blocks, hidden } = &mut sums[0];
            if merges {
                hidden.resize(state.len(), 0.0);
                state.clear(hidden);
                let earlier = blocks.chunks_exact(state.len()).zip(sees).take(row);
                earlier.filter(|(_, seen)| !**seen).for_each(|(block, _)| state.merge(hidden, block));
            }
            let own = if own_hidden { &blocks[blocks.len() - state.len()..] } else { &[] };
            with_parts!(logs = state.features, {
                for h in hk * shape.group()..(hk + 1) * shape.group() {
                    map.logs(Matrix::rows(shape.query_rows(b, h).row(problem.q, 0), shape.head_width), 1, logs);
                    let at = b * shape.heads + h;
                    // SAFETY: the rows of the queries that read this head of keys belong to this task alone.
                    let out = unsafe { written.row(&shape.out_rows(b, h), 0) };
                    join(out, [saved[1][at], saved[2][at]], logs, [hidden, own], state);
                }
            });
        });
        self.merged = Some(row);
    }
}

fn state_shape(problem: &Problem) -> StateShape {
    StateShape { features: problem.features.map_or(0, |map| map.count()), values: problem.shape.value_width }
}

/// Joins a row's output of exact attention, whose denominator is `2^reference / inverse`, 0 if that is 0, with the sums of
/// the features of other keys; `logs` are those of the query's features.
fn join(out: &mut [f32], [reference, inverse]: [f32; 2], logs: &[f32], sums: [&[f32]; 2], state: StateShape) {
    let sums = || sums.into_iter().filter(|sums| !sums.is_empty());
    let exact = if inverse > 0.0 { reference } else { f32::NEG_INFINITY };
    let of_features = sums().flat_map(|sums| logs.iter().zip(sums).map(|(log, scale)| log + scale));
    let top = of_features.fold(exact, f32::max);
    simd::vectorize(
        #[inline(always)]
        || {
            let mut total = if inverse > 0.0 { simd::exp2(reference - top) / inverse } else { 0.0 };
            out.iter_mut().for_each(|y| *y *= total);
            for sums in sums() {
                let (scales, sums) = sums.split_at(state.features);
                let (z, s) = sums.split_at(state.features);
                for (a, &log) in logs.iter().enumerate() {
                    let weight = simd::exp2(log + scales[a] - top);
                    total += weight * z[a];
                    simd::add_scaled(out, weight, &s[a * state.values..(a + 1) * state.values]);
                }
            }
            out.iter_mut().for_each(|y| *y /= total);
        },
    );
}

impl Decode for BlockCache {
    fn step(&mut self, inputs: &[View<f32>], out: &mut [f32]) {
        self.take(inputs);
        let row = (self.tokens - 1) / self.support.block;
        let saved = self.cache.attend(inputs, Some(&self.seen(row)), out);
        self.add_features(inputs, row, &saved, out);
    }

    fn absorb(&mut self, inputs: &[View<f32>], _: &mut [f32]) {
        self.take(inputs);
    }

    fn reorder(&mut self, rows: &[usize]) {
        self.cache.reorder(rows);
        reorder_rows(&mut self.sums, self.batch, rows);
        self.batch = if self.sums.is_empty() { 0 } else { rows.len() };
    }

    fn bytes(&self) -> usize {
        let floats: usize = self.sums.iter().map(|sums| sums.blocks.len() + sums.hidden.len()).sum();
        self.cache.bytes() + floats * size_of::<f32>()
    }

    fn check(&self, tokens: usize) -> Result<(), Error> {
        let (all, size) = (self.tokens.saturating_add(tokens), self.support.block);
        let needed = all.div_ceil(size);
        if needed <= self.layout.len() {
            return Ok(());
        }
        let seen = format!("{} rows and columns of blocks of {size}", self.layout.len());
        Err(Error::option("support.layout", seen, format!("at least {needed}, for {all} tokens")))
    }
}
