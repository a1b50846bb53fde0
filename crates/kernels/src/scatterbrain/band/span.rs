//! What the tiles of a span share: keys and values of its hull, their features, and the sums over what lies outside.

use std::ops::Range;

use super::{
    Band,
    states::{exponentiate, raise_to},
};
use crate::{
    Rows,
    gemm::{Matrix, transpose},
    parallel::{Disjoint, for_each, split, with_scratch, with_shared},
    simd,
};

/// Rows whose features are formed at a time.
pub(super) const CHUNK: usize = 128;

/// One span of one key head, loaded.
pub(super) struct Span<'s> {
    /// Keys of the span's hull.
    pub keys: Range<usize>,
    pub k: Matrix<'s>,
    pub v: Matrix<'s>,
    /// The keys as columns, `[D,keys]`: products with tiles of queries run up to twice as fast with these.
    pub k_columns: &'s [f32],
    /// Scales of the features, `[m]`.
    pub scales: &'s [f32],
    /// Features of the keys at these scales, `[keys,m]`.
    pub phi: &'s [f32],
    /// The same as columns, `[m,keys]`.
    pub phi_columns: &'s [f32],
    /// Of each tile, the sums over all visible keys outside its hull, at these scales.
    pub outside: &'s [f32],
}

/// Sizes of the scratch that [`Band::load`] takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanScratch {
    pub k: usize,
    pub v: usize,
    pub phi: usize,
    pub outside: usize,
    pub running: usize,
}

impl SpanScratch {
    /// In the order in which [`Band::load`] takes them.
    pub(super) fn sizes(&self) -> [usize; 7] {
        [self.k, self.v, self.k, self.phi, self.phi, self.outside, self.running]
    }
}

impl Band<'_> {
    /// Number of key heads of all batch rows.
    pub(super) fn streams(&self) -> usize {
        self.problem.shape.batch * self.problem.shape.key_heads
    }

    /// Whether keys behind a tile are seen.
    pub(super) fn looks_ahead(&self) -> bool {
        !self.problem.mask.causal
    }

    /// Floats of what is kept of a span: scales, the sums before it, and the sums behind it.
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

    /// Rows `keys`, in place, or copied to `buffer` where some are padding, whose rows become 0, or lie far apart.
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

    /// Of every span, its scales, and the sums before and behind it at these scales, `[B,Hk,spans,kept]`, lent to `call`.
    pub(super) fn with_surroundings<R>(&self, call: impl FnOnce(&[f32]) -> R) -> R {
        let atoms = self.streams() * self.atoms.len() * self.state.len();
        let spans = self.streams() * self.spans() * self.kept();
        with_shared(atoms + spans, |buffer| {
            let (atoms, spans) = buffer.split_at_mut(atoms);
            self.sum_atoms(atoms);
            self.surround(atoms, spans);
            call(spans)
        })
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
            let sizes = [CHUNK * shape.head_width, CHUNK * m, CHUNK * shape.value_width, m];
            with_scratch(sizes.iter().sum(), |scratch| {
                let [k, phi, v, risen] = split(scratch, sizes);
                for start in all.clone().step_by(CHUNK) {
                    let keys = start..(start + CHUNK).min(all.end);
                    let n = keys.len();
                    let phi = &mut phi[..n * m];
                    let real = |j: usize| self.real(b, start + j);
                    map.logs(self.rows((self.problem.k, shape.key_rows(b, hk, 0)), b, keys.clone(), k), n, phi);
                    let values = self.rows((self.problem.v, shape.value_rows(b, hk)), b, keys, v);
                    state.absorb(total, phi, values, risen, real);
                }
            });
        });
    }

    /// Joins the atoms before and behind each span.
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
            // SAFETY: each task has the spans of its own stream.
            let result = unsafe { shared.range(stream * spans * kept, spans * kept) };
            result.fill(0.0);
            let mut running = vec![0.0f32; state.len()];
            let mut scales = vec![f32::NEG_INFINITY; m];
            state.clear(&mut running);
            let (mut merged, mut scaled) = (0, 0);
            for (span, kept) in result.chunks_exact_mut(kept).enumerate() {
                let reach = self.reach(span);
                let end = if self.looks_ahead() { self.problem.shape.keys } else { reach.end };
                while scaled < self.atoms.len() && self.atoms[scaled].end <= end {
                    raise_to(&mut scales, &atom(scaled)[..m], |_| true);
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

    pub(super) fn span_scratch(&self) -> SpanScratch {
        let (shape, state) = (self.problem.shape, self.state);
        let keys = match self.hull_len() {
            0 => 0,
            hull => (hull + SPAN_REST).min(shape.keys),
        };
        let tiles = super::SPAN.div_ceil(self.tile);
        let sums = if state.features == 0 { 0 } else { state.sums() };
        SpanScratch {
            k: keys * shape.head_width,
            v: keys * shape.value_width,
            phi: keys * state.features,
            outside: tiles * sums,
            running: sums,
        }
    }

    /// Loads span `span` of key head `hk`; `kept` is its part of [`Band::surround`].
    pub(super) fn load<'s>(
        &'s self,
        (b, hk, span): (usize, usize, usize),
        kept: &'s [f32],
        [k, v, k_columns, phi, phi_columns, outside, running]: [&'s mut [f32]; 7],
    ) -> Span<'s> {
        let (shape, state) = (self.problem.shape, self.state);
        let keys = self.reach(span);
        let (n, m) = (keys.len(), state.features);
        let k = self.rows((self.problem.k, shape.key_rows(b, hk, 0)), b, keys.clone(), k);
        let v = self.rows((self.problem.v, shape.value_rows(b, hk)), b, keys.clone(), v);
        if self.radius.is_some() {
            transpose(k, (n, shape.head_width), k_columns);
        }
        let (scales, sums) = kept.split_at(m);
        let Some(map) = self.problem.features else {
            return Span { keys, k, v, k_columns, scales, phi, phi_columns, outside };
        };
        let phi = &mut phi[..n * m];
        if n > 0 {
            map.logs(k, n, phi);
            exponentiate(phi, scales, |j| self.real(b, keys.start + j));
            transpose(Matrix::rows(phi, m), (n, m), phi_columns);
        }
        let add = |sums: &mut [f32], range: Range<usize>| {
            if !range.is_empty() {
                let (first, count) = (range.start - keys.start, range.len());
                let values = Matrix { data: &v.data[first * v.row..], ..v };
                state.add(sums, &phi[first * m..], values, count);
            }
        };
        let len = state.sums();
        if self.looks_ahead() {
            running.copy_from_slice(&sums[len..]);
            let mut end = keys.end;
            for (tile, queries) in self.tiles(span).enumerate().rev() {
                let hull = self.hull(queries);
                add(running, hull.end.max(keys.start)..end);
                end = hull.end.max(keys.start).min(end);
                outside[tile * len..(tile + 1) * len].copy_from_slice(running);
            }
        } else {
            outside.fill(0.0);
        }
        running.copy_from_slice(&sums[..len]);
        let mut start = keys.start;
        for (tile, queries) in self.tiles(span).enumerate() {
            let hull = self.hull(queries);
            add(running, start..hull.start.max(start));
            start = hull.start.max(start);
            for (total, &sum) in outside[tile * len..(tile + 1) * len].iter_mut().zip(&*running) {
                *total += sum;
            }
        }
        Span { keys, k, v, k_columns, scales, phi, phi_columns, outside }
    }
}

/// Keys that the hull of a span has more than that of a tile.
const SPAN_REST: usize = super::SPAN;
