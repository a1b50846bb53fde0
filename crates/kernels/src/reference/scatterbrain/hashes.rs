//! Groups of queries and keys from hashing: clusters of SMYRF (Daras et al. 2020, section 3), chunks of LSH attention
//! (Kitaev et al. 2020, section 2).

use super::{super::row::dot, Call};
use crate::{Scatterbrain, View, support::SupportKind};

/// Groups of every query and key in every round.
#[derive(Clone, Debug)]
pub struct Groups {
    /// Index of the cluster or chunk of each query, `[rounds,B,H,N]`.
    pub queries: Vec<usize>,
    /// The same for each key, `[rounds,B,H,S]`: one set per query head, since each head hashes independently.
    pub keys: Vec<usize>,
    /// Smallest change of a projection that could move a real token to another group; infinite if there is none.
    pub margin: f64,
}

/// Groups from the hashes of an operator; none without hashes.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn groups(op: &Scatterbrain, inputs: &[View<f64>]) -> Groups {
    let call = Call::new(op, inputs);
    let mut groups = Groups { queries: Vec::new(), keys: Vec::new(), margin: f64::INFINITY };
    let Some(options) = op.support.as_ref().filter(|options| options.kind.hashes()) else { return groups };
    let heads = (0..call.shape.batch).flat_map(|b| (0..call.shape.heads).map(move |h| (b, h)));
    let heads: Vec<Vec<HeadGroups>> = heads.map(|(b, h)| of_head(&call, b, h)).collect();
    for round in (0..options.rounds).flat_map(|n| heads.iter().map(move |head| &head[n])) {
        groups.queries.extend(&round.queries);
        groups.keys.extend(&round.keys);
        groups.margin = groups.margin.min(round.margin);
    }
    groups
}

/// One round of one query head of one batch row.
pub(super) struct HeadGroups {
    pub queries: Vec<usize>,
    pub keys: Vec<usize>,
    pub margin: f64,
}

/// All rounds of one query head of one batch row.
pub(super) fn of_head(call: &Call, b: usize, h: usize) -> Vec<HeadGroups> {
    let options = call.op.support.as_ref().expect("hashes belong to a support");
    let drawn = call.drawn.expect("hashes have a drawn input");
    let per_round: usize = drawn.shape[1..].iter().product();
    let rounds = drawn.data.chunks_exact(per_round);
    if options.kind == SupportKind::Smyrf {
        let lifted = Lifted::new(call, b, h);
        rounds.map(|direction| lifted.clusters(direction, options.cluster)).collect()
    } else {
        rounds.map(|rotation| chunks(call, b, h, rotation, options.bucket)).collect()
    }
}

/// Queries and keys of one head under the lift of XBOX+, which maps a large dot product to a small angle:
/// `q' = [q, 0, sqrt(MQ^2 + MK^2 - |q|^2)]`, `k' = [k, sqrt(MQ^2 + MK^2 - |k|^2), 0]`, `MQ` and `MK` the maximum norms
/// of real tokens.
struct Lifted {
    /// `None` for padding.
    queries: Vec<Option<Vec<f64>>>,
    keys: Vec<Option<Vec<f64>>>,
}

impl Lifted {
    fn new(call: &Call, b: usize, h: usize) -> Self {
        let (queries, keys) = (call.queries(b, h), call.keys(b, h));
        let real = |row: Option<&[u8]>, t: usize| row.is_none_or(|row| row[t] != 0);
        let real_query = |i: usize| real(call.op.mask.query_row(b, queries.len()), i);
        let real_key = |j: usize| real(call.op.mask.valid_row(b), j);
        let squares_q = (0..queries.len()).filter(|&i| real_query(i)).map(|i| dot(queries[i], queries[i]));
        let squares_k = (0..keys.len()).filter(|&j| real_key(j)).map(|j| dot(&keys[j], &keys[j]));
        let bound = squares_q.fold(0.0, f64::max) + squares_k.fold(0.0, f64::max);
        let rest = |x: &[f64]| (bound - dot(x, x)).sqrt();
        Self {
            queries: (0..queries.len())
                .map(|i| real_query(i).then(|| [queries[i], &[0.0, rest(queries[i])]].concat()))
                .collect(),
            keys: (0..keys.len())
                .map(|j| real_key(j).then(|| [&keys[j][..], &[rest(&keys[j]), 0.0]].concat()))
                .collect(),
        }
    }

    /// Sorts queries and keys along one direction and cuts each into `C = ceil(S / cluster)` clusters of equal size.
    fn clusters(&self, direction: &[f64], cluster: usize) -> HeadGroups {
        let clusters = self.keys.len().div_ceil(cluster);
        let group = |tokens: &[Option<Vec<f64>>]| {
            let along: Vec<Option<f64>> =
                tokens.iter().map(|token| token.as_ref().map(|token| dot(token, direction))).collect();
            let mut order: Vec<usize> = (0..tokens.len()).collect();
            // Padding last; the sort is stable, so that ties stay in the order of positions.
            order.sort_by(|&a, &b| {
                let key = |t: usize| along[t].unwrap_or(f64::INFINITY);
                key(a).total_cmp(&key(b))
            });
            let size = tokens.len().div_ceil(clusters);
            let borders = (size..tokens.len()).step_by(size).filter_map(|n| {
                let (below, above) = (along[order[n - 1]]?, along[order[n]]?);
                Some(above - below)
            });
            (cut(&order, size), borders.fold(f64::INFINITY, f64::min))
        };
        let ((queries, margin_q), (keys, margin_k)) = (group(&self.queries), group(&self.keys));
        HeadGroups { queries, keys, margin: margin_q.min(margin_k) }
    }
}

/// Sorts tokens by hash and position and cuts them into chunks of `bucket`. The hash is the index of the largest of
/// `[x R, -x R]`, the first in a tie; padding comes last.
fn chunks(call: &Call, b: usize, h: usize, rotation: &[f64], bucket: usize) -> HeadGroups {
    let tokens = call.queries(b, h);
    let (width, half) = (call.shape.head_width, rotation.len() / call.shape.head_width);
    let mut margin = f64::INFINITY;
    let hashes: Vec<usize> = tokens
        .iter()
        .enumerate()
        .map(|(t, x)| {
            if call.op.mask.valid_row(b).is_some_and(|row| row[t] == 0) {
                return usize::MAX;
            }
            let along = |a: usize| (0..width).map(|c| x[c] * rotation[c * half + a]).sum::<f64>();
            let turned: Vec<f64> = (0..half).map(along).collect();
            let both: Vec<f64> = turned.iter().copied().chain(turned.iter().map(|x| -x)).collect();
            let largest = both.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let hash = both.iter().position(|x| *x == largest).expect("a maximum");
            let others = both.iter().enumerate().filter(|(n, _)| *n != hash).map(|(_, x)| *x);
            margin = margin.min(largest - others.fold(f64::NEG_INFINITY, f64::max));
            hash
        })
        .collect();
    let mut order: Vec<usize> = (0..tokens.len()).collect();
    order.sort_by_key(|&t| (hashes[t], t));
    let chunks = cut(&order, bucket);
    HeadGroups { queries: chunks.clone(), keys: chunks, margin }
}

/// Group index of each token, for consecutive groups of `size` in `order`.
fn cut(order: &[usize], size: usize) -> Vec<usize> {
    let mut groups = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &token)| groups[token] = place / size);
    groups
}
