//! Where the keys of a support are: near ones, to look at pair by pair, and far ones, of which a block of queries needs no
//! more than sums of features.

use std::ops::Range;

use regard_kernels::{
    Mask,
    draws::random_blocks,
    support::{SupportKind, SupportOptions},
};

use super::composed::Rows;

/// Fewest queries of a block along a band: fewer would spend more on what blocks share than on pairs.
const FEWEST: usize = 128;

/// A block of queries with its near keys, and its far ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The queries and their near keys.
    pub rows: Rows,
    /// Far keys before the near ones, a range that only grows from block to block along a band.
    pub before: Range<usize>,
    /// Far keys behind the near ones, a range that only shrinks.
    pub after: Range<usize>,
    /// Far keys anywhere.
    pub apart: Vec<Range<usize>>,
}

/// Blocks of all `n` queries over `s` keys, if a score of a query and a key takes `bytes` bytes. The mask has no window.
pub(super) fn plans(options: &SupportOptions, mask: &Mask, sizes: [usize; 2], bytes: usize) -> Vec<Plan> {
    let planner = Planner { options, mask, sizes, bytes };
    let mut plans = match options.kind {
        SupportKind::Local | SupportKind::Longformer => planner.bands(),
        SupportKind::Bigbird => planner.random_blocks(),
        SupportKind::Block => planner.layout(),
        SupportKind::Full | SupportKind::Smyrf | SupportKind::Lsh => planner.everything(),
        SupportKind::Empty => planner.nothing(),
    };
    for (index, plan) in plans.iter_mut().enumerate() {
        plan.rows.index = index;
    }
    plans
}

struct Planner<'a> {
    options: &'a SupportOptions,
    mask: &'a Mask,
    sizes: [usize; 2],
    bytes: usize,
}

impl Planner<'_> {
    /// All keys that some query of a block sees lie before this one.
    fn end(&self, queries: &Range<usize>) -> usize {
        let [n, s] = self.sizes;
        self.mask.visible_to(queries.clone(), n, s).end
    }

    fn plan(&self, queries: Range<usize>, near: Vec<Range<usize>>) -> Plan {
        let rows = Rows::new(0, queries, near, self.sizes);
        Plan { rows, before: 0..0, after: 0..0, apart: Vec::new() }
    }

    /// Blocks of at most `most` of these queries.
    fn blocks(queries: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
        let end = queries.end;
        queries.step_by(most).map(move |first| first..(first + most).min(end))
    }

    /// All keys are near.
    fn everything(&self) -> Vec<Plan> {
        let [n, s] = self.sizes;
        let blocks = Rows::blocks(self.mask, n, s, self.bytes).into_iter();
        blocks.map(|rows| Plan { rows, before: 0..0, after: 0..0, apart: Vec::new() }).collect()
    }

    /// All keys that every query of a block sees are far.
    fn nothing(&self) -> Vec<Plan> {
        let layout = SupportOptions { radius: 0, ..self.options.clone() };
        Planner { options: &SupportOptions { kind: SupportKind::Local, ..layout }, ..*self }.bands()
    }

    /// A band along the diagonal, and global tokens.
    fn bands(&self) -> Vec<Plan> {
        let [n, s] = self.sizes;
        let offset = s as isize - n as isize;
        let radius = self.options.radius.min(n + s);
        let globals = if self.options.kind == SupportKind::Local { 0 } else { self.options.globals.min(s) };
        let most = FEWEST.max(radius);
        let most = most.min(Rows::most(n, s.min(2 * radius + 1 + most + globals), self.bytes));
        // Global queries see all, in blocks of their own.
        let query = |position: usize| (position as isize - offset).clamp(0, n as isize) as usize;
        let bounds = [0..query(0), query(0)..query(globals), query(globals)..n];
        let blocks = bounds.into_iter().flat_map(|queries| Self::blocks(queries, most));
        let band = |queries: Range<usize>| {
            let seen = self.end(&queries);
            let all = 0..seen;
            let position = |i: usize| i as isize + offset;
            if (0..globals as isize).contains(&position(queries.start)) {
                return self.plan(queries, vec![all]);
            }
            let clamp = |x: isize| x.clamp(0, seen as isize) as usize;
            let low = clamp(position(queries.start) - radius as isize);
            let high = clamp(position(queries.end) + radius as isize).max(low);
            // Global keys are near too, before the band or next to it.
            let apart = globals.min(low);
            let high = if low < globals { high.max(globals.min(seen)) } else { high };
            let mut plan = self.plan(queries, vec![0..apart, low..high]);
            // A block that has no near key looks at the first one all the same.
            let taken = if apart == 0 && low == high { 1 } else { 0 };
            plan.before = apart.max(taken)..low.max(apart.max(taken));
            plan.after = high.max(taken)..seen.max(high.max(taken));
            plan
        };
        blocks.map(band).collect()
    }

    /// Bands with blocks of keys that each block of queries draws.
    fn random_blocks(&self) -> Vec<Plan> {
        let [n, s] = self.sizes;
        let (block, columns) = (self.options.block, s.div_ceil(self.options.block));
        let mut plans = Vec::new();
        for band in self.bands() {
            let mut first = band.rows.queries.start;
            while first < band.rows.queries.end {
                // Queries before the first key are in the first block.
                let row = (first + s).saturating_sub(n) / block;
                let next = ((row + 1) * block + n).saturating_sub(s);
                let queries = first..band.rows.queries.end.min(next);
                first = queries.end;
                let seen = self.end(&queries);
                let drawn = random_blocks(self.options.seed, row, columns, self.options.random);
                let drawn = drawn.into_iter().map(|column| column * block..(column + 1) * block);
                let near = joined(band.rows.keys.iter().cloned().chain(drawn), seen);
                let mut plan = self.plan(queries, near);
                plan.apart = between(&plan.rows.keys, seen);
                plans.push(plan);
            }
        }
        plans
    }

    /// Blocks of pairs by a table.
    fn layout(&self) -> Vec<Plan> {
        let [n, s] = self.sizes;
        let block = self.options.block;
        let layout = self.options.blocks().expect("a layout that passed the check");
        let most = block.min(Rows::most(n, s, self.bytes));
        let plan = |queries: Range<usize>| {
            let seen = self.end(&queries);
            // Keys that only some of the queries see are near, whether in the support or not.
            let common = self.end(&(queries.start..queries.start + 1));
            let row = &layout[queries.start / block];
            let column = |column: &usize| row[*column] || ((column + 1) * block).min(seen) > common;
            let near = (0..seen.div_ceil(block)).filter(column).map(|column| column * block..(column + 1) * block);
            let near = joined(near, seen);
            let mut plan = self.plan(queries, near);
            plan.apart = between(&plan.rows.keys, seen);
            plan
        };
        Self::blocks(0..n, block).flat_map(|row| Self::blocks(row, most)).map(plan).collect()
    }
}

/// Ranges up to `end` in order, those that overlap or touch as one.
fn joined(ranges: impl Iterator<Item = Range<usize>>, end: usize) -> Vec<Range<usize>> {
    let mut ranges: Vec<_> = ranges.map(|range| range.start.min(end)..range.end.min(end)).collect();
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// What lies between ranges in order, up to `end`.
fn between(ranges: &[Range<usize>], end: usize) -> Vec<Range<usize>> {
    let starts = [0].into_iter().chain(ranges.iter().map(|range| range.end));
    let ends = ranges.iter().map(|range| range.start).chain([end]);
    starts.zip(ends).map(|(start, end)| start..end).filter(|range| !range.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_near_or_far_and_never_both() {
        let layout =
            (0..8).map(|row: usize| (0..8).map(|column| if (row * column) % 3 == 1 { '1' } else { '0' }).collect());
        let layout: Vec<String> = layout.collect();
        use SupportKind::{Bigbird, Block, Empty, Full, Local, Longformer, Smyrf};
        for kind in [Local, Longformer, Bigbird, Block, Full, Empty, Smyrf] {
            for (n, s, causal) in [(37, 37, false), (37, 37, true), (20, 37, true), (37, 20, false), (37, 20, true)] {
                let options = SupportOptions {
                    kind,
                    radius: 3,
                    globals: 2,
                    random: 1,
                    block: 5,
                    layout: Some(layout.clone()),
                    ..SupportOptions::default()
                };
                let mask = Mask { causal, ..Mask::none() };
                let mut next = 0;
                for (index, plan) in plans(&options, &mask, [n, s], 4).into_iter().enumerate() {
                    let what = format!("{kind:?} {n} {s} {causal}: {plan:?}");
                    assert_eq!((plan.rows.index, plan.rows.queries.start), (index, next), "{what}");
                    next = plan.rows.queries.end;
                    let mut uses = vec![0; s];
                    plan.rows.each_key().for_each(|j| uses[j] += 1);
                    let far: Vec<usize> = plan
                        .before
                        .clone()
                        .chain(plan.after.clone())
                        .chain(plan.apart.iter().cloned().flatten())
                        .collect();
                    far.iter().for_each(|&j| uses[j] += 1);
                    let seen = mask.visible_to(plan.rows.queries.clone(), n, s);
                    for (j, uses) in uses.into_iter().enumerate() {
                        // One hidden key stands in for none.
                        let expected = if seen.contains(&j) { uses == 1 } else { uses == 0 || (uses == 1 && j == 0) };
                        assert!(expected, "key {j} of {what}");
                    }
                    for i in plan.rows.queries.clone() {
                        let own = mask.visible(i, n, s);
                        assert!(far.iter().all(|j| own.contains(j)), "query {i} does not see all far keys: {what}");
                    }
                }
                assert_eq!(next, n);
            }
        }
    }
}
