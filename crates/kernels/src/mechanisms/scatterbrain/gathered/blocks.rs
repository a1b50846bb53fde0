//! Content-independent supports: global tokens, radii, random or given blocks.
//!
//! Two passes: keys that all queries of a block see (global tokens, blocks; for a global query every key), then the
//! band of the other keys around the block, limited to each query's radius.

use super::groups::{Group, Lists, Pass, Positions, Support};
use crate::{
    AttentionShape, Mask,
    draws::random_blocks,
    support::{SupportKind, SupportOptions},
};

/// Queries per group with a radius: larger groups waste more of the band around them.
const RUN: usize = 64;

/// The support of every head of a batch row with these real keys, ascending.
pub fn fixed(options: &SupportOptions, mask: &Mask, shape: &AttentionShape, real: &[u32]) -> Support {
    let positions = Positions::new(mask, shape.queries, shape.keys);
    let layout = if options.kind == SupportKind::Block { options.blocks().unwrap_or_default() } else { Vec::new() };
    let rule = Rule { options, layout, positions, keys: shape.keys };
    let mut lists = Lists { queries: (0..shape.queries as u32).collect(), ..Lists::default() };
    let (mut listed, mut banded) = (Vec::new(), Vec::new());
    let mut everything = None;
    let mut start = 0;
    while start < shape.queries {
        let place = rule.place(start);
        let mut end = start + 1;
        while end < shape.queries && end - start < RUN && rule.place(end) == place {
            end += 1;
        }
        let queries = start..end;
        let group = |keys, radius| Group { queries: queries.clone(), keys, radius, not_self: false };
        start = end;
        let last = (end - 1) as u32;
        if place == Place::Global {
            let keys = everything.get_or_insert_with(|| {
                lists.keys.extend_from_slice(real);
                lists.keys.len() - real.len()..lists.keys.len()
            });
            let seen = positions.seen(last, None, real);
            listed.push(group(keys.start..keys.start + seen.end, None));
            continue;
        }
        let ranges = rule.listed(place);
        let from = lists.keys.len();
        for &(first, beyond) in &ranges {
            let part =
                real.partition_point(|&j| (j as usize) < first)..real.partition_point(|&j| (j as usize) < beyond);
            let part = &real[part];
            lists.keys.extend_from_slice(&part[..positions.seen(last, None, part).end]);
        }
        if lists.keys.len() > from {
            listed.push(group(from..lists.keys.len(), None));
        }
        if options.kind == SupportKind::Block {
            continue;
        }
        let from = lists.keys.len();
        let radius = Some(options.radius);
        let hull = positions.seen(queries.start as u32, radius, real).start..positions.seen(last, radius, real).end;
        let elsewhere = |&j: &u32| !ranges.iter().any(|&(first, beyond)| (first..beyond).contains(&(j as usize)));
        lists.keys.extend(real.get(hull).unwrap_or_default().iter().copied().filter(elsewhere));
        if lists.keys.len() > from {
            banded.push(group(from..lists.keys.len(), radius));
        }
    }
    let pass = |groups| Pass { lists: 0, earlier: 0, groups };
    Support { lists: vec![lists], passes: vec![pass(listed), pass(banded)] }
}

/// Key list of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Every key.
    Global,
    /// The list of a block of queries.
    Block(usize),
}

struct Rule<'a> {
    options: &'a SupportOptions,
    layout: Vec<Vec<bool>>,
    positions: Positions,
    keys: usize,
}

impl Rule<'_> {
    fn place(&self, i: usize) -> Place {
        let position = i as isize + self.positions.first;
        match self.options.kind {
            SupportKind::Block => Place::Block(i / self.options.block),
            _ if (0..self.options.globals as isize).contains(&position) => Place::Global,
            SupportKind::Bigbird => Place::Block(position.max(0) as usize / self.options.block),
            _ => Place::Block(0),
        }
    }

    /// Keys that all queries of a place see, as ascending ranges without overlap.
    fn listed(&self, place: Place) -> Vec<(usize, usize)> {
        let Self { options, keys, .. } = self;
        let Place::Block(block) = place else { return vec![(0, *keys)] };
        let globals = options.globals.min(*keys);
        let range = |index: usize| (index * options.block, ((index + 1) * options.block).min(*keys));
        match options.kind {
            SupportKind::Block => {
                (0..self.layout[block].len()).filter(|&index| self.layout[block][index]).map(range).collect()
            }
            SupportKind::Bigbird => {
                let drawn = random_blocks(options.seed, block, keys.div_ceil(options.block), options.random);
                let beside = |(first, beyond): (usize, usize)| (first.max(globals), beyond.max(globals));
                [(0, globals)].into_iter().chain(drawn.into_iter().map(|index| beside(range(index)))).collect()
            }
            _ => vec![(0, globals)],
        }
    }
}
