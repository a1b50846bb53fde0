//! Blocks of queries, each computed again in the backward pass: memory grows with `N + S`, not with `N S`.

use std::{
    fmt::Debug,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use burn::tensor::Tensor;
use regard_kernels::Mask;

use super::super::{Inputs, Operand, Pullback, entered, single, stored_as, takes_results};

/// Bytes that one block of queries may take.
static BLOCK_BYTES: AtomicUsize = AtomicUsize::new(192 << 20);

/// Tensors of the size of its scores that a block holds at most.
const KEPT: usize = 6;

/// Sets how many bytes one block of queries may take in composed forms, about: 192 MiB at first. A block has at least one
/// query, whatever it takes.
///
/// # Panics
/// If `bytes` is 0.
pub fn set_block_bytes(bytes: usize) {
    assert!(bytes > 0, "blocks of 0 bytes, expected at least 1");
    BLOCK_BYTES.store(bytes, Ordering::Relaxed);
}

/// Consecutive queries, and keys that contain all that they see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::ops) struct Rows {
    /// These of the queries.
    pub queries: Range<usize>,
    /// These of the keys, in order.
    pub keys: Vec<Range<usize>>,
    /// Place of the block among all.
    pub index: usize,
    /// Queries in all.
    pub n: usize,
    /// Keys in all.
    pub s: usize,
}

impl Rows {
    /// Blocks of about equal numbers of queries, if a score of a query and a key takes `bytes` bytes.
    pub fn blocks(mask: &Mask, n: usize, s: usize, bytes: usize) -> Vec<Self> {
        let count = Self::most(n, s, bytes);
        let count = n.div_ceil(n.div_ceil(count));
        let block = |(index, first): (usize, usize)| {
            let queries = first..(first + count).min(n);
            Self::new(index, queries.clone(), vec![mask.visible_to(queries, n, s)], [n, s])
        };
        (0..n).step_by(count).enumerate().map(block).collect()
    }

    /// Most queries of a block that look at `keys` keys each.
    pub fn most(n: usize, keys: usize, bytes: usize) -> usize {
        #[cfg(test)]
        if let Some(queries) = super::QUERIES.get() {
            return queries;
        }
        (BLOCK_BYTES.load(Ordering::Relaxed) / KEPT / (keys * bytes).max(1)).clamp(1, n)
    }

    /// Queries that look at these ranges of the keys, in order and apart.
    pub fn new(index: usize, queries: Range<usize>, mut keys: Vec<Range<usize>>, [n, s]: [usize; 2]) -> Self {
        keys.retain(|range| !range.is_empty());
        if keys.is_empty() {
            // Tensors without elements are best avoided; what is hidden stays so.
            keys.push(0..1);
        }
        Self { queries, keys, index, n, s }
    }

    /// Number of keys.
    pub fn keys_count(&self) -> usize {
        self.keys.iter().map(Range::len).sum()
    }

    /// Places of the keys.
    pub fn each_key(&self) -> impl Iterator<Item = usize> + Clone {
        self.keys.iter().cloned().flatten()
    }

    /// The parts of the input `name` that belong to these rows: an axis and its ranges, for each axis that is cut.
    fn cut(&self, name: &str, axes: usize) -> Vec<(usize, Vec<Range<usize>>)> {
        let queries = || vec![self.queries.clone()];
        let own_state = self.index..self.index + 1;
        match (name, axes) {
            ("q", _) => vec![(1, queries())],
            ("k" | "v", _) => vec![(1, self.keys.clone())],
            ("bias", _) => vec![(1, queries()), (2, self.keys.clone())],
            ("log_prior", 3) => vec![(2, self.keys.clone())],
            // One state a block.
            ("far_scale" | "far_sums", _) => vec![(0, vec![own_state])],
            _ => Vec::new(),
        }
    }
}

/// What a mechanism does for a block of queries, all inputs in f32.
pub(in crate::ops) trait Form: Debug + Send + Sync {
    /// Outputs `[B,n,H,Dv]` of the queries of `rows`. Of inputs with an axis of queries or keys, `inputs` has those of
    /// `rows`.
    fn block(&self, inputs: &Inputs, rows: &Rows) -> Tensor<4>;
}

/// [`in_blocks`], where a score of a query and a key of one batch row and head takes `numbers` floats.
pub(in crate::ops) fn by_rows(form: impl Form + 'static, inputs: &Inputs, mask: &Mask, numbers: usize) -> Tensor<4> {
    let [batch, n, heads, _] = inputs.tensor::<4>("q").dims();
    let s = inputs.tensor::<4>("v").dims()[1];
    let blocks = Rows::blocks(mask, n, s, batch * heads * numbers * size_of::<f32>());
    in_blocks(form, inputs, blocks)
}

/// The outputs `[B,N,H,Dv]` of all queries, block by block, for inputs whose padding is silent.
///
/// Only the inputs are kept for the backward pass, where the graph of the device takes results that were computed apart
/// ([`takes_results`]); other graphs keep all blocks.
pub(in crate::ops) fn in_blocks(form: impl Form + 'static, inputs: &Inputs, blocks: Vec<Rows>) -> Tensor<4> {
    let format = inputs.tensor::<4>("q").dtype().into();
    let outputs = |inputs: &Inputs| {
        let block = |rows: &Rows| stored_as(form.block(&inputs.cut(rows).single(), rows), format);
        Tensor::cat(blocks.iter().map(block).collect(), 1)
    };
    if !takes_results(&inputs.device()) {
        return outputs(inputs);
    }
    let out = outputs(&inputs.without_autodiff());
    let names = inputs.iter().map(|(name, _)| name).collect();
    let kept = inputs.iter().map(|(_, input)| input.clone()).collect();
    entered(out, kept, Vec::new(), Arc::new(Again { form, blocks, names }))
}

impl Inputs {
    /// The parts that belong to `rows`.
    fn cut(&self, rows: &Rows) -> Self {
        self.map(|name, input| {
            let cuts = rows.cut(name, input.axes());
            cuts.into_iter().fold(input.clone(), |input, (axis, ranges)| input.cut(axis, &ranges))
        })
    }
}

/// The backward pass of [`by_rows`].
#[derive(Debug)]
struct Again<F> {
    form: F,
    blocks: Vec<Rows>,
    names: Vec<&'static str>,
}

impl<F: Form> Pullback for Again<F> {
    fn backward(&self, kept: Vec<Operand>, grad_out: Operand, wanted: &[bool]) -> Vec<Option<Operand>> {
        let shapes: Vec<Vec<usize>> = kept.iter().map(Operand::shape).collect();
        let grad_out = grad_out.into_tensor::<4>();
        let mut sums: Vec<Option<Operand>> = vec![None; kept.len()];
        let inputs = Inputs::of(self.names.iter().copied().zip(kept));
        for rows in &self.blocks {
            let leaves = inputs.cut(rows).single().map(|_, input| input.clone().tracked());
            let grad_out = single(grad_out.clone().narrow(1, rows.queries.start, rows.queries.len()));
            let mut grads = (self.form.block(&leaves, rows) * grad_out).sum().backward();
            for (at, (name, leaf)) in leaves.iter().enumerate().filter(|(at, _)| wanted[*at]) {
                let Some(grad) = leaf.grad_remove(&mut grads) else { continue };
                let cuts = rows.cut(name, shapes[at].len());
                let sum = sums[at].take();
                sums[at] = Some(grad.added_to(sum, &shapes[at], &cuts));
            }
        }
        let gradient = |(at, sum): (usize, Option<Operand>)| {
            let sum = || sum.map_or_else(|| inputs.at(at).zeros(), |sum| sum.stored_as(inputs.at(at).dtype().into()));
            wanted[at].then(sum)
        };
        sums.into_iter().enumerate().map(gradient).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_all_queries_with_the_keys_they_see() {
        let blocks = |mask: &Mask, n: usize, s: usize| Rows::blocks(mask, n, s, (192 << 20) / KEPT / (3 * s));
        let of = |index, queries, keys| Rows { queries, keys: vec![keys], index, n: 8, s: 8 };
        assert_eq!(blocks(&Mask::none(), 8, 8), [of(0, 0..3, 0..8), of(1, 3..6, 0..8), of(2, 6..8, 0..8)]);
        let near = Mask { window: Some(1), ..Mask::causal() };
        assert_eq!(blocks(&near, 8, 8), [of(0, 0..3, 0..3), of(1, 3..6, 2..6), of(2, 6..8, 5..8)]);
        let blind = blocks(&Mask::causal(), 8, 2);
        assert_eq!(blind[0], Rows { n: 8, s: 2, ..of(0, 0..3, 0..1) });
        assert_eq!(Rows::blocks(&Mask::none(), 2, 4, usize::MAX / 8).len(), 2, "one query at least");
    }
}
