//! Decoding token by token: the first keys and values, the last ones in a ring buffer, and the feature sums of all in
//! between.

use std::f32::consts::LOG2_E;

use super::states::StateShape;
use crate::{Decode, View, gemm::Matrix, operator::reorder_rows, scatterbrain::Scatterbrain, simd};

/// State of causal attention with a local support, optionally with global first tokens, or without a support: of
/// constant size once the ring is full.
#[derive(Debug)]
pub(crate) struct Ring {
    operator: Scatterbrain,
    /// Maximum keys in the support, the token's own included; 0 without a support.
    reach: usize,
    /// First tokens, which all others see.
    globals: usize,
    batch: usize,
    /// One per batch row and key head.
    streams: Vec<Stream>,
}

#[derive(Clone, Debug, Default)]
struct Stream {
    /// Keys and values of the global tokens, then of the last ones, `[globals+reach,D]` and `[globals+reach,Dv]`; token
    /// `t` after the global ones is in row `globals + (t - globals) mod reach`.
    k: Vec<f32>,
    v: Vec<f32>,
    tokens: usize,
    /// Scales and sums of the features of the keys that have left the ring.
    state: Vec<f32>,
}

impl Ring {
    /// An empty state; `radius` is that of the support, `globals` the number of global first tokens.
    pub fn new(operator: Scatterbrain, radius: Option<usize>, globals: usize) -> Self {
        Self { operator, reach: radius.map_or(0, |radius| radius + 1), globals, batch: 0, streams: Vec::new() }
    }
}

impl Stream {
    /// Adds a key and its value to the feature sums.
    fn sum(&mut self, problem: &super::Problem, shape: StateShape, key: &[f32], value: &[f32], logs: &mut [f32]) {
        let Some(map) = problem.features else { return };
        map.logs(Matrix::rows(key, key.len()), 1, logs);
        let values = Matrix::rows(value, value.len());
        shape.absorb(&mut self.state, logs, values, &mut vec![0.0; shape.features], None, &[]);
    }
}

impl Decode for Ring {
    /// # Panics
    /// If the inputs do not hold one token per batch row, or their sizes differ from the first step.
    fn step(&mut self, inputs: &[View<f32>], out: &mut [f32]) {
        let problem = self.operator.problem(inputs);
        let shape = problem.shape;
        assert_eq!((shape.queries, shape.keys), (1, 1), "a decoder takes one token at a time");
        let features = problem.features.map_or(0, |map| map.count());
        let state = StateShape { features, values: shape.value_width };
        if self.streams.is_empty() {
            let mut empty =
                Stream { state: vec![0.0; if features > 0 { state.len() } else { 0 }], ..Stream::default() };
            if features > 0 {
                state.clear(&mut empty.state);
            }
            self.streams = vec![empty; shape.batch * shape.key_heads];
            self.batch = shape.batch;
        }
        assert_eq!(self.streams.len(), shape.batch * shape.key_heads, "sizes changed since the first token");
        let (width, values, reach, globals) = (shape.head_width, shape.value_width, self.reach, self.globals);
        let mut logs = vec![0.0f32; features];
        let mut scores = Vec::new();
        for (n, stream) in self.streams.iter_mut().enumerate() {
            let (b, hk) = (n / shape.key_heads, n % shape.key_heads);
            let key = shape.key_rows(b, hk, 0).row(problem.k, 0);
            let value = shape.value_rows(b, hk).row(problem.v, 0);
            if reach == 0 || problem.naive {
                stream.sum(&problem, state, key, value, &mut logs);
            }
            if reach > 0 {
                let at = globals + stream.tokens.saturating_sub(globals) % reach;
                if stream.tokens < globals + reach {
                    stream.k.extend_from_slice(key);
                    stream.v.extend_from_slice(value);
                } else {
                    let (old_key, old_value) =
                        (stream.k[at * width..][..width].to_vec(), stream.v[at * values..][..values].to_vec());
                    if !problem.naive {
                        stream.sum(&problem, state, &old_key, &old_value, &mut logs);
                    }
                    stream.k[at * width..][..width].copy_from_slice(key);
                    stream.v[at * values..][..values].copy_from_slice(value);
                }
            }
            stream.tokens += 1;
            let held = stream.k.len() / width;
            scores.resize(held, 0.0f32);
            for h in hk * shape.group()..(hk + 1) * shape.group() {
                let q = shape.query_rows(b, h).row(problem.q, 0);
                let row = shape.out_rows(b, h).row_mut(out, 0);
                let mut top = f32::NEG_INFINITY;
                for (score, key) in scores.iter_mut().zip(stream.k.chunks_exact(width)) {
                    *score = problem.scale * LOG2_E * simd::dot(q, key);
                    top = top.max(*score);
                }
                if let Some(map) = problem.features {
                    map.logs(Matrix::rows(q, width), 1, &mut logs);
                    let sums = logs.iter().zip(&stream.state).map(|(l, scale)| l + scale);
                    top = sums.fold(top, f32::max);
                }
                let mut total = 0.0f32;
                row.fill(0.0);
                for (score, value) in scores.iter().zip(stream.v.chunks_exact(values)) {
                    let weight = simd::exp2(score - top);
                    total += weight;
                    simd::add_scaled(row, weight, value);
                }
                if features > 0 {
                    let (scales, sums) = stream.state.split_at(features);
                    let (z, s) = sums.split_at(features);
                    for (a, &log) in logs.iter().enumerate() {
                        let weight = simd::exp2(log + scales[a] - top);
                        total += weight * z[a];
                        simd::add_scaled(row, weight, &s[a * values..(a + 1) * values]);
                    }
                }
                // Without a support and without features there is nothing to see.
                let inverse = if total > 0.0 { 1.0 / total } else { 0.0 };
                row.iter_mut().for_each(|y| *y *= inverse);
            }
        }
    }

    fn reorder(&mut self, rows: &[usize]) {
        reorder_rows(&mut self.streams, self.batch, rows);
        self.batch = if self.streams.is_empty() { 0 } else { rows.len() };
    }

    fn bytes(&self) -> usize {
        let floats = |stream: &Stream| stream.k.len() + stream.v.len() + stream.state.len();
        self.streams.iter().map(floats).sum::<usize>() * size_of::<f32>()
    }
}
