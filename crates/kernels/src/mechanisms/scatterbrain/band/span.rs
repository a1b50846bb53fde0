//! Shared by the tiles of a span: keys and values of its hull, their features, and the sums over keys outside.

use std::ops::Range;

use super::{Band, plan::Plan, states::exponentiate};
use crate::{
    Rows,
    gemm::{Matrix, Write},
    parallel::{Disjoint, for_each, with_parts, with_shared},
    simd,
};

/// Rows whose features are computed at a time.
pub(super) const CHUNK: usize = 128;

/// One span of one key head, loaded.
pub(super) struct Span<'s> {
    /// Keys of the span's hull.
    pub keys: Range<usize>,
    pub k: Matrix<'s>,
    pub v: Matrix<'s>,
    /// Scales of the features, `[m]`.
    pub scales: &'s [f32],
    /// Features of the keys at these scales, `[keys,m]`.
    pub phi: &'s [f32],
    /// For each tile, the sums over all visible keys outside its hull, at these scales.
    pub outside: &'s [f32],
}

impl Span<'_> {
    /// Start of a tile's hull among the keys.
    pub fn place(&self, plan: &Plan) -> usize {
        plan.hull.start.saturating_sub(self.keys.start)
    }
}

impl Band<'_> {
    /// Number of key heads over all batch rows.
    pub(super) fn streams(&self) -> usize {
        self.problem.shape.batch * self.problem.shape.key_heads
    }

    /// Whether keys after a tile are visible.
    pub(super) fn looks_ahead(&self) -> bool {
        !self.problem.mask.causal
    }

    /// Floats kept per span: scales, the sums before it, and the sums after it.
    pub(super) fn kept(&self) -> usize {
        if self.state.features == 0 {
            return 0;
        }
        self.state.features + self.state.sums() * (1 + usize::from(self.looks_ahead()))
    }

    /// Whether key `j` of batch row `b` is real.
    #[inline(always)]
    pub(super) fn real(&self, b: usize, j: usize) -> bool {
        self.problem.mask.valid_row(b).is_none_or(|row| row[j] != 0)
    }

    /// Which of `keys` are real, if some are padding.
    pub(super) fn valid(&self, b: usize, keys: &Range<usize>) -> Option<&[u8]> {
        self.problem.mask.valid_row(b).map(|row| &row[keys.clone()])
    }

    /// Rows `keys`, in place, or copied to `buffer` if some are padding, whose rows become 0, or if they are far apart.
    pub(super) fn rows<'t>(
        &self,
        (data, rows): (&'t [f32], Rows),
        b: usize,
        keys: Range<usize>,
        buffer: &'t mut [f32],
    ) -> Matrix<'t> {
        let valid = self.problem.mask.valid_row(b);
        if valid.is_none() && rows.stride == rows.width {
            return Matrix::rows(&data[rows.start(keys.start).min(data.len())..], rows.width);
        }
        for (row, j) in buffer.chunks_exact_mut(rows.width).zip(keys) {
            if valid.is_some_and(|valid| valid[j] == 0) {
                row.fill(0.0);
            } else {
                simd::prefetch(data, &rows, j);
                row.copy_from_slice(rows.row(data, j));
            }
        }
        Matrix::rows(buffer, rows.width)
    }

    /// For every span, its scales, and the sums before and after it at these scales, `[B,Hk,spans,kept]`.
    pub(super) fn surroundings(&self) -> Vec<f32> {
        let mut spans = vec![0.0; self.streams() * self.spans() * self.kept()];
        with_shared(self.streams() * self.atoms.len() * self.state.len(), |atoms| {
            self.sum_atoms(atoms);
            self.surround(atoms, &mut spans);
        });
        spans
    }

    /// Scales and sums of every atom: `[B,Hk,atoms,len]`.
    fn sum_atoms(&self, states: &mut [f32]) {
        let (shape, state) = (self.problem.shape, self.state);
        let Some(map) = self.problem.features else { return };
        let (atoms, len, m) = (self.atoms.len(), state.len(), state.features);
        let shared = Disjoint::new(states);
        for_each(self.streams() * atoms, |task| {
            let (stream, atom) = (task / atoms, task % atoms);
            let (b, hk) = (stream / shape.key_heads, stream % shape.key_heads);
            // SAFETY: each task has its own state.
            let total = unsafe { shared.range(task * len, len) };
            state.clear(total);
            let all = self.atoms[atom].clone();
            with_parts!(k = CHUNK * shape.head_width, v = CHUNK * shape.value_width, phi = CHUNK * m, risen = m, {
                for start in all.clone().step_by(CHUNK) {
                    let keys = start..(start + CHUNK).min(all.end);
                    let n = keys.len();
                    let k = self.rows((self.problem.k, shape.key_rows(b, hk, 0)), b, keys.clone(), k);
                    let v = self.rows((self.problem.v, shape.value_rows(b, hk)), b, keys.clone(), v);
                    let logs = &mut phi[..n * m];
                    map.log_rows(&self.turned, k, n, logs, v.dense(n, shape.value_width));
                    let next = keys.end..(keys.end + CHUNK).min(shape.keys);
                    let ahead = in_place(self.problem.k, &shape.key_rows(b, hk, 0), next);
                    state.absorb(total, logs, v, risen, self.valid(b, &keys), ahead);
                }
            });
        });
    }

    /// Merges the atoms before and after each span.
    fn surround(&self, atoms: &[f32], result: &mut [f32]) {
        let state = self.state;
        let (m, kept, spans) = (state.features, self.kept(), self.spans());
        if m == 0 {
            return;
        }
        let shared = Disjoint::new(result);
        let of_stream = self.atoms.len() * state.len();
        for_each(self.streams(), |stream| {
            let atom = |n: usize| &atoms[stream * of_stream + n * state.len()..][..state.len()];
            // SAFETY: each task accesses only the spans of its own stream.
            let result = unsafe { shared.range(stream * spans * kept, spans * kept) };
            let mut running = vec![0.0f32; state.len()];
            let mut scales = vec![f32::NEG_INFINITY; m];
            state.clear(&mut running);
            let (mut merged, mut scaled) = (0, 0);
            for (span, kept) in result.chunks_exact_mut(kept).enumerate() {
                let reach = self.reach(span);
                let end = if self.looks_ahead() { self.problem.shape.keys } else { reach.end };
                while scaled < self.atoms.len() && self.atoms[scaled].end <= end {
                    scales.iter_mut().zip(atom(scaled)).for_each(|(scale, &of_atom)| *scale = scale.max(of_atom));
                    scaled += 1;
                }
                while merged < self.atoms.len() && self.atoms[merged].end <= reach.start {
                    state.merge(&mut running, atom(merged));
                    merged += 1;
                }
                let (kept_scales, sums) = kept.split_at_mut(m);
                kept_scales.copy_from_slice(&scales);
                state.merge_at(kept_scales, &mut sums[..state.sums()], &running[..m], &running[m..]);
            }
            if !self.looks_ahead() {
                return;
            }
            state.clear(&mut running);
            let mut merged = self.atoms.len();
            for (span, kept) in result.chunks_exact_mut(kept).enumerate().rev() {
                let end = self.reach(span).end;
                while merged > 0 && self.atoms[merged - 1].start >= end {
                    merged -= 1;
                    state.merge(&mut running, atom(merged));
                }
                let (scales, sums) = kept.split_at_mut(m);
                state.merge_at(scales, &mut sums[state.sums()..], &running[..m], &running[m..]);
            }
        });
    }

    /// Sizes of the buffers that [`Band::load`] takes: keys, values, features, sums outside the tiles and of segments.
    pub(super) fn span_scratch(&self) -> [usize; 5] {
        let (shape, state) = (self.problem.shape, self.state);
        let keys = match self.hull_len() {
            0 => 0,
            hull => (hull + SPAN_REST).min(shape.keys),
        };
        let tiles = super::SPAN.div_ceil(self.tile);
        let sums = if state.features == 0 { 0 } else { state.sums() };
        let [k, v, phi] = [shape.head_width, shape.value_width, state.features].map(|width| keys * width);
        [k, v, phi, tiles * sums, self.segments * sums]
    }

    /// Sizes of the buffers of a [`Tile`](super::tile::Tile): queries, their features, one float per pair, one per
    /// query.
    pub(super) fn tile_scratch(&self) -> [usize; 4] {
        let lanes = self.tile.next_multiple_of(simd::LANES);
        [self.problem.shape.head_width, self.state.features, self.hull_len(), 1].map(|rows| rows * lanes)
    }

    /// Loads span `span` of key head `hk`; `kept` is its part of [`Band::surround`].
    pub(super) fn load<'s>(
        &'s self,
        (b, hk, span): (usize, usize, usize),
        kept: &'s [f32],
        [k, v, phi, outside, segments]: [&'s mut [f32]; 5],
    ) -> Span<'s> {
        let (shape, m) = (self.problem.shape, self.state.features);
        let keys = self.reach(span);
        let n = keys.len();
        let k = self.rows((self.problem.k, shape.key_rows(b, hk, 0)), b, keys.clone(), k);
        let v = self.rows((self.problem.v, shape.value_rows(b, hk)), b, keys.clone(), v);
        let scales = &kept[..m];
        let phi = &mut phi[..n * m];
        if let Some(map) = self.problem.features {
            if n > 0 {
                map.log_rows(&self.turned, k, n, phi, v.dense(n, shape.value_width));
                exponentiate(phi, scales, self.valid(b, &keys));
            }
            self.sum_outside(span, &kept[m..], phi, v, outside, segments);
        }
        Span { keys, k, v, scales, phi, outside }
    }

    /// Cuts the keys of a span at the borders of the hulls of its tiles, and of atoms.
    pub(super) fn segments(&self, span: usize) -> Vec<Range<usize>> {
        let keys = self.reach(span);
        let hulls = self.tiles(span).map(|queries| self.hull(queries));
        let first = self.atoms.partition_point(|atom| atom.start < keys.start);
        let atoms = self.atoms[first..].iter().map(|atom| atom.start).take_while(|&start| start < keys.end);
        let borders = hulls.flat_map(|hull| [hull.start, hull.end]).map(|border| border.clamp(keys.start, keys.end));
        let mut cuts: Vec<usize> = borders.chain(atoms).chain([keys.start, keys.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// For each tile of a span, the sums over all visible keys outside its hull: those before and after the span's
    /// hull, `around`, and those in between. Every key is summed once.
    fn sum_outside(&self, span: usize, around: &[f32], phi: &[f32], v: Matrix, outside: &mut [f32], sums: &mut [f32]) {
        let (state, len) = (self.state, self.state.sums());
        let keys = self.reach(span);
        let segments = self.segments(span);
        let (tiles, mut hulls) = (self.tiles(span).len(), self.tiles(span).map(|queries| self.hull(queries)));
        let first = hulls.next().expect("a span has queries");
        let last = hulls.next_back().unwrap_or(first.clone());
        for (segment, sums) in segments.iter().zip(sums.chunks_exact_mut(len)) {
            if segment.end <= last.start || self.looks_ahead() && segment.start >= first.end {
                let at = segment.start - keys.start;
                let values = v.skip_rows(at);
                let phi = &phi[at * state.features..(at + segment.len()) * state.features];
                state.sum(sums, phi, values, Write::Over, &[]);
            }
        }
        let sums = |n: usize| &sums[n * len..(n + 1) * len];
        let (before, behind) = around.split_at(len);
        if self.looks_ahead() {
            let mut next = segments.len();
            for (tile, queries) in self.tiles(span).enumerate().rev() {
                let hull = self.hull(queries);
                if tile + 1 == tiles {
                    outside[tile * len..(tile + 1) * len].copy_from_slice(behind);
                } else {
                    outside.copy_within((tile + 1) * len..(tile + 2) * len, tile * len);
                }
                while next > 0 && segments[next - 1].start >= hull.end {
                    next -= 1;
                    add(&mut outside[tile * len..(tile + 1) * len], sums(next));
                }
            }
        } else {
            outside[..tiles * len].fill(0.0);
        }
        let mut running = before.to_vec();
        let mut next = 0;
        for (tile, queries) in self.tiles(span).enumerate() {
            let hull = self.hull(queries);
            while next < segments.len() && segments[next].end <= hull.start {
                add(&mut running, sums(next));
                next += 1;
            }
            add(&mut outside[tile * len..(tile + 1) * len], &running);
        }
    }
}

/// Rows of `data`, if contiguous.
pub(super) fn in_place<'a>(data: &'a [f32], rows: &Rows, keys: Range<usize>) -> &'a [f32] {
    if rows.stride == rows.width { &data[rows.start(keys.start)..rows.start(keys.end)] } else { &[] }
}

/// `to += from`.
pub(super) fn add(to: &mut [f32], from: &[f32]) {
    simd::vectorize(
        #[inline(always)]
        || simd::add_scaled(to, 1.0, from),
    );
}

/// Keys in the hull of a span beyond those of a tile's.
const SPAN_REST: usize = super::SPAN;
