//! The support of one head as groups of queries that share a list of keys.
//!
//! Groups are arranged in passes. Groups of one pass share no query; all passes together cover each pair of the support
//! once: a pair already found in an earlier round of hashing is masked by comparing labels. Every list is ascending and
//! holds only real keys, so that the part of a list visible to a query under a causal mask or within a radius is
//! contiguous.

use std::ops::Range;

use crate::Mask;

/// Maximum queries per tile.
pub const QUERIES: usize = 128;
/// Maximum keys per tile.
pub const KEYS: usize = 256;
/// A query that a pass leaves out.
const NOWHERE: u32 = u32::MAX;

/// Queries and the keys that they attend to, as ranges of [`Lists`].
#[derive(Clone, Debug)]
pub struct Group {
    pub queries: Range<usize>,
    pub keys: Range<usize>,
    /// Largest distance between a key and the query's position.
    pub radius: Option<usize>,
    /// A token does not attend to itself.
    pub not_self: bool,
}

/// Labels that hashing assigns to every token in one round. They are integers, stored as floats in scratch memory.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    pub queries: Vec<f32>,
    pub keys: Vec<f32>,
    /// With chunks that look back: the label of the chunk before chunk 0, negative when there is none.
    pub before_first: Option<f32>,
}

impl Labels {
    /// Labels of the keys that a query with this label attends to.
    #[inline(always)]
    pub fn met_by(&self, label: f32) -> [f32; 2] {
        match self.before_first {
            None => [label, -1.0],
            Some(before_first) => [label, if label > 0.0 { label - 1.0 } else { before_first }],
        }
    }
}

/// Tokens in the order of their groups.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    pub queries: Vec<u32>,
    pub keys: Vec<u32>,
    pub labels: Labels,
}

/// Groups without a common query.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Index of the lists that the groups are ranges of.
    pub lists: usize,
    /// Lists before this one hold rounds whose pairs are masked.
    pub earlier: usize,
    pub groups: Vec<Group>,
}

/// The support of one head.
#[derive(Clone, Debug, Default)]
pub struct Support {
    pub lists: Vec<Lists>,
    pub passes: Vec<Pass>,
}

/// Positions and causality.
#[derive(Clone, Copy, Debug)]
pub struct Positions {
    pub causal: bool,
    /// Position of query 0 among the keys: `S - N`.
    pub first: isize,
}

impl Positions {
    pub fn new(mask: &Mask, queries: usize, keys: usize) -> Self {
        Self { causal: mask.causal, first: mask.position(0, queries, keys) }
    }

    /// Keys visible to query `i` within `radius`.
    #[inline(always)]
    pub fn span(&self, i: u32, radius: Option<usize>) -> Range<isize> {
        let position = i as isize + self.first;
        let radius = radius.map(|radius| radius.min(isize::MAX as usize / 4) as isize);
        let start = radius.map_or(0, |radius| position - radius);
        let end = match (self.causal, radius) {
            (true, _) => position + 1,
            (false, Some(radius)) => position + radius + 1,
            (false, None) => isize::MAX,
        };
        start..end
    }

    /// Part of ascending `keys` visible to query `i` within `radius`.
    pub fn seen(&self, i: u32, radius: Option<usize>, keys: &[u32]) -> Range<usize> {
        let span = self.span(i, radius);
        let start = keys.partition_point(|&j| (j as isize) < span.start);
        start..keys.partition_point(|&j| (j as isize) < span.end).max(start)
    }
}

/// The tile's keys visible to each query of a tile.
#[derive(Clone, Debug)]
pub struct Seen {
    start: [u32; QUERIES],
    end: [u32; QUERIES],
    own: [u32; QUERIES],
    /// Whether any query sees any key.
    pub any: bool,
}

impl Seen {
    /// Scans ascending `queries` and `keys` together.
    pub fn new(queries: &[u32], keys: &[u32], radius: Option<usize>, not_self: bool, positions: Positions) -> Self {
        let mut seen = Self { start: [0; QUERIES], end: [0; QUERIES], own: [NOWHERE; QUERIES], any: false };
        let (mut start, mut end, mut own) = (0, 0, 0);
        for (i, &query) in queries.iter().enumerate() {
            let span = positions.span(query, radius);
            while start < keys.len() && (keys[start] as isize) < span.start {
                start += 1;
            }
            if span.end == isize::MAX {
                end = keys.len();
            }
            while end < keys.len() && (keys[end] as isize) < span.end {
                end += 1;
            }
            seen.start[i] = start as u32;
            seen.end[i] = end.max(start) as u32;
            seen.any |= start < end;
            if not_self {
                while own < keys.len() && keys[own] < query {
                    own += 1;
                }
                if (start..end).contains(&own) && keys[own] == query {
                    seen.own[i] = own as u32;
                }
            }
        }
        seen
    }

    /// Keys that tile row `i` sees.
    #[inline(always)]
    pub fn range(&self, i: usize) -> Range<usize> {
        self.start[i] as usize..self.end[i] as usize
    }

    /// The key of row `i` that is the query's own token, which is masked.
    #[inline(always)]
    pub fn own(&self, i: usize) -> Option<usize> {
        (self.own[i] != NOWHERE).then_some(self.own[i] as usize)
    }
}

/// Finds the groups of a query.
#[derive(Clone, Debug)]
pub struct Homes {
    /// Index of the group of query `i` in pass `p`, at `p * queries + i`.
    group: Vec<u32>,
    queries: usize,
}

impl Homes {
    pub fn new(support: &Support, queries: usize) -> Self {
        let mut group = vec![NOWHERE; support.passes.len() * queries];
        for (p, pass) in support.passes.iter().enumerate() {
            for (g, range) in pass.groups.iter().enumerate() {
                for &i in &support.lists[pass.lists].queries[range.queries.clone()] {
                    group[p * queries + i as usize] = g as u32;
                }
            }
        }
        Self { group, queries }
    }

    /// The group of query `i` in each pass that has one, with its keys.
    fn of<'a>(&'a self, support: &'a Support, i: u32) -> impl Iterator<Item = (&'a Group, &'a [u32])> {
        support.passes.iter().enumerate().filter_map(move |(p, pass)| {
            let g = self.group[p * self.queries + i as usize];
            let group = pass.groups.get(g as usize)?;
            Some((group, &support.lists[pass.lists].keys[group.keys.clone()]))
        })
    }

    /// Sets `marks` to 1 at those of ascending `keys` that are in the support of query `i`, 0 elsewhere.
    pub fn mark(&self, support: &Support, positions: Positions, i: u32, keys: &[u32], marks: &mut [f32]) {
        marks.fill(0.0);
        let (Some(&first), Some(&last)) = (keys.first(), keys.last()) else { return };
        for (group, list) in self.of(support, i) {
            let seen = &list[positions.seen(i, group.radius, list)];
            let from = seen.partition_point(|&j| j < first);
            let mut at = 0;
            for &j in seen[from..].iter().take_while(|&&j| j <= last) {
                while keys[at] < j {
                    at += 1;
                }
                if keys[at] == j && !(group.not_self && j == i) {
                    marks[at] = 1.0;
                }
            }
        }
    }

    /// Queries whose support covers all visible keys, if they see any; `real` lists all real keys.
    pub fn covered(&self, support: &Support, positions: Positions, real: &[u32]) -> Vec<bool> {
        let mut marks = vec![0.0; real.len()];
        (0..self.queries as u32)
            .map(|i| {
                let visible = positions.seen(i, None, real).end;
                let seen = |(group, list): (&Group, &[u32])| positions.seen(i, group.radius, list).len();
                // Pairs found in several rounds are counted several times: the exact count matters only if this sum is
                // large enough.
                if visible == 0 || self.of(support, i).map(seen).sum::<usize>() < visible {
                    return false;
                }
                let marks = &mut marks[..visible];
                self.mark(support, positions, i, &real[..visible], marks);
                marks.iter().all(|&mark| mark != 0.0)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walking_a_tile_finds_what_the_mask_and_the_radius_leave() {
        let queries = [2, 3, 7, 8];
        let keys = [0, 2, 3, 5, 6, 8, 9];
        for (causal, radius) in [(false, None), (true, None), (false, Some(2)), (true, Some(3))] {
            let positions = Positions { causal, first: 1 };
            let seen = Seen::new(&queries, &keys, radius, true, positions);
            for (i, &query) in queries.iter().enumerate() {
                let position = query as isize + 1;
                let expected: Vec<usize> = (0..keys.len())
                    .filter(|&t| {
                        let distance = keys[t] as isize - position;
                        (!causal || distance <= 0) && radius.is_none_or(|r| distance.unsigned_abs() <= r)
                    })
                    .collect();
                assert_eq!(seen.range(i).collect::<Vec<_>>(), expected, "causal {causal}, radius {radius:?}");
                assert_eq!(positions.seen(query, radius, &keys), seen.range(i));
                let own = keys.iter().position(|&key| key == query).filter(|own| expected.contains(own));
                assert_eq!(seen.own(i), own);
            }
        }
    }
}
