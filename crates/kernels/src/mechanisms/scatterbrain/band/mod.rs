//! A band of exact weights around the diagonal and features outside it, in one pass along the sequence.
//!
//! Queries are processed in tiles. A tile's hull is the range of keys that covers the supports of all its rows. Within
//! the hull every weight is computed: `exp(tau q.k)` on the support, `phi_q.phi_k` off it. The keys before and after
//! the hull enter only through the sums of their features. All terms are positive and each pair enters once, so nothing
//! cancels, and a row whose support covers all visible keys is exact. Without a support (Performer) the hull is empty,
//! or the tile's own keys under a causal mask; without features (local attention) there is only the hull.
//!
//! Tiles are grouped in spans, the unit of parallel work. Keys are cut into atoms at the borders of the spans' hulls;
//! the sums over atoms cover the keys before and after each span.

mod backward;
mod decode;
mod direct;
mod forward;
mod given;
mod plan;
mod span;
pub(super) mod states;
mod tile;

use std::ops::Range;

use super::{Grads, Problem, RowScales};
use crate::{Mask, Saved, parallel::runs, tiled::Scores};
pub(crate) use decode::Ring;
use states::StateShape;

/// Queries per span: long enough that the sums kept for each are small compared to its rows, short enough that those of
/// its tiles fit in the L2 cache.
pub(crate) const SPAN: usize = 512;

/// From this radius on, without features, the tiles of exact attention waste less than these.
const WIDE: usize = 256;

/// The geometry of one call.
#[derive(Clone, Debug)]
pub(super) struct Band<'a> {
    problem: Problem<'a>,
    radius: Option<usize>,
    /// The mask with the radius as its window, which describes supports.
    near: Mask,
    /// Queries per tile.
    tile: usize,
    state: StateShape,
    /// The transposed projection of the features.
    turned: Vec<f32>,
    /// Runs of keys between the borders of spans' hulls.
    atoms: Vec<Range<usize>>,
    /// Maximum segments per span.
    segments: usize,
    /// For each batch row, the number of real keys before each position.
    real_before: Option<Vec<u32>>,
}

impl<'a> Band<'a> {
    fn new(problem: &Problem<'a>, radius: Option<usize>) -> Self {
        let mask = problem.mask;
        let tile = match radius {
            Some(radius) if radius <= 48 => 32,
            Some(_) => 64,
            None if mask.causal => 64,
            None => 128,
        };
        let near = Mask { window: Some(radius.unwrap_or(0)), valid: None, query_valid: None, ..mask.clone() };
        let features = problem.features.map_or(0, |features| features.count());
        let state = StateShape { features, values: problem.shape.value_width };
        let mut band = Self {
            problem: *problem,
            radius,
            near,
            tile,
            state,
            turned: problem.features.map_or_else(Vec::new, |features| features.turned()),
            atoms: Vec::new(),
            segments: 0,
            real_before: None,
        };
        if features > 0 {
            band.atoms = band.cut();
            band.segments = (0..band.spans()).map(|span| band.segments(span).len()).max().unwrap_or(0);
            band.real_before = mask.valid.as_ref().map(|valid| {
                let rows = (0..valid.batch()).map(|b| valid.row(b));
                rows.flat_map(|row| {
                    let mut count = 0;
                    std::iter::once(0).chain(row.iter().map(move |&real| {
                        count += u32::from(real != 0);
                        count
                    }))
                })
                .collect()
            });
        }
        band
    }

    fn spans(&self) -> usize {
        self.problem.shape.queries.div_ceil(SPAN)
    }

    fn span(&self, span: usize) -> Range<usize> {
        span * SPAN..((span + 1) * SPAN).min(self.problem.shape.queries)
    }

    /// Batch row, key head and span of a task.
    fn place(&self, task: usize) -> (usize, usize, usize) {
        let heads = self.problem.shape.key_heads;
        let of_row = self.spans() * heads;
        (task / of_row, task % heads, task % of_row / heads)
    }

    fn tiles(&self, span: usize) -> impl DoubleEndedIterator<Item = Range<usize>> + ExactSizeIterator + use<> {
        runs(self.span(span), self.tile)
    }

    /// Keys whose weights are computed one by one for the rows of a tile.
    fn hull(&self, queries: Range<usize>) -> Range<usize> {
        if self.radius.is_none() && !self.near.causal {
            return 0..0;
        }
        self.near.visible_to(queries, self.problem.shape.queries, self.problem.shape.keys)
    }

    /// Maximum keys per hull.
    fn hull_len(&self) -> usize {
        let keys = self.problem.shape.keys;
        match self.radius {
            Some(radius) => (self.tile + 2 * radius.min(keys)).min(keys),
            None if self.near.causal => self.tile.min(keys),
            None => 0,
        }
    }

    /// The hull of a whole span.
    fn reach(&self, span: usize) -> Range<usize> {
        let mut tiles = self.tiles(span);
        let first = self.hull(tiles.next().expect("a span has queries"));
        let last = tiles.next_back().map_or(first.clone(), |tile| self.hull(tile));
        first.start..last.end.max(first.start)
    }

    /// Keys of query `i`'s support.
    #[inline(always)]
    fn support(&self, i: usize) -> Range<usize> {
        match self.radius {
            Some(_) => self.near.visible(i, self.problem.shape.queries, self.problem.shape.keys),
            None => 0..0,
        }
    }

    /// Keys visible to query `i`.
    #[inline(always)]
    fn visible(&self, i: usize) -> Range<usize> {
        self.problem.mask.visible(i, self.problem.shape.queries, self.problem.shape.keys)
    }

    /// Whether features give query `i` of batch row `b` any weight.
    fn has_features(&self, b: usize, i: usize) -> bool {
        self.state.features > 0 && self.sees_beside(b, self.visible(i), self.support(i))
    }

    /// Whether a query that sees `visible` has real keys weighted by features, with this support.
    #[inline(always)]
    fn sees_beside(&self, b: usize, visible: Range<usize>, support: Range<usize>) -> bool {
        let real = |keys: Range<usize>| match &self.real_before {
            None => keys.len(),
            Some(before) => {
                let row = &before[b * (self.problem.shape.keys + 1)..];
                (row[keys.end] - row[keys.start]) as usize
            }
        };
        let support = if self.problem.naive { 0..0 } else { support };
        real(visible) > real(support)
    }

    fn cut(&self) -> Vec<Range<usize>> {
        let keys = self.problem.shape.keys;
        let borders = (0..self.spans()).flat_map(|span| {
            let reach = self.reach(span);
            [reach.start, reach.end]
        });
        let mut cuts: Vec<usize> = borders.chain([0, keys]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).flat_map(|pair| runs(pair[0]..pair[1], SPAN)).collect()
    }
}

impl Problem<'_> {
    /// Fills `out`: exact weights within `radius` of the diagonal (nowhere when `None`), features elsewhere.
    pub fn forward_band(&self, radius: Option<usize>, out: &mut [f32]) -> RowScales<'static> {
        let exact = self.exactly(radius, |scores| scores.forward(out));
        match exact.map(|saved| <[Vec<f32>; 3]>::try_from(saved.buffers)) {
            Some(Ok([lse, tops, inverses])) => RowScales { lse, tops, inverses, ..RowScales::default() },
            Some(Err(_)) => unreachable!("exact attention saves three numbers a row"),
            None => Band::new(self, radius).forward(out),
        }
    }

    /// Gradients through every visible pair, for rows with these denominators, which need not be the sums of these
    /// weights; a row with inverse 0 is excluded.
    pub fn backward_band(&self, radius: Option<usize>, out: &[f32], scales: &RowScales, grad_out: &[f32]) -> Grads {
        let exact = self.exactly(radius, |scores| {
            let saved = Saved::with_lse(scales.lse.clone(), [scales.tops.clone(), scales.inverses.clone()]);
            scores.backward(out, &saved, grad_out, false, false)
        });
        match exact {
            Some(grads) => Grads { q: grads.q, k: grads.k, v: grads.v },
            None => Band::new(self, radius).backward(out, scales, grad_out),
        }
    }

    /// Runs the call as exact attention, if it is equivalent, possibly within a wide window.
    fn exactly<R>(&self, radius: Option<usize>, run: impl FnOnce(&Scores) -> R) -> Option<R> {
        let radius = radius?;
        let all = radius >= self.shape.keys.max(self.shape.queries);
        let features = self.features.is_some();
        if (features && self.naive) || !(all || !features && radius >= WIDE) {
            return None;
        }
        let mask = Mask { window: (!all).then_some(radius), ..self.mask.clone() };
        Some(run(&Scores {
            shape: self.shape,
            mask: &mask,
            q: self.q,
            k: self.k,
            v: self.v,
            gains: vec![self.scale],
            gaussian: false,
            hard: false,
            prior: None,
            shift: None,
            bias: None,
            slopes: None,
            dropout: None,
        }))
    }
}
