//! What the tiles of a span share: keys and values of its hull, their features, and the sums over what lies outside.

use std::ops::Range;

use super::{Band, states::exponentiate};
use crate::{
    Rows,
    gemm::{Matrix, Write},
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
    /// Length of the rows of columns.
    pub stride: usize,
    /// The keys as columns, `[D,keys]`.
    pub k_columns: &'s [f32],
    /// Scales of the features, `[m]`.
    pub scales: &'s [f32],
    /// Features of the keys at these scales as columns, `[m,keys]`.
    pub phi_columns: &'s [f32],
    /// Of each tile, the sums over all visible keys outside its hull, at these scales.
    pub outside: &'s [f32],
}

/// Sizes of the scratch that [`Band::load`] takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanScratch {
    pub k: usize,
    pub v: usize,
    pub k_columns: usize,
    pub phi_columns: usize,
    pub outside: usize,
    pub segments: usize,
}

impl SpanScratch {
    /// In the order in which [`Band::load`] takes them.
    pub(super) fn sizes(&self) -> [usize; 6] {
        [self.k, self.v, self.k_columns, self.phi_columns, self.outside, self.segments]
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

    /// Which of `keys` are real, where some are padding.
    pub(super) fn valid(&self, b: usize, keys: &Range<usize>) -> Option<&[u8]> {
        self.problem.mask.valid_row(b).map(|row| &row[keys.clone()])
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

    /// Of every span, its scales, and the sums before and behind it at these scales, `[B,Hk,spans,kept]`.
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
            let stride = simd::row_stride(CHUNK);
            let (width, values) = (shape.head_width, shape.value_width);
            let sizes = [CHUNK * width, CHUNK * values, width * stride, m * stride, m];
            with_scratch(sizes.iter().sum(), |scratch| {
                let [k, v, k_columns, phi, risen] = split(scratch, sizes);
                for start in all.clone().step_by(CHUNK) {
                    let keys = start..(start + CHUNK).min(all.end);
                    let n = keys.len();
                    let k = self.rows((self.problem.k, shape.key_rows(b, hk, 0)), b, keys.clone(), k);
                    let v = self.rows((self.problem.v, shape.value_rows(b, hk)), b, keys.clone(), v);
                    simd::transpose(k, (n, width), k_columns, stride);
                    map.log_columns(k_columns, n, phi, stride);
                    state.absorb(total, (phi, stride, n), v, risen, self.valid(b, &keys));
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

    pub(super) fn span_scratch(&self) -> SpanScratch {
        let (shape, state) = (self.problem.shape, self.state);
        let keys = match self.hull_len() {
            0 => 0,
            hull => (hull + SPAN_REST).min(shape.keys),
        };
        let tiles = super::SPAN.div_ceil(self.tile);
        let sums = if state.features == 0 { 0 } else { state.sums() };
        let stride = simd::row_stride(keys);
        SpanScratch {
            k: keys * shape.head_width,
            v: keys * shape.value_width,
            k_columns: shape.head_width * stride,
            phi_columns: state.features * stride,
            outside: tiles * sums,
            segments: self.segments * sums,
        }
    }

    /// Loads span `span` of key head `hk`; `kept` is its part of [`Band::surround`].
    pub(super) fn load<'s>(
        &'s self,
        (b, hk, span): (usize, usize, usize),
        kept: &'s [f32],
        [k, v, k_columns, phi_columns, outside, segments]: [&'s mut [f32]; 6],
    ) -> Span<'s> {
        let shape = self.problem.shape;
        let keys = self.reach(span);
        let n = keys.len();
        let stride = simd::row_stride(n);
        let k = self.rows((self.problem.k, shape.key_rows(b, hk, 0)), b, keys.clone(), k);
        let v = self.rows((self.problem.v, shape.value_rows(b, hk)), b, keys.clone(), v);
        simd::transpose(k, (n, shape.head_width), k_columns, stride);
        let scales = &kept[..self.state.features];
        if let Some(map) = self.problem.features {
            if n > 0 {
                map.log_columns(k_columns, n, phi_columns, stride);
                exponentiate((phi_columns, stride, n), scales, self.valid(b, &keys));
            }
            self.sum_outside(span, &kept[self.state.features..], (phi_columns, stride), v, outside, segments);
        }
        Span { keys, k, v, stride, k_columns, scales, phi_columns, outside }
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

    /// Of each tile of a span, the sums over all visible keys outside its hull: those before and behind the span's, `around`,
    /// and those between. Every key is summed once.
    fn sum_outside(
        &self,
        span: usize,
        around: &[f32],
        (phi, stride): (&[f32], usize),
        v: Matrix,
        outside: &mut [f32],
        sums: &mut [f32],
    ) {
        let (state, len) = (self.state, self.state.sums());
        let keys = self.reach(span);
        let segments = self.segments(span);
        let (tiles, mut hulls) = (self.tiles(span).len(), self.tiles(span).map(|queries| self.hull(queries)));
        let first = hulls.next().expect("a span has queries");
        let last = hulls.next_back().unwrap_or(first.clone());
        for (segment, sums) in segments.iter().zip(sums.chunks_exact_mut(len)) {
            if segment.end <= last.start || self.looks_ahead() && segment.start >= first.end {
                let at = segment.start - keys.start;
                let values = Matrix { data: &v.data[at * v.row..], ..v };
                state.sum(sums, Matrix::rows(&phi[at..], stride), values, segment.len(), Write::Over);
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

/// `to += from`.
pub(super) fn add(to: &mut [f32], from: &[f32]) {
    simd::vectorize(
        #[inline(always)]
        || simd::add_scaled(to, 1.0, from),
    );
}

/// Keys that the hull of a span has more than that of a tile.
const SPAN_REST: usize = super::SPAN;
