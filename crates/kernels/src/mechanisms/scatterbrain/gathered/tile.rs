//! Scores and feature products of one tile of gathered queries and keys.

use std::f32::consts::LOG2_E;

use super::{
    Call,
    groups::{Homes, KEYS, Lists, QUERIES, Seen, Support},
    lowrank, rows,
};
use crate::{
    Rows,
    gemm::{self, Matrix, Write},
    parallel::Parts,
    scatterbrain::{FeatureMap, log_product},
    simd,
};

/// How a pair is weighted.
#[derive(Clone, Copy, Debug)]
pub enum Weigh<'a> {
    /// Exponential of its score.
    Exact,
    /// The same minus its feature product, which the low-rank part already contains.
    Corrected,
    /// Exponential of its score on the support, feature product off it.
    Joint(&'a Homes),
}

/// Queries and keys of one group.
#[derive(Clone, Copy, Debug)]
pub struct Meeting<'a> {
    pub b: usize,
    pub h: usize,
    pub queries: &'a [u32],
    pub keys: &'a [u32],
    pub radius: Option<usize>,
    pub not_self: bool,
    /// Rounds whose pairs are masked.
    pub earlier: &'a [Lists],
    pub support: &'a Support,
    pub weigh: Weigh<'a>,
}

/// Scratch of one tile.
#[derive(Debug)]
pub struct Tile<'s> {
    /// Gathered rows.
    pub q: &'s mut [f32],
    pub k: &'s mut [f32],
    pub v: &'s mut [f32],
    /// Products `q k^T`.
    pub x: &'s mut [f32],
    /// Products of scaled features.
    pub g: &'s mut [f32],
    /// Log features of the queries, and scaled features.
    logs: &'s mut [f32],
    pub phi_q: &'s mut [f32],
    pub phi_k: &'s mut [f32],
    /// Log features of one key.
    pair: &'s mut [f32],
    c: &'s mut [f32],
    pub r: &'s mut [f32],
    pub s: &'s mut [f32],
    /// Labels of the keys in earlier rounds.
    labels: &'s mut [f32],
    /// Whether each key is in the support of one query, or [`rows::PROMOTED`].
    pub marks: &'s mut [f32],
}

/// Gathers rows `list` into `dst`.
pub fn gather(data: &[f32], rows: &Rows, list: &[u32], dst: &mut [f32]) {
    for (dst, &i) in dst.chunks_exact_mut(rows.width).zip(list) {
        dst.copy_from_slice(rows.row(data, i as usize));
    }
}

impl Call<'_> {
    /// Maximum queries and keys per tile.
    pub fn tile_sizes(&self) -> (usize, usize) {
        (QUERIES.min(self.problem.shape.queries), KEYS.min(self.problem.shape.keys))
    }

    /// Buffers of a tile.
    pub fn tile<'s>(&self, parts: &mut Parts<'s>) -> Tile<'s> {
        let shape = &self.problem.shape;
        let (n, len) = self.tile_sizes();
        let (width, value_width) = (shape.head_width, shape.value_width);
        let m = self.correction.as_ref().map_or(0, |map| map.count());
        Tile {
            q: parts.take(n * width),
            k: parts.take(len * width),
            v: parts.take(len * value_width),
            x: parts.take(n * len),
            g: parts.take(if m > 0 { n * len } else { 0 }),
            logs: parts.take(n * m),
            phi_q: parts.take(n * m),
            phi_k: parts.take(len * m),
            pair: parts.take(m),
            c: parts.take(m),
            r: parts.take(n),
            s: parts.take(len),
            labels: parts.take(self.supports.rounds() * len),
            marks: parts.take(len),
        }
    }

    /// Base-2 logarithm of a weight in units of `q.k`.
    #[inline(always)]
    pub fn factor(&self) -> f32 {
        self.problem.scale * LOG2_E
    }

    /// Gathers the queries of a tile.
    pub fn load_queries(&self, meeting: &Meeting, queries: &[u32], tile: &mut Tile) {
        let shape = &self.problem.shape;
        gather(self.problem.q, &shape.query_rows(meeting.b, meeting.h), queries, tile.q);
        if let Some(map) = self.features_of(meeting) {
            map.logs(Matrix::rows(tile.q, shape.head_width), queries.len(), tile.logs);
        }
    }

    /// Gathers the keys of a tile and computes its products.
    pub fn load_keys(&self, meeting: &Meeting, queries: &[u32], keys: &[u32], tile: &mut Tile) {
        let shape = &self.problem.shape;
        let (n, len, width) = (queries.len(), keys.len(), shape.head_width);
        let hk = meeting.h / shape.group();
        gather(self.problem.k, &shape.key_rows(meeting.b, hk, 0), keys, tile.k);
        gather(self.problem.v, &shape.value_rows(meeting.b, hk), keys, tile.v);
        let (q, k) = (Matrix::rows(tile.q, width), Matrix::rows(tile.k, width));
        gemm::product((n, len, width), 1.0, q, k.transposed(), Write::Over, tile.x, len);
        for (lists, labels) in meeting.earlier.iter().zip(tile.labels.chunks_exact_mut(len)) {
            for (label, &j) in labels.iter_mut().zip(keys) {
                *label = lists.labels.keys[j as usize];
            }
        }
        let Some(map) = self.features_of(meeting) else { return };
        let m = map.count();
        map.logs(k, len, tile.phi_k);
        let common = self.positions.seen(queries[0], None, keys).end;
        lowrank::scale_keys(&mut tile.phi_k[..len * m], m, common, tile.c, &mut tile.s[..len]);
        lowrank::scale_queries(&tile.logs[..n * m], m, tile.c, tile.phi_q, &mut tile.r[..n]);
        lowrank::products((n, len, m), tile.phi_q, tile.phi_k, tile.g);
        if let Weigh::Corrected = meeting.weigh {
            // A row covered by its support has no low-rank part.
            for (r, &i) in tile.r.iter_mut().zip(queries) {
                if self.supports.covers(meeting.b, meeting.h, i) {
                    *r = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Masks pairs of row `i` with a score of negative infinity; `seen` is its visible part of the tile.
    #[inline(always)]
    pub fn hide(&self, meeting: &Meeting, i: usize, query: u32, len: usize, seen: &Seen, tile: &mut Tile) {
        let range = seen.range(i);
        let row = &mut tile.x[i * len..][range.clone()];
        for (lists, labels) in meeting.earlier.iter().zip(tile.labels.chunks_exact(len)) {
            let met = lists.labels.met_by(lists.labels.queries[query as usize]);
            rows::hide(row, &labels[range.clone()], met);
        }
        if let Some(own) = seen.own(i) {
            row[own - range.start] = f32::NEG_INFINITY;
        }
    }

    /// Marks keys of row `i` on the support, and those off it whose products of scaled features are tiny: these are
    /// recomputed in log space.
    pub fn mark(
        &self,
        meeting: &Meeting,
        homes: &Homes,
        (i, query): (usize, u32),
        keys: &[u32],
        seen: &Seen,
        tile: &mut Tile,
    ) {
        let (len, width) = (keys.len(), self.problem.shape.head_width);
        homes.mark(meeting.support, self.positions, query, keys, &mut tile.marks[..len]);
        let Some(map) = self.features_of(meeting) else { return };
        let m = map.count();
        for j in seen.range(i) {
            if tile.marks[j] == 0.0 && tile.g[i * len + j] < rows::TINY {
                map.logs(Matrix::rows(&tile.k[j * width..], width), 1, tile.pair);
                let log = log_product(&tile.logs[i * m..(i + 1) * m], tile.pair);
                tile.x[i * len + j] = log / self.factor();
                tile.marks[j] = rows::PROMOTED;
            }
        }
    }

    /// Adds the log-feature gradients of row `i` and key `j`, a promoted pair, to `slopes_q` and `slopes_k`, for
    /// gradient `w` of the log of their product.
    pub fn promoted_slopes(
        &self,
        map: &FeatureMap,
        (i, j, len): (usize, usize, usize),
        w: f32,
        tile: &mut Tile,
        (slopes_q, slopes_k): (&mut [f32], &mut [f32]),
    ) {
        let (m, width) = (map.count(), self.problem.shape.head_width);
        map.logs(Matrix::rows(&tile.k[j * width..], width), 1, tile.pair);
        let log = tile.x[i * len + j] * self.factor();
        let logs = tile.logs[i * m..(i + 1) * m].iter().zip(&*tile.pair);
        for ((q, k), (a, b)) in slopes_q.iter_mut().zip(slopes_k).zip(logs) {
            let slope = w * simd::exp2(a + b - log);
            *q += slope;
            *k += slope;
        }
    }

    /// The features used for weighting.
    pub fn features_of(&self, meeting: &Meeting) -> Option<FeatureMap<'_>> {
        if matches!(meeting.weigh, Weigh::Exact) { None } else { self.correction }
    }
}
