//! Relation of the keys of a tile's hull to its queries, which are in lanes.

use std::ops::Range;

use super::Band;
use crate::simd::LANES;

/// The queries of one vector.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Keys of the hull in the support of some of these queries, and of all.
    pub some: Range<usize>,
    pub all: Range<usize>,
    /// Start of each query's support, and its length.
    pub start: [u32; LANES],
    pub len: [u32; LANES],
    /// End of its visible keys; 0 without features, since only they give weight off the support.
    pub seen: [u32; LANES],
    /// Whether features give it any weight, in the hull or outside it.
    pub features: [bool; LANES],
}

/// A block of scores: neighbouring keys of a hull by neighbouring queries.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub keys: Range<usize>,
    pub lanes: Range<usize>,
}

/// Relation of keys to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zone {
    /// In no support.
    Beside,
    /// In some supports.
    Edge,
    /// In all supports.
    Within,
}

/// One tile: its queries in lanes, the keys of its hull in rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub queries: Range<usize>,
    pub hull: Range<usize>,
    /// Length of rows over the queries, a multiple of the vector length.
    pub stride: usize,
    pub groups: Vec<Group>,
    /// Blocks that cover all pairs of the supports.
    pub scores: Vec<Run>,
    /// Blocks that cover all pairs of the hull off the supports.
    pub products: Vec<Run>,
    /// The geometry that the plan was made for.
    ends: Option<Ends>,
}

/// Relation of the keys of a hull to one query.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Columns {
    support: Range<usize>,
    /// End of its visible keys; 0 without features.
    seen: usize,
    features: bool,
}

/// What distinguishes two tiles of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ends {
    queries: usize,
    /// Distance from the hull's first key to the first query.
    ahead: usize,
    hull: usize,
    first: Columns,
    last: Columns,
}

impl Band<'_> {
    /// Fills `plan` for a tile of batch row `b`.
    pub(super) fn plan(&self, b: usize, queries: Range<usize>, plan: &mut Plan) {
        let hull = self.hull(queries.clone());
        // Visible ranges shift with the query, except at the ends of the sequence: if this holds for the first and the
        // last query, it holds for all.
        let (first, last) = (self.columns(b, queries.start, &hull), self.columns(b, queries.end - 1, &hull));
        let ends = Ends {
            queries: queries.len(),
            ahead: queries.start.wrapping_sub(hull.start),
            hull: hull.len(),
            first,
            last,
        };
        if self.real_before.is_none() && plan.ends.as_ref() == Some(&ends) {
            (plan.queries, plan.hull) = (queries, hull);
            return;
        }
        plan.ends = Some(ends);
        plan.groups.clear();
        for first in queries.clone().step_by(LANES) {
            let mut group = Group {
                some: 0..0,
                all: 0..0,
                start: [0; LANES],
                len: [0; LANES],
                seen: [0; LANES],
                features: [false; LANES],
            };
            for (lane, i) in (first..queries.end.min(first + LANES)).enumerate() {
                let Columns { support, seen, features } = self.columns(b, i, &hull);
                (group.start[lane], group.len[lane]) = (support.start as u32, support.len() as u32);
                (group.seen[lane], group.features[lane]) = (seen as u32, features);
                if lane == 0 {
                    (group.some, group.all) = (support.clone(), support);
                } else {
                    group.some.end = support.end.max(group.some.start);
                    group.all.start = support.start;
                }
            }
            if group.all.is_empty() {
                group.all = group.some.end..group.some.end;
            }
            plan.groups.push(group);
        }
        plan.stride = queries.len().next_multiple_of(LANES);
        (plan.queries, plan.hull) = (queries, hull);
        plan.scores.clear();
        plan.products.clear();
        let n = plan.queries.len();
        if self.radius.is_some() {
            join(&plan.groups, n, |group| group.some.clone(), &mut plan.scores);
        }
        if self.state.features > 0 {
            let whole = self.radius.is_none() || self.problem.naive;
            let seen = |group: &Group| group.seen.iter().max().map_or(0, |&seen| seen as usize);
            let left = |group: &Group| if whole || group.all.is_empty() { seen(group) } else { group.all.start };
            join(&plan.groups, n, |group| 0..left(group), &mut plan.products);
            if !whole && self.looks_ahead() {
                join(&plan.groups, n, |group| group.all.end.max(left(group))..seen(group), &mut plan.products);
            }
        }
    }
}

impl Band<'_> {
    fn columns(&self, b: usize, i: usize, hull: &Range<usize>) -> Columns {
        let place = |key: usize| key.clamp(hull.start, hull.end) - hull.start;
        let support = self.support(i);
        let columns = place(support.start)..place(support.end);
        if self.state.features == 0 {
            return Columns { support: columns, seen: 0, features: false };
        }
        let visible = self.visible(i);
        let seen = place(visible.end);
        Columns { support: columns, seen, features: self.sees_beside(b, visible, support) }
    }
}

/// Splits the keys that each group needs, with non-decreasing starts and ends, into blocks shared by all groups that
/// need them.
fn join(groups: &[Group], queries: usize, needed: impl Fn(&Group) -> Range<usize>, runs: &mut Vec<Run>) {
    let mut key = 0;
    loop {
        let ahead = || groups.iter().map(&needed).filter(|range| range.end > key.max(range.start));
        let Some(start) = ahead().map(|range| range.start.max(key)).min() else { break };
        let end = ahead().map(|range| if range.start > start { range.start } else { range.end }).min();
        let needs = |group: &Group| needed(group).contains(&start);
        let first = groups.iter().position(needs).expect("some group needs this key");
        let last = groups.iter().rposition(needs).expect("some group needs this key");
        key = end.expect("some range is ahead");
        runs.push(Run { keys: start..key, lanes: first * LANES..((last + 1) * LANES).min(queries) });
    }
}

impl Group {
    /// The keys of a hull of `len`, by zones.
    #[inline(always)]
    pub fn zones(&self, len: usize) -> [(Zone, Range<usize>); 5] {
        let (some, all) = (&self.some, &self.all);
        [
            (Zone::Beside, 0..some.start.min(len)),
            (Zone::Edge, some.start..all.start),
            (Zone::Within, all.clone()),
            (Zone::Edge, all.end..some.end),
            (Zone::Beside, some.end..len),
        ]
    }

    /// Whether a key is in the support of a query, and whether it is visible off the support.
    #[inline(always)]
    pub fn of(&self, key: usize, lane: usize) -> (bool, bool) {
        let inside = (key as u32).wrapping_sub(self.start[lane]) < self.len[lane];
        (inside, !inside & ((key as u32) < self.seen[lane]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_every_needed_pair_once() {
        let cases: [&[Range<usize>]; 5] = [
            &[0..80, 0..80],
            &[0..80, 16..96],
            &[0..16, 16..32, 40..50],
            &[0..0, 0..7, 5..9, 9..9],
            &[3..20, 3..36, 5..36, 20..40],
        ];
        for needed in cases {
            let group = |range: &Range<usize>| Group {
                some: range.clone(),
                all: 0..0,
                start: [0; LANES],
                len: [0; LANES],
                seen: [0; LANES],
                features: [false; LANES],
            };
            let groups: Vec<Group> = needed.iter().map(group).collect();
            let queries = groups.len() * LANES - 3;
            let mut runs = Vec::new();
            join(&groups, queries, |group| group.some.clone(), &mut runs);
            for query in 0..queries {
                for key in 0..100 {
                    let times = runs.iter().filter(|run| run.keys.contains(&key) && run.lanes.contains(&query)).count();
                    let wanted = usize::from(needed[query / LANES].contains(&key));
                    assert_eq!(times, wanted, "key {key} of query {query} with {needed:?}");
                }
            }
        }
    }
}
