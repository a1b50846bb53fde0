//! Supports as tensors of the device: which keys have exact weights for which queries.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use regard_kernels::{
    self as kernels, Call, Layout, Operator, View,
    draws::random_blocks,
    reference::scatterbrain::groups,
    support::{SupportKind, SupportOptions},
};

use super::{
    Host, Inputs,
    composed::{Rows, Visible, distances},
};

/// A support of all queries, of which any block can be had.
#[derive(Debug)]
pub(super) struct Support {
    options: SupportOptions,
    /// Groups by hashes; they are piecewise constant and have no gradient.
    groups: Option<Groups>,
}

/// Groups of queries `[rounds,B,H,N]` and keys `[rounds,B,H,S]`.
#[derive(Debug)]
struct Groups {
    rounds: usize,
    batch: usize,
    heads: usize,
    queries: Vec<i64>,
    keys: Vec<i64>,
}

impl Support {
    /// Hashes `q` and `k`, which are absent for LSH, on the host. Padding must be silent.
    pub fn new(
        q: &Tensor<4>,
        k: Option<&Tensor<4>>,
        v: &Tensor<4>,
        inputs: &Inputs,
        options: &SupportOptions,
        call: &Call,
    ) -> Self {
        let options = options.clone();
        if !options.kind.hashes() {
            return Self { options, groups: None };
        }
        let operator = kernels::Scatterbrain {
            layout: Layout::TokenFirst,
            mask: call.mask.clone(),
            scale: call.scale,
            support: Some(options.clone()),
            ..Default::default()
        };
        let mut silent = Inputs::new(q.clone()).with_some("k", k.cloned()).with("v", v.clone());
        for name in ["directions", "rotations"] {
            silent = silent.with_some(name, inputs.operand(name).cloned());
        }
        let host: Vec<Host> = silent.operands(&operator.inputs()).iter().map(Host::from).collect();
        let wide: Vec<Vec<f64>> = host.iter().map(Host::wide).collect();
        let views: Vec<_> = wide.iter().zip(&host).map(|(data, host)| View::new(data, &host.shape)).collect();
        let [batch, _, heads, _] = q.dims();
        let found = groups(&operator, &views);
        let numbers = |groups: Vec<usize>| groups.into_iter().map(|group| group as i64).collect();
        let (queries, keys) = (numbers(found.queries), numbers(found.keys));
        let groups = Groups { rounds: options.rounds, batch, heads, queries, keys };
        Self { options, groups: Some(groups) }
    }

    /// Pairs of `rows` in the support, `[B or 1,H or 1,N,S]`. What `visible` hides may be among them, but a token of LSH
    /// looks at itself only where it sees nothing else.
    pub fn pairs(&self, visible: &Visible, rows: &Rows, device: &Device) -> Tensor<4, Bool> {
        let distances = distances(rows, device);
        let options = &self.options;
        let near = || distances.clone().abs().lower_equal_elem(options.radius.min(rows.n + rows.s) as i64);
        match options.kind {
            SupportKind::Full => Tensor::full(distances.dims(), true, device),
            SupportKind::Empty => Tensor::full(distances.dims(), false, device),
            SupportKind::Local => near(),
            SupportKind::Longformer => near().bool_or(self.global(rows, device)),
            SupportKind::Bigbird => {
                let columns = rows.s.div_ceil(options.block);
                // Queries before the first key are in the first block.
                let row = |i: usize| (i + rows.s).saturating_sub(rows.n) / options.block;
                let chosen = |i| random_blocks(options.seed, row(i), columns, options.random);
                let blocks = self.table(rows, device, |i| {
                    let chosen = chosen(i);
                    move |column| chosen.contains(&column)
                });
                near().bool_or(self.global(rows, device)).bool_or(blocks)
            }
            SupportKind::Block => {
                let layout = options.blocks().expect("a layout that passed the check");
                self.table(rows, device, |i| {
                    let row = &layout[i / options.block];
                    |column: usize| row[column]
                })
            }
            SupportKind::Smyrf | SupportKind::Lsh => self.hashed(visible, distances, rows, device),
        }
    }

    /// Pairs with a global query or key.
    fn global(&self, rows: &Rows, device: &Device) -> Tensor<4, Bool> {
        let (n, s) = (rows.queries.len(), rows.keys_count());
        let globals = self.options.globals;
        let is_global = |position: usize| position < globals;
        let queries = rows.queries.clone().map(|i| (i + rows.s).checked_sub(rows.n).is_some_and(is_global)).collect();
        let keys = rows.each_key().map(is_global).collect();
        let flags = |flags: Vec<bool>, shape: [usize; 4]| {
            Tensor::<4, Bool>::from_data(TensorData::new(flags, shape), device).expand([1, 1, n, s])
        };
        flags(queries, [1, 1, n, 1]).bool_or(flags(keys, [1, 1, 1, s]))
    }

    /// Pairs by the row of a table that belongs to a query and the block of the key.
    fn table<F: Fn(usize) -> bool>(&self, rows: &Rows, device: &Device, row: impl Fn(usize) -> F) -> Tensor<4, Bool> {
        let mut seen = Vec::with_capacity(rows.queries.len() * rows.keys_count());
        for i in rows.queries.clone() {
            let row = row(i);
            seen.extend(rows.each_key().map(|j| row(j / self.options.block)));
        }
        Tensor::from_data(TensorData::new(seen, [1, 1, rows.queries.len(), rows.keys_count()]), device)
    }

    /// Pairs that share a group in some round.
    fn hashed(&self, visible: &Visible, distances: Tensor<4, Int>, rows: &Rows, device: &Device) -> Tensor<4, Bool> {
        let groups = self.groups.as_ref().expect("groups belong to hashes");
        let lsh = self.options.kind == SupportKind::Lsh;
        let dims = [groups.batch, groups.heads, rows.queries.len(), rows.keys_count()];
        let mut met = Tensor::<4, Bool>::full(dims, false, device);
        for round in 0..groups.rounds {
            let queries = groups.of_round(&groups.queries, round, rows.queries.clone(), device).expand(dims);
            let keys = groups.of_round(&groups.keys, round, rows.each_key(), device).swap_dims(2, 3).expand(dims);
            met = met.bool_or(queries.clone().equal(keys.clone()));
            if lsh {
                let last = rows.s.div_ceil(self.options.bucket) as i64 - 1;
                let first = queries.clone().equal_elem(0);
                let before = queries.sub_scalar(1).mask_fill(first, if self.options.cyclic { last } else { -1 });
                met = met.bool_or(keys.equal(before));
            }
        }
        if !lsh {
            return met;
        }
        let own = distances.equal_elem(0).expand(dims);
        let others = match visible.hidden(dims) {
            Some(hidden) => met.bool_and(hidden.bool_not()),
            None => met,
        };
        let others = others.bool_and(own.clone().bool_not());
        let none = others.clone().int().sum_dim(3).equal_elem(0).expand(dims);
        others.bool_or(own.bool_and(none))
    }
}

impl Groups {
    /// Groups `[B,H,tokens,1]` of a round.
    fn of_round(
        &self,
        groups: &[i64],
        round: usize,
        tokens: impl Iterator<Item = usize> + Clone,
        device: &Device,
    ) -> Tensor<4, Int> {
        let heads = self.batch * self.heads;
        let length = groups.len() / (self.rounds * heads);
        let of_head = |head: usize| {
            let at = (round * heads + head) * length;
            tokens.clone().map(move |token| groups[at + token])
        };
        let chosen: Vec<i64> = (0..heads).flat_map(of_head).collect();
        let tokens = chosen.len() / heads;
        Tensor::from_data(TensorData::new(chosen, [self.batch, self.heads, tokens, 1]), device)
    }
}
