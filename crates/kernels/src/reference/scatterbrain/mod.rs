//! Sparse and low-rank attention, separately and combined (Scatterbrain, arXiv 2110.15343, section 4), as dense
//! matrices.

mod features;
mod hashes;
mod support;

use super::row::{add_scaled, dense, dot, normalise, score_gradient, visible_keys, weigh};
use crate::{
    AttentionShape, Averaged, Reference, Scatterbrain, View, Weights, features::FeatureKind, support::SupportKind,
};
pub use features::log_features;
pub use hashes::{Groups, groups};
pub use support::support;

/// Attention with exact weights on a support and features off it, and all its gradients.
///
/// `A~_ij = exp(tau q_i.k_j)` if key `j` is in the support of query `i`, `phi(q_i).phi(k_j)` otherwise (nothing without
/// features; on the support too if naive), over the visible keys; `w_ij = A~_ij / sum_j A~_ij`,
/// `out_i = sum_j w_ij v_j`. All in log space, `ln phi(q_i).phi(k_j) = LSE_a(ln phi_a(q_i) + ln phi_a(k_j))`.
///
/// With `G = w * (dO V^T - rowsum(dO * out))`, the gradient of `ln A~`: `dv = w^T dO`; on the support `dq = tau G K`,
/// `dk = tau G^T Q`; off it the gradient of `ln phi_a(q_i)` is `sum_j G_ij rho_ija`, that of `ln phi_a(k_j)` is
/// `sum_i G_ij rho_ija`, with `rho_ija = phi_a(q_i) phi_a(k_j) / phi(q_i).phi(k_j)`. A naive pair on the support splits
/// `G` between its two parts in proportion to their share of `A~`. With LSH `k_j = q_j / |q_j|`, and `q` receives both
/// gradients. The support is piecewise constant and has no gradient.
///
/// `inputs` are those of the operator, in its layout. Gradients are empty without `grad_out`, and for random inputs.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn scatterbrain(op: &Scatterbrain, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
    let call = Call::new(op, inputs);
    let AttentionShape { batch, heads, queries, keys, .. } = call.shape;
    let scale = op.scale(call.shape.head_width);
    let mut out = vec![0.0; batch * heads * queries * call.shape.value_width];
    let mut lse = Vec::with_capacity(batch * heads * queries);
    let mut grads = vec![Vec::new(); if grad_out.is_some() { inputs.len() } else { 0 }];
    let (mut grad_q, mut grad_k) = (vec![0.0; call.q.data.len()], vec![0.0; call.k.data.len()]);
    let mut grad_v = vec![0.0; call.v.data.len()];

    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        let head = Head::new(&call, b, h);
        let key_head = h / call.shape.group();
        let (q_rows, k_rows) = (call.shape.query_rows(b, h), call.shape.key_rows(b, key_head, 0));
        let (v_rows, out_rows) = (call.shape.value_rows(b, key_head), call.shape.out_rows(b, h));
        let mut slopes_k = vec![vec![0.0; head.features]; keys];
        let mut grad_keys = vec![vec![0.0; call.shape.head_width]; keys];
        for i in 0..queries {
            let row = head.row(i);
            let values: Vec<&[f64]> = row.keys.iter().map(|&j| v_rows.row(call.v.data, j)).collect();
            let kept = vec![1.0; row.keys.len()];
            weigh(&row.weights, &kept, &values, out_rows.row_mut(&mut out, i));
            lse.push(row.log_sum);

            let Some(grad_out) = grad_out else { continue };
            let grad_row = out_rows.row(grad_out, i);
            let grad_logs = score_gradient(&row.weights, &kept, &values, grad_row);
            let mut slopes_q = vec![0.0; head.features];
            for (n, &j) in row.keys.iter().enumerate() {
                add_scaled(v_rows.row_mut(&mut grad_v, j), row.weights[n], grad_row);
                let Pair { exact, low_rank } = row.pairs[n];
                let whole = log_add(exact, low_rank);
                if exact > f64::NEG_INFINITY {
                    let g = grad_logs[n] * (exact - whole).exp();
                    add_scaled(q_rows.row_mut(&mut grad_q, i), scale * g, &head.keys[j]);
                    add_scaled(&mut grad_keys[j], scale * g, head.queries[i]);
                }
                if low_rank > f64::NEG_INFINITY {
                    let g = grad_logs[n] * (low_rank - whole).exp();
                    for a in 0..head.features {
                        let rho = (head.logs_q[i][a] + head.logs_k[j][a] - low_rank).exp();
                        slopes_q[a] += g * rho;
                        slopes_k[j][a] += g * rho;
                    }
                }
            }
            call.pull_features(head.queries[i], &slopes_q, q_rows.row_mut(&mut grad_q, i));
        }
        for (j, grad) in grad_keys.iter_mut().enumerate() {
            call.pull_features(&head.keys[j], &slopes_k[j], grad);
            if call.lsh() {
                add_scaled(q_rows.row_mut(&mut grad_q, j), 1.0, &through_norm(head.queries[j], grad));
            } else {
                add_scaled(k_rows.row_mut(&mut grad_k, j), 1.0, grad);
            }
        }
    }
    if grad_out.is_some() {
        let learned = if call.lsh() { vec![grad_q, grad_v] } else { vec![grad_q, grad_k, grad_v] };
        grads.iter_mut().zip(learned).for_each(|(grad, learned)| *grad = learned);
    }
    Reference { out, lse: Some(lse), grads }
}

/// The matrix of normalised weights `w [B,H,N,S]` that [`scatterbrain`] multiplies the values by; a row that sees nothing
/// is 0.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn matrix(op: &Scatterbrain, inputs: &[View<f64>]) -> Vec<f64> {
    let AttentionShape { batch, heads, queries, .. } = Call::new(op, inputs).shape;
    let head = |pair: usize| {
        let weights = weights(op, inputs, pair / heads, pair % heads);
        (0..queries).flat_map(move |i| weights.row(i))
    };
    (0..batch * heads).flat_map(head).collect()
}

/// The weights `w` of head `h` of batch row `b`.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn weights<'a>(op: &'a Scatterbrain, inputs: &[View<'a, f64>], b: usize, h: usize) -> Weights<'a> {
    let call = Call::new(op, inputs);
    let AttentionShape { queries, keys, .. } = call.shape;
    let head = Head::new(&call, b, h);
    Weights::new(Averaged::Values, [queries, keys], move |i| {
        let row = head.row(i);
        dense(keys, &row.keys, &row.weights)
    })
}

/// The tensors of a call by name.
struct Call<'a> {
    op: &'a Scatterbrain,
    shape: AttentionShape,
    q: View<'a, f64>,
    /// With LSH the queries, before normalisation.
    k: View<'a, f64>,
    v: View<'a, f64>,
    /// `[R,D]`; empty without a projection.
    projection: &'a [f64],
    /// Directions of SMYRF or rotations of LSH.
    drawn: Option<View<'a, f64>>,
}

impl<'a> Call<'a> {
    fn new(op: &'a Scatterbrain, inputs: &[View<'a, f64>]) -> Self {
        let names = crate::Operator::inputs(op);
        let shapes: Vec<&[usize]> = inputs.iter().map(|input| input.shape).collect();
        let shape = op.shape(&shapes).expect("inputs that passed out_shape");
        let input = |name| names.iter().position(|n| *n == name).map(|at| inputs[at]);
        let q = inputs[0];
        Self {
            op,
            shape,
            q,
            k: input("k").unwrap_or(q),
            v: input("v").expect("every mechanism has values"),
            projection: input("projection").map_or(&[], |projection| projection.data),
            drawn: input("directions").or(input("rotations")),
        }
    }

    fn lsh(&self) -> bool {
        self.op.kind() == SupportKind::Lsh
    }

    fn scale(&self) -> f64 {
        self.op.scale(self.shape.head_width)
    }

    fn log_features(&self, kind: FeatureKind, x: &[f64]) -> Vec<f64> {
        log_features(kind, self.projection, self.scale(), x)
    }

    /// Propagates gradients `slopes` of the log features of `x` to `grad` (added).
    fn pull_features(&self, x: &[f64], slopes: &[f64], grad: &mut [f64]) {
        if let Some(kind) = self.op.features {
            features::pull(kind, self.projection, self.scale(), x, slopes, grad);
        }
    }

    fn queries(&self, b: usize, h: usize) -> Vec<&'a [f64]> {
        let rows = self.shape.query_rows(b, h);
        (0..self.shape.queries).map(|i| rows.row(self.q.data, i)).collect()
    }

    /// Keys that query head `h` reads: the input, or with LSH the normalised queries.
    fn keys(&self, b: usize, h: usize) -> Vec<Vec<f64>> {
        let rows = self.shape.key_rows(b, h / self.shape.group(), 0);
        let key = |j| rows.row(self.k.data, j);
        (0..self.shape.keys).map(|j| if self.lsh() { unit(key(j)) } else { key(j).to_vec() }).collect()
    }
}

/// Inputs and weighting of one query head of one batch row.
struct Head<'a> {
    op: &'a Scatterbrain,
    scale: f64,
    queries: Vec<&'a [f64]>,
    keys: Vec<Vec<f64>>,
    /// Keys visible to each query, on the support or not.
    visible: Vec<Vec<usize>>,
    /// Which of them are on the support, by query and key.
    support: Vec<Vec<bool>>,
    /// Number of features `m`, 0 without features.
    features: usize,
    /// `ln phi_a`, by token and feature.
    logs_q: Vec<Vec<f64>>,
    logs_k: Vec<Vec<f64>>,
}

/// Logarithms of the two parts of a pair's `A~_ij`; negative infinity where a part is absent.
#[derive(Clone, Copy)]
struct Pair {
    exact: f64,
    low_rank: f64,
}

/// One row of the matrix: keys with weights.
struct Row {
    keys: Vec<usize>,
    pairs: Vec<Pair>,
    /// They sum to 1.
    weights: Vec<f64>,
    /// `ln sum_j A~_ij`.
    log_sum: f64,
}

impl<'a> Head<'a> {
    fn new(call: &Call<'a>, b: usize, h: usize) -> Self {
        let (queries, keys) = (call.queries(b, h), call.keys(b, h));
        let logs_q: Vec<_> =
            call.op.features.map_or(vec![], |kind| queries.iter().map(|q| call.log_features(kind, q)).collect());
        let logs_k = call.op.features.map_or(vec![], |kind| keys.iter().map(|k| call.log_features(kind, k)).collect());
        let mask = &call.op.mask;
        let visible = (0..queries.len()).map(|i| visible_keys(mask, &call.shape, b, i)).collect();
        Self {
            op: call.op,
            scale: call.scale(),
            support: support::of_head(call, b, h),
            visible,
            features: logs_q.first().map_or(0, Vec::len),
            queries,
            keys,
            logs_q,
            logs_k,
        }
    }

    fn pair(&self, i: usize, j: usize) -> Pair {
        let on_support = self.support[i][j];
        let exact = if on_support { self.scale * dot(self.queries[i], &self.keys[j]) } else { f64::NEG_INFINITY };
        let approximated = self.features > 0 && (!on_support || self.op.naive);
        let low_rank = if approximated { log_dot(&self.logs_q[i], &self.logs_k[j]) } else { f64::NEG_INFINITY };
        Pair { exact, low_rank }
    }

    fn row(&self, i: usize) -> Row {
        let weighed = |&j: &usize| self.features > 0 || self.support[i][j];
        let keys: Vec<usize> = self.visible[i].iter().copied().filter(weighed).collect();
        let pairs: Vec<Pair> = keys.iter().map(|&j| self.pair(i, j)).collect();
        let logs: Vec<f64> = pairs.iter().map(|pair| log_add(pair.exact, pair.low_rank)).collect();
        let (weights, log_sum) = normalise(&logs);
        Row { keys, pairs, weights, log_sum }
    }
}

/// `ln(e^x + e^y)`, at least one of them finite.
fn log_add(x: f64, y: f64) -> f64 {
    let max = x.max(y);
    max + ((x - max).exp() + (y - max).exp()).ln()
}

/// `ln sum_a exp(x_a + y_a)`.
fn log_dot(x: &[f64], y: &[f64]) -> f64 {
    let max = x.iter().zip(y).map(|(a, b)| a + b).fold(f64::NEG_INFINITY, f64::max);
    max + x.iter().zip(y).map(|(a, b)| (a + b - max).exp()).sum::<f64>().ln()
}

/// `x / |x|`; 0 for 0.
fn unit(x: &[f64]) -> Vec<f64> {
    let norm = dot(x, x).sqrt();
    x.iter().map(|x| if norm > 0.0 { x / norm } else { 0.0 }).collect()
}

/// Gradient of `x` where `grad` is that of [`unit`]: `(g - (g.u) u) / |x|`; 0 at 0.
fn through_norm(x: &[f64], grad: &[f64]) -> Vec<f64> {
    let (norm, unit) = (dot(x, x).sqrt(), unit(x));
    let along = dot(grad, &unit);
    grad.iter().zip(&unit).map(|(g, u)| if norm > 0.0 { (g - along * u) / norm } else { 0.0 }).collect()
}
