//! The keys with exact weights for each query.

use super::{
    super::row::visible_keys,
    Call,
    hashes::{self, HeadGroups},
};
use crate::{
    Scatterbrain, View,
    draws::random_blocks,
    support::{SupportKind, SupportOptions},
};

/// Pairs `[B,H,N,S]` of a query and a visible key in its support.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn support(op: &Scatterbrain, inputs: &[View<f64>]) -> Vec<bool> {
    let call = Call::new(op, inputs);
    let heads = (0..call.shape.batch).flat_map(|b| (0..call.shape.heads).map(move |h| (b, h)));
    heads.flat_map(|(b, h)| of_head(&call, b, h)).flatten().collect()
}

/// The support of one query head of one batch row, by query and key.
pub(super) fn of_head(call: &Call, b: usize, h: usize) -> Vec<Vec<bool>> {
    let (queries, keys) = (call.shape.queries, call.shape.keys);
    let Some(options) = &call.op.support else { return vec![vec![false; keys]; queries] };
    let rounds = if options.kind.hashes() { hashes::of_head(call, b, h) } else { Vec::new() };
    (0..queries)
        .map(|i| {
            let position = call.op.mask.position(i, queries, keys);
            let in_support = rule(options, position, keys, &rounds, i);
            let seen = visible_keys(&call.op.mask, &call.shape, b, i);
            let mut row = vec![false; keys];
            seen.iter().for_each(|&j| row[j] = in_support(j));
            if call.lsh() {
                row[i] = seen.contains(&i) && !row.contains(&true);
            }
            row
        })
        .collect()
}

/// The rule for one query: whether key `j` is in its support, if visible.
fn rule<'a>(
    options: &'a SupportOptions,
    position: isize,
    keys: usize,
    rounds: &'a [HeadGroups],
    i: usize,
) -> Box<dyn Fn(usize) -> bool + 'a> {
    let near = move |j: usize| (j as isize - position).unsigned_abs() <= options.radius;
    let global = move |j: isize| (0..options.globals as isize).contains(&j);
    let globally = move |j: usize| global(position) || global(j as isize);
    // Queries before the first key are in the first block.
    let block = position.max(0) as usize / options.block.max(1);
    match options.kind {
        SupportKind::Full => Box::new(|_| true),
        SupportKind::Empty => Box::new(|_| false),
        SupportKind::Local => Box::new(near),
        SupportKind::Longformer => Box::new(move |j| near(j) || globally(j)),
        SupportKind::Bigbird => {
            let blocks = random_blocks(options.seed, block, keys.div_ceil(options.block), options.random);
            Box::new(move |j| near(j) || globally(j) || blocks.contains(&(j / options.block)))
        }
        SupportKind::Block => {
            let layout = options.blocks().expect("a layout that passed the check");
            Box::new(move |j| layout[i / options.block][j / options.block])
        }
        SupportKind::Smyrf => Box::new(move |j| rounds.iter().any(|round| round.queries[i] == round.keys[j])),
        SupportKind::Lsh => Box::new(move |j| {
            let chunks = rounds.first().map_or(0, |round| round.keys.len().div_ceil(options.bucket));
            let meets = |round: &HeadGroups| {
                let (own, other) = (round.queries[i], round.keys[j]);
                let before = if own > 0 { Some(own - 1) } else { options.cyclic.then_some(chunks - 1) };
                other == own || Some(other) == before
            };
            // A token does not attend to itself if it sees others.
            j != i && rounds.iter().any(meets)
        }),
    }
}
