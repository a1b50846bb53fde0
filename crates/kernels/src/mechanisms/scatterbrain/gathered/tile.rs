//! Scores and products of features of one tile: rows of queries and keys gathered side by side.

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

/// How a pair is weighed.
#[derive(Clone, Copy, Debug)]
pub enum Weigh<'a> {
    /// By the exponential of its score.
    Exact,
    /// By the same less the product of its features, which the low-rank part has counted already.
    Corrected,
    /// Within the support by the exponential of its score, else by the product of its features.
    Joint(&'a Homes),
}

/// Queries and keys of one head that meet.
#[derive(Clone, Copy, Debug)]
pub struct Meeting<'a> {
    pub b: usize,
    pub h: usize,
    pub queries: &'a [u32],
    pub keys: &'a [u32],
    pub radius: Option<usize>,
    pub not_self: bool,
    /// Rounds whose pairs are left out.
    pub earlier: &'a [Lists],
    pub support: &'a Support,
    pub weigh: Weigh<'a>,
}

/// Memory of one tile.
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
    /// Logarithms of the queries' features, and scaled features.
    logs: &'s mut [f32],
    pub phi_q: &'s mut [f32],
    pub phi_k: &'s mut [f32],
    /// Logarithms of the features of one key.
    pair: &'s mut [f32],
    c: &'s mut [f32],
    pub r: &'s mut [f32],
    pub s: &'s mut [f32],
    /// Labels of the keys in earlier rounds.
    labels: &'s mut [f32],
    /// Whether each key is in the support of one query, or [`rows::PROMOTED`].
    pub marks: &'s mut [f32],
}

/// Copies rows `list` into `dst`, side by side.
pub fn gather(data: &[f32], rows: &Rows, list: &[u32], dst: &mut [f32]) {
    for (dst, &i) in dst.chunks_exact_mut(rows.width).zip(list) {
        dst.copy_from_slice(rows.row(data, i as usize));
    }
}

impl Call<'_> {
    /// Most queries and keys of a tile.
    pub fn tile_sizes(&self) -> (usize, usize) {
        (QUERIES.min(self.problem.shape.queries), KEYS.min(self.problem.shape.keys))
    }

    /// Room for a tile.
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

    /// Gathers the keys of a tile and forms its products.
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
            // The low-rank part is no part of a row that the support covers.
            for (r, &i) in tile.r.iter_mut().zip(queries) {
                if self.supports.covers(meeting.b, meeting.h, i) {
                    *r = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Marks pairs of row `i` that do not count with a score of negative infinity; `seen` is what it sees of the tile.
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

    /// Marks keys of row `i` on the support, and those off it whose products of scaled features are tiny: these are formed
    /// again, in the logarithm.
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

    /// Adds to `slopes_q` and `slopes_k` those of the features of key `j` and row `i`, whose pair is promoted, for slope
    /// `w` of the logarithm of their product.
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

    /// The features that weighing takes.
    pub fn features_of(&self, meeting: &Meeting) -> Option<FeatureMap<'_>> {
        if matches!(meeting.weigh, Weigh::Exact) { None } else { self.correction }
    }
}
