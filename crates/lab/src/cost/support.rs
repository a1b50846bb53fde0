//! Number of query-key pairs in a sparse support.

use regard_kernels::support::{SupportKind, SupportOptions};

use super::Count;

/// Pairs with exact weights among `n` tokens: exact for content-independent supports, except that the overlap of random
/// blocks is not subtracted; for hashes an upper bound that assumes disjoint rounds.
pub(super) fn support_pairs(support: &SupportOptions, n: Count, causal: bool) -> Count {
    let count = |size: usize| size as Count;
    let all = visible_pairs(n, causal, None);
    let band = |n| visible_pairs(n, causal, Some(count(support.radius)));
    match support.kind {
        SupportKind::Empty => 0,
        SupportKind::Full => all,
        SupportKind::Local => band(n),
        SupportKind::Longformer => with_globals(support, n, causal, band),
        SupportKind::Bigbird => {
            let drawn = n * (count(support.random) * count(support.block)).min(n);
            // Half of the random blocks are in the future.
            let drawn = if causal { drawn / 2 } else { drawn };
            (with_globals(support, n, causal, band) + drawn).min(all)
        }
        SupportKind::Block => block_pairs(support, n, causal),
        SupportKind::Smyrf => hashed(n, count(support.rounds) * count(support.cluster), causal),
        SupportKind::Lsh => hashed(n, 2 * count(support.rounds) * count(support.bucket), causal),
    }
}

/// All pairs with a global token, and the band of the others.
fn with_globals(support: &SupportOptions, n: Count, causal: bool, band: impl Fn(Count) -> Count) -> Count {
    let globals = (support.globals as Count).min(n);
    let others = n - globals;
    let between = if causal { 1 } else { 2 } * globals * others;
    visible_pairs(globals, causal, None) + between + band(others)
}

fn hashed(n: Count, a_row: Count, causal: bool) -> Count {
    let pairs = n * a_row.min(n);
    if causal { (pairs / 2).max(n) } else { pairs }
}

fn block_pairs(support: &SupportOptions, n: Count, causal: bool) -> Count {
    let block = support.block as Count;
    let Ok(layout) = support.blocks() else { return 0 };
    let tokens = |at: usize| block.min(n.saturating_sub(at as Count * block));
    let mut pairs = 0;
    for (row, line) in layout.iter().enumerate() {
        for (column, _) in line.iter().enumerate().filter(|(_, seen)| **seen) {
            let whole = tokens(row) * tokens(column);
            pairs += match (causal, column.cmp(&row)) {
                (true, std::cmp::Ordering::Greater) => 0,
                (true, std::cmp::Ordering::Equal) => tokens(row) * (tokens(row) + 1) / 2,
                _ => whole,
            };
        }
    }
    pairs
}

/// Number of visible query-key pairs among `n` tokens: `j <= i` when causal, `|i - j| <= window`.
pub(super) fn visible_pairs(n: Count, causal: bool, window: Option<Count>) -> Count {
    let reach = window.unwrap_or(n).min(n.saturating_sub(1));
    // Query i looks back at min(i, reach) tokens: a triangle, then a band.
    let back = reach * (reach + 1) / 2 + (n - reach).saturating_sub(1) * reach;
    if causal { n + back } else { n + 2 * back }
}

#[cfg(test)]
mod tests {
    use regard_kernels::reference::scatterbrain::support;
    use regard_kernels::{Mask, Scatterbrain, View};

    use super::*;

    /// Pairs of the twin, for one head of `n` tokens.
    fn of_twin(options: &SupportOptions, n: usize, causal: bool) -> Count {
        let mask = Mask { causal, ..Mask::none() };
        let operator = Scatterbrain { mask, support: Some(options.clone()), ..Scatterbrain::default() };
        let data: Vec<f64> = (0..2 * n).map(|i| ((i * 7919) % 101) as f64 / 50.0 - 1.0).collect();
        let shape = [1, 1, n, 2];
        let tokens = View::new(&data, &shape);
        support(&operator, &[tokens, tokens, tokens]).iter().filter(|seen| **seen).count() as Count
    }

    #[test]
    fn rules_that_no_token_changes_are_counted_to_the_pair() {
        let kinds = [SupportKind::Local, SupportKind::Longformer, SupportKind::Block, SupportKind::Full];
        for kind in kinds.into_iter().chain([SupportKind::Empty]) {
            for (n, radius, globals) in [(1, 0, 1), (7, 2, 3), (23, 4, 2), (23, 30, 25)] {
                let layout = Some(["10100", "01011", "11010", "00111", "10001"].map(String::from).to_vec());
                let options = SupportOptions { kind, radius, globals, block: 5, layout, ..Default::default() };
                if kind == SupportKind::Block && n != 23 {
                    continue;
                }
                for causal in [false, true] {
                    let pairs = support_pairs(&options, n as Count, causal);
                    assert_eq!(pairs, of_twin(&options, n, causal), "{options:?}, {n}, {causal}");
                }
            }
        }
    }

    #[test]
    fn drawn_blocks_are_counted_once_and_more() {
        for causal in [false, true] {
            let options = SupportOptions { kind: SupportKind::Bigbird, radius: 4, globals: 3, ..Default::default() };
            let options = SupportOptions { random: 2, block: 8, ..options };
            let (counted, twin) = (support_pairs(&options, 256, causal), of_twin(&options, 256, causal));
            let share = counted as f64 / twin as f64;
            assert!((0.9..1.3).contains(&share), "{share}, causal {causal}");
        }
    }
}
