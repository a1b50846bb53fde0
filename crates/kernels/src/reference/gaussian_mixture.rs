//! Mixture of Gaussian keys, arXiv 2110.08678, section 2; one component is the plain Gaussian kernel.

use super::row::{add_scaled, dense, dot, dropout_factors, normalise, score_gradient, visible_keys, weigh};
use crate::{AttentionShape, Averaged, GaussianMixture, Reference, View, Weights, mechanism::Score};

/// Attention with a mixture of Gaussian keys, and all its gradients.
///
/// `l_ijr = log_prior_r - |q_i - k_jr|^2 / (2 s_r)`, or `log_prior_r + q_i.k_jr / s_r` with [`Score::Dot`];
/// `score_ij = LSE_r l_ijr`, or with hard inference the largest `l_ijr` without a prior; `A = softmax_j(score)`;
/// `out_i = sum_j A_ij v_j`, dropout as for softmax. With `rho = softmax_r l` (hard: 1 at the maximum, ties to the
/// lowest index) and `G` the gradient of the scores: `dq_i = -sum_jr G rho (q_i - k_jr) / s_r`,
/// `dk_jr = sum_i G rho (q_i - k_jr) / s_r`, `ds_r = sum G rho |q - k|^2 / (2 s_r^2)`, `dlog_prior_r = sum G rho`,
/// `dshift_r = sum_j dk_jr`.
///
/// `inputs` are those of the operator, in its layout. Gradients are empty without `grad_out`.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn gaussian_mixture(op: &GaussianMixture, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
    let mixture = Mixture::new(op, inputs);
    let (shape, v) = (mixture.shape, inputs[2]);
    let AttentionShape { batch, heads, queries, .. } = shape;

    let mut out = vec![0.0; batch * heads * queries * shape.value_width];
    let mut lse = vec![0.0; batch * heads * queries];
    let mut grads: Vec<Vec<f64>> = match grad_out {
        Some(_) => inputs.iter().map(|input| vec![0.0; input.data.len()]).collect(),
        None => Vec::new(),
    };

    for b in 0..batch {
        for h in 0..heads {
            let (v_rows, out_rows) = (shape.value_rows(b, h / shape.group()), shape.out_rows(b, h));
            for i in 0..queries {
                let seen = visible_keys(&op.mask, &shape, b, i);
                let (scores, shares): (Vec<f64>, Vec<Vec<f64>>) =
                    seen.iter().map(|&j| mixture.score(b, h, i, j)).unzip();
                let values: Vec<&[f64]> = seen.iter().map(|&j| v_rows.row(v.data, j)).collect();
                let (weights, log_sum) = normalise(&scores);
                let row = (b * heads + h) * queries + i;
                let kept = dropout_factors(op.dropout, row, &seen);
                weigh(&weights, &kept, &values, out_rows.row_mut(&mut out, i));
                lse[row] = log_sum;

                let Some(grad_out) = grad_out else { continue };
                let grad_row = out_rows.row(grad_out, i);
                let grad_scores = score_gradient(&weights, &kept, &values, grad_row);
                for (n, &j) in seen.iter().enumerate() {
                    add_scaled(v_rows.row_mut(&mut grads[2], j), weights[n] * kept[n], grad_row);
                    for (r, share) in shares[n].iter().enumerate() {
                        mixture.add_gradients([b, h, i, j, r], grad_scores[n] * share, &mut grads);
                    }
                }
            }
        }
    }
    Reference { out, lse: Some(lse), grads }
}

/// The weights `A` of head `h` of batch row `b`.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn weights<'a>(op: &'a GaussianMixture, inputs: &[View<'a, f64>], b: usize, h: usize) -> Weights<'a> {
    let mixture = Mixture::new(op, inputs);
    let AttentionShape { queries, keys, .. } = mixture.shape;
    Weights::new(Averaged::Values, [queries, keys], move |i| {
        let seen = visible_keys(&op.mask, &mixture.shape, b, i);
        let scores: Vec<f64> = seen.iter().map(|&j| mixture.score(b, h, i, j).0).collect();
        dense(keys, &seen, &normalise(&scores).0)
    })
}

/// The prior of a soft-EM step, `[H,M,S]`: a probability, not its log.
///
/// `pi_jr = mean_i rho_ijr` over the real queries of all batch rows that see key `j`, where `j` is real; a key that no
/// real query sees keeps its prior (section 2.3 of the paper).
///
/// # Panics
/// With hard inference, which has no prior, or if the shapes do not fit together.
pub fn responsibilities(op: &GaussianMixture, inputs: &[View<f64>]) -> Vec<f64> {
    assert!(!op.hard, "hard inference has no prior to update");
    let mixture = Mixture::new(op, inputs);
    let AttentionShape { batch, heads, queries, keys, .. } = mixture.shape;
    let mut prior = vec![0.0; heads * mixture.components * keys];
    for h in 0..heads {
        for j in 0..keys {
            let mut sum = vec![0.0; mixture.components];
            let mut pairs = 0;
            for b in 0..batch {
                let real = op.mask.query_row(b, queries);
                for i in (0..queries).filter(|&i| real.is_none_or(|row| row[i] != 0)) {
                    if visible_keys(&op.mask, &mixture.shape, b, i).contains(&j) {
                        add_scaled(&mut sum, 1.0, &mixture.score(b, h, i, j).1);
                        pairs += 1;
                    }
                }
            }
            for (r, total) in sum.iter().enumerate() {
                prior[(h * mixture.components + r) * keys + j] =
                    if pairs > 0 { total / f64::from(pairs) } else { mixture.log_prior(h, r, j).exp() };
            }
        }
    }
    prior
}

/// The operator's inputs by name.
struct Mixture<'a> {
    op: &'a GaussianMixture,
    shape: AttentionShape,
    components: usize,
    q: &'a [f64],
    k: &'a [f64],
    variance: &'a [f64],
    prior: Option<View<'a, f64>>,
    shift: Option<View<'a, f64>>,
}

impl<'a> Mixture<'a> {
    fn new(op: &'a GaussianMixture, inputs: &[View<'a, f64>]) -> Self {
        let [q, k, v, variance] = [inputs[0], inputs[1], inputs[2], inputs[3]];
        let shape =
            AttentionShape::from_tensors(q.shape, k.shape, v.shape, op.layout, !op.shifted).expect("checked shapes");
        let mut rest = inputs[4..].iter().copied();
        let prior = if op.hard { None } else { rest.next() };
        let shift = if op.shifted { rest.next() } else { None };
        let components = shift.map_or(shape.components, |shift| shift.shape[1]);
        Mixture { op, shape, components, q: q.data, k: k.data, variance: variance.data, prior, shift }
    }

    /// `k_jr`, or `k_j + shift_r`.
    fn key(&self, b: usize, h: usize, j: usize, r: usize) -> Vec<f64> {
        let head = h / self.shape.group();
        match self.shift {
            None => self.shape.key_rows(b, head, r).row(self.k, j).to_vec(),
            Some(shift) => {
                let mut key = self.shape.key_rows(b, head, 0).row(self.k, j).to_vec();
                add_scaled(&mut key, 1.0, &shift.data[self.shift_range(head, r)]);
                key
            }
        }
    }

    /// Elements of `shift [Hk,M,D]` that belong to component `r` of key head `head`.
    fn shift_range(&self, head: usize, r: usize) -> std::ops::Range<usize> {
        let start = (head * self.components + r) * self.shape.head_width;
        start..start + self.shape.head_width
    }

    /// Index of the prior of component `r` of head `h` at key `j`: `[H,M]`, or `[H,M,S]` per position.
    fn prior_index(&self, h: usize, r: usize, j: usize) -> usize {
        let tied = h * self.components + r;
        if self.prior.is_some_and(|prior| prior.shape.len() == 3) { tied * self.shape.keys + j } else { tied }
    }

    /// Log prior, 0 without one.
    fn log_prior(&self, h: usize, r: usize, j: usize) -> f64 {
        self.prior.map_or(0.0, |prior| prior.data[self.prior_index(h, r, j)])
    }

    /// `score_ij` and the share `rho_ijr` of each component in it.
    fn score(&self, b: usize, h: usize, i: usize, j: usize) -> (f64, Vec<f64>) {
        let query = self.shape.query_rows(b, h).row(self.q, i);
        let logits: Vec<f64> = (0..self.components)
            .map(|r| {
                let key = self.key(b, h, j, r);
                let likelihood = match self.op.score {
                    Score::Gaussian => -squared_distance(query, &key) / (2.0 * self.variance[r]),
                    Score::Dot => dot(query, &key) / self.variance[r],
                };
                self.log_prior(h, r, j) + likelihood
            })
            .collect();
        if !self.op.hard {
            let (shares, score) = normalise(&logits);
            return (score, shares);
        }
        let mut best = 0;
        for (r, logit) in logits.iter().enumerate() {
            // Strictly greater: ties go to the lowest index.
            if *logit > logits[best] {
                best = r;
            }
        }
        let shares = (0..self.components).map(|r| if r == best { 1.0 } else { 0.0 }).collect();
        (logits[best], shares)
    }

    /// Propagates `gradient`, that of `l_ijr`, to everything `l_ijr` depends on.
    fn add_gradients(&self, [b, h, i, j, r]: [usize; 5], gradient: f64, grads: &mut [Vec<f64>]) {
        let (head, s) = (h / self.shape.group(), self.variance[r]);
        let q_rows = self.shape.query_rows(b, h);
        let (query, key) = (q_rows.row(self.q, i), self.key(b, h, j, r));
        let (grad_query, grad_key, grad_variance): (Vec<f64>, Vec<f64>, f64) = match self.op.score {
            Score::Gaussian => {
                let towards_key: Vec<f64> = key.iter().zip(query).map(|(k, q)| (k - q) / s).collect();
                let towards_query = towards_key.iter().map(|x| -x).collect();
                (towards_key, towards_query, squared_distance(query, &key) / (2.0 * s * s))
            }
            Score::Dot => {
                let over = |x: &[f64]| x.iter().map(|x| x / s).collect();
                (over(&key), over(query), -dot(query, &key) / (s * s))
            }
        };
        add_scaled(q_rows.row_mut(&mut grads[0], i), gradient, &grad_query);
        let k_rows = self.shape.key_rows(b, head, if self.op.shifted { 0 } else { r });
        add_scaled(k_rows.row_mut(&mut grads[1], j), gradient, &grad_key);
        grads[3][r] += gradient * grad_variance;
        if self.prior.is_some() {
            grads[4][self.prior_index(h, r, j)] += gradient;
        }
        if self.shift.is_some() {
            let last = grads.len() - 1;
            add_scaled(&mut grads[last][self.shift_range(head, r)], gradient, &grad_key);
        }
    }
}

fn squared_distance(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(a, b)| (a - b) * (a - b)).sum()
}
