//! Linear attention (Katharopoulos et al. 2020) and the mixture of linear keys (arXiv 2110.08678, section 2.4).

use super::row::{add_scaled, dense, dot, visible_keys};
use crate::{AttentionShape, Averaged, Linear, Reference, View, Weights};

/// Features are clamped to at least `e^-600`, which does not underflow. The largest of a query is at least 1, so no denominator
/// is 0.
const FLOOR: f64 = -600.0;

/// Linear attention, and all its gradients.
///
/// `phi(x) = elu(x) + 1`; `f_j = sum_r exp(log_prior_r) phi(k_jr)`, or `phi(k_j)` without a mixture;
/// `a_ij = phi(q_i).f_j`; `out_i = sum_j a_ij v_j / sum_j a_ij`, the sums over the keys that query `i` sees.
///
/// With `da_ij = dO_i.(v_j - out_i) / sum_j a_ij`: `dphi_q_i = sum_j da_ij f_j`, `df_j = sum_i da_ij phi(q_i)`,
/// `dv_j = sum_i a_ij dO_i / sum_j a_ij`, `dk_jr = exp(log_prior_r) phi'(k_jr) df_j`,
/// `dlog_prior_r = sum_j exp(log_prior_r) phi(k_jr).df_j`, `dshift_r = sum_j dk_jr`.
///
/// `inputs` are those of the operator, in its layout. Gradients are empty without `grad_out`.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn linear(op: &Linear, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
    let (q, v) = (inputs[0], inputs[2]);
    let shape = sizes(op, inputs);
    let AttentionShape { batch, heads, queries, keys, head_width, .. } = shape;

    let mut out = vec![0.0; batch * heads * queries * shape.value_width];
    let mut grads: Vec<Vec<f64>> = match grad_out {
        Some(_) => inputs.iter().map(|input| vec![0.0; input.data.len()]).collect(),
        None => Vec::new(),
    };

    for b in 0..batch {
        for h in 0..heads {
            let (q_rows, out_rows) = (shape.query_rows(b, h), shape.out_rows(b, h));
            let v_rows = shape.value_rows(b, h / shape.group());
            let parts = Components::new(op, inputs, &shape, b, h);
            let mixed: Vec<Vec<f64>> = (0..keys).map(|j| parts.mixed(j)).collect();
            let mut grad_mixed = vec![vec![0.0; head_width]; keys];

            for i in 0..queries {
                let query = q_rows.row(q.data, i);
                let top = top(query);
                let features: Vec<f64> = query.iter().map(|&x| phi(x - top)).collect();
                let seen = visible_keys(&op.mask, &shape, b, i);
                if seen.is_empty() {
                    continue;
                }
                let weights: Vec<f64> = seen.iter().map(|&j| dot(&features, &mixed[j])).collect();
                let sum: f64 = weights.iter().sum();
                for (&j, a) in seen.iter().zip(&weights) {
                    add_scaled(out_rows.row_mut(&mut out, i), a / sum, v_rows.row(v.data, j));
                }

                let Some(grad_out) = grad_out else { continue };
                let grad_row = out_rows.row(grad_out, i);
                let mean = dot(grad_row, out_rows.row(&out, i));
                let mut grad_features = vec![0.0; head_width];
                for (&j, a) in seen.iter().zip(&weights) {
                    let grad_weight = (dot(grad_row, v_rows.row(v.data, j)) - mean) / sum;
                    add_scaled(&mut grad_features, grad_weight, &mixed[j]);
                    add_scaled(&mut grad_mixed[j], grad_weight, &features);
                    add_scaled(v_rows.row_mut(&mut grads[2], j), a / sum, grad_row);
                }
                let grad_query = q_rows.row_mut(&mut grads[0], i);
                for (c, &x) in query.iter().enumerate() {
                    grad_query[c] += grad_features[c] * slope(x - top);
                }
            }
            if grad_out.is_some() {
                for (j, grad) in grad_mixed.iter().enumerate() {
                    parts.add_gradients(j, grad, &mut grads);
                }
            }
        }
    }
    Reference { out, lse: None, grads }
}

/// The weights `a_ij / sum_j a_ij` of head `h` of batch row `b`.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn weights<'a>(op: &'a Linear, inputs: &[View<'a, f64>], b: usize, h: usize) -> Weights<'a> {
    let shape = sizes(op, inputs);
    let AttentionShape { queries, keys, .. } = shape;
    let parts = Components::new(op, inputs, &shape, b, h);
    let mixed: Vec<Vec<f64>> = (0..keys).map(|j| parts.mixed(j)).collect();
    let (q, q_rows) = (inputs[0].data, shape.query_rows(b, h));
    Weights::new(Averaged::Values, [queries, keys], move |i| {
        let (query, top) = (q_rows.row(q, i), top(q_rows.row(q, i)));
        let features: Vec<f64> = query.iter().map(|&x| phi(x - top)).collect();
        let seen = visible_keys(&op.mask, &shape, b, i);
        let weights: Vec<f64> = seen.iter().map(|&j| dot(&features, &mixed[j])).collect();
        let sum: f64 = weights.iter().sum();
        dense(keys, &seen, &weights.iter().map(|a| a / sum).collect::<Vec<_>>())
    })
}

fn sizes(op: &Linear, inputs: &[View<f64>]) -> AttentionShape {
    let [q, k, v] = [0, 1, 2].map(|at| inputs[at].shape);
    AttentionShape::from_tensors(q, k, v, op.layout, op.mixture && !op.shifted).expect("inputs that passed out_shape")
}

/// What is subtracted from a query, all of whose features would be small: a common factor of them cancels.
fn top(query: &[f64]) -> f64 {
    query.iter().copied().fold(f64::MIN, f64::max).min(0.0)
}

fn phi(x: f64) -> f64 {
    if x < 0.0 { x.max(FLOOR).exp() } else { x + 1.0 }
}

fn slope(x: f64) -> f64 {
    if x < 0.0 { x.max(FLOOR).exp() } else { 1.0 }
}

/// The keys that one query head of one batch row reads, component by component.
struct Components<'a> {
    op: &'a Linear,
    inputs: &'a [View<'a, f64>],
    shape: &'a AttentionShape,
    b: usize,
    h: usize,
    /// `exp(log_prior_r)` up to a common factor, which cancels.
    prior: Vec<f64>,
}

impl<'a> Components<'a> {
    fn new(op: &'a Linear, inputs: &'a [View<'a, f64>], shape: &'a AttentionShape, b: usize, h: usize) -> Self {
        let prior = if op.mixture {
            let components = inputs[3].shape[1];
            let log_prior = &inputs[3].data[h * components..][..components];
            let max = log_prior.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            log_prior.iter().map(|l| (l - max).exp()).collect()
        } else {
            vec![1.0]
        };
        Self { op, inputs, shape, b, h, prior }
    }

    fn key_head(&self) -> usize {
        self.h / self.shape.group()
    }

    /// Index of the first channel of `shift_r`.
    fn shift(&self, r: usize) -> usize {
        (self.key_head() * self.prior.len() + r) * self.shape.head_width
    }

    /// Index of the first channel of `k_jr`, before the shift.
    fn key(&self, j: usize, r: usize) -> usize {
        self.shape.key_rows(self.b, self.key_head(), if self.op.shifted { 0 } else { r }).start(j)
    }

    /// `k_jr`.
    fn component(&self, j: usize, r: usize) -> Vec<f64> {
        let start = self.key(j, r);
        let mut key = self.inputs[1].data[start..start + self.shape.head_width].to_vec();
        if self.op.shifted {
            add_scaled(&mut key, 1.0, &self.inputs[4].data[self.shift(r)..][..self.shape.head_width]);
        }
        key
    }

    /// `f_j = sum_r exp(log_prior_r) phi(k_jr)`.
    fn mixed(&self, j: usize) -> Vec<f64> {
        let mut features = vec![0.0; self.shape.head_width];
        for (r, &prior) in self.prior.iter().enumerate() {
            for (f, x) in features.iter_mut().zip(self.component(j, r)) {
                *f += prior * phi(x);
            }
        }
        features
    }

    /// Propagates the gradient of `f_j` to keys, prior and shift.
    fn add_gradients(&self, j: usize, grad_mixed: &[f64], grads: &mut [Vec<f64>]) {
        for (r, &prior) in self.prior.iter().enumerate() {
            for (c, (x, grad)) in self.component(j, r).into_iter().zip(grad_mixed).enumerate() {
                let grad_key = prior * slope(x) * grad;
                grads[1][self.key(j, r) + c] += grad_key;
                if self.op.mixture {
                    grads[3][self.h * self.prior.len() + r] += prior * phi(x) * grad;
                }
                if self.op.shifted {
                    grads[4][self.shift(r) + c] += grad_key;
                }
            }
        }
    }
}
