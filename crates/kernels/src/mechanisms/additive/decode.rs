//! Causal decoding: the state is both averages and their denominators, independent of the length of the prefix.

use std::sync::Arc;

use crate::{
    Decode, Padding, View,
    gemm::{Matrix, Write, product},
    operator::reorder_rows,
    simd::{dot, exp, vectorize},
};

use super::{
    Additive,
    plan::{Plan, follow},
};

/// Running softmax averages of rows `[B,H,D]`.
#[derive(Debug, Default)]
struct Running {
    /// Largest score so far, `[B,H]`.
    tops: Vec<f32>,
    /// Sum of `e^(score - top)`, `[B,H]`; 0 before the first real token.
    denominators: Vec<f64>,
    /// `[B,H,D]`.
    averages: Vec<f32>,
}

impl Running {
    fn new(batch: usize, heads: usize, width: usize) -> Self {
        Self {
            tops: vec![f32::MIN; batch * heads],
            denominators: vec![0.0; batch * heads],
            averages: vec![0.0; batch * heads * width],
        }
    }

    /// Adds a token of head `at` with its score.
    #[inline(always)]
    fn take(&mut self, at: usize, score: f32, token: &[f32]) {
        let (top, denominator) = (&mut self.tops[at], &mut self.denominators[at]);
        let new_top = if score > *top { score } else { *top };
        let power = f64::from(exp(score - new_top));
        *denominator = *denominator * f64::from(exp(*top - new_top)) + power;
        *top = new_top;
        let weight = (power / *denominator) as f32;
        follow(&mut self.averages[at * token.len()..][..token.len()], weight, token);
    }

    fn reorder(&mut self, batch: usize, rows: &[usize]) {
        reorder_rows(&mut self.tops, batch, rows);
        reorder_rows(&mut self.denominators, batch, rows);
        reorder_rows(&mut self.averages, batch, rows);
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.tops[..]) + size_of_val(&self.denominators[..]) + size_of_val(&self.averages[..])
    }
}

/// State of [`Additive`] between tokens. The operator's padding applies to the first tokens; all later ones are real.
#[derive(Debug)]
struct Decoder {
    operator: Additive,
    batch: usize,
    position: usize,
    queries: Running,
    keys: Running,
    /// Gated keys, then values `u`, of the current token: `[B,H*D]`.
    token: Vec<f32>,
}

pub(super) fn decoder(operator: &Additive) -> Box<dyn Decode> {
    Box::new(Decoder {
        operator: operator.clone(),
        batch: 0,
        position: 0,
        queries: Running::default(),
        keys: Running::default(),
        token: Vec::new(),
    })
}

impl Decode for Decoder {
    fn step(&mut self, inputs: &[View<f32>], out: &mut [f32]) {
        // The operator's padding has the length of a full sequence, a step has one token: look it up here.
        let mut single = self.operator.clone();
        let padding = single.mask.valid.take();
        single.mask.query_valid = None;
        let plan = Plan::new(&single, inputs);
        let (batch, heads, head_width, width) =
            (plan.shape.batch, plan.shape.heads, plan.shape.head_width, plan.width());
        if self.position == 0 {
            self.queries = Running::new(batch, heads, head_width);
            self.keys = Running::new(batch, heads, head_width);
            self.token = vec![0.0; batch * width];
            self.batch = batch;
        }
        let Self { position, queries, keys, token, .. } = self;
        let real = |b| match &padding {
            Some(padding) if *position < padding.length() => padding.row(b)[*position] != 0,
            _ => true,
        };
        out.copy_from_slice(plan.q);
        // With one token both layouts are the same rows of all channels.
        for (b, token) in token.chunks_exact_mut(width).enumerate() {
            let (q, k, v) = (&plan.q[b * width..], &plan.k[b * width..], &plan.v[b * width..]);
            vectorize(
                #[inline(always)]
                || {
                    let real = real(b);
                    if real {
                        take_all(&plan, queries, b, &q[..width], plan.w_q);
                    }
                    for (i, gated) in token.iter_mut().enumerate() {
                        *gated = queries.averages[b * width + i] * k[i];
                    }
                    if real {
                        take_all(&plan, keys, b, token, plan.w_k);
                    }
                    for (i, value) in token.iter_mut().enumerate() {
                        *value = keys.averages[b * width + i] * v[i];
                    }
                },
            );
            if queries.denominators[b * heads] == 0.0 {
                token.fill(0.0);
                out[b * width..][..width].fill(0.0);
            }
        }
        let (token, w_t) = (Matrix::rows(token, width), Matrix::rows(plan.w_t, width));
        product((batch, width, width), 1.0, token, w_t, Write::Add, out, width);
        self.position += 1;
    }

    fn reorder(&mut self, rows: &[usize]) {
        if self.position == 0 {
            return;
        }
        self.queries.reorder(self.batch, rows);
        self.keys.reorder(self.batch, rows);
        reorder_rows(&mut self.token, self.batch, rows);
        self.batch = rows.len();
        if let Some(padding) = &mut self.operator.mask.valid {
            let real = rows.iter().flat_map(|&row| padding.row(row).iter().copied()).collect();
            let reordered = Padding::new(rows.len(), padding.length(), real).expect("one row each");
            *padding = Arc::new(reordered);
        }
    }

    fn bytes(&self) -> usize {
        self.queries.bytes() + self.keys.bytes() + size_of_val(&self.token[..])
    }
}

/// Adds one token `[H*D]` of batch row `b` to the averages of all its heads.
#[inline(always)]
fn take_all(plan: &Plan, running: &mut Running, b: usize, token: &[f32], vectors: &[f32]) {
    let (heads, head_width) = (plan.shape.heads, plan.shape.head_width);
    for h in 0..heads {
        let own = &token[h * head_width..][..head_width];
        let seen = if plan.released { token } else { own };
        running.take(b * heads + h, plan.scale * dot(seen, plan.vector(vectors, h)), own);
    }
}
