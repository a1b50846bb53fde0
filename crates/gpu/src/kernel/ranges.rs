//! Which tokens of one sequence a tile of the other has to meet: called by the kernels, and on the host by what counts their
//! traffic.
//!
//! Query `i` of `N` is at position `i + S - N` among `S` keys.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

/// First key that one of the queries from `first` on may see.
#[cube]
pub(crate) fn first_key(first: usize, queries: usize, keys: usize, reach: usize, #[comptime] window: bool) -> usize {
    let mut start = 0;
    if comptime!(window) {
        start = less(first + keys, queries + reach);
    }
    start
}

/// End of the keys that one of the queries before `last` may see.
#[cube]
pub(crate) fn last_key(
    last: usize,
    queries: usize,
    keys: usize,
    reach: usize,
    #[comptime] causal: bool,
    #[comptime] window: bool,
) -> usize {
    let mut end = keys;
    if comptime!(causal) {
        end = least(keys, less(last + keys, queries));
    } else if comptime!(window) {
        end = least(keys, less(last + keys + reach, queries));
    }
    end
}

/// First query that may see one of the keys from `first` on.
#[cube]
pub(crate) fn first_query(
    first: usize,
    queries: usize,
    keys: usize,
    reach: usize,
    #[comptime] causal: bool,
    #[comptime] window: bool,
) -> usize {
    let mut start = 0;
    if comptime!(causal) {
        start = less(first + queries, keys);
    } else if comptime!(window) {
        start = less(first + queries, keys + reach);
    }
    start
}

/// End of the queries that may see one of the keys before `last`.
#[cube]
pub(crate) fn last_query(last: usize, queries: usize, keys: usize, reach: usize, #[comptime] window: bool) -> usize {
    let mut end = queries;
    if comptime!(window) {
        end = least(queries, less(last + queries + reach, keys));
    }
    end
}

/// `a - b`, at least 0.
#[cube]
pub(crate) fn less(a: usize, b: usize) -> usize {
    let mut rest = 0;
    if a > b {
        rest = a - b;
    }
    rest
}

/// The smaller of two.
#[cube]
pub(crate) fn least(a: usize, b: usize) -> usize {
    let mut least = a;
    if b < a {
        least = b;
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_the_pairs_that_are_seen() {
        for (n, s) in [(1, 1), (7, 7), (5, 9), (9, 5), (3, 12)] {
            for causal in [false, true] {
                for window in [None, Some(0), Some(2), Some(30)] {
                    let reach = window.unwrap_or(0);
                    let sees = |i: usize, j: usize| {
                        let apart = j as isize - (i + s) as isize + n as isize;
                        !(causal && apart > 0 || window.is_some_and(|window| apart.unsigned_abs() > window))
                    };
                    let limited = window.is_some();
                    for (first, last) in (0..n).flat_map(|first| (first + 1..=n).map(move |last| (first, last))) {
                        let range =
                            first_key(first, n, s, reach, limited)..last_key(last, n, s, reach, causal, limited);
                        let seen: Vec<usize> = (0..s).filter(|&j| (first..last).any(|i| sees(i, j))).collect();
                        check(
                            &range,
                            &seen,
                            &format!("queries {first}..{last} of {n}, {s} keys, {causal}, {window:?}"),
                        );
                    }
                    for (first, last) in (0..s).flat_map(|first| (first + 1..=s).map(move |last| (first, last))) {
                        let start = first_query(first, n, s, reach, causal, limited);
                        let range = start..last_query(last, n, s, reach, limited);
                        let seen: Vec<usize> = (0..n).filter(|&i| (first..last).any(|j| sees(i, j))).collect();
                        check(
                            &range,
                            &seen,
                            &format!("keys {first}..{last} of {s}, {n} queries, {causal}, {window:?}"),
                        );
                    }
                }
            }
        }
    }

    /// The range is the smallest that holds what is seen.
    fn check(range: &std::ops::Range<usize>, seen: &[usize], what: &str) {
        match (seen.first(), seen.last()) {
            (Some(&first), Some(&last)) => assert_eq!(*range, first..last + 1, "{what}"),
            _ => assert!(range.is_empty(), "{range:?} of nothing: {what}"),
        }
    }
}
