//! Supports with gathered keys: hashed clusters, global tokens, blocks.
//!
//! A support consists of groups of queries and keys; the rows of a group are gathered, so that all arithmetic is
//! products of dense tiles, whatever the order of the tokens.

mod backward;
mod blocks;
mod decode;
mod forward;
mod groups;
mod hashing;
mod lowrank;
mod rows;
mod tile;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub(super) use self::decode::BlockCache;
use self::{
    groups::{Homes, Positions, Support},
    tile::{Meeting, Weigh},
};
use super::{FeatureMap, Grads, Problem, RowScales, Scatterbrain};
use crate::{
    Operator, View,
    memory::arbitrary,
    parallel::{self, Disjoint},
    simd,
    support::SupportKind,
};

/// Minimum pairs per task, if a pass has that many.
const TASK_PAIRS: usize = 1 << 15;

pub(super) fn forward(operator: &Scatterbrain, inputs: &[View<f32>], out: &mut [f32]) -> RowScales<'static> {
    let unit = unit_keys(operator, inputs);
    Call::new(operator, inputs, unit.as_ref()).forward(out)
}

/// Gradients of the differentiable inputs, in order.
pub(super) fn backward(
    operator: &Scatterbrain,
    inputs: &[View<f32>],
    out: &[f32],
    scales: &RowScales,
    grad_out: &[f32],
) -> Vec<Vec<f32>> {
    let unit = unit_keys(operator, inputs);
    let Grads { mut q, k, v } = Call::new(operator, inputs, unit.as_ref()).backward(out, scales, grad_out);
    match unit {
        None => vec![q, k, v],
        Some(unit) => {
            unit.pull(&k, &mut q);
            vec![q, v]
        }
    }
}

/// Keys of LSH: the normalised queries.
struct UnitKeys {
    keys: Vec<f32>,
    /// `1 / |q|`; 0 for a zero query, whose key is 0 too.
    inverses: Vec<f32>,
    width: usize,
}

fn unit_keys(operator: &Scatterbrain, inputs: &[View<f32>]) -> Option<UnitKeys> {
    if operator.kind() != SupportKind::Lsh {
        return None;
    }
    let (queries, width) = (inputs[0].data, *inputs[0].shape.last()?);
    let count = queries.len() / width;
    let (mut keys, mut inverses) = (arbitrary(queries.len()), arbitrary(count));
    let (written, saved) = (Disjoint::new(&mut keys), Disjoint::new(&mut inverses));
    for_each_block(count, |rows| {
        let part = rows.start * width..rows.end * width;
        // SAFETY: these rows belong to this task alone.
        let (keys, inverses) = unsafe { (written.range(part.start, part.len()), saved.range(rows.start, rows.len())) };
        keys.copy_from_slice(&queries[part]);
        simd::vectorize(
            #[inline(always)]
            || {
                for (row, inverse) in keys.chunks_exact_mut(width).zip(inverses) {
                    // Scaled by the largest element, no square overflows or underflows.
                    let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                    if largest == 0.0 {
                        *inverse = 0.0;
                        continue;
                    }
                    row.iter_mut().for_each(|x| *x /= largest);
                    let norm = simd::dot(row, row).sqrt();
                    row.iter_mut().for_each(|x| *x /= norm);
                    *inverse = 1.0 / (norm * largest);
                }
            },
        );
    });
    Some(UnitKeys { keys, inverses, width })
}

/// Runs `task` on blocks of `0 .. count`.
fn for_each_block(count: usize, task: impl Fn(Range<usize>) + Sync + Send) {
    const BLOCK: usize = 512;
    parallel::for_each(count.div_ceil(BLOCK), |n| task(n * BLOCK..((n + 1) * BLOCK).min(count)));
}

impl UnitKeys {
    /// Propagates the keys' gradient to the queries' (added): `(dk - (dk.k) k) / |q|`.
    fn pull(&self, grad_keys: &[f32], grad_queries: &mut [f32]) {
        let (width, written) = (self.width, Disjoint::new(grad_queries));
        for_each_block(self.inverses.len(), |rows| {
            let part = rows.start * width..rows.end * width;
            // SAFETY: these rows belong to this task alone.
            let grad_queries = unsafe { written.range(part.start, part.len()) };
            simd::vectorize(
                #[inline(always)]
                || {
                    let given = self.keys[part.clone()].chunks_exact(width).zip(grad_keys[part].chunks_exact(width));
                    let gradients = grad_queries.chunks_exact_mut(width).zip(&self.inverses[rows]);
                    for ((key, dk), (dq, inverse)) in given.zip(gradients) {
                        let along = simd::dot(key, dk);
                        simd::add_scaled(dq, *inverse, dk);
                        simd::add_scaled(dq, -inverse * along, key);
                    }
                },
            );
        });
    }
}

/// One call with its supports.
struct Call<'a> {
    problem: Problem<'a>,
    supports: Supports,
    positions: Positions,
    /// Features whose products the support replaces; none for the naive sum.
    correction: Option<FeatureMap<'a>>,
}

/// The supports of all heads.
struct Supports {
    /// One per head, one per batch row, or one for all.
    supports: Vec<Support>,
    /// With a correction: the groups of each query, and whether its support covers all visible keys.
    homes: Vec<Homes>,
    covered: Vec<Vec<bool>>,
    /// Real keys, ascending, one list per batch row or one for all.
    real: Vec<Vec<u32>>,
    heads: usize,
    hashed: bool,
}

impl Supports {
    fn of(&self, b: usize, h: usize) -> usize {
        if self.hashed { b * self.heads + h } else { b % self.supports.len() }
    }

    fn real(&self, b: usize) -> &[u32] {
        &self.real[b % self.real.len()]
    }

    /// Passes of every head.
    fn passes(&self) -> usize {
        self.supports[0].passes.len()
    }

    /// Maximum rounds before a pass.
    fn rounds(&self) -> usize {
        self.supports[0].passes.iter().map(|pass| pass.earlier).max().unwrap_or(0)
    }

    /// Whether groups of one pass share keys.
    fn keys_overlap(&self) -> bool {
        !self.hashed
    }

    /// Whether the support of a query covers all visible keys; only known with a correction.
    fn covers(&self, b: usize, h: usize, i: u32) -> bool {
        self.covered.get(self.of(b, h)).is_some_and(|covered| covered[i as usize])
    }
}

impl<'a> Call<'a> {
    fn new(operator: &'a Scatterbrain, inputs: &[View<'a, f32>], unit: Option<&'a UnitKeys>) -> Self {
        let problem = match unit {
            None => operator.problem(inputs),
            Some(unit) => Problem { k: &unit.keys, v: inputs[1].data, ..operator.problem(inputs) },
        };
        let shape = &problem.shape;
        let positions = Positions::new(problem.mask, shape.queries, shape.keys);
        let correction = problem.features.filter(|_| !problem.naive);
        let rows = if problem.mask.valid.is_some() { shape.batch } else { 1 };
        let real = |b| match problem.mask.valid_row(b) {
            Some(valid) => (0..shape.keys as u32).filter(|&j| valid[j as usize] != 0).collect(),
            None => (0..shape.keys as u32).collect(),
        };
        let real: Vec<Vec<u32>> = (0..rows).map(real).collect();
        let options = operator.support.clone().unwrap_or_default();
        let drawn =
            |name| operator.inputs().iter().position(|input| *input == name).map_or(&[][..], |at| inputs[at].data);
        let supports = match options.kind {
            SupportKind::Smyrf => hashing::smyrf(&problem, options.rounds, options.cluster, drawn("directions")),
            SupportKind::Lsh => {
                hashing::lsh(&problem, options.rounds, options.bucket, options.cyclic, drawn("rotations"))
            }
            _ => real.iter().map(|real| blocks::fixed(&options, problem.mask, shape, real)).collect(),
        };
        let hashed = options.kind.hashes();
        let mut supports =
            Supports { supports, homes: Vec::new(), covered: Vec::new(), real, heads: shape.heads, hashed };
        if correction.is_some() {
            supports.find(shape.queries, positions);
        }
        Self { problem, supports, positions, correction }
    }

    /// All batch rows and heads.
    fn heads(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (batch, heads) = (self.problem.shape.batch, self.problem.shape.heads);
        (0..batch * heads).map(move |head| (head / heads, head % heads))
    }

    /// Runs `task` on all groups of a pass of these heads in parallel.
    fn for_each_group(
        &self,
        pass: usize,
        heads: &[(usize, usize)],
        weigh: Weigh,
        task: impl Fn(&Meeting) + Sync + Send,
    ) {
        let mut tasks: Vec<(usize, usize, Range<usize>)> = Vec::new();
        for &(b, h) in heads {
            let (mut start, mut pairs) = (0, 0);
            let groups = &self.supports.supports[self.supports.of(b, h)].passes[pass].groups;
            for (g, group) in groups.iter().enumerate() {
                pairs += group.queries.len() * group.keys.len();
                if pairs >= TASK_PAIRS || g + 1 == groups.len() {
                    tasks.push((b, h, start..g + 1));
                    (start, pairs) = (g + 1, 0);
                }
            }
        }
        parallel::for_each(tasks.len(), |at| {
            let (b, h, range) = &tasks[at];
            range.clone().for_each(|g| task(&self.meeting(*b, *h, pass, g, weigh)));
        });
    }

    /// Runs `task` on the groups of a pass of a head, one after another.
    fn groups(&self, (b, h): (usize, usize), pass: usize, weigh: Weigh, mut task: impl FnMut(&Meeting)) {
        let count = self.supports.supports[self.supports.of(b, h)].passes[pass].groups.len();
        (0..count).for_each(|g| task(&self.meeting(b, h, pass, g, weigh)));
    }

    fn meeting<'m>(&'m self, b: usize, h: usize, pass: usize, g: usize, weigh: Weigh<'m>) -> Meeting<'m> {
        let support = &self.supports.supports[self.supports.of(b, h)];
        let pass = &support.passes[pass];
        let (group, lists) = (&pass.groups[g], &support.lists[pass.lists]);
        Meeting {
            b,
            h,
            queries: &lists.queries[group.queries.clone()],
            keys: &lists.keys[group.keys.clone()],
            radius: group.radius,
            not_self: group.not_self,
            earlier: &support.lists[..pass.earlier],
            support,
            weigh,
        }
    }

    /// Real queries of a list, then padded ones: features are scaled per tile, and padded queries must not affect the
    /// rounding of real ones.
    fn apart(&self, b: usize, list: &[u32]) -> [Vec<u32>; 2] {
        let real = self.problem.mask.query_row(b, self.problem.shape.queries);
        let (real, padded) = list.iter().partition(|&&i| real.is_none_or(|real| real[i as usize] != 0));
        [real, padded]
    }

    /// Queries of a head and all keys, to be weighted without subtraction.
    fn whole<'m>(&'m self, b: usize, h: usize, queries: &'m [u32]) -> Meeting<'m> {
        let at = self.supports.of(b, h);
        Meeting {
            b,
            h,
            queries,
            keys: self.supports.real(b),
            radius: None,
            not_self: false,
            earlier: &[],
            support: &self.supports.supports[at],
            weigh: Weigh::Joint(&self.supports.homes[at]),
        }
    }
}

impl Supports {
    /// Finds the groups of each query, and queries whose support covers all visible keys.
    fn find(&mut self, queries: usize, positions: Positions) {
        let found = parallel::map(self.supports.len(), |at| {
            let support = &self.supports[at];
            let homes = Homes::new(support, queries);
            let real = self.real(if self.hashed { at / self.heads } else { at });
            let covered = homes.covered(support, positions, real);
            (homes, covered)
        });
        (self.homes, self.covered) = found.into_iter().unzip();
    }
}
